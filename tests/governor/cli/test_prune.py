"""`governor prune` on a state folder whose daemon does not run."""

from __future__ import annotations

import asyncio
import json

import pytest
from click.testing import CliRunner

from governor.cli import ask, cli
from governor.daemon.state_lock import state_lock
from governor.journal import removal
from governor.journal.journal import Journal
from governor.messages import Pruned
from tests.support.run_results import run_result


@pytest.fixture
def state(tmp_path):
    """The folder of a daemon that has three ended runs."""

    async def make():
        journal = Journal(tmp_path / "governor.db")
        for uid in ("aaaa", "bbbb", "cccc"):
            await journal.write(
                lambda tx, uid=uid: (
                    tx.submit(uid=uid, key=None, name="n", spec={}, folder="/"),
                    tx.outcome(run_result(uid)),
                    tx.ended(uid),
                )
            )
            (tmp_path / "runs" / uid).mkdir(parents=True)
            (tmp_path / "runs" / uid / "file").write_bytes(bytes(5000))
        await journal.close()

    asyncio.run(make())
    return tmp_path


def prune(state, *arguments):
    return CliRunner().invoke(cli, ["prune", "--state-dir", str(state), *arguments], prog_name="governor")


def kept(state):
    return sorted(path.name for path in (state / "runs").iterdir())


def test_a_dry_run_shows_what_a_prune_removes(state):
    done = prune(state, "--keep-runs", "1", "--dry-run")
    assert (done.exit_code, done.output) == (
        0,
        "aaaa\nbbbb\ngovernor: 2 runs would be pruned, 16 KiB of files\n",
    )
    assert kept(state) == ["aaaa", "bbbb", "cccc"]
    done = prune(state, "--keep-runs", "1", "--json")
    assert json.loads(done.output)["uids"] == ["aaaa", "bbbb"]
    assert json.loads(done.output)["removed"]
    assert kept(state) == ["cccc"]
    assert "governor: 0 runs pruned" in prune(state, "--keep-days", "1").output


def test_a_daemon_answers_when_the_runs_are_marked(monkeypatch):
    found = Pruned(uids=("aaaa",), bytes=5000)
    monkeypatch.setattr(ask, "ask", lambda *_: found)
    done = CliRunner().invoke(cli, ["prune", "--keep-runs", "1"], prog_name="governor")
    assert done.output == "aaaa\ngovernor: 1 run marked, the daemon is removing 4.88 KiB of files\n"


def test_files_that_can_not_be_removed_are_an_error(state, monkeypatch):
    monkeypatch.setattr(removal, "_remove", lambda _: iter(()))
    done = prune(state, "--keep-runs", "2")
    assert (done.exit_code, "files of aaaa below" in done.output) == (77, True)


def test_the_error_names_the_reason(state, tmp_path):
    done = prune(state)
    assert (done.exit_code, "--keep-runs or --keep-days" in done.output) == (2, True)
    (tmp_path / "empty").mkdir()
    assert prune(tmp_path / "empty", "--keep-runs", "1").exit_code == 2
    with state_lock(state):
        done = prune(state, "--keep-runs", "0")
    assert (done.exit_code, kept(state)) == (75, ["aaaa", "bbbb", "cccc"])
