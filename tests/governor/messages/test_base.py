"""What messages have of their own although others have it too, and what they load."""

from __future__ import annotations

import subprocess
import sys
from typing import get_args

import pytest

import states.events
import states.plan
from governor.messages import base


@pytest.mark.parametrize(
    ("ours", "of_the_state_machine"),
    [
        (base.ConductorKind, states.plan.Kind),
        (base.RunOutcome, states.plan.Outcome),
        (base.Part, states.plan.Part),
        (base.WorkChange, states.plan.WorkChange),
    ],
)
def test_words_are_those_of_the_state_machine(ours, of_the_state_machine):
    assert get_args(ours) == get_args(of_the_state_machine)


def test_a_condition_asks_for_what_the_state_machine_knows():
    assert set(get_args(base.FlowControl)) == {"CONTINUE", *get_args(states.events.Flow)}


@pytest.mark.parametrize(
    ("loaded", "heavy"),
    [
        ("governor.messages", ["states", "pydantic", "governor.messages.executor"]),
        (
            "governor.tasks.runner_process.runner",
            ["states", "pydantic", "structlog", "numpy", "governor.messages.executor"],
        ),
    ],
)
def test_nothing_is_loaded_that_is_not_needed(loaded, heavy):
    program = f"import {loaded}, sys; print([each for each in {heavy} if each in sys.modules])"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert done.stdout == "[]\n"
