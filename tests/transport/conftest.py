"""The check that no test leaves a socket, a file descriptor or a socket file behind."""

from __future__ import annotations

import asyncio
import shutil
import sys
import tempfile
from multiprocessing import resource_tracker
from pathlib import Path

import pytest
import zmq

sys.path.insert(0, str(Path(__file__).parent))

from conftest_peers import House, open_fds


@pytest.fixture
async def house():
    resource_tracker.ensure_running()  # what multiprocessing keeps for itself is no leak
    before = open_fds()
    folder = Path(tempfile.mkdtemp(prefix="mdp"))
    context = zmq.Context()
    yield House(folder, context)
    async with asyncio.timeout(10):
        await asyncio.to_thread(context.term)  # hangs while a socket is open
    leaked = open_fds() - before
    left = sorted(path.name for path in folder.iterdir())  # noqa: ASYNC240 - a local folder
    shutil.rmtree(folder)
    assert not leaked
    assert not left, "socket files left behind"
