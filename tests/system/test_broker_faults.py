"""The broker under a run: what becomes of it is invisible to the run's result, or ends the daemon in order."""

from __future__ import annotations

import signal
from collections import Counter

import pytest

pytestmark = pytest.mark.system


def broker_of(tree):
    [broker] = [p for p in tree.daemon.children(recursive=True) if p.name() == "broker"]
    return broker


def played(events) -> Counter:
    return Counter(e.data["episode"]["index"] for e in events if e.kind == "episode.ended")


async def test_a_broker_frozen_in_the_middle_changes_nothing_of_the_result(instance, walk):
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
async def test_a_broker_that_cannot_come_back_ends_the_daemon_and_the_next_one_goes_on(instance, walk):
    socket = instance.runtime / "broker.sock"
    async with instance.serve() as tree:
        uid = await tree.executor.submit(walk(), folder=instance.folder)
        await tree.until(uid, "episode.ended")
        broker = broker_of(tree)
        broker.suspend()
        socket.unlink()
        socket.mkdir()
        (socket / "x").touch()  # so that no other one can listen there
        broker.send_signal(signal.SIGKILL)
        assert await tree.gone() == 70
    told = (instance.folder / "log").read_text()
    assert '"daemon.fatal"' in told
    assert "the broker died 8 times in a row" in told
    (socket / "x").unlink(missing_ok=True)
    if socket.exists():
        socket.rmdir()
    async with instance.serve() as tree:
        events, result = await tree.end(uid)
        assert result.outcome == "finished", result.reason
        assert played(events) == Counter(range(600))
        [said] = [e.data for e in events if e.kind == "run.interrupted"]
        assert "the broker died 8 times in a row" in said["reason"]
