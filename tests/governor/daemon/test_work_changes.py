"""What the phase at work does not have is refused, with the nearest right word."""

from __future__ import annotations

import pytest

from governor.daemon.steering import require_work
from governor.errors import TryAgain, UsageError
from governor.messages import ChangeWork
from governor.run_file.load import parse

SIMULATE = {"environment": "e", "agents": ["a"], "episodes": 20}
RUN = parse(
    {
        "name": "r",
        "conductors": {"environments": {"e": {"entry": "m:E"}}, "agents": {"a": {"entry": "m:A"}}},
        "phases": [
            {"name": "train", "simulate": SIMULATE, "evaluate": {"every": 10, "episodes": 5}},
            {
                "name": "fit",
                "tasks": [{"id": "load", "call": "m:f"}, {"id": "fit", "call": "m:f", "repeat": 4}],
            },
            {
                "name": "rows",
                "tasks": [{"id": "fit", "call": "m:f", "repeat": 4}],
                "max_repeat_per_runner": 2,
            },
        ],
    }
)
TRAIN, FIT, ROWS = RUN.phases


@pytest.mark.parametrize(
    ("phase", "work", "why"),
    [
        (TRAIN, {}, "name one episode or one task"),
        (TRAIN, {"episode": 1, "task": "load"}, "name one episode or one task"),
        (TRAIN, {"episode": 30}, "phase 'train' has 30 episodes, numbered from 0: none is 30"),
        (TRAIN, {"task": "load"}, "phase 'train' has no task 'load'"),
        (FIT, {"task": "laod"}, "phase 'fit' has no task 'laod'; did you mean 'load'?"),
        (FIT, {"task": "laod[0]"}, "phase 'fit' has no task 'laod'; did you mean 'load'?"),
        (FIT, {"task": "fit[4]"}, "task 'fit' has 4 runs, numbered from 0: none is 4"),
        (FIT, {"task": "load[1]"}, "task 'load' has one run, without a number: say load"),
        (FIT, {"task": "fit[02]"}, "phase 'fit' has no task 'fit[02]'; did you mean 'fit'?"),
        (FIT, {"task": "fit[-1]"}, "phase 'fit' has no task 'fit[-1]'; did you mean 'fit'?"),
        (
            ROWS,
            {"task": "fit[1]"},
            "a runner does several runs of task 'fit' in a row (max_repeat_per_runner), so that one can't be named: say fit",
        ),
        (FIT, {"episode": 0}, "phase 'fit' has tasks alone, and no episodes"),
    ],
)
def test_what_the_phase_does_not_have(phase, work, why):
    with pytest.raises(UsageError) as refused:
        require_work(ChangeWork(uid="r1", change="cancel", **work), phase)
    assert str(refused.value) == why


def test_another_phase_than_the_one_at_work():
    with pytest.raises(TryAgain, match="phase 'fit' is not at work, but 'train'"):
        require_work(ChangeWork(uid="r1", change="cancel", phase="fit", episode=1), TRAIN)
    require_work(ChangeWork(uid="r1", change="requeue", phase="train", episode=29), TRAIN)


@pytest.mark.parametrize("task", ["load", "load[0]", "fit", "fit[3]"])
def test_a_task_and_a_run_of_it(task):
    require_work(ChangeWork(uid="r1", change="cancel", task=task), FIT)
