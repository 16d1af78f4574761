"""The broker's process: replaced when it exits or is silent, otherwise left alone, and the error when it can't be
kept alive.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import re
import signal
import time
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
from structlog.testing import capture_logs

from governor.daemon import broker_supervisor
from governor.daemon.broker_supervisor import FIRST_BACK_OFF, BrokerProcess, wait_until_answering
from governor.errors import ExitCode, FilesRemoved, ProcessError
from governor.processes import process
from governor.processes.silence import TICK_SECONDS
from transport.broker import BrokerSettings
from transport.broker_state import BrokerLimits
from transport.client import Client
from transport.errors import DeadlineExceeded

SILENCE = 2.0


@asynccontextmanager
async def keeping(folder, *, silence=SILENCE, most_deaths=broker_supervisor.MOST_DEATHS, **settings):
    patch = pytest.MonkeyPatch()
    patch.setattr(broker_supervisor, "SILENT_SECONDS", silence)
    patch.setattr(broker_supervisor, "MOST_DEATHS", most_deaths)
    process.shut_down()
    process.warm_up(preload=False)
    endpoint = f"ipc://{folder}/c"
    settings = BrokerSettings(client_endpoint=endpoint, worker_endpoint=f"ipc://{folder}/w", **settings)
    broker = BrokerProcess(settings)
    broker.folder = folder
    async with Client(endpoint) as broker.client:
        broker.running = asyncio.create_task(broker.run())
        try:
            yield broker
        finally:
            broker.running.cancel()
            await asyncio.wait({broker.running})
            patch.undo()
    with contextlib.suppress(ProcessLookupError):
        os.kill(broker.pid, 0)
        pytest.fail("the broker outlived what keeps it alive")
    process.shut_down()


@pytest.fixture
async def kept(tmp_path):
    """A broker that answers; `kept.client` is another client of it."""
    async with keeping(tmp_path, most_deaths=3) as broker:
        await wait_until_answering(broker.client)
        yield broker


async def asked(kept: BrokerProcess, within: float) -> None:
    await kept.client.request("mmi.service", b"x", timeout=within, idempotent=True)


async def test_a_frozen_broker_is_replaced_and_clients_get_an_answer(kept):
    frozen = kept.pid
    os.kill(frozen, signal.SIGSTOP)
    await asked(kept, 30.0)
    assert kept.pid != frozen
    assert kept.restarts == 1
    with pytest.raises(ProcessLookupError):
        os.kill(frozen, 0)


@asynccontextmanager
async def stopped(kept):
    """The broker is stopped meanwhile, and is not replaced."""
    os.kill(kept.pid, signal.SIGSTOP)
    yield
    os.kill(kept.pid, signal.SIGCONT)
    await asked(kept, 30.0)
    assert kept.restarts == 0


async def test_a_broker_that_is_silent_for_a_moment_is_left_alone(kept):
    async with stopped(kept):
        with pytest.raises(DeadlineExceeded):
            await asked(kept, SILENCE / 4)


async def test_our_own_absence_is_no_silence_of_the_broker(kept):
    async with stopped(kept):
        with pytest.raises(DeadlineExceeded):
            await asked(kept, 1.2 * TICK_SECONDS)  # so that a beat is under way
        time.sleep(2 * SILENCE)  # noqa: ASYNC251  # the fault itself: the loop is held up
        with pytest.raises(DeadlineExceeded):
            await asked(kept, TICK_SECONDS / 4)


async def test_a_broker_that_cannot_be_kept_alive_is_an_error_that_lists_its_exits(kept):
    os.kill(kept.pid, signal.SIGSTOP)
    socket = kept.folder / "c"
    socket.unlink()
    socket.mkdir()
    (socket / "x").touch()  # so that no other one can listen there
    os.kill(kept.pid, signal.SIGKILL)
    async with asyncio.timeout(30):
        await asyncio.wait({kept.running})
    with pytest.raises(ProcessError) as caught:
        await kept.running
    assert re.fullmatch(
        r"the broker died 3 times in a row, each within 30 s: exit code -9 after [\d.]+ s; "
        r"exit code 70 after [\d.]+ s; exit code 70 after [\d.]+ s",
        str(caught.value),
    )
    assert kept.restarts == 2


async def test_a_broker_whose_socket_was_removed_is_found_by_new_clients_again(kept):
    removed = kept.pid
    (kept.folder / "w").unlink()
    async with asyncio.timeout(30):
        while kept.pid == removed or not (kept.folder / "w").exists():  # noqa: ASYNC110  # there is no event for it
            await asyncio.sleep(0.01)
    async with Client(f"ipc://{kept.folder}/c") as new:
        await wait_until_answering(new)
    assert kept.restarts == 1


async def test_sockets_that_are_removed_again_and_again_are_bound_at_longer_and_longer_intervals(kept):
    with capture_logs() as logged:
        for _ in range(3):
            removed = kept.pid
            (kept.folder / "w").unlink()
            async with asyncio.timeout(30):
                while kept.pid == removed or not (kept.folder / "w").exists():  # noqa: ASYNC110  # there is no event for it
                    await asyncio.sleep(0.01)
            async with Client(f"ipc://{kept.folder}/c") as new:
                await wait_until_answering(new)
    waits = [line["restart_in"] for line in logged if line["event"] == "broker.restarting"]
    assert waits == [FIRST_BACK_OFF, 2 * FIRST_BACK_OFF, 4 * FIRST_BACK_OFF]


async def test_a_changed_mode_of_a_socket_is_logged_once_and_so_is_its_repair(kept):
    socket = kept.folder / "c"
    with capture_logs() as logged:
        for mode in (0o000, 0o600):
            socket.chmod(mode)
            async with asyncio.timeout(30):
                while [line["mode"] for line in logged if "mode" in line][-1:] != [f"{mode:04o}"]:  # noqa: ASYNC110  # there is no event for it
                    await asyncio.sleep(0.01)
        await asyncio.sleep(1.5 * TICK_SECONDS)  # another look
    told = [line for line in logged if line["event"].startswith("broker.")]
    assert [(line["event"], line["mode"], line["was"]) for line in told] == [
        ("broker.socket_mode_changed", "0000", "0600"),
        ("broker.socket_mode_changed", "0600", "0000"),
    ]
    assert {line["socket"] for line in told} == {str(socket)}
    assert kept.restarts == 0


async def test_a_broker_that_never_binds_its_sockets_is_dead_and_started_again(tmp_path, monkeypatch):
    started, start = [], process.start

    async def hangs_at_first(**what):
        if not started:
            monkeypatch.syspath_prepend(str(Path(__file__).parents[1] / "processes"))
            what |= {"target": "process_targets:nap_in_silence"}
        started.append(await start(**what))
        return started[-1]

    monkeypatch.setattr(process, "start", hangs_at_first)
    monkeypatch.setattr(broker_supervisor, "ANSWER_SECONDS", 2.0)
    with capture_logs() as logged:
        async with keeping(tmp_path) as broker, asyncio.timeout(60):
            await asked(broker, 60.0)
            assert broker.restarts == 1
    assert [line["pid"] for line in logged if line["event"] == "broker.silent"] == [started[0].pid]
    assert started[0].exit_code == -signal.SIGKILL


@pytest.mark.long
async def test_a_public_socket_that_is_full_is_no_silence(tmp_path):
    """Each socket takes one connection: the public one has that of the test, the private one that of the health check."""
    settings = {"limits": BrokerLimits(connections=1), "private_endpoint": f"ipc://{tmp_path}/p"}
    loop = asyncio.get_running_loop()
    with capture_logs() as logged:
        async with keeping(tmp_path, **settings) as broker:
            await asked(broker, 60.0)
            until = loop.time() + broker_supervisor.ANSWER_SECONDS + 2 * TICK_SECONDS
            while loop.time() < until:
                await asked(broker, 10.0)
                await asyncio.sleep(0.2)
            assert broker.restarts == 0
    assert "broker.silent" not in {line["event"] for line in logged}


@pytest.fixture
def answered_late(monkeypatch):
    """The broker's supervisor has received no answer before this is set."""
    go_on, ask = asyncio.Event(), broker_supervisor._ping

    async def ask_late(client):
        await ask(client)
        await go_on.wait()

    monkeypatch.setattr(broker_supervisor, "_ping", ask_late)
    return go_on


async def test_a_socket_that_was_replaced_before_the_first_answer_is_found(answered_late, kept):
    socket = kept.folder / "c"
    socket.unlink()
    socket.mkdir()
    answered_late.set()
    async with asyncio.timeout(60):
        await asyncio.wait({kept.running})
    with pytest.raises(FilesRemoved, match="can't be bound again"):
        await kept.running


async def test_sockets_that_cannot_be_bound_again_are_an_error_that_says_where(kept):
    socket = kept.folder / "c"
    socket.unlink()
    socket.mkdir()
    (socket / "x").touch()
    async with asyncio.timeout(60):
        await asyncio.wait({kept.running})
    with pytest.raises(FilesRemoved, match=rf"can't be bound again \({socket}\): the broker died 3 ") as told:
        await kept.running
    assert told.value.exit_code == ExitCode.TRY_AGAIN
