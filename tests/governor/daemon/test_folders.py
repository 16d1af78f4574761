"""Whose folders and files the daemon's are: its make_private, and its clients' socket is the group's, too."""

from __future__ import annotations

import grp
import os
import sqlite3
import stat
import subprocess
from contextlib import nullcontext
from types import SimpleNamespace

import pytest
from structlog.testing import capture_logs

from governor.daemon import folders
from governor.daemon.state_lock import runtime_lock
from governor.errors import ConfigError
from governor.journal import schema
from governor.journal.journal import Journal

GROUP = grp.getgrgid(os.getgid()).gr_name
OTHER_GROUP = next(each.gr_name for each in grp.getgrall() if each.gr_gid != os.getgid())


def mode(path):
    return stat.S_IMODE(path.stat().st_mode)


@pytest.fixture
def runtime_dir(short_path):
    short_path.chmod(0o711)
    folder = short_path / "run"
    folder.mkdir(mode=0o700)
    return folder


async def test_the_journal_and_its_files_are_the_owners_alone(tmp_path):
    umask = os.umask(0o022)
    try:
        journal = Journal(tmp_path / "governor.db")
        await journal.write(lambda tx: tx.submit(uid="a", key=None, name="n", spec={}, folder="/"))
        made = {path.name: mode(path) for path in tmp_path.iterdir()}
        await journal.close()
    finally:
        os.umask(umask)
    assert made == dict.fromkeys(("governor.db", "governor.db-wal", "governor.db-shm"), 0o600)


def test_a_journal_that_others_could_read_is_taken_back(tmp_path):
    path = tmp_path / "governor.db"
    with sqlite3.connect(path) as connection:
        connection.execute("PRAGMA journal_mode=WAL")
        connection.execute("CREATE TABLE t (x)")
        connection.commit()
        for each in tmp_path.iterdir():
            each.chmod(0o644)
        schema.connect(path).close()
        assert {mode(each) for each in tmp_path.iterdir()} == {0o600}
    connection.close()


def test_the_group_reaches_the_folder_of_the_socket_and_cannot_list_it(runtime_dir):
    folders.grant_group(GROUP, runtime_dir)
    assert mode(runtime_dir) == 0o710
    assert runtime_dir.stat().st_gid == os.getgid()


def test_a_folder_that_the_group_reaches_already_stays_as_it_is(runtime_dir):
    runtime_dir.chmod(0o750)
    folders.grant_group(GROUP, runtime_dir)
    assert mode(runtime_dir) == 0o750


@pytest.mark.skipif(os.geteuid() != 0, reason="only root may be somebody else")
def test_only_a_member_of_the_group_connects(runtime_dir):
    gid = grp.getgrnam(OTHER_GROUP).gr_gid
    look = ["test", "-e", str(runtime_dir / "broker.sock")]
    folders.grant_group(OTHER_GROUP, runtime_dir)
    (runtime_dir / "broker.sock").touch()
    for group, code in ((gid, 0), (65534, 1)):
        person = {"user": 65534, "group": group, "extra_groups": []}
        assert subprocess.run(look, check=False, **person).returncode == code


@pytest.mark.skipif(os.geteuid() != 0, reason="only root may give a folder away")
def test_a_folder_that_the_group_cannot_reach_is_refused(short_path, runtime_dir):
    short_path.chmod(0o700)
    with pytest.raises(
        ConfigError, match=rf"no access to {short_path} \(mode 0700\): choose another --runtime"
    ):
        folders.grant_group(OTHER_GROUP, runtime_dir)


def test_a_group_that_is_not_there_is_refused(runtime_dir):
    with pytest.raises(ConfigError, match="there is no group 'nobodys'") as caught:
        folders.grant_group("nobodys", runtime_dir)
    assert caught.value.exit_code == 78


def test_what_an_earlier_daemon_left_is_cleared_and_what_this_one_leaves(runtime_dir):
    (runtime_dir / "left").mkdir()
    with folders.cleared(runtime_dir):
        assert list(runtime_dir.iterdir()) == []
        (runtime_dir / "broker.sock").touch()
    assert list(runtime_dir.iterdir()) == []


def acquire(runtime_dir, state_dir):
    config = SimpleNamespace(runtime_dir=runtime_dir, state_dir=state_dir, socket_group=None)
    with folders.acquired(config):
        pytest.fail("it was not refused")


def test_a_folder_with_files_of_others_is_refused_before_it_is_emptied(runtime_dir, tmp_path):
    for name in ("thesis.tex", "a", "b", "c", "pymp-1"):
        (runtime_dir / name).touch()
    with pytest.raises(
        ConfigError, match=r"run has a, b, c, \.\.\., and the daemon removes all that is there"
    ):
        acquire(runtime_dir, tmp_path / "state")
    assert len(list(runtime_dir.iterdir())) == 5


@pytest.mark.parametrize("state", [".", "state"])
def test_a_folder_above_the_state_is_refused_before_it_is_emptied(runtime_dir, state):
    state_dir = runtime_dir / state
    state_dir.mkdir(exist_ok=True)
    (state_dir / "governor.db").touch()
    with pytest.raises(ConfigError, match=r"run has its state_dir, .*: choose a folder of its own"):
        acquire(runtime_dir, state_dir)
    assert (state_dir / "governor.db").exists()


@pytest.fixture
def take(runtime_dir, tmp_path, monkeypatch):
    """Acquires the folders as a daemon does, but starts no process."""
    monkeypatch.setattr(folders.process, "warm_up", lambda *, folder: None)
    config = SimpleNamespace(runtime_dir=runtime_dir, state_dir=tmp_path, socket_group=None)
    return lambda: folders.acquired(config)


@pytest.mark.parametrize("left", [["pymp-1"], ["broker.sock", "uid0"], []])
def test_a_folder_that_a_daemon_had_is_taken(runtime_dir, take, left):
    for name in left:
        (runtime_dir / name).touch()
    with take(), folders.cleared(runtime_dir):
        assert [path.name for path in runtime_dir.iterdir()] == [folders.MARK]
    assert list(runtime_dir.iterdir()) == []


@pytest.mark.parametrize("removed", range(7))
def test_a_daemon_that_is_killed_while_it_empties_the_folder_leaves_one_that_is_taken(
    runtime_dir, take, monkeypatch, removed
):
    class Killed(BaseException):
        pass

    def kill_after(path, **_):
        if sum(each.exists() for each in made) <= len(made) - removed:
            raise Killed
        unlink(path)

    unlink = type(runtime_dir).unlink
    with take():
        pass
    made = [
        runtime_dir / name for name in ("broker.sock", "private.sock", "workers.sock", "metrics.sock", "uid0")
    ]
    for path in made:
        path.touch()
    with monkeypatch.context() as killing:
        killing.setattr(type(runtime_dir), "unlink", kill_after)
        with pytest.raises(Killed) if removed <= len(made) else nullcontext(), folders.cleared(runtime_dir):
            pass
    with take(), folders.cleared(runtime_dir):
        pass
    assert list(runtime_dir.iterdir()) == []


def test_a_folder_that_another_daemon_has_made_in_the_place_of_ours_is_left_alone(runtime_dir):
    with (
        runtime_lock(runtime_dir),  # holds the folder, so that its number is not given away
        folders.cleared(runtime_dir),
    ):
        runtime_dir.rmdir()
        runtime_dir.mkdir()
        (runtime_dir / "broker.sock").touch()
    assert [each.name for each in runtime_dir.iterdir()] == ["broker.sock"]


@pytest.mark.parametrize(("given", "told"), [(0o700, ""), (0o750, "0750"), (0o701, "0701"), (0o755, "0755")])
def test_a_state_folder_that_others_can_enter_is_logged(tmp_path, given, told):
    tmp_path.chmod(given)
    with capture_logs() as logged:
        folders.warn_if_shared(tmp_path)
    assert [each["mode"] for each in logged] == [told] * bool(told)
