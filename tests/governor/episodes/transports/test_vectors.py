"""Episodes side by side in a vector, in process and through conductors: each is what it is without the others."""

import numpy as np
import pytest

from governor.episodes import trajectories
from tests.support.in_process_commands import inside, outcomes, told
from tests.support.reasons import without_place

BOTH = pytest.mark.parametrize("transport", ["vector", "rounds"])


@BOTH
@pytest.mark.parametrize("entry", ["gymnasium:CartPole-v1", "gymnasium:FrozenLake-v1"])
@pytest.mark.parametrize("agent", ["walk_world:Reflex", "walk_world:Many"])
async def test_an_episode_is_the_same_as_alone(harness, transport, entry, agent):
    alone, _ = await harness.play(
        episodes=30, max_steps=40, name="alone", **inside(entry=entry, agent="walk_world:Reflex")
    )
    (harness.folder / "run/agents/walker.state").unlink()
    command = await harness.stage(transport, size=7, entry=entry, agent=agent)
    beside, end = await harness.play(episodes=30, max_steps=40, incarnation=2, **command)
    assert told(beside) == told(alone)
    assert {record.worker for record in beside} == set(range(7))
    assert (end.end, end.first_failure) == ("max_episodes", "")
    assert harness.state()["learned"] == sum(record.steps for record in alone)
    steps = [trajectories.read(harness.folder / "run", phase).to_pandas() for phase in ("alone", "train")]
    for column in ("episode", "step", "action", "reward", "terminated", "truncated", "seed", "outcome"):
        assert steps[0][column].tolist() == steps[1][column].tolist(), column
    assert np.array_equal(np.stack(steps[0].observation), np.stack(steps[1].observation))


@BOTH
@pytest.mark.parametrize("mode", ["train", "eval"])
async def test_workers_may_have_a_vector_each(harness, transport, mode):
    command = await harness.stage(transport, size=3, pool=2)
    records, _ = await harness.play(episodes=40, workers=2, mode=mode, **command)
    assert sorted((r.index, r.value) for r in records) == [(i, 5.0) for i in range(40)]
    assert {record.worker for record in records} <= set(range(6))
    assert (harness.state() or {}).get("learned") == (200 if mode == "train" else None)


@BOTH
@pytest.mark.parametrize("fault", ["step", "exit", "nan", "four"])
async def test_a_fault_is_one_episodes_alone(harness, transport, fault):
    command = await harness.stage(transport, fault=fault, flag=str(harness.folder / "flag"))
    records, end = await harness.play(episodes=8, **command)
    assert sorted(outcomes(records)) == ["failed"] + ["terminated"] * 7
    (failed,) = [record for record in records if record.outcome == "failed"]
    assert failed.steps == 2
    assert failed.reason.startswith("environment.step: ")
    assert end.failures == 1


@BOTH
async def test_a_reset_that_fails_is_one_episodes_alone(harness, transport):
    records, _ = await harness.play(episodes=9, **await harness.stage(transport, fault="reset"))
    assert {(r.outcome, without_place(r.reason)) for r in records} == {
        ("failed", "environment.reset: RuntimeError: no floor")
    }
    assert sorted(record.index for record in records) == list(range(9))


@BOTH
@pytest.mark.parametrize(
    ("fault", "reason"),
    [
        ("act", "agent.act: KeyError: 'observation'"),
        ("learn", "agent.learn: ZeroDivisionError"),
        ("bad_action", "agent.act: ValueError: 7 is not in Discrete(2)"),
    ],
)
async def test_a_fault_of_the_agent_is_one_episodes_alone(harness, transport, fault, reason):
    params = {"fault": fault, "at": 6, "flag": str(harness.folder / "flag")}
    records, end = await harness.play(episodes=8, **await harness.stage(transport, agent_params=params))
    failed = [record for record in records if record.outcome == "failed"]
    assert {without_place(record.reason) for record in failed} == {reason}
    assert end.failures == len(failed) == (8 if fault == "learn" else 1)


@BOTH
async def test_an_agent_that_cannot_act_for_all_fails_them_all(harness, transport):
    records, end = await harness.play(
        episodes=2, **await harness.stage(transport, size=2, agent="walk_world:Few")
    )
    assert {(r.outcome, r.reason) for r in records} == {
        ("failed", "agent.act: ValueError: 1 actions for 2 observations")
    }
    assert end.failures == 2
