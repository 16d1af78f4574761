"""The reserve, and what is said of a disk that is full or read-only."""

from __future__ import annotations

import asyncio
import errno
import os
import sqlite3
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest

from governor.daemon import folders
from governor.daemon.state_lock import state_lock
from governor.errors import NoRoom, NotPermitted
from governor.files import write_whole
from governor.journal import disk_reserve
from governor.journal.disk_reserve import Reserve
from governor.journal.journal import Journal
from governor.messages import TaskRecord
from governor.metrics import Metrics
from governor.run_file.load import parse
from governor.runs.active_run import ActiveRun
from governor.runs.assignment import Assignment
from governor.runs.record.result import whole_result
from states.effects import WriteResult
from tests.support.full_disk import full_beyond

MIB = 1 << 20
FULL = OSError(errno.ENOSPC, "full")


def test_the_reserve_takes_its_room_and_gives_it_up_once(tmp_path):
    used = []
    reserve = Reserve(tmp_path, on_used=used.append)
    for _ in range(2):
        reserve.take()
    assert reserve.path.stat().st_blocks * 512 >= 4 * MIB
    assert reserve.give_up(OSError("no space"))
    assert not reserve.give_up(OSError("no space"))
    assert not reserve.path.exists()
    [said] = used
    assert said.exit_code == 75
    assert f"the disk of {tmp_path} is full (no space)" in str(said)
    reserve.take()
    assert reserve.release()
    assert len(used) == 1


def test_without_room_for_it_there_is_no_start_and_nothing_is_left(tmp_path):
    with full_beyond(MIB), pytest.raises(NoRoom, match="make room"):
        Reserve(tmp_path).take()
    assert list(tmp_path.iterdir()) == []


def test_a_reserve_of_before_is_no_room_to_work_in(tmp_path, monkeypatch):
    reserve = Reserve(tmp_path)
    reserve.take()
    left = disk_reserve.shutil.disk_usage(tmp_path)._replace(free=3 * MIB)
    monkeypatch.setattr(disk_reserve.shutil, "disk_usage", lambda _: left)
    with pytest.raises(NoRoom, match=r"has 3 MiB left beside the reserve.*prune --state-dir"):
        Reserve(tmp_path).take()
    assert list(tmp_path.iterdir()) == []


def with_files_left(monkeypatch, number):
    monkeypatch.setattr(disk_reserve, "files_left", lambda _: number)


def test_a_disk_with_hardly_a_file_left_takes_no_daemon_and_no_run(tmp_path, monkeypatch):
    with_files_left(monkeypatch, 127)
    with pytest.raises(NoRoom, match=r"room for 127 more files.*`df -i`.*prune --state-dir"):
        Reserve(tmp_path).take()
    assert list(tmp_path.iterdir()) == []
    with pytest.raises(NoRoom, match=r"room for 127 more files.*prune"):
        disk_reserve.require(tmp_path, 0)
    with_files_left(monkeypatch, None)
    disk_reserve.require(tmp_path, 0)


def test_the_reserve_is_needed_when_there_is_no_file_left(tmp_path, monkeypatch):
    used = []
    reserve = Reserve(tmp_path, size=1 << 16, on_used=used.append)
    reserve.take()
    assert not reserve.is_needed()
    with_files_left(monkeypatch, 31)
    assert reserve.is_needed()
    assert len(used) == 1


def test_a_folder_that_is_gone_is_not_full(tmp_path):
    (tmp_path / "sockets").mkdir()
    reserve = Reserve(tmp_path, size=1 << 16, sockets=tmp_path / "sockets")
    reserve.take()
    (tmp_path / "sockets").rmdir()
    assert not reserve.is_needed()


class Quota:
    """As `posix_fallocate`, on a disk with room of which this user may take no more."""

    def __init__(self):
        self.is_used_up = False

    def allocate(self, file, offset, size):
        if self.is_used_up:
            raise OSError(errno.EDQUOT, os.strerror(errno.EDQUOT))
        os.posix_fallocate(file, offset, size)


@pytest.mark.parametrize("of_sockets", [False, True])
def test_the_reserve_is_needed_when_the_quota_is_used_up(tmp_path, of_sockets):
    used, quota = [], Quota()
    allocate = quota.allocate
    sockets = tmp_path / "sockets"
    sockets.mkdir()

    def only_there(file, offset, size):
        there = Path(f"/proc/self/fd/{file}").readlink().parent == sockets
        (quota.allocate if there else os.posix_fallocate)(file, offset, size)

    if of_sockets:
        allocate = only_there
    reserve = Reserve(tmp_path, size=1 << 16, on_used=used.append, sockets=sockets, allocate=allocate)
    reserve.take()
    assert not reserve.is_needed()
    quota.is_used_up = True
    assert reserve.is_needed()
    [said] = used
    assert os.strerror(errno.EDQUOT) in str(said)
    assert sorted(path.name for path in tmp_path.rglob("*")) == ["sockets"]
    if not of_sockets:
        with pytest.raises(NoRoom, match="make room"):
            reserve.take()


def test_less_than_the_disk_reserve_is_refused_with_both_figures(tmp_path):
    disk_reserve.require(tmp_path, 0)
    with pytest.raises(
        NoRoom, match=r"has .* left, and a run is taken with 1 PiB \(disk_reserve\)"
    ) as caught:
        disk_reserve.require(tmp_path, 1 << 50)
    assert caught.value.exit_code == 75


def test_which_errors_are_for_want_of_room():
    full = sqlite3.OperationalError("database or disk is full")
    full.sqlite_errorcode = sqlite3.SQLITE_FULL
    assert disk_reserve.is_full(full)
    for number in (errno.ENOSPC, errno.EDQUOT, errno.EFBIG):
        assert disk_reserve.is_full(OSError(number, "x"))
    for other in (OSError(errno.EROFS, "x"), OSError(errno.EACCES, "x"), ValueError("x"), sqlite3.Error("x")):
        assert not disk_reserve.is_full(other)


@pytest.mark.parametrize(
    ("number", "raised"),
    [("ENOSPC", NoRoom), ("EROFS", NoRoom), ("EDQUOT", NoRoom), ("EACCES", NotPermitted)],
)
def test_a_state_folder_without_locks_is_refused_with_the_reason(tmp_path, monkeypatch, number, raised):
    def refuse(*_):
        raise OSError(getattr(errno, number), os.strerror(getattr(errno, number)))

    with monkeypatch.context() as disk_of_today:
        disk_of_today.setattr(os, "open", refuse)
        with pytest.raises(raised, match=os.strerror(getattr(errno, number))), state_lock(tmp_path):
            pass


def test_a_lock_that_cannot_say_who_holds_it_is_no_lock(tmp_path):
    with full_beyond(0), pytest.raises(NoRoom), state_lock(tmp_path):
        pass
    with state_lock(tmp_path):
        pass


def test_a_folder_that_cannot_be_made_for_want_of_room_is_no_bad_configuration(tmp_path, monkeypatch):
    def refuse(*_, **__):
        raise OSError(errno.EROFS, os.strerror(errno.EROFS))

    monkeypatch.setattr(type(tmp_path), "mkdir", refuse)
    with pytest.raises(NoRoom, match="mount its disk writable"):
        folders.make_private(tmp_path / "new")


def test_a_start_without_room_is_refused_before_any_run(short_path):
    """The whole daemon, on a disk that is full for every file beyond a megabyte."""
    program = f"""
import resource, runpy, sys
resource.setrlimit(resource.RLIMIT_FSIZE, ({MIB}, resource.RLIM_INFINITY))
sys.argv = ["governor", "serve", "--state-dir", {str(short_path / "s")!r}, "--runtime-dir", {str(short_path / "r")!r}]
runpy.run_module("governor", run_name="__main__")
"""
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, timeout=60, check=False
    )
    assert done.returncode == 75
    assert "make room" in done.stderr
    assert sorted(path.name for path in (short_path / "s").iterdir()) == ["governor.lock"]


def test_a_file_is_there_whole_or_not_at_all(tmp_path):
    path = tmp_path / "new" / "file"
    write_whole(path, b"first")
    with full_beyond(3), pytest.raises(OSError, match="too large"):
        write_whole(path, b"second")
    assert path.read_bytes() == b"first"
    write_whole(path, b"third")
    assert [each.read_bytes() for each in path.parent.iterdir()] == [b"third"]


async def test_a_result_that_finds_no_room_gives_the_reserve_up_and_is_written_the_next_time(tmp_path):
    used = []
    reserve = Reserve(tmp_path, size=1 << 16, on_used=used.append)
    reserve.take()
    journal = Journal(tmp_path / "governor.db", reserve=reserve)
    run = parse({"name": "r", "phases": [{"name": "p", "tasks": [{"id": "t", "call": "m:f"}]}]}, "r")
    await journal.write(lambda tx: tx.submit(uid="r1", key=None, name="r", spec=run.raw(), folder="/"))
    tasks = [
        TaskRecord(task=f"t{n}", run=0, outcome="succeeded", attempts=1, seconds=0.1) for n in range(2000)
    ]
    await journal.write(lambda tx: (tx.event("r1", "phase.started", {"index": 0}), tx.tasks("r1", 0, tasks)))
    posted = asyncio.Queue()
    context = SimpleNamespace(
        journal=journal,
        run_secret=lambda uid: None,
        run_folder=lambda uid: tmp_path / "runs" / uid,
        socket_folder=lambda uid: tmp_path / "sockets" / uid,
        metrics=Metrics(),
    )
    governor = SimpleNamespace(post=lambda event, detail: posted.put_nowait(event))
    active = ActiveRun(Assignment(uid="r1", run=run, folder="/"), context=context, governor=governor)
    write = WriteResult(outcome="finished", reason="")
    with full_beyond(10):
        active.effects.perform(write)
        assert (await posted.get()).kind == "result.failed"
    assert (len(used), reserve.path.exists()) == (1, False)
    active.effects.perform(write)
    assert (await posted.get()).kind == "result.written"
    assert journal.result_file("r1") == "result.finished.msgpack", "too large for the journal"
    assert len(whole_result(journal, "r1", tmp_path / "runs" / "r1").phases[0].tasks) == 2000
    await journal.close()


def test_what_others_can_spare_is_dropped_before_the_reserve_is_given_up(tmp_path):
    used, spare = [], [True, True, False]
    reserve = Reserve(tmp_path, size=1 << 16, on_used=used.append)
    reserve.take()
    reserve.relieve = lambda: spare.pop(0)
    assert reserve.make_room(FULL)
    assert reserve.make_room(FULL, tried=1)
    assert (used, reserve.path.exists()) == ([], True)
    assert reserve.make_room(FULL, tried=2)
    assert len(used) == 1


def test_a_disk_that_is_filled_again_and_again_is_full(tmp_path):
    used = []
    reserve = Reserve(tmp_path, size=1 << 16, on_used=used.append)
    reserve.take()
    reserve.relieve = lambda: True
    tried = next(tried for tried in range(1000) if reserve.make_room(FULL, tried=tried) and used)
    assert tried == disk_reserve.RELIEVED
