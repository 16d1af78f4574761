"""Observations and actions with parts, on every transport: what the agent gets, and what is on record, is what was returned."""

import pytest

from governor.episodes import trajectories
from governor.messages import Made
from tests.support.nested_spaces import on_record, require_recorded
from tests.support.reasons import without_place

EACH = pytest.mark.parametrize("transport", ["conductors", "in_process", "vector", "rounds"])
NESTED, PLAYER = "nested_world:Nested", "nested_world:Player"


@pytest.fixture
def nested_world(harness):
    import nested_world

    return nested_world


@EACH
@pytest.mark.parametrize("actions", ["parts", "tuple", "text"])
async def test_steps_on_record_are_those_of_the_environment(harness, nested_world, transport, actions):
    command = await harness.stage(transport, entry=NESTED, agent=PLAYER, actions=actions)
    records, end = await harness.play(episodes=6, **command)
    assert (end.end, end.first_failure) == ("max_episodes", "")
    assert harness.state()["learned"] == 30
    require_recorded(nested_world.Nested(actions=actions), harness.folder / "run", records)


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
    require_recorded(nested_world.Nested(), harness.folder / "run", records)


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


async def test_each_of_several_players_has_its_own(harness, nested_world):
    command = {
        "transport": "in_process",
        "agents": ("romeo", "juliet"),
        "made_environment": Made(entry="nested_world:Pair"),
        "made_agents": (Made(entry=PLAYER), Made(entry=PLAYER)),
    }
    records, end = await harness.play(episodes=2, **command)
    assert (end.end, end.first_failure) == ("max_episodes", "")
    steps = trajectories.read(harness.folder / "run", "train").to_pylist()
    environment = nested_world.Pair()
    for record in records:
        seen = environment.expected(record.seed)
        mine = [row for row in steps if row["episode"] == record.index]
        assert [row["blue"]["observation"] for row in mine] == [
            on_record(environment.observation_space("blue"), one["blue"]) for one in seen[:-1]
        ]
        assert [row["red"] is None for row in mine] == [False, False, True, True]
        assert [row["red"]["observation"] for row in mine[:2]] == [one["red"] for one in seen[:2]]


async def test_a_fault_of_a_player_names_it_and_the_place(harness):
    command = {
        "transport": "in_process",
        "made_environment": Made(entry="nested_world:Pair", params={"fault": True}),
        "made_agents": (Made(entry=PLAYER), Made(entry=PLAYER)),
        "agents": ("romeo", "juliet"),
    }
    records, _ = await harness.play(episodes=1, **command)
    assert without_place(records[0].reason) == (
        "environment.step: ValueError: player 'blue': observation[\"words\"]: 3 is no text"
    )
