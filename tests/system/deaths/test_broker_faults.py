"""Broker faults during a run: they do not change the result, or they end the daemon in order."""

from __future__ import annotations

import asyncio
import signal
from collections import Counter

import pytest

pytestmark = pytest.mark.system


def broker_of(tree):
    [broker] = [p for p in tree.daemon.children(recursive=True) if p.name() == "broker"]
    return broker


def played(events) -> Counter:
    return Counter(e.data["episode"]["index"] for e in events if e.kind == "episode.ended")


async def test_a_broker_frozen_during_a_run_does_not_change_the_result(instance, walk):
    async with instance.serve() as tree:
        uid = await tree.executor.submit(walk(), folder=instance.folder)
        await tree.until(uid, "episode.ended")
        frozen = broker_of(tree)
        frozen.suspend()
        events, result = await tree.end(uid)
        assert result.outcome == "finished", result.reason
        assert played(events) == Counter(range(600))
        assert [e.data for e in events if e.kind == "conductor.exited" and not e.data["expected"]] == []
        assert not frozen.is_running()


@pytest.mark.long
async def test_a_broker_that_cannot_restart_ends_the_daemon_and_the_next_daemon_continues_the_run(
    instance, walk
):
    socket = instance.runtime / "broker.sock"
    async with instance.serve() as tree:
        uid = await tree.executor.submit(walk(), folder=instance.folder)
        await tree.until(uid, "episode.ended")
        broker, daemon = broker_of(tree), tree.daemon
        daemon.suspend()  # it sees the exit and the missing socket at the same time
        broker.send_signal(signal.SIGKILL)
        await asyncio.to_thread(broker.wait)
        socket.unlink()
        socket.mkdir()
        (socket / "x").touch()  # no other broker can listen there
        daemon.resume()
        assert await tree.gone() == 70
    log = (instance.folder / "log").read_text()
    assert '"daemon.fatal"' in log
    assert "the broker died 8 times in a row" in log
    (socket / "x").unlink(missing_ok=True)
    if socket.exists():
        socket.rmdir()
    async with instance.serve() as tree:
        events, result = await tree.end(uid)
        assert result.outcome == "finished", result.reason
        assert played(events) == Counter(range(600))
        [interrupted] = [e.data for e in events if e.kind == "run.interrupted"]
        assert "the broker died 8 times in a row" in interrupted["reason"]
