"""A file in the state folder that exists while the daemon runs, and remains after a crash."""

from __future__ import annotations

import asyncio
import os
import time

import pytest

from governor.daemon.heartbeat import NAME, DaemonHeartbeat
from governor.processes.identity import ProcessIdentity


async def test_it_beats_while_the_daemon_runs_and_is_gone_after_an_orderly_end(tmp_path):
    before = round(time.monotonic(), 3)
    async with DaemonHeartbeat(tmp_path).beating(in_order=lambda: True):
        await asyncio.sleep(0)
        last = DaemonHeartbeat(tmp_path).last
    assert last.daemon == ProcessIdentity.of(os.getpid())
    assert before <= last.at <= round(time.monotonic(), 3)
    assert list(tmp_path.iterdir()) == []


async def test_after_a_crash_it_stays(tmp_path):
    async with DaemonHeartbeat(tmp_path).beating(in_order=lambda: False):
        await asyncio.sleep(0)
    assert f"the daemon died (pid {os.getpid()})" in DaemonHeartbeat(tmp_path).last.exit_reason


@pytest.mark.parametrize("content", [None, b"", b"{", b"4711"])
def test_one_that_cannot_be_read_tells_nothing(tmp_path, content):
    if content is not None:
        (tmp_path / NAME).write_bytes(content)
    assert DaemonHeartbeat(tmp_path).last is None
