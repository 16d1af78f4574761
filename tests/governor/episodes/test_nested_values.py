"""Observations and actions with parts, on every transport: what the agent gets, and what is on record, is what was returned."""

import pytest

from governor.episodes import trajectories
from tests.support.nested_spaces import on_record
from tests.support.reasons import without_place

EACH = pytest.mark.parametrize("transport", ["conductors", "in_process", "vector", "rounds"])
NESTED, PLAYER = "nested_world:Nested", "nested_world:Player"


@pytest.fixture
def nested_world(harness):
    import nested_world

    return nested_world


def require_recorded(world, folder, records, actions="parts"):
    """The steps on record are those of the environment: it gives the same observations again, and rewards tell of the actions."""
    environment = world.Nested(actions=actions)
    steps = trajectories.read(folder, "train")
    assert len(steps) == 5 * len(records)
    rows = steps.to_pylist()
    for record in records:
        seen = [on_record(environment.observation_space, one) for one in environment.expected(record.seed)]
        mine = [row for row in rows if row["episode"] == record.index]
        assert [row["observation"] for row in mine] == seen[:-1]
        assert [row["reward"] for row in mine] == pytest.approx([recorded_sum(row["action"]) for row in mine])


def recorded_sum(value):
    """`nested_world.checksum` of an action on record."""
    if isinstance(value, dict):
        parts = value.values()
        return sum((1 + place) * recorded_sum(one) for place, one in enumerate(parts))
    if isinstance(value, str):
        return sum(map(ord, value)) / 128
    return float(sum(value)) if isinstance(value, list) else float(value)


@EACH
@pytest.mark.parametrize("actions", ["parts", "tuple", "text"])
async def test_steps_on_record_are_those_of_the_environment(harness, nested_world, transport, actions):
    command = await harness.stage(transport, entry=NESTED, agent=PLAYER, actions=actions)
    records, end = await harness.play(episodes=6, **command)
    assert (end.end, end.first_failure) == ("max_episodes", "")
    assert harness.state()["learned"] == 30
    require_recorded(nested_world, harness.folder / "run", records, actions)


@EACH
async def test_an_action_may_be_of_any_space(harness, nested_world, transport):
    command = await harness.stage(transport, entry=NESTED, agent=PLAYER, actions="any")
    records, end = await harness.play(episodes=3, **command)
    assert (end.end, end.first_failure, len(records)) == ("max_episodes", "", 3)


@pytest.mark.parametrize("transport", ["vector", "rounds"])
@pytest.mark.parametrize("agent", ["Many", "Listed"])
async def test_many_observations_come_as_gymnasium_batches_them(harness, nested_world, transport, agent):
    command = await harness.stage(transport, entry=NESTED, agent=f"nested_world:{agent}")
    records, end = await harness.play(episodes=8, **command)
    assert (end.end, end.first_failure) == ("max_episodes", "")
    assert harness.state()["learned"] == 40
    require_recorded(nested_world, harness.folder / "run", records)


@EACH
async def test_a_fault_inside_of_an_observation_is_named(harness, nested_world, transport):
    command = await harness.stage(transport, entry=NESTED, agent=PLAYER, fault="yes")
    records, _ = await harness.play(episodes=1, **command)
    assert (records[0].outcome, without_place(records[0].reason)) == (
        "failed",
        'environment.step: ValueError: observation["world"]["tuple"][0]: 7 is not in Discrete(3, start=-1)',
    )


@EACH
async def test_a_fault_inside_of_an_action_is_named(harness, nested_world, transport):
    command = await harness.stage(transport, entry=NESTED, agent=PLAYER, agent_params={"bad": True})
    records, _ = await harness.play(episodes=1, **command)
    assert (records[0].outcome, without_place(records[0].reason)) == (
        "failed",
        'agent.act: ValueError: action["gear"]: 9 is not in Discrete(3)',
    )
