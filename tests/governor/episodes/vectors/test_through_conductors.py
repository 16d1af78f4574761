"""A vector whose environments step together, in a process of its own: the same episodes as in process, and what dies or hangs."""

import asyncio

import pytest

from governor.messages import EpisodeAttemptEnded, Evaluate
from tests.support.in_process_commands import outcomes, told
from tests.support.native_vectors import native, require_whole, steps_of, with_conductors
from tests.support.reasons import without_place

MODES = pytest.mark.parametrize("mode", ["NextStep", "SameStep", "Disabled"])


def without_times(records):
    return [(*each, record.metrics) for each, record in zip(told(records), by_index(records), strict=True)]


def by_index(records):
    return sorted(records, key=lambda record: record.index)


@MODES
@pytest.mark.parametrize(
    "more",
    [
        {},
        {"mode": "eval"},
        {"max_steps": 4},
        {"evaluate": Evaluate(every=6, episodes=3)},
        {"fault": "nan"},
        {"fault": "reset"},
        {"fault": "raise"},
    ],
)
async def test_the_agent_is_called_and_told_as_in_process(harness, mode, more):
    """It draws its actions from one generator: another order would be other episodes."""
    more = dict(more)
    walks = {"fault": more.pop("fault", ""), "flag": str(harness.folder / "flag")}
    command = native(mode=mode, agent="Hears", **walks)
    inner, _ = await harness.play(episodes=17, name="inner", **more, **command)
    heard = harness.state()["heard"] if more.get("mode") != "eval" else None
    inner_steps = steps_of(harness, "inner")
    for left in ("run/agents/walker.state", "flag"):
        (harness.folder / left).unlink(missing_ok=True)
    outer, _ = await harness.play(
        episodes=17, name="outer", incarnation=2, **more, **await with_conductors(harness, command)
    )
    assert [record[:5] for record in told(outer)] == [record[:5] for record in told(inner)]
    assert [record.metrics for record in by_index(outer)] == [record.metrics for record in by_index(inner)]
    if heard is not None:
        assert harness.state()["heard"] == heard
    outer_steps = steps_of(harness, "outer")
    require_whole(outer_steps, outer)
    for column in ("episode", "step", "action", "reward", "terminated", "truncated", "seed", "outcome"):
        assert outer_steps[column].tolist() == inner_steps[column].tolist(), column


async def test_what_the_vector_reports_belongs_to_the_episodes_under_way(harness):
    command = native(entry="vector_world:Reports", agent="OneByOne", mode="Disabled")
    records, _ = await harness.play(episodes=4, **await with_conductors(harness, command))
    assert [record.metrics["at"] for record in by_index(records)] == [2.0, 2.5, 3.0, 3.5], (
        "means of 1 to 3, 4, 5, 6"
    )


@MODES
async def test_the_death_of_its_process_costs_no_episode(harness, mode):
    fault = {"fault": "exit", "fault_at": 5, "flag": str(harness.folder / "flag")}
    command = await with_conductors(harness, native(mode=mode, **fault))
    records, end = await harness.play(episodes=12, **command)
    assert (outcomes(records), end.failures) == (["terminated"] * 12, 0)
    assert end.metrics["episodes_played_again"] in (3, 4)
    lost = [event for event in harness.links["simulation"].events if isinstance(event, EpisodeAttemptEnded)]
    assert [event.steps for event in lost if event.index == 3] == [4]
    steps = steps_of(harness)
    require_whole(steps, records)
    assert set(steps.attempt) == {1, 2}


async def test_episodes_whose_process_always_dies_crash(harness):
    command = await with_conductors(harness, native(fault="exit"))
    records, _ = await harness.play(episodes=4, **command)
    assert outcomes(records) == ["crashed"] * 4
    assert {without_place(record.reason).partition(":")[0] for record in records} == {
        "the process of environment 'lake' exited"
    }
    assert {record.steps for record in records} == {2}
    require_whole(steps_of(harness), records)


async def test_a_vector_that_hangs_is_killed_and_the_others_are_played_again(harness):
    fault = {"fault": "sleep", "fault_at": 9, "flag": str(harness.folder / "flag")}
    command = await with_conductors(harness, native(**fault))
    records, _ = await harness.play(episodes=12, episode_timeout=1.0, **command)
    late = [record for record in records if record.outcome == "timed_out"]
    assert late
    assert {without_place(record.reason) for record in late} == {
        "longer than 1 s, and environment 'lake' hangs"
    }
    assert outcomes(records).count("terminated") == 12 - len(late)
    require_whole(steps_of(harness), records)


async def test_two_workers_have_a_vector_each_and_the_next_phase_has_them_too(harness):
    command = await with_conductors(harness, native(agent="OneByOne"), pool=2)
    records, _ = await harness.play(episodes=40, workers=2, **command)
    assert outcomes(records) == ["terminated"] * 40
    require_whole(steps_of(harness), records)
    records, _ = await harness.play(
        episodes=9, phase=1, name="test", mode="eval", workers=2, incarnation=2, **command
    )
    assert outcomes(records) == ["terminated"] * 9
    require_whole(steps_of(harness, "test"), records)


async def test_an_agent_that_learns_beside_its_actions_learns_from_each_step(harness):
    command = await with_conductors(harness, native())
    records, _ = await harness.play(episodes=12, max_staleness=3, **command)
    learned = harness.state()["learned"]
    assert len(learned) == sum(record.steps for record in records)


@pytest.mark.parametrize("size", [1, 4])
@pytest.mark.parametrize("stepped", ["sync", "native"])
async def test_an_error_of_learning_beside_actions_fails_one_episode(harness, size, stepped):
    """It is found after the agent has acted again."""
    if stepped == "native":
        command = await with_conductors(harness, native(size, agent="Forgets"))
    else:
        await harness.pair(entry="gymnasium:CartPole-v1", vector=size, agent="vector_world:Forgets")
        command = {"vector": size}
    records, end = await harness.play(episodes=20, max_staleness=8, **command)
    assert (end.fault, end.end, end.failures) == ("", "max_episodes", 1)
    assert outcomes(records).count("failed") == 1
    assert sorted(record.index for record in records) == list(range(20))


@pytest.mark.parametrize("size", [1, 3])
async def test_agents_are_told_how_episodes_of_each_worker_end(harness, size):
    ends = harness.folder / "ends"
    command = native(size, agent="Writes", agent_params={"path": str(ends)})
    command = await with_conductors(harness, command, pool=2)
    records, _ = await harness.play(episodes=30, workers=2, **command | {"mode": "eval"})
    expected = sorted(f"{record.index} {record.outcome} {record.steps}" for record in records)
    assert sorted(ends.read_text().splitlines()) == expected


async def test_an_agent_that_hangs_makes_its_conductor_give_up(harness):
    command = await with_conductors(harness, native(agent="Sleeps"))
    controller = await harness.start("simulation")
    await controller.perform(harness.command(episodes=9, episode_timeout=0.5, **command))
    assert "hangs" in await asyncio.wait_for(harness.failures["agent.walker"], 20)
