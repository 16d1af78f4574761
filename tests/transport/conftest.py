"""The check that no test leaves a socket, a file descriptor or a socket file behind."""

from __future__ import annotations

import asyncio
import contextlib
import shutil
import tempfile
from multiprocessing import resource_tracker
from pathlib import Path

import pytest
import zmq

from tests.transport.conftest_peers import TransportWorld, open_fds


async def _left_open(before):
    """What another thread of this process, of an earlier test, has open for a moment is not counted."""
    with contextlib.suppress(TimeoutError):
        async with asyncio.timeout(3):
            while open_fds() - before:  # noqa: ASYNC110  # nobody tells of it
                await asyncio.sleep(0.05)
    return open_fds() - before


@pytest.fixture
async def world():
    resource_tracker.ensure_running()  # what multiprocessing keeps for itself is no leak
    before = open_fds()
    folder = Path(tempfile.mkdtemp(prefix="mdp"))
    context = zmq.Context()
    yield TransportWorld(folder, context)
    async with asyncio.timeout(10):
        await asyncio.to_thread(context.term)  # hangs while a socket is open
    leaked = await _left_open(before)
    left = sorted(path.name for path in folder.iterdir())  # noqa: ASYNC240 - a local folder
    shutil.rmtree(folder)
    assert not leaked
    assert not left, "socket files left behind"
