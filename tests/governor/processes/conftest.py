"""Conductor processes: forkserver and news of children, for the tests of `process`."""

from __future__ import annotations

import asyncio
import json
import socket
from pathlib import Path

import pytest

from governor.processes import process
from governor.processes.readiness import readable

HERE = Path(__file__).parent


async def start(target, payload, *, name="c"):
    """A child that runs a function of `process_targets`."""
    return await process.start(name=name, target=f"process_targets:{target}", payload=payload)


@pytest.fixture(scope="module")
def shut_down():
    process.shut_down()
    yield
    process.shut_down()


@pytest.fixture
def targets(monkeypatch):
    monkeypatch.syspath_prepend(str(HERE))


@pytest.fixture
def news(tmp_path):
    """A datagram socket on which children report: `await news()`; its address is `news.address`."""
    receiver = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM | socket.SOCK_NONBLOCK)
    receiver.bind(str(tmp_path / "news"))

    class News:
        address = str(tmp_path / "news").encode()

        async def __call__(self) -> dict:
            async with asyncio.timeout(10):
                await readable(receiver.fileno())
            return json.loads(receiver.recv(1 << 20))

    yield News()
    receiver.close()
