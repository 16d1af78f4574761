"""The broker's process: replaced when it dies or falls silent, left alone else, and its end when it can't be kept alive."""

from __future__ import annotations

import asyncio
import contextlib
import os
import re
import signal
import time

import pytest

from governor.broker_process import BrokerProcess, answering
from governor.conductors import process
from governor.errors import ExitCode, FilesRemoved, ProcessError
from governor.silence import BEAT_SECONDS
from transport.client import Client
from transport.errors import DeadlineExceeded

SILENCE = 2.0


@pytest.fixture
async def kept(tmp_path):
    """A broker that answers; `kept.client` is somebody else's client of it."""
    process.shut_down()
    process.warm_up(preload=False)
    endpoint = f"ipc://{tmp_path}/c"
    broker = BrokerProcess(
        client_endpoint=endpoint,
        worker_endpoint=f"ipc://{tmp_path}/w",
        client_group=None,
        silence=SILENCE,
        most_deaths=3,
    )
    broker.folder = tmp_path
    async with Client(endpoint) as broker.client:
        broker.running = asyncio.create_task(broker.run())
        await answering(broker.client)
        yield broker
        broker.running.cancel()
        await asyncio.wait({broker.running})
    with contextlib.suppress(ProcessLookupError):
        os.kill(broker.pid, 0)
        pytest.fail("the broker outlived what keeps it alive")
    process.shut_down()


async def asked(kept: BrokerProcess, within: float) -> None:
    await kept.client.request("mmi.service", b"x", timeout=within, idempotent=True)


async def test_a_frozen_broker_is_replaced_and_who_asks_gets_an_answer(kept):
    frozen = kept.pid
    os.kill(frozen, signal.SIGSTOP)
    await asked(kept, 30.0)
    assert kept.pid != frozen
    assert kept.restarts == 1
    with pytest.raises(ProcessLookupError):
        os.kill(frozen, 0)


async def test_a_broker_that_is_silent_for_a_moment_is_left_alone(kept):
    os.kill(kept.pid, signal.SIGSTOP)
    with pytest.raises(DeadlineExceeded):
        await asked(kept, SILENCE / 4)
    os.kill(kept.pid, signal.SIGCONT)
    await asked(kept, 30.0)
    assert kept.restarts == 0


async def test_our_own_absence_is_no_silence_of_the_broker(kept):
    os.kill(kept.pid, signal.SIGSTOP)
    with pytest.raises(DeadlineExceeded):
        await asked(kept, 1.2 * BEAT_SECONDS)  # so that a beat is under way
    time.sleep(2 * SILENCE)  # noqa: ASYNC251  # the fault itself: the loop is held up
    with pytest.raises(DeadlineExceeded):
        await asked(kept, BEAT_SECONDS / 4)
    os.kill(kept.pid, signal.SIGCONT)
    await asked(kept, 30.0)
    assert kept.restarts == 0


async def test_a_broker_that_cannot_be_kept_alive_is_an_error_that_tells_its_story(kept):
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
        while kept.pid == removed or not (kept.folder / "w").exists():  # noqa: ASYNC110  # nobody tells of it
            await asyncio.sleep(0.01)
    async with Client(f"ipc://{kept.folder}/c") as new:
        await answering(new)
    assert kept.restarts == 1


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
