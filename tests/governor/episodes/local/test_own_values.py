"""What crosses between environment, agent and record in process is everybody's own, as if it crossed between processes."""

import numpy as np
import pytest

from governor.episodes import spaces, trajectories
from governor.episodes.local.local_agent import LocalAgent
from governor.messages import Made
from tests.support.in_process_commands import WORLDS, inside, parallel, vector
from tests.support.recorded_steps import rows


def told(records):
    return sorted((r.index, r.outcome, r.value, r.steps) for r in records)


@pytest.mark.parametrize("agent", ["InPlace", "InPlaceMany"])
@pytest.mark.parametrize("made", [inside, lambda **more: vector(3, **more)], ids=["alone", "vector"])
async def test_the_observation_on_record_is_what_the_agent_was_given(harness, made, agent):
    records, _ = await harness.play(
        episodes=4, mode="eval", **made(entry="own_values_world:Line", agent=f"own_values_world:{agent}")
    )
    assert [(r.outcome, r.steps) for r in records] == [("terminated", 3)] * 4
    steps = trajectories.read(harness.folder / "run", "train").to_pandas()
    seen, done = np.stack(steps.observation), np.stack(steps.action)
    assert seen.all()
    assert (seen[:, 0] == done[:, 0]).all()


async def test_so_is_that_of_each_of_several_players(harness):
    await harness.play(episodes=1, **parallel(env="Overwrites", agent="Zeroes"))
    seen = [
        (red and red["observation"], blue["observation"])
        for red, blue in rows(harness.folder / "run", "red", "blue")
    ]
    assert seen == [([0, 0], [0, 0]), ([1, 1], [1, 1]), ([2, 2], [2, 2]), (None, [3, 3]), (None, [4, 4])]


async def test_each_player_has_the_version_of_its_own_agent(harness):
    await harness.play(episodes=2, **parallel())
    versions = [
        (red and red["weight_version"], blue["weight_version"])
        for red, blue in rows(harness.folder / "run", "red", "blue")
    ]
    assert versions == [
        (0, 0), (1, 1), (2, 2), (None, 3), (None, 4), (3, 5), (4, 6), (5, 7), (None, 8), (None, 9),
    ]  # fmt: skip


async def test_a_vector_asks_the_agent_in_the_order_of_the_conductors(harness):
    logs = [harness.folder / name for name in ("inner", "outer")]
    inner, _ = await harness.play(
        episodes=4,
        max_steps=6,
        name="inner",
        **vector(2, agent="own_values_world:Ordered", agent_params={"log": str(logs[0])}),
    )
    (harness.folder / "run/agents/walker.state").unlink()
    await harness.pair(vector=2, agent="own_values_world:Ordered", agent_params={"log": str(logs[1])})
    outer, _ = await harness.play(episodes=4, max_steps=6, vector=2, incarnation=2)
    assert logs[0].read_text() == logs[1].read_text()
    assert logs[0].read_text().startswith("act 0, act 0, learn ")
    assert told(inner) == told(outer)


def shared_agent(tmp_path, entry):
    space = spaces.Box(shape=(2,), dtype="<f4", low=bytes(8), high=bytes(8))
    action = spaces.Box(shape=(1,), dtype="<f4", low=bytes(4), high=bytes(4))
    agent = LocalAgent(name="walker", made=Made(entry=entry), seed=7, state_path=tmp_path / "walker.state")
    agent.join(0, space, action)
    return agent


@pytest.mark.parametrize("alone", [True, False])
def test_an_action_stays_what_it_was_when_the_agent_acts_for_another(tmp_path, harness_path, alone):
    agent = shared_agent(tmp_path, "own_values_world:InPlaceMany")
    first, second = (agent.calls(number, alone=alone, explore=False) for number in (0, 1))
    one, _ = first.act(np.full(2, 0.25, np.float32))
    ((two, _),) = first.act_many(np.full((1, 2), 0.5, np.float32), [0])
    second.act(np.full(2, 0.75, np.float32))
    second.act_many(np.full((1, 2), 0.75, np.float32), [1])
    assert (one.tolist(), two.tolist()) == ([0.25], [0.5])


def test_of_many_actions_each_may_be_a_fault(tmp_path, harness_path):
    agent = shared_agent(tmp_path, "own_values_world:InPlaceMany")
    calls = agent.calls(0, alone=True, explore=False)
    (good, _), bad = calls.act_many(np.array([[0.5, 0], [np.nan, 0]], np.float32), [0, 1])
    assert good.tolist() == [0.5]
    assert str(bad) == "it holds NaN"


@pytest.fixture
def harness_path(monkeypatch):
    monkeypatch.syspath_prepend(WORLDS)
