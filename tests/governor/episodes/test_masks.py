"""Action masks, with one player: who gets them, in which form, on every transport and in vectors."""

import gymnasium.spaces as gym
import numpy as np
import pytest

from governor.episodes.masks import MaskReader, together
from governor.episodes.spaces import describe


def reader(space):
    return MaskReader(describe(space, role="action_space"))


def test_the_observation_comes_before_the_info():
    of = reader(gym.Discrete(2)).of
    assert of({"observation": 1, "action_mask": [1, 0]}, {"action_mask": [0, 1]}).tolist() == [1, 0]
    assert of(3, {"action_mask": [0, 1]}).tolist() == [0, 1]
    assert of(3, {}) is None
    assert of({"observation": 1}, None) is None


@pytest.mark.parametrize(
    ("space", "mask"),
    [
        (gym.Discrete(3), [True, False, True]),
        (gym.Discrete(3), np.array([1.0, 0.0, 1.0])),
        (gym.MultiBinary(2), np.array([0, 2], np.int8)),
        (gym.MultiDiscrete([2, 2]), (np.array([0, 1], np.int8), np.array([1, 0], np.int8))),
        (gym.Tuple((gym.Discrete(2), gym.Box(0, 1))), (np.array([0, 1], np.int8), None)),
        (gym.Dict(a=gym.Discrete(2)), {"a": np.array([0, 1], np.int8)}),
    ],
)
def test_a_mask_is_a_copy_that_the_space_samples_with(space, mask):
    given = reader(space).of(None, {"action_mask": mask})
    space.seed(1)
    assert space.contains(space.sample(given))
    assert given is not mask


@pytest.mark.parametrize("mask", [[1, 0], [[1, 0, 1]], 1, "101", [1, "a", 0], [1, 300, 0]])
def test_a_mask_that_is_none_is_a_fault(mask):
    with pytest.raises(ValueError, match="action_mask"):
        reader(gym.Discrete(3)).of(None, {"action_mask": mask})


def test_of_many_a_row_without_a_mask_allows_all():
    assert together([None, None]) is None
    assert together([None, np.array([0, 1], np.int8)]).tolist() == [[1, 1], [0, 1]]
    assert together([(np.array([1], np.int8),), None]) == [(np.array([1], np.int8),), None]


@pytest.mark.parametrize("way", ["in_process", "conductors", "vector", "rounds"])
@pytest.mark.parametrize("agent", ["Legal", "LegalMany"])
@pytest.mark.parametrize("without", [(), (1,), (0, 1, 2, 3)])
async def test_the_agent_gets_the_mask_of_each_observation(harness, way, agent, without):
    more = await harness.stage(
        way,
        entry="turns_world:Masked",
        agent=f"turns_world:{agent}",
        agent_params={"nothing": 2},
        size=2,
        without=without,
    )
    records, _ = await harness.play(mode="eval", **more)
    allowed = [step not in without or step % 3 == 2 for step in range(4)]
    value = sum(1.0 if right else -1.0 for right in allowed)
    assert [(record.outcome, record.value) for record in records] == [("terminated", value)] * 3


async def test_an_agent_without_the_parameter_gets_none(harness):
    records, _ = await harness.play(**await harness.stage("in_process", entry="turns_world:Masked"))
    assert {record.outcome for record in records} == {"terminated"}
