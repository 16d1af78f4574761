"""`governor doctor` finds what keeps a daemon from working, says what to do, and changes nothing."""

from __future__ import annotations

import asyncio
import errno
import json
import os
import resource
import socket
import sqlite3
import subprocess
import sys
import tempfile
import time
from contextlib import closing
from pathlib import Path

import pytest
from click.testing import CliRunner

from governor.cli import cli
from governor.cli.service import examination
from governor.journal import schema
from governor.version import __version__
from tests.support.daemon.api_world import CONFIG, open_api


@pytest.fixture(autouse=True)
def runtime(monkeypatch):
    """Paths of sockets are limited: a folder of pytest's may be too deep."""
    with tempfile.TemporaryDirectory(prefix="gr-", dir="/tmp") as folder:
        monkeypatch.setenv("RUNTIME_DIRECTORY", f"{folder}/r")
        monkeypatch.delenv("GOVERNOR_BROKER", raising=False)
        yield Path(folder) / "r"


@pytest.fixture
def state(tmp_path):
    folder = tmp_path / "state"
    folder.mkdir(mode=0o700)
    schema.connect(folder / "governor.db").close()
    return folder


def doctor(*arguments):
    done = CliRunner().invoke(cli, ["doctor", "--json", *map(str, arguments)], prog_name="governor")
    found = {each["what"]: each for each in json.loads(done.stdout)}
    assert done.exit_code == any(each["level"] == "fault" for each in found.values())
    assert all(each["mend"] or each["level"] == "ok" for each in found.values())
    return found


def test_nothing_is_to_be_mended_where_nothing_is_wrong(state):
    before = sorted(state.iterdir())
    found = doctor("--state-dir", state)
    assert [what for what, each in found.items() if each["level"] == "fault"] == []
    assert found["Python"]["found"].endswith(f"governor {__version__}")
    assert "pyzmq" in found["packages"]["found"]
    assert found["journal"]["found"].startswith("0 runs, ")
    assert (found["daemon"]["level"], found["daemon"]["found"]) == ("note", "none at work")
    assert sorted(state.iterdir()) == before


def test_a_folder_that_is_not_there_yet_is_none_to_mend(tmp_path):
    found = doctor("--state-dir", tmp_path / "later" / "on")
    assert found["state folder"]["found"] == f"{tmp_path / 'later' / 'on'}, which `serve` makes"
    assert found["journal"]["found"] == "none yet"
    assert not (tmp_path / "later").exists()


@pytest.mark.parametrize("folder", ["state", "state/in/there"])
def test_a_state_folder_of_another_user_is_a_fault_with_its_owner(state, tmp_path, monkeypatch, folder):
    stat, access = Path.stat, os.access

    def seen(path, **more):
        if state in path.parents:
            raise PermissionError(errno.EACCES, "Permission denied", str(path))
        return stat(path, **more)

    monkeypatch.setattr(Path, "stat", seen)
    monkeypatch.setattr(os, "access", lambda path, mode: path != state and access(path, mode))
    found = doctor("--state-dir", tmp_path / folder)
    assert found["state folder"]["level"] == "fault"
    assert found["state folder"]["mend"].startswith("be its owner, ")
    assert "journal" not in found


def test_for_people_it_is_a_line_each_with_what_to_do_below(state):
    state.chmod(0o755)
    done = CliRunner().invoke(cli, ["doctor", "--state-dir", str(state)], prog_name="governor")
    lines = done.stdout.splitlines()
    [at] = [number for number, line in enumerate(lines) if line.startswith("note   state folder")]
    assert lines[at].endswith(f"{state} is open to others")
    assert lines[at + 1].split() == ["->", "chmod", "700", str(state)]
    assert done.exit_code == 0


def test_a_newer_journal(state):
    with closing(sqlite3.connect(state / "governor.db")) as journal:
        journal.execute(f"PRAGMA user_version={schema.SCHEMA_VERSION + 1}")
    found = doctor("--state-dir", state)["journal"]
    assert (found["level"], "restore a backup" in found["mend"]) == ("fault", True)


def test_a_damaged_journal(state):
    (state / "governor.db").write_bytes(b"SQLite format 3\0" + b"x" * 9_000)
    assert doctor("--state-dir", state)["journal"]["level"] == "fault"


def test_runs_that_were_pruned_are_not_counted(state):
    with closing(sqlite3.connect(state / "governor.db")) as journal, journal:
        journal.executemany(
            "INSERT INTO runs (uid, name, spec, folder, submitted_at, pruned_at) VALUES (?, 'a', x'80', '/', 1.0, ?)",
            [("a", None), ("b", 2.0), ("c", 2.0)],
        )
    assert doctor("--state-dir", state)["journal"]["found"].startswith("1 run, ")


def test_a_clock_that_went_back(state):
    with closing(sqlite3.connect(state / "governor.db")) as journal, journal:
        journal.execute(
            "INSERT INTO runs (uid, name, spec, folder, submitted_at) VALUES ('a', 'a', x'80', '/', ?)",
            (time.time() + 7_200,),
        )
    found = doctor("--state-dir", state)["journal"]
    assert found["level"] == "fault"
    assert "minutes in the future" in found["found"]


def test_a_disk_with_less_than_its_reserve(state, tmp_path):
    file = tmp_path / "g.toml"
    file.write_text('disk_reserve = "100000TiB"\n')
    found = doctor("--state-dir", state, "--config", file)
    assert found["configuration"]["found"] == str(file)
    assert (found["disk"]["level"], "governor prune" in found["disk"]["mend"]) == ("fault", True)


def test_a_runtime_folder_that_the_daemon_would_not_take(state, runtime):
    runtime.mkdir(mode=0o700)
    (runtime / "thesis.tex").touch()
    found = doctor("--state-dir", state)["runtime folder"]
    assert (found["level"], found["mend"]) == ("fault", "name another with --runtime-dir")
    assert found["found"].startswith(f"{runtime} has thesis.tex, and the daemon removes all that is there")


def test_a_configuration_with_faults_is_told_with_the_findings_before_it(tmp_path):
    file = tmp_path / "g.toml"
    file.write_text("slots = 'no'\nslot = 1\n")
    found = doctor("--config", file)
    assert found["configuration"]["level"] == "fault"
    assert "slots" in found["configuration"]["found"]
    assert "slot" in found["configuration"]["found"]
    assert list(found)[-1] == "configuration"


def test_a_group_that_is_not_there(state, tmp_path):
    file = tmp_path / "g.toml"
    file.write_text('socket_group = "nobody-has-this-name"\n')
    found = doctor("--state-dir", state, "--config", file)["socket group"]
    assert (found["level"], found["mend"].startswith("groupadd ")) == ("fault", True)


@pytest.mark.parametrize(("files", "level"), [(512, "fault"), (2_000, "note"), (5_000, "ok")])
def test_few_open_files(state, files, level):
    if resource.getrlimit(resource.RLIMIT_NOFILE)[1] < files:
        pytest.skip("fewer files may be open here")
    done = subprocess.run(
        ["/bin/sh", "-c", f'ulimit -n {files}; exec "$@"', "sh", sys.executable, "-m", "governor", "doctor", "--json",
         "--state-dir", state], capture_output=True, text=True, timeout=60, check=False, env=dict(os.environ),
    )  # fmt: skip
    [found] = [each for each in json.loads(done.stdout) if each["what"] == "open files"]
    assert (found["level"], done.returncode) == (level, level == "fault")


def test_a_daemon_that_does_not_answer(state, runtime):
    (state / "governor.lock").write_text(f"{os.getpid()}\n")
    found = doctor("--state-dir", state)
    assert found["socket"]["level"] == "note"
    assert f"{runtime / 'broker.sock'} is not there" in found["socket"]["found"]
    assert found["daemon"]["level"] == "fault"


async def test_a_daemon_that_answers_and_one_of_another_version(monkeypatch):
    async with open_api() as daemon:
        endpoint = daemon.executor.endpoint

        def found():
            [one] = examination.examine_daemon(CONFIG, endpoint)
            return one

        answers = await asyncio.to_thread(found)
        assert (answers.level, endpoint in answers.found) == ("ok", True)
        monkeypatch.setattr(examination, "__version__", "9.9")
        other = await asyncio.to_thread(found)
        assert (other.level, other.found) == ("fault", f"governor {__version__}, and this is 9.9")


def test_the_socket_that_systemd_has_given_the_daemon_is_found(state, runtime):
    """As for `runuser -u run-governor -- governor doctor`, which has none of the unit's variables."""
    (state / "governor.lock").write_text(f"{os.getpid()}\n")
    (state / "governor.toml").write_text(f'runtime_dir = "{runtime}/other"\n')
    runtime.mkdir(mode=0o700)
    with closing(socket.socket(socket.AF_UNIX)) as served:
        served.bind(str(runtime / "broker.sock"))
        found = doctor("--state-dir", state, "--config", state / "governor.toml")
    assert (found["socket"]["level"], found["socket"]["found"]) == ("ok", f"{runtime}/broker.sock")
    assert found["runtime folder"]["found"] == str(runtime)
