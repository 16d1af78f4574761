"""What an earlier invocation left: its processes are proven dead, its runs go on, or come to the end that was decided."""

from __future__ import annotations

import subprocess
import sys

import psutil
import pytest

from governor import recovery
from governor.journal import Journal
from governor.messages import EpisodeRecord
from governor.run_file import parse

SPEC = parse(
    {
        "name": "r",
        "phases": [
            {"name": "a", "tasks": [{"id": "t", "call": "m:f"}]},
            {"name": "b", "tasks": [{"id": "t", "call": "m:f"}]},
        ],
    }
).raw()


@pytest.fixture
async def journal(tmp_path):
    opened = Journal(tmp_path / "governor.db")
    await opened.write(lambda tx: tx.submit(uid="r1", key=None, name="r", spec=SPEC, folder="/"))
    yield opened
    await opened.close()


@pytest.fixture
def sleeper():
    process = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"])
    yield process
    process.kill()
    process.wait()


async def record(journal, *events):
    def change(tx):
        tx.started("r1")
        for kind, data in events:
            tx.event("r1", kind, data)

    await journal.write(change)


async def go_on(journal, tmp_path):
    return await recovery.unfinished(journal, runs_folder=tmp_path, runtime_folder=tmp_path / "run")


@pytest.mark.parametrize("ours", [True, False])
async def test_a_process_is_killed_if_it_is_the_recorded_one_not_a_later_owner_of_its_number(
    journal, tmp_path, sleeper, ours
):
    born = psutil.Process(sleeper.pid).create_time()
    await record(
        journal, ("conductor.started", {"pid": sleeper.pid, "created_at": born if ours else born - 60.0})
    )
    assert len(await go_on(journal, tmp_path)) == 1
    assert (sleeper.poll() is not None) == ours


async def test_a_run_goes_on_in_its_first_unfinished_phase(journal, tmp_path):
    [assignment] = await go_on(journal, tmp_path)
    assert assignment.plan.first_phase == 0
    await record(journal, ("phase.ended", {"index": 0, "end": "tasks_done"}), ("run.interrupted", {}))
    (tmp_path / "run" / "r1").mkdir(parents=True)
    [assignment] = await go_on(journal, tmp_path)
    assert assignment.plan.first_phase == 1
    assert not (tmp_path / "run" / "r1").exists()


async def test_a_run_that_resumes_another_has_its_files_before_it_goes_on(journal, tmp_path):
    (tmp_path / ".r1.part" / "results").mkdir(parents=True)
    (tmp_path / ".r2.part").mkdir()
    assert len(await go_on(journal, tmp_path)) == 1
    assert (tmp_path / "r1" / "results").is_dir()
    assert list(tmp_path.glob(".*.part")) == []


async def test_a_run_that_was_being_finalized_comes_to_the_end_that_was_decided(journal, tmp_path):
    episode = EpisodeRecord(index=0, worker=0, seed=1, outcome="terminated", value=2.0, steps=3, seconds=0.1)
    await journal.write(lambda tx: tx.episodes("r1", 0, [episode]))
    await record(
        journal,
        ("phase.started", {"index": 0}),
        ("phase.ended", {"index": 0, "end": "aborted"}),
        ("run.transition", {"from": "running", "to": "finalizing", "outcome": "aborted", "reason": "enough"}),
    )
    assert await go_on(journal, tmp_path) == []
    result = journal.result("r1")
    assert (result.outcome, result.reason) == ("aborted", "enough")
    assert result.phases[0].episodes == {"terminated": 1}
    assert [e.kind for e in journal.events("r1")][-1] == "run.ended"
    assert (tmp_path / "r1" / "result.json").exists()
    assert journal.unended() == []
    assert await go_on(journal, tmp_path) == [], "it ends once"
