"""Settings and tasks that make no sense are refused where they are written, with what is allowed."""

from __future__ import annotations

import math
from pathlib import Path

import numpy as np
import pytest

from governor.tasks import OverRollout, SchedulerConfig, Task
from governor.tasks.pickle_store import PickleStore
from governor.tasks.trinity.handover import specs_of

NAN = math.nan


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"runner_per_model": 0}, "runner_per_model must be a whole number, 1 or more, not 0"),
        ({"runner_per_model": 1.5}, "runner_per_model"),
        ({"max_repeat_times_per_runner": -1}, "max_repeat_times_per_runner .* or None, not -1"),
        ({"max_repeat_times_per_runner": 0}, "max_repeat_times_per_runner"),
        ({"max_retry_times": -1}, "max_retry_times must be a whole number, 0 or more"),
        ({"max_timeout": 0}, "max_timeout must be seconds, more than 0"),
        ({"max_timeout": NAN}, "max_timeout .* not nan"),
        ({"max_timeout": "9"}, "max_timeout .* not '9'"),
        ({"grace": -0.1}, "grace must be seconds, 0 or more"),
        ({"grace": NAN}, "grace"),
        ({"stop_timeout": -1}, "stop_timeout"),
        ({"max_pending": 0}, "max_pending"),
        ({"num_cpus": 0}, "num_cpus"),
        ({"over_rollout": OverRollout(ratio=2.0)}, "over_rollout.ratio must be from 0 to 1, not 2.0"),
        ({"over_rollout": OverRollout(wait_after_min=NAN)}, "over_rollout.wait_after_min"),
        ({"min_num_counts": "all"}, "min_num_counts must be 'succeeded' or 'ended', not 'all'"),
        ({"grace": -1, "max_pending": -1}, "grace .*; max_pending|max_pending .*; grace"),
    ],
)
def test_settings(fields, message):
    with pytest.raises(ValueError, match=message):
        SchedulerConfig(**fields)


def spec(task, **config):
    named = PickleStore("test", Path()).name_tasks([task.call], [task.args])
    (found,) = specs_of([task], 0, config=SchedulerConfig(**config), named=named)
    return found


@pytest.mark.parametrize(
    ("fields", "error", "message"),
    [
        ({"id": 5}, TypeError, "task 5: an id must be a str, not 5"),
        ({"id": "a", "depends_on": [5]}, TypeError, "task 'a': an id must be a str, not 5"),
        ({"repeat_times": 0}, ValueError, "task '0': repeat_times must be 1 or more, not 0"),
        ({"repeat_times": 1.0}, TypeError, "repeat_times must be a whole number, not 1.0"),
        ({"retries": -1}, ValueError, "retries must be 0 or more"),
        ({"retries": "2"}, TypeError, "retries must be a whole number, not '2'"),
        ({"timeout": -1}, ValueError, "timeout must be 0 or more"),
        ({"timeout": NAN}, ValueError, "timeout must be 0 or more, not nan"),
        ({"timeout": "1"}, TypeError, "timeout must be a number of seconds, not '1'"),
        ({"priority": "x"}, TypeError, "priority must be a whole number, not 'x'"),
        ({"priority": 1.5}, TypeError, "priority must be a whole number, not 1.5"),
        ({"resources": {"cpus": -1}}, ValueError, r"resources\['cpus'\] must be 0 or more, not -1"),
        ({"resources": {"cpus": math.inf}}, ValueError, r"resources\['cpus'\] must be 0 or more, not inf"),
        ({"resources": {"cpus": NAN}}, ValueError, r"resources\['cpus'\] must be 0 or more, not nan"),
        ({"resources": {"cpus": "1"}}, TypeError, r"resources\['cpus'\] must be a number, not '1'"),
    ],
)
def test_tasks(fields, error, message):
    with pytest.raises(error, match=message):
        spec(Task("m:a", **fields))


def test_numbers_of_numpy_are_numbers():
    made = spec(Task("m:a", priority=np.int64(3), resources={"cpus": np.int64(2), "gpus": np.float32(0.5)}))
    assert (type(made.priority), made.priority, made.resources) == (int, 3, {"cpus": 2.0, "gpus": 0.5})


@pytest.mark.parametrize(("own", "limit"), [(None, 4.0), (10, 4.0), (3, 3)])
def test_max_timeout_bounds_every_attempt(own, limit):
    assert spec(Task("m:a", timeout=own), max_timeout=4.0).timeout == limit
