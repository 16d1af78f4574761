"""A state folder as a file, and the way back."""

from __future__ import annotations

import io
import os
import resource
import sqlite3
import tarfile
import threading
import time
from contextlib import closing
from pathlib import Path

import pytest

from governor.backup import archive, restoring
from governor.backup.restoring import MARK, restore, restored_from
from governor.backup.snapshot import snapshot
from governor.errors import NoRoom, TryAgain, UsageError
from governor.journal import schema
from governor.journal.journal import Journal
from tests.support.full_disk import full_beyond

LONG_AGO = 1.0


def fill(path, uid, *, ended_at=None):
    with closing(sqlite3.connect(path)) as journal, journal:
        journal.execute(
            "INSERT INTO runs (uid, name, spec, folder, submitted_at, ended_at) VALUES (?, ?, x'80', '/', 1.0, ?)",
            (uid, uid, ended_at),
        )


@pytest.fixture
def state(tmp_path):
    """One run at work, one that ended long ago, and one that has just ended."""
    folder = tmp_path / "state"
    folder.mkdir()
    schema.connect(folder / "governor.db").close()
    for uid, ended_at in (("works", None), ("old", LONG_AGO), ("new", time.time())):
        fill(folder / "governor.db", uid, ended_at=ended_at)
        (folder / "runs" / uid / "episodes").mkdir(parents=True)
        (folder / "runs" / uid / "run.json").write_text(uid)
        (folder / "runs" / uid / "episodes" / "train.arrow").write_bytes(b"steps of " + uid.encode())
    (folder / "runs" / "works" / "program").write_text("#!/bin/sh\n")
    (folder / "runs" / "works" / "program").chmod(0o700)
    (folder / "runs" / "works" / "latest").symlink_to("episodes/train.arrow")
    (folder / "runs" / "works" / "caf\udce9").symlink_to("th\udce9")
    (folder / "runs" / "works" / "logs").mkdir()
    (folder / "runs" / "works" / "logs" / "large").write_bytes(bytes(50_000))
    (folder / "runs" / "works" / "code" / "agents").mkdir(parents=True)
    (folder / "runs" / "works" / "code" / "agents" / "walker.py").write_text("x = 1\n")
    (folder / "keys").mkdir()
    (folder / "keys" / "server.secret").write_text("secret")
    (folder / "ray-token").write_text("not kept")
    os.mkfifo(folder / "runs" / "works" / "pipe")
    return folder


def backed_up(state, meanwhile=lambda: None):
    out = io.BytesIO()
    with snapshot(state) as taken:
        meanwhile()
        about = archive.write(taken, out, machine="m", state_dir=state, made_at=1e9)
    assert list(state.glob(".backup-*")) == []
    return out.getvalue(), about


def target(tmp_path, name="target"):
    folder = tmp_path / name
    folder.mkdir()
    return folder


def open_now():
    return len([*Path("/proc/self/fd").iterdir()])


def tree(folder):
    return {
        str(path.relative_to(folder)): (path.read_bytes(), path.stat().st_mode & 0o777)
        for path in folder.rglob("*")
        if path.is_file() and "governor." not in path.name
    }


def uids(folder):
    with closing(sqlite3.connect(folder / "governor.db")) as journal:
        return {uid for (uid,) in journal.execute("SELECT uid FROM runs")}


def test_all_comes_back(state, tmp_path):
    data, about = backed_up(state)
    assert (about.runs, about.unended) == (3, 1)
    folder = target(tmp_path)
    assert restore(io.BytesIO(data), folder, name="b") == about
    kept = {name: (content, mode & 0o700) for name, (content, mode) in tree(state).items()}
    del kept["ray-token"]
    assert tree(folder) == kept
    assert (folder / "runs/works/latest").readlink().name == "train.arrow"
    assert (folder / "runs/works/caf\udce9").readlink().name == "th\udce9", "names that are not UTF-8"
    assert (folder / "runs/works/logs").is_dir()
    assert uids(folder) == {"works", "old", "new"}
    assert restored_from(folder) == f"restored from the backup of 2001-09-09 01:46:40 UTC, of {state} on m"
    restoring.forget(folder)
    assert restored_from(folder) == ""


def test_files_are_those_of_the_moment(state, tmp_path):
    """Whatever happens to them while they are packed: they grow, are replaced, are removed, are cut; a run is pruned, another begins."""
    works = state / "runs" / "works"

    def meanwhile():
        for growing in ("episodes/train.arrow", "logs/large"):
            with (works / growing).open("ab") as file:
                file.write(b" and more")
        (works / "new").write_text("other")
        (works / "new").replace(works / "run.json")
        (works / "program").unlink()
        os.truncate(works / "logs" / "large", 10)
        for run in ("old", "new"):
            (state / "runs" / run).rename(state / "runs" / f".{run}.pruned")
        fill(state / "governor.db", "later")
        (state / "runs" / "later").mkdir()

    before = tree(state)
    data, _ = backed_up(state, meanwhile)
    folder = target(tmp_path)
    restore(io.BytesIO(data), folder, name="b")
    found = {name: content for name, (content, _) in tree(folder).items()}
    assert found == {name: content for name, (content, _) in before.items() if name != "ray-token"} | {
        "runs/works/logs/large": bytes(50_000)
    }
    assert uids(folder) == {"works", "old", "new"}


def test_no_file_of_a_run_at_work_has_a_second_name(state):
    """The daemon would not write to it any more."""
    with snapshot(state):
        for path in (state / "runs").rglob("*"):
            if path.is_file():
                assert (path.stat().st_nlink > 1) == ("old" in path.parts or "code" in path.parts)


def test_many_files_need_few_descriptors(state):
    for number in range(300):
        (state / "runs" / "works" / f"{number}.json").write_text("{}")
    opened = open_now()
    with snapshot(state) as taken:
        assert open_now() < opened + 10
        assert sum(entry.content == b"{}" for entry in taken.entries) == 300
    assert open_now() == opened


def test_more_open_files_than_are_allowed_is_told(state, monkeypatch):
    monkeypatch.setattr("governor.backup.snapshot._SMALL", 0)
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    allowed = open_now() + 10
    for number in range(allowed):  # numbers are limited, not their count: what is open may have higher ones
        (state / "runs" / "works" / f"{number}.json").write_text("{}")
    resource.setrlimit(resource.RLIMIT_NOFILE, (allowed, hard))
    try:
        with pytest.raises(TryAgain, match=r"raise the limit \(`ulimit -n`\)"), snapshot(state):
            pass
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
    assert list(state.glob(".backup-*")) == []


async def test_the_journal_takes_no_record_while_files_are_opened_and_goes_on(state):
    journal = Journal(state / "governor.db")
    stop, failures = threading.Event(), []

    def write():
        with closing(sqlite3.connect(state / "governor.db", timeout=5)) as other:
            while not stop.is_set():
                try:
                    with other:
                        other.execute("UPDATE runs SET reason = reason || 'x' WHERE uid = 'works'")
                except sqlite3.Error as error:
                    failures.append(error)

    writer = threading.Thread(target=write)
    writer.start()
    try:
        for _ in range(20):
            backed_up(state)
    finally:
        stop.set()
        writer.join()
        await journal.close()
    assert failures == []


def test_a_journal_that_is_never_free_is_a_reason_to_try_again(state, monkeypatch):
    monkeypatch.setattr("governor.backup.snapshot.BUSY_SECONDS", 0.05)
    with closing(sqlite3.connect(state / "governor.db", isolation_level=None)) as other:
        other.execute("BEGIN IMMEDIATE")
        with pytest.raises(TryAgain, match="never free"), snapshot(state):
            pass
    assert list(state.glob(".backup-*")) == []


def test_what_a_backup_that_was_killed_has_left_is_removed_and_that_of_another_is_not(state):
    (state / ".backup-left").mkdir()
    (state / ".backup-left" / "governor.db").touch()
    with snapshot(state):
        [own] = state.glob(".backup-*")
        with snapshot(state):
            assert own.exists()
            assert len(list(state.glob(".backup-*"))) == 2


def test_a_folder_without_a_journal_is_none_of_a_daemon(tmp_path):
    with pytest.raises(UsageError, match="has no journal"), snapshot(tmp_path):
        pass


@pytest.mark.parametrize("size", [0, 100, 512, 5_000, 40_000, -1_025])
def test_what_was_cut_off_is_refused_and_leaves_nothing(state, tmp_path, size):
    data, _ = backed_up(state)
    folder = target(tmp_path)
    with pytest.raises(UsageError, match=r"b (is no backup|has been cut off)"):
        restore(io.BytesIO(data[: size if size >= 0 else -10_240]), folder, name="b")
    assert list(folder.iterdir()) == []


def test_what_a_restore_that_was_killed_has_left_is_removed(state, tmp_path):
    data, _ = backed_up(state)
    folder = target(tmp_path)
    (folder / ".restored-left" / "runs").mkdir(parents=True)
    (folder / ".restored-file").touch()
    restore(io.BytesIO(data), folder, name="b")
    assert [path.name for path in folder.glob(".restored-*")] == [".restored-file"], "it is no folder of ours"


def test_a_changed_byte_is_found(state, tmp_path):
    data, _ = backed_up(state)
    where = data.index(b"steps of works")
    folder = target(tmp_path)
    with pytest.raises(UsageError, match="b has been changed: its digest is another one"):
        restore(io.BytesIO(data[:where] + b"S" + data[where + 1 :]), folder, name="b")
    assert list(folder.iterdir()) == []


def packed(*members):
    out = io.BytesIO()
    with tarfile.open(fileobj=out, mode="w") as tar:
        for name, content, kind in members:
            info = tarfile.TarInfo(name)
            info.type = kind
            if kind == tarfile.REGTYPE:
                info.size = len(content)
                tar.addfile(info, io.BytesIO(content))
            else:
                info.linkname = content
                tar.addfile(info)
    return out.getvalue()


ABOUT = ("backup.json", b'{"format":1,"governor":"0","machine":"m","state_dir":"/","made_at":1.0,"runs":0,"unended":0}', tarfile.REGTYPE)  # fmt: skip


@pytest.mark.parametrize(
    "members",
    [
        [("runs/../../x", b"x", tarfile.REGTYPE)],
        [("/x", b"x", tarfile.REGTYPE)],
        [("x", b"x", tarfile.REGTYPE)],
        [("runs", "", tarfile.DIRTYPE), ("runs/l", "/tmp", tarfile.SYMTYPE), ("runs/l/x", b"x", tarfile.REGTYPE)],
        [("runs", "/tmp", tarfile.SYMTYPE), ("runs/x", b"x", tarfile.REGTYPE)],
        [("runs", "", tarfile.DIRTYPE), ("runs/p", "", tarfile.FIFOTYPE)],
        [("runs", "", tarfile.DIRTYPE), ("runs/h", "/etc/passwd", tarfile.LNKTYPE)],
    ],
    ids=["up", "absolute", "another", "through a link", "a link for runs", "pipe", "hard link"],
)  # fmt: skip
def test_nothing_leads_outside(tmp_path, members):
    folder = target(tmp_path)
    with pytest.raises(
        UsageError, match=r"b is no backup, or has been cut off: .* (leads outside|is no file)"
    ):
        restore(io.BytesIO(packed(ABOUT, *members)), folder, name="b")
    assert list(folder.iterdir()) == []


def test_a_later_format_is_told_with_the_version_that_knows_it(tmp_path):
    later = ("backup.json", b'{"format": 2, "governor": "3.1"}', tarfile.REGTYPE)
    with pytest.raises(UsageError, match=r"made by governor 3\.1, in a format that .* does not know"):
        restore(io.BytesIO(packed(later)), target(tmp_path), name="b")


@pytest.mark.parametrize("used", ["governor.db", "runs", "keys"])
def test_a_folder_that_is_used_is_left_as_it_is(state, tmp_path, used):
    data, _ = backed_up(state)
    folder = target(tmp_path)
    (folder / used).touch()
    with pytest.raises(UsageError, match=f"{used} is there already"):
        restore(io.BytesIO(data), folder, name="b")
    assert [path.name for path in folder.iterdir()] == [used]


def test_a_full_disk_leaves_nothing(state, tmp_path):
    data, _ = backed_up(state)
    folder = target(tmp_path)
    with full_beyond(10_000), pytest.raises((NoRoom, OSError)):
        restore(io.BytesIO(data), folder, name="b")
    assert not (folder / "governor.db").exists()
    assert [path.name for path in folder.iterdir() if path.name != MARK] == []
