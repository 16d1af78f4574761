"""A journal is used when it is whole: a damaged one is refused with what to do, one that was cut off is taken."""

from __future__ import annotations

import asyncio
import errno
import shutil
import socket
import sqlite3
import subprocess
import sys
from contextlib import ExitStack
from pathlib import Path

import pytest

from governor import config, files
from governor.daemon import systemd
from governor.daemon.daemon import Daemon
from governor.daemon.recovery import Recovery
from governor.daemon.systemd import SystemdNotifier
from governor.errors import ExitCode, JournalDamaged, JournalError, TryAgain
from governor.journal import schema
from governor.journal.journal import Journal

PAGE = 4096
STORED = Path(__file__).with_name("journal_schema_3.sql")


@pytest.fixture
async def path(tmp_path):
    """Of some hundred pages, closed in order."""
    journal = Journal(tmp_path / "governor.db")
    await journal.write(lambda tx: tx.submit(uid="r1", key="k", name="n", spec={}, folder="/"))
    for _ in range(100):
        await journal.write(lambda tx: tx.event("r1", "k", {"x": "y" * 5000}))
    await journal.close()
    return tmp_path / "governor.db"


@pytest.mark.parametrize("pages", [range(3, 100), range(50, 51), range(1)])
def test_a_damaged_journal_is_refused_with_its_first_fault_and_what_to_do(path, pages):
    content = bytearray(path.read_bytes())
    for page in pages:
        content[page * PAGE : (page + 1) * PAGE] = b"\xaa" * PAGE
    path.write_bytes(content)
    with pytest.raises(
        JournalDamaged, match=r"(?i)damaged: .*(page|database).*; put a copy of it back, or move"
    ) as caught:
        schema.examine(path)
    assert caught.value.exit_code == ExitCode.INTERNAL
    assert str(path) in str(caught.value)
    assert path.read_bytes()[: len(content)] == bytes(content), "nothing was written"


async def test_a_whole_one_is_taken_and_one_that_is_not_there_is_made(path, tmp_path):
    schema.examine(path)
    schema.examine(tmp_path / "absent.db")
    assert pragma(tmp_path / "absent.db", "user_version") == schema.SCHEMA_VERSION


async def test_a_log_that_a_loss_of_power_has_cut_loses_incomplete_transactions_only(path, tmp_path):
    journal = Journal(path)
    for number in range(20):
        await journal.write(lambda tx, n=number: tx.event("r1", "late", {"n": n, "x": "y" * 5000}))
    torn = tmp_path / "torn"
    torn.mkdir()
    shutil.copy(path, torn)
    log = path.with_name("governor.db-wal").read_bytes()
    (torn / "governor.db-wal").write_bytes(log[: len(log) // 2 + 777])
    await journal.close()
    schema.examine(torn / "governor.db")
    after = Journal(torn / "governor.db")
    events = after.events("r1", limit=1000)
    assert [event.seq for event in events] == list(range(1, len(events) + 1))
    assert 101 < len(events) < 121
    await after.close()


@pytest.fixture
def old(tmp_path):
    """A journal of schema 3, as the governor of that time wrote it: `old` has ended, `new` resumes it."""
    connection = sqlite3.connect(tmp_path / "governor.db")
    connection.executescript(STORED.read_text())
    connection.close()
    return tmp_path / "governor.db"


async def test_a_journal_of_schema_3_is_taken_over_as_it_is(old):
    for _ in range(2):
        schema.examine(old)
    journal = Journal(old)
    [run] = [row for row in journal.runs(limit=9) if row.uid == "old"]
    assert (run.key, run.outcome, run.pruned_at, run.digest) == ("monday", "finished", None, None)
    assert [event.seq for event in journal.events("old")] == list(range(1, 9))
    assert [event.kind for event in journal.events("old")][-1] == "run.ended"
    assert len([*journal.episodes("old", 0)]) == 3
    assert [record.task for record in journal.result("old").phases[0].tasks] == ["a"]
    assert [row.uid for row in journal.unended()] == ["new"]
    await journal.write(lambda tx: tx.event("new", "k", {}))
    assert journal.last_event("new") == 2
    await journal.close()


def pragma(path, name):
    connection = sqlite3.connect(path)
    (value,) = connection.execute(f"PRAGMA {name}").fetchone()
    connection.close()
    return value


def test_an_older_one_is_rewritten_so_that_it_can_shrink_once_there_is_room(old, monkeypatch):
    assert pragma(old, "auto_vacuum") == 0
    with monkeypatch.context() as full:
        full.setattr(schema.shutil, "disk_usage", lambda _: shutil._ntuple_diskusage(1, 1, 0))
        schema.examine(old)
    assert (pragma(old, "user_version"), pragma(old, "auto_vacuum")) == (schema.SCHEMA_VERSION, 0)
    schema.examine(old)
    assert pragma(old, "auto_vacuum") == 2


async def test_a_new_one_can_shrink(path):
    assert pragma(path, "auto_vacuum") == 2


def test_a_migration_that_fails_leaves_the_old_journal(old, monkeypatch):
    broken = {
        **schema.MIGRATIONS,
        3: schema.MIGRATIONS[3] + "INSERT INTO nowhere VALUES (1);",
    }
    monkeypatch.setattr(schema, "MIGRATIONS", broken)
    with pytest.raises(JournalError, match="nowhere"):
        schema.examine(old)
    assert pragma(old, "user_version") == 3


async def test_each_part_of_a_slow_start_asks_the_service_manager_for_time(path, tmp_path, monkeypatch):
    """Each goes on until the manager has heard it."""
    monkeypatch.setattr(systemd, "EXTEND_SECONDS", 0.03)
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as manager:
        manager.bind(str(tmp_path / "notify"))
        manager.settimeout(30)
        heard = []

        async def clean_up(_):
            await asyncio.to_thread(lambda: heard.append(manager.recv(999)))
            raise TryAgain("far enough")

        monkeypatch.setattr(schema, "examine", lambda _: heard.append(manager.recv(999)))
        monkeypatch.setattr(Recovery, "clean_up", clean_up)
        settings = config.load(options={"state_dir": tmp_path, "runtime_dir": "/tmp/r"})
        notifier = SystemdNotifier(address=str(tmp_path / "notify"))
        with pytest.raises(TryAgain, match="far enough"):
            async with Daemon(config=settings, notifier=notifier, acquired_folders=ExitStack()).running():
                pass
    assert heard == [b"EXTEND_TIMEOUT_USEC=30000"] * 2
    assert path.exists()


def test_a_new_journal_is_there_whole_or_not_at_all(tmp_path, monkeypatch):
    def fails(_):
        raise OSError(errno.EIO, "Input/output error")

    path = tmp_path / "governor.db"
    with monkeypatch.context() as broken:
        broken.setattr(files, "sync_to_disk", fails)
        with pytest.raises(JournalError, match="Input/output error"):
            schema.examine(path)
    assert not path.exists()
    schema.examine(path)
    assert (pragma(path, "user_version"), pragma(path, "auto_vacuum")) == (schema.SCHEMA_VERSION, 2)
    assert pragma(path, "journal_mode") == "wal"
    assert [each.name for each in tmp_path.iterdir() if "part" in each.name] == []


@pytest.mark.skipif(shutil.which("strace") is None, reason="strace is not installed")
@pytest.mark.parametrize(("start", "most"), [("first", 2), ("second", 0)])
def test_how_often_a_start_waits_for_its_disk(tmp_path, start, most):
    """Three seconds each, on a disk that is that slow."""
    path = tmp_path / "governor.db"
    if start == "second":
        schema.examine(path)
    program = f"""
import asyncio, pathlib
from governor.journal import schema
from governor.journal.journal import Journal
async def main():
    path = pathlib.Path({str(path)!r})
    schema.examine(path)
    await Journal(path).close()
asyncio.run(main())
"""
    syncs = [
        "strace",
        "-f",
        "-qq",
        "-o",
        str(tmp_path / "trace"),
        "-e",
        "trace=fsync,fdatasync,sync_file_range",
    ]
    done = subprocess.run(
        [*syncs, sys.executable, "-c", program], capture_output=True, text=True, timeout=60, check=False
    )
    if done.returncode:
        pytest.skip(f"nothing can be traced here: {done.stderr}")
    calls = [
        line
        for line in (tmp_path / "trace").read_text().splitlines()
        if "sync" in line and "resumed" not in line
    ]
    assert len(calls) <= most, calls
