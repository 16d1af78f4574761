"""The task conductor receives what a run file says of a phase's tasks."""

from __future__ import annotations

import pytest

from governor.messages import (
    DynamicTimeoutSpec,
    EndedRuns,
    Failures,
    StartTasks,
    TaskRecord,
    TaskSpec,
    decode_command,
    encode,
)
from governor.run_file.load import parse
from governor.runs.assignment import Assignment
from governor.runs.liveness import silence_limit
from governor.tasks.protocol.wire import PROGRAM


def assignment(phase, **run):
    return Assignment(
        uid="u", run=parse({"name": "r", "phases": [{"name": "p", **phase}], **run}), folder="/"
    )


def test_every_key_of_a_phase_and_its_tasks_reaches_the_conductor():
    made = assignment(
        {
            "mode": "eval",
            "min_num": 1,
            "over_rollout": 0.25,
            "wait_after_min": "2s",
            "max_repeat_per_runner": 3,
            "dynamic_timeout": {
                "ratio": 2.0,
                "warmup_min_steps": 0,
                "percentile": 90.0,
                "window": 5,
                "floor": "1min",
            },
            "grace": 0,
            "tasks": [
                {"id": "a", "call": "m:f", "priority": 7},
                {
                    "id": "b",
                    "call": "m:g",
                    "args": {"x": [1]},
                    "depends_on": ["a"],
                    "repeat": 4,
                    "timeout": "1min",
                    "retries": 2,
                    "resources": {"cpus": 0.5},
                },
            ],
        },
        seed=5,
    )
    assert made.tasks(0, done={}) == StartTasks(
        phase=0,
        name="p",
        seed=5,
        tasks=(
            TaskSpec(id="a", call="m:f", priority=7, is_eval=True),
            TaskSpec(
                id="b",
                call="m:g",
                args={"x": [1]},
                depends_on=("a",),
                repeat=4,
                timeout=60.0,
                retries=2,
                resources={"cpus": 0.5},
                is_eval=True,
            ),
        ),
        max_repeat_per_runner=3,
        min_num=1,
        over_rollout=0.25,
        wait_after_min=2.0,
        dynamic_timeout=DynamicTimeoutSpec(
            ratio=2.0, warmup_min_steps=0, percentile=90.0, window=5, floor=60.0
        ),
        failures=Failures(at_most=0),
        grace=0.0,
    )
    assert made.tasks_of(0) == 5


def test_tasks_that_say_no_retries_have_those_of_their_phase():
    made = assignment(
        {
            "failures": {"at_most": 3, "retry": {"time": 2, "user": 0}},
            "tasks": [{"id": "a", "call": "m:f"}, {"id": "b", "call": "m:f", "retries": 0}],
        }
    ).tasks(0, done={}, failed=2, in_a_row=1)
    assert [(task.retries, task.retry) for task in made.tasks] == [(0, {"time": 2}), (0, {})]
    assert (made.failures, made.failed, made.failed_in_a_row) == (
        Failures(at_most=3, retry={"time": 2, "user": 0}),
        2,
        1,
    )


def test_what_is_not_set_is_the_commands_own_default():
    made = assignment({"tasks": [{"id": "a", "call": "m:f"}]}).tasks(0, done={})
    assert made == StartTasks(
        phase=0, name="p", seed=0, tasks=(TaskSpec(id="a", call="m:f"),), failures=Failures(at_most=0)
    )
    nothing_split = assignment({"tasks": [{"id": "a", "call": "m:f"}], "max_repeat_per_runner": None})
    assert nothing_split.tasks(0, done={}).max_repeat_per_runner is None


def test_what_is_done_is_told_in_the_size_of_its_gaps():
    section = {"tasks": [{"id": "a", "call": "m:f", "repeat": 100_000}]}
    records = (TaskRecord(task="a", run=run, outcome="succeeded", value=run) for run in range(99_000))
    command = assignment(section).tasks(0, done=EndedRuns.fold(records), journal="/j.db")
    packed = encode(command)
    assert len(packed) < 1_000
    assert decode_command(packed) == command
    assert command.done["a"].runs.bounds == [0, 99_000]


def test_models_are_a_setting_of_the_task_conductor_alone():
    models = ["http://a", {"url": "http://b", "weight": 2}]
    made = assignment({"tasks": [{"id": "a", "call": "m:f"}]}, models=models)
    assert made.settings("tasks") == {"models": models}
    assert made.settings("simulation") == {}


@pytest.mark.parametrize("timeout", [None, 5.0, 300.0])
def test_a_worker_waits_until_a_conductor_that_hangs_with_the_lock_has_been_replaced(timeout):
    made = assignment(
        {"simulate": {"environment": "e", "agents": ["a"], "episodes": 1, "episode_timeout": timeout}},
        conductors={"environments": {"e": {"entry": "m:E"}}, "agents": {"a": {"entry": "m:A"}}},
        deadlines={"start": "20s", "liveness": "7s"},
    )
    limit = silence_limit(made.run, "environment.e", 0)
    waits = made.simulation(0).return_seconds
    assert waits == (20 + limit if timeout else 87)


def test_a_task_with_a_command_is_a_call_of_the_runners_own():
    command = {"id": "a", "command": ["train", "{lr}"], "args": {"lr": 1}, "env": {"X": 1}, "retries": 2}
    run = parse({"name": "r", "phases": [{"name": "p", "grace": 3, "tasks": [command]}]})
    [spec] = Assignment(uid="u", run=run, folder=".").tasks(0, done={}).tasks
    assert spec.call == PROGRAM
    assert spec.args == {
        "command": ("train", "{lr}"),
        "args": {"lr": 1},
        "cwd": None,
        "env": {"X": "1"},
        "stdin": None,
        "result": None,
        "grace": 3.0,
    }
    assert spec.retries == 2
