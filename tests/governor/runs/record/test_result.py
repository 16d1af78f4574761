"""The result of a phase with more task runs than fit into it."""

import json
import math

import pytest

from governor.errors import UsageError
from governor.messages import ReportedSums, RunResult, TaskRecord, TaskReported
from governor.result import Result
from governor.run_file.load import parse
from governor.runs.assignment import Assignment
from governor.runs.record import result
from governor.runs.report_handler import record_all

RUN = parse({"name": "r", "phases": [{"name": "a-b", "tasks": [{"id": "t", "call": "m:f", "repeat": 5}]}]})
RECORDS = [
    TaskRecord(
        task="t",
        run=run,
        outcome="failed" if run == 3 else "succeeded",
        attempts=1,
        value={"n": run},
        metrics={"loss": math.nan},
    )
    for run in (1, 0, 4, 2, 3)
]


@pytest.fixture
async def built(tmp_path, journal):
    """The result of a run with five runs of a task."""

    def change(tx):
        tx.submit(uid="r1", key=None, name="r", spec=RUN.raw(), folder="/")
        tx.event("r1", "phase.started", {"index": 0})
        tx.tasks("r1", 0, RECORDS[:2])
        tx.tasks("r1", 0, RECORDS[2:])

    await journal.write(change)
    (tmp_path / "run").mkdir()

    def build():
        return result.build_result(
            journal=journal,
            assignment=Assignment(uid="r1", run=RUN, folder="/"),
            outcome="finished",
            reason="",
            folder=tmp_path / "run",
        )

    return build


def rows(found: RunResult):
    return [
        (row["phase"], row["task"], row["run"], row["outcome"], json.loads(row["value"]))
        for row in Result.of(found).tasks().to_pylist()
    ]


async def test_as_many_as_fit_are_in_it_in_their_order(built, monkeypatch):
    monkeypatch.setattr(result, "MOST_TASKS", 5)
    [phase] = built().phases
    assert [record.run for record in phase.tasks] == [0, 1, 2, 3, 4]
    assert (phase.task_outcomes, phase.tasks_file) == ({"succeeded": 4, "failed": 1}, None)


async def test_more_are_in_a_file_of_the_run_and_read_from_there(built, monkeypatch, tmp_path):
    in_it = sorted(rows(built()))
    monkeypatch.setattr(result, "MOST_TASKS", 4)
    found = built()
    [phase] = found.phases
    assert phase.tasks == ()
    assert (phase.task_outcomes, phase.tasks_file) == (
        {"succeeded": 4, "failed": 1},
        "results/a-b.tasks.jsonl",
    )
    lines = (tmp_path / "run" / phase.tasks_file).read_text().splitlines()
    assert [json.loads(line)["run"] for line in lines] == [1, 0, 4, 2, 3]
    assert sorted(rows(found)) == in_it
    assert all(row["metrics"] == '{"loss":null}' for row in Result.of(found).tasks().to_pylist())


async def test_without_its_folder_their_rows_are_refused(built, monkeypatch, tmp_path):
    monkeypatch.setattr(result, "MOST_TASKS", 4)
    found = built()
    (tmp_path / "run").rename(tmp_path / "elsewhere")
    with pytest.raises(UsageError, match="is not on this machine"):
        rows(found)


def reported(values, *, task="t", run=0, **more):
    sums = {name: ReportedSums(1, value, value, value, value, **more) for name, value in values.items()}
    return TaskReported(phase=0, task=task, run=run, attempt=1, values=sums)


async def test_what_tasks_report_has_a_curve(built, journal):
    def change(tx):
        record_all(tx, "r1", [reported({"loss": 9.0})])
        tx.event("r1", "run.restarted", {})
        tx.event("r1", "phase.started", {"index": 0})
        record_all(tx, "r1", [reported({"loss": 4.0, "lr": 1.0}), reported({"loss": 2.0}, task="u", run=1)])
        record_all(tx, "r1", [reported({"loss": 1.0}, before=1, seconds=2.5)])

    await journal.write(change)
    row = journal.run("r1")
    [phase] = result.curves_of(journal, row, metric="loss").phases
    assert phase.metrics == ("loss", "lr")
    assert phase.curve.by_step
    found = [(w.first_step, w.count, w.mean, w.last_at) for w in phase.curve.in_order]
    assert found == [(1, 2, 3.0, 0.0), (2, 1, 1.0, 2.5)], "without what was discarded"
    [alone] = result.curves_of(journal, row, metric="u.loss").phases
    assert [(w.first_step, w.mean) for w in alone.curve.in_order] == [(1, 2.0)]
    assert result.curves_of(journal, row, metric="no").phases[0].curve is None
