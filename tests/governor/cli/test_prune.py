"""`governor prune` on a state folder whose daemon does not run."""

from __future__ import annotations

import asyncio
import json

import pytest
from click.testing import CliRunner
from run_results import run_result

from governor.cli import cli
from governor.journal import Journal
from governor.state_lock import StateLock


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


def test_a_dry_run_says_what_would_go_and_the_other_lets_it_go(state):
    done = prune(state, "--keep-runs", "1", "--dry-run")
    assert (done.exit_code, done.output) == (
        0,
        "aaaa\nbbbb\ngovernor: 2 runs would be pruned, 16 KiB of files\n",
    )
    assert kept(state) == ["aaaa", "bbbb", "cccc"]
    done = prune(state, "--keep-runs", "1", "--json")
    assert json.loads(done.output)["uids"] == ["aaaa", "bbbb"]
    assert kept(state) == ["cccc"]
    assert "governor: 0 runs pruned" in prune(state, "--keep-days", "1").output


def test_it_says_why_not(state, tmp_path):
    done = prune(state)
    assert (done.exit_code, "--keep-runs or --keep-days" in done.output) == (2, True)
    (tmp_path / "empty").mkdir()
    assert prune(tmp_path / "empty", "--keep-runs", "1").exit_code == 2
    with StateLock(state):
        done = prune(state, "--keep-runs", "0")
    assert (done.exit_code, kept(state)) == (75, ["aaaa", "bbbb", "cccc"])
