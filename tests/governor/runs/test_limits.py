"""The counts of a run: each attempt of a task once, however it is recorded, and over all invocations."""

from __future__ import annotations

import pytest

from governor.journal.journal import Journal
from governor.messages import TaskAttemptEnded, TaskEnded, TaskRecord, TaskStarted
from governor.run_file.load import parse
from governor.run_file.model import LimitsSection
from governor.runs.assignment import Assignment
from governor.runs.limits import RunLimits, limits_of
from governor.runs.report_handler import record_all
from states.events import LimitExceeded

RUN = {"name": "r", "phases": [{"name": "p", "tasks": [{"id": "t", "call": "m:f"}]}]}


def began(task="t", attempt=1, *, run=0, phase=0):
    return TaskStarted(phase=phase, task=task, run=run, attempt=attempt, pid=1, node="n")


def failed(task="t", attempt=1, *, run=0):
    return TaskAttemptEnded(
        phase=0, task=task, run=run, attempt=attempt, outcome="failed", error="", seconds=1.0
    )


def over(task="t", attempts=1, *, run=0, phase=0):
    record = TaskRecord(task=task, run=run, outcome="succeeded", attempts=attempts, seconds=1.0)
    return TaskEnded(phase=phase, record=record)


def used(*recorded):
    limits = RunLimits(LimitsSection(tasks=1000))
    limits.count(recorded)
    return limits.used["tasks"]


@pytest.mark.parametrize(
    ("recorded", "attempts"),
    [
        ([began(), over()], 1),
        ([over()], 1),
        ([over("a"), over("b", run=1), over("b", run=2), over("b", run=1, phase=1)], 4),
        ([began(), failed(), began(attempt=2), over(attempts=2)], 2),
        ([failed(), failed(attempt=2), over(attempts=3)], 3),
        ([began(), failed(), over(attempts=1)], 1),
        ([over(attempts=0)], 0),
        ([began(), began()], 2),
    ],
    ids=[
        "start and end", "a quick one", "several", "again", "quick ones", "cancelled while it waits", "never begun",
        "begun again",
    ],
)  # fmt: skip
def test_each_attempt_that_has_begun_counts_once(recorded, attempts):
    assert used(*recorded) == attempts


def test_the_limit_is_exceeded_by_the_attempt_beyond_it_and_that_is_reported_once():
    limits = RunLimits(LimitsSection(tasks=2))

    def after(*events):
        limits.count(events)
        return limits.exceeded("r1", 5.0)

    assert after(began("a"), over("b")) is None
    assert after(over("a")) is None
    assert after(began("c"), began("d")) == LimitExceeded("r1", 5.0, limit="tasks", value=2, reached=4)
    assert after(began("e")) is None


def test_another_task_conductor_numbers_its_attempts_from_1():
    limits = RunLimits(LimitsSection(tasks=2))
    limits.count([began()])
    limits.task_conductor_ready()
    limits.count([over()])
    assert limits.used["tasks"] == 2


async def test_what_is_on_record_of_earlier_invocations_counts_and_what_was_inherited_does_not(tmp_path):
    journal = Journal(tmp_path / "governor.db")

    def change(tx):
        tx.submit(uid="r1", key=None, name="r", spec=RUN, folder="/")
        tx.tasks("r1", 0, [over("inherited").record], ended=False)
        tx.event("r1", "conductor.ready", {"conductor": "tasks", "incarnation": 1})
        record_all(tx, "r1", [began("a"), began("b"), failed("c"), over("d")])
        record_all(tx, "r1", [over("b")])
        tx.event("r1", "conductor.ready", {"conductor": "simulation", "incarnation": 1})
        record_all(tx, "r1", [began("c", attempt=2), over("c", attempts=2)])
        tx.event("r1", "conductor.ready", {"conductor": "tasks", "incarnation": 2})
        record_all(tx, "r1", [over("a")])

    await journal.write(change)
    run = parse({**RUN, "limits": {"tasks": 1000}})
    limits = limits_of(Assignment(uid="r1", run=run, folder="/"), journal)
    assert limits.used == {"episodes": 0, "steps": 0, "tasks": 6}
    assert limits.knows_tasks
    unlimited = limits_of(Assignment(uid="r1", run=parse(RUN), folder="/"), journal)
    assert not unlimited.knows_tasks, "they are many: nobody has counted them"
    await journal.close()
