"""`governor backup` and `governor restore`: files, streams, and what each refuses."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from click.testing import CliRunner

from governor.cli import cli
from governor.daemon.state_lock import state_lock
from governor.journal import schema


@pytest.fixture
def state(tmp_path):
    folder = tmp_path / "state"
    folder.mkdir(mode=0o700)
    schema.connect(folder / "governor.db").close()
    return folder


def governor(*arguments):
    return CliRunner().invoke(cli, [*map(str, arguments)], prog_name="governor")


def test_there_and_back(state, tmp_path):
    made = governor("backup", tmp_path / "b.tar", "--state-dir", state)
    assert (made.exit_code, made.stdout) == (0, "")
    assert made.stderr.startswith(f"governor: 0 runs: {tmp_path / 'b.tar'}, ")
    assert (tmp_path / "b.tar").stat().st_mode & 0o777 == 0o600
    back = governor("restore", tmp_path / "b.tar", "--state-dir", tmp_path / "new" / "folder", "--json")
    assert back.exit_code == 0, back.stderr
    assert json.loads(back.stdout)["state_dir"] == str(state)
    assert (tmp_path / "new" / "folder").stat().st_mode & 0o777 == 0o700
    assert sorted(path.name for path in (tmp_path / "new" / "folder").iterdir()) == [
        "governor.db",
        "governor.lock",
        "governor.restored",
    ]


def test_through_a_pipe(state, tmp_path):
    words = [sys.executable, "-m", "governor"]
    made = subprocess.Popen([*words, "backup", "-", "--state-dir", state], stdout=subprocess.PIPE)
    back = [*words, "restore", "-", "--state-dir", tmp_path / "new"]
    done = subprocess.run(back, stdin=made.stdout, capture_output=True, text=True, timeout=60, check=False)
    made.stdout.close()
    assert (made.wait(60), done.returncode) == (0, 0), done.stderr
    assert "governor: 0 runs, restored into " in done.stderr


def test_a_reader_that_is_gone_leaves_no_backup(state):
    reading, writing = os.pipe()
    os.close(reading)
    command = [sys.executable, "-m", "governor", "backup", "-", "--state-dir", state]
    done = subprocess.run(command, stdout=writing, stderr=subprocess.PIPE, text=True, timeout=60, check=False)
    os.close(writing)
    assert done.returncode == 75
    assert (
        done.stderr == "governor: error: the reader of standard output has gone: there is no whole backup\n"
    )


def test_a_file_that_is_there_is_kept(state, tmp_path):
    (tmp_path / "b.tar").write_text("mine")
    refused = governor("backup", tmp_path / "b.tar", "--state-dir", state)
    assert (refused.exit_code, (tmp_path / "b.tar").read_text()) == (2, "mine")
    assert "is there already: name a new file" in refused.stderr


def test_what_is_not_there_is_named(state, tmp_path):
    for arguments, told in (
        (
            ("backup", tmp_path / "no" / "b.tar", "--state-dir", state),
            f"there is no folder {tmp_path / 'no'}",
        ),
        (
            ("backup", state / "governor.db" / "b.tar", "--state-dir", state),
            f"there is no folder {state / 'governor.db'}",
        ),
        (("backup", tmp_path / ("b" * 300), "--state-dir", state), "can't be written: File name too long"),
        (("restore", tmp_path / "b.tar", "--state-dir", tmp_path / "new"), "can't be read: No such file"),
        (("backup", tmp_path / "b.tar", "--state-dir", tmp_path), "has no journal"),
        (("backup", "-", "--json", "--state-dir", state), "--json needs a FILE"),
    ):
        refused = governor(*arguments)
        assert (refused.exit_code, told in refused.stderr) == (2, True), refused.stderr
    assert not list(tmp_path.glob("*b.tar*"))
    assert not (tmp_path / "new").exists()


def test_a_folder_with_a_daemon_is_refused(state, tmp_path):
    governor("backup", tmp_path / "b.tar", "--state-dir", state)
    (tmp_path / "new").mkdir()
    with state_lock(tmp_path / "new"):
        refused = governor("restore", tmp_path / "b.tar", "--state-dir", tmp_path / "new")
    assert (refused.exit_code, "is in use by pid" in refused.stderr) == (75, True)


def test_a_full_disk_is_told_with_the_file_that_finds_no_room(state):
    with Path("/dev/full").open("wb") as full:
        done = subprocess.run(
            [sys.executable, "-m", "governor", "backup", "-", "--state-dir", state],
            stdout=full, stderr=subprocess.PIPE, text=True, timeout=60, check=False,
        )  # fmt: skip
    assert (done.returncode, done.stderr) == (
        75,
        "governor: error: standard output can't be written: No space left on device; make room on its disk\n",
    )
    assert list(state.glob(".backup-*")) == []
