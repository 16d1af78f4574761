"""The version of the weights that each step was taken with, and how far it may be behind the learner's."""

from importlib import import_module

import pytest

from governor.episodes import trajectories
from governor.messages import Evaluate
from tests.support.in_process_commands import inside, outcomes, vector
from tests.support.reasons import without_place


@pytest.fixture
def versioned(harness):  # it puts the module on the path
    found = import_module("weights_world").Versioned  # the conductors are in this process
    found.fresh()
    return found


def versions(harness, phase="train"):
    return trajectories.read(harness.folder / "run", phase).to_pandas().weight_version.tolist()


@pytest.mark.parametrize("transport", ["conductors", "in_process", "vector", "vector_in_process"])
async def test_a_version_is_what_was_learned_before(harness, transport):
    more = {
        "conductors": {},
        "in_process": inside(),
        "vector": {"vector": 1},
        "vector_in_process": vector(1),
    }[transport]
    if "in_process" not in transport:
        await harness.pair()
    await harness.play(episodes=4, **more)
    assert versions(harness) == list(range(20))


async def test_in_a_vector_it_is_that_of_the_round(harness):
    await harness.pair(vector=4)
    await harness.play(episodes=4, vector=4)
    steps = trajectories.read(harness.folder / "run", "train").to_pandas()
    assert steps.weight_version.tolist() == [0, 4, 8, 12, 16] * 4


@pytest.mark.parametrize("inner", [False, True])
async def test_an_agent_may_count_for_itself(harness, inner):
    if not inner:
        await harness.pair(agent="weights_world:Steady")
    await harness.play(episodes=2, **(inside(agent="weights_world:Steady") if inner else {}))
    assert versions(harness) == [0, 0, 0, 1, 1, 1, 2, 2, 2, 3]


@pytest.mark.parametrize("inner", [False, True])
async def test_it_continues_across_restarts_and_stays_the_same_in_eval(harness, inner):
    more = inside() if inner else {}
    if not inner:
        await harness.pair()
    await harness.play(episodes=2, name="a", **more)
    if not inner:
        await harness.conductors["agent.walker"].close()
        await harness.start("agent.walker", entry="walk_world:Agent", params={}, incarnation=2)
    await harness.play(episodes=2, name="b", phase=1, incarnation=2, **more)
    assert versions(harness, "b") == list(range(10, 20))
    await harness.play(episodes=2, name="c", phase=2, mode="eval", incarnation=3, **more)
    assert versions(harness, "c") == [20] * 10


async def test_several_workers_in_process_know_the_version_of_their_own_action(harness, versioned):
    await harness.play(episodes=60, workers=3, **inside(agent="weights_world:Versioned"))
    assert sorted(versions(harness)) == sorted(version for version, _ in versioned.acts_seen)


# -- max_staleness --------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("workers", "size"), [(1, 1), (3, 1), (1, 4), (2, 3)])
@pytest.mark.parametrize("bound", [1, 7])
async def test_no_step_is_staler_than_the_bound(harness, versioned, workers, size, bound):
    await harness.pair(agent="weights_world:Versioned", pool=workers, vector=size)
    records, end = await harness.play(episodes=40, workers=workers, vector=size, max_staleness=bound)
    assert outcomes(records) == ["terminated"] * 40
    lags = [latest - version for version, latest in versioned.acts_seen]
    assert 0 <= min(lags) <= max(lags) <= bound
    assert versioned.latest == harness.state()["learned"] == 200
    recorded = versions(harness)
    if size == 1:
        assert sorted(recorded) == sorted(version for version, _ in versioned.acts_seen)
    assert max(recorded) > 100
    assert end.failures == 0


async def test_acting_does_not_wait_for_learn(harness, versioned):
    await harness.pair(agent="weights_world:Versioned", agent_params={"fault": "waits"})
    records, _ = await harness.play(episodes=1, max_staleness=5)
    assert outcomes(records) == ["terminated"]
    assert versions(harness)[:3] == [0, 0, 0]


async def test_without_the_key_a_step_is_learned_before_the_next_action(harness, versioned):
    await harness.pair(agent="weights_world:Versioned", pool=2)
    await harness.play(episodes=20, workers=2)
    assert {latest - version for version, latest in versioned.acts_seen} == {0}


@pytest.mark.parametrize("size", [1, 4])
async def test_what_learn_raises_is_that_episodes_fault_alone(harness, versioned, size):
    fault = {"fault": "once", "at": 7}
    await harness.pair(agent="weights_world:Versioned", agent_params=fault, vector=size)
    records, end = await harness.play(episodes=12, vector=size, max_staleness=2)
    assert [(r.outcome, without_place(r.reason)) for r in records if r.outcome != "terminated"] == [
        ("failed", "agent.learn: ZeroDivisionError")
    ]
    assert end.failures == 1


async def test_a_phase_with_it_hands_over_to_one_without(harness, versioned):
    await harness.pair(agent="weights_world:Versioned")
    await harness.play(episodes=5, name="a", max_staleness=3)
    await harness.play(episodes=5, name="b", phase=1, incarnation=2)
    assert versions(harness, "b") == list(range(25, 50))
    await harness.play(episodes=5, name="c", phase=2, incarnation=3, max_staleness=3)
    assert harness.state()["learned"] == 75
    assert versions(harness, "c")[0] == 50


async def test_it_needs_a_state_that_can_be_handed_over(harness):
    await harness.pair(agent="walk_world:Forgetful")
    records, end = await harness.play(max_staleness=2)
    assert records == []
    assert end.first_failure == (
        "agent 'walk_world:Forgetful' has no state_dict and load_state_dict: max_staleness needs both"
    )


async def test_an_evaluation_acts_with_all_that_was_learned(harness, versioned):
    await harness.pair(agent="weights_world:Versioned")
    await harness.play(episodes=5, name="a", max_staleness=20)
    await harness.play(episodes=1, name="b", phase=1, mode="eval", incarnation=2, max_staleness=20)
    assert versions(harness, "b") == [25] * 5


async def test_so_does_one_in_the_midst_of_training(harness, versioned):
    await harness.pair(agent="weights_world:Versioned")
    await harness.play(episodes=4, max_staleness=100, evaluate=Evaluate(every=2, episodes=1))
    steps = trajectories.read(harness.folder / "run", "train").to_pandas()
    seen = steps.groupby("episode").weight_version.unique().apply(list)
    assert (seen[4], seen[5]) == ([10], [20])


async def test_a_snapshot_leaves_the_actors_generator_alone_where_the_agent_can(harness):
    await harness.pair(agent="weights_world:Draws")
    await harness.play(episodes=8, max_staleness=1)
    drawn = import_module("weights_world").Draws.drawn
    assert len(set(drawn)) == len(drawn) == 40
