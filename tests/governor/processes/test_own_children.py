"""A child that starts processes of its own: from a copy of itself, below its mark, and none outlives it."""

from __future__ import annotations

import asyncio
import os
import signal
import socket

import psutil
import pytest

from governor.processes import kill_tree, process
from tests.support.living import gone

pytestmark = pytest.mark.usefixtures("shut_down", "targets")


@pytest.fixture
async def family(news):
    """A child, and what its own child has reported."""
    process.warm_up(preload=["wave"])
    target, payload = "process_targets:start_one", news.address
    child = await process.start(name="c", target=target, payload=payload, starts_processes=True)
    yield child, await news()
    child.signal(signal.SIGKILL)
    await child.wait()


async def test_it_starts_processes_from_a_copy_of_itself(family):
    child, report = family
    copy = psutil.Process(report["ppid"])
    assert (copy.name(), copy.ppid(), os.getpgid(copy.pid)) == ("own-forkserver", child.pid, copy.pid)
    assert (report["comm"], report["pgid"]) == ("own", report["pid"])
    assert "wave" in report["modules"], "imported by the forkserver of both"
    assert "process_targets" in report["modules"]


async def test_what_it_starts_has_a_mark_below_its_own(family):
    child, report = family
    mark = kill_tree.read_mark(report["pid"])
    assert mark not in {child.mark, kill_tree.UNMARKED}
    assert report["pid"] in kill_tree.marked()[child.mark]
    assert set(kill_tree._levels(mark)) >= {child.mark}


@pytest.mark.parametrize("victim", ["child", "copy"])
async def test_its_processes_die_with_it_and_with_its_copy(family, victim):
    child, report = family
    os.kill(child.pid if victim == "child" else report["ppid"], signal.SIGKILL)
    await gone(report["pid"])


async def test_user_code_in_such_a_process_may_start_some_itself(news):
    child = await process.start(
        name="c",
        target="process_targets:start_one_that_uses_multiprocessing",
        payload=news.address,
        starts_processes=True,
    )
    assert await news() == {"found": 42}
    assert await child.wait() == 0


async def test_a_child_gets_the_connection_that_it_is_started_with(news):
    ours, theirs = socket.socketpair()
    with ours:
        with theirs:
            child = await process.start(
                name="c", target="process_targets:echo", payload=b"to you", connection=theirs
            )
        ours.settimeout(20)
        assert await asyncio.to_thread(ours.recv, 100) == b"to you"
        assert await child.wait() == 0
        assert ours.recv(1) == b""
