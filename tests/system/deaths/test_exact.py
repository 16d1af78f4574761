"""A training of one worker in which processes are killed is the same training: steps on record and state, byte for byte."""

from __future__ import annotations

import random
from pathlib import Path

import pytest

from tests.support.exact_runs import (
    FOLDERS,
    LAKE,
    POLE,
    STEADY,
    Disturbed,
    difference,
    is_exact,
    random_kills,
    record,
    run_of,
)

pytestmark = pytest.mark.system


async def played(instance, run, kills):
    disturbed = Disturbed(instance, run, FOLDERS[run["name"]])
    result = await disturbed.play(kills)
    assert result.outcome == "finished", result.reason
    return result, record(run, Path(result.folder)), disturbed.killed


@pytest.mark.timeout(240)
@pytest.mark.parametrize(
    ("transport", "kills"),
    [
        ("in_process", [("simulation", 40, 0.01), ("stop", 180, 0.0)]),
        (
            "conductors",
            [("agent.learner", 30, 0.01), ("environment.world", 60, 0.01), ("simulation", 90, 0.0)],
        ),
        pytest.param("in_process", [("daemon", 40, 0.01), ("forkserver", 180, 0.0)], marks=pytest.mark.long),
        pytest.param("conductors", [("daemon", 40, 0.01), ("stop", 180, 0.0)], marks=pytest.mark.long),
    ],
)
async def test_kills_leave_no_trace_in_steps_and_state(instance, transport, kills):
    run = run_of({**LAKE, "simulate": {"episodes": 120, "max_steps": 100}}, transport)
    _, undisturbed, _ = await played(instance, run, [])
    result, disturbed, killed = await played(instance, run, kills)
    assert killed == [victim for victim, _, _ in kills]
    assert difference(undisturbed, disturbed) == ""
    exact = [phase.exact for phase in result.phases]
    assert True in exact
    assert False not in exact, [phase.not_exact for phase in result.phases]


@pytest.mark.long
@pytest.mark.timeout(600)
@pytest.mark.parametrize("transport", ["in_process", "conductors"])
@pytest.mark.parametrize("example", [LAKE, POLE, STEADY], ids=lambda example: example["name"])
async def test_kills_at_random_moments(instance, example, transport):
    run = run_of({**example, "simulate": {**example["simulate"], "episodes": 60}}, transport)
    _, undisturbed, _ = await played(instance, run, [])
    for seed in range(2):
        kills = random_kills(random.Random(seed), transport, episodes=150, number=2)
        result, disturbed, _ = await played(instance, run, kills)
        assert difference(undisturbed, disturbed) == "", kills
        assert not is_exact(run) or False not in [phase.exact for phase in result.phases], kills


async def test_several_workers_say_that_they_are_not_exact(instance, walk):
    async with instance.serve() as tree:
        uid = await tree.executor.submit(walk(), folder=instance.folder)
        await tree.until(uid, "episode.ended")
        tree.daemon.kill()
        await tree.process.wait()
    async with instance.serve() as tree:
        _, result = await tree.end(uid)
    [phase] = result.phases
    assert (phase.exact, phase.not_exact) == (
        False,
        "agent walker: 2 workers: the order of their steps is not on record",
    )
