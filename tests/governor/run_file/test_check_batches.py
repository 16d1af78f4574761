"""What a run file says of the batch that the tasks of a phase are."""

import copy

import pytest
import yaml

from governor.units.sections import spell
from tests.support.run_files import GOOD, faults_in

BATCH = {"name": "b", "phases": [{"name": "p", "tasks": [{"id": name, "call": "m:f"} for name in "ab"]}]}
OF_TASKS = {
    "min_num": 1,
    "over_rollout": 0.5,
    "wait_after_min": 5,
    "max_repeat_per_runner": 4,
    "dynamic_timeout": {},
    "grace": 5,
}


def faults_of_batch(run=(), task=(), **phase):
    made = copy.deepcopy(BATCH) | dict(run)
    made["phases"][0] |= phase
    made["phases"][0]["tasks"][0] |= dict(task)
    return [(spell(path), said) for path, said in faults_in(made)]


@pytest.mark.parametrize(
    ("given", "path", "said"),
    [
        ({"min_num": 3}, "phases[0].min_num", "is 3, and there are only 2 tasks"),
        ({"min_num": 0}, "phases[0].min_num", "greater than or equal to 1"),
        ({"over_rollout": 1.0}, "phases[0].over_rollout", "less than 1"),
        ({"over_rollout": -0.1}, "phases[0].over_rollout", "greater than or equal to 0"),
        (
            {"wait_after_min": 5},
            "phases[0].wait_after_min",
            "has no meaning without 'min_num' or 'over_rollout'",
        ),
        ({"wait_after_min": "soon", "min_num": 1}, "phases[0].wait_after_min", "soon"),
        ({"max_repeat_per_runner": 0}, "phases[0].max_repeat_per_runner", "greater than or equal to 1"),
        ({"grace": -1}, "phases[0].grace", "-1"),
        ({"dynamic_timeout": {"ratio": 0.0}}, "phases[0].dynamic_timeout.ratio", "greater than 0"),
        (
            {"dynamic_timeout": {"percentile": 101.0}},
            "phases[0].dynamic_timeout.percentile",
            "less than or equal to 100",
        ),
        (
            {"dynamic_timeout": {"warmup_steps": 1}},
            "phases[0].dynamic_timeout.warmup_steps",
            "did you mean 'warmup_min_steps'?",
        ),
        ({"task": {"priority": "high"}}, "phases[0].tasks[0].priority", "must be a whole number"),
        ({"task": {"priority": 2_000_000}}, "phases[0].tasks[0].priority", "less than or equal to 1000000"),
        ({"run": {"models": "one"}}, "models", "must be a list"),
        ({"run": {"models": [""]}}, "models[0]", "at least 1"),
    ],
)
def test_faults_of_a_batch(given, path, said):
    assert [found for found in faults_of_batch(**given) if found[0].startswith(path) and said in found[1]]


def test_keys_of_a_batch_that_make_sense():
    assert faults_of_batch(**OF_TASKS, task={"priority": -3}, run={"models": ["a", {"url": "b"}]}) == []
    assert faults_of_batch(min_num=2, wait_after_min="1min", max_repeat_per_runner=None, grace=0) == []
    assert faults_of_batch(over_rollout=0.5, wait_after_min=1) == []


@pytest.mark.parametrize("key", OF_TASKS)
def test_keys_of_a_batch_mean_nothing_without_tasks(key):
    run = yaml.safe_load(GOOD)
    run["phases"][0] |= {key: OF_TASKS[key]}
    assert (f"phases[0].{key}", "has no meaning without 'tasks'") in [
        (spell(path), said) for path, said in faults_in(run)
    ]
