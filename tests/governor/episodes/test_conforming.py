from types import SimpleNamespace

import gymnasium.spaces as gym
import numpy as np
import pytest

from governor.episodes import spaces
from governor.episodes.conforming import finite_reward, flag, stepper


@pytest.mark.parametrize(
    ("value", "said"),
    [
        ("1.0", "is a str, not a number"),
        (b"1", "is a bytes"),
        (None, "is a NoneType"),
        (float("nan"), "is nan"),
    ],
)
def test_a_reward_is_a_finite_number(value, said):
    with pytest.raises(ValueError, match=said):
        finite_reward(value)
    assert finite_reward(np.float32(0.5)) == finite_reward(np.array([0.5])[0]) == 0.5


@pytest.mark.parametrize("value", ["no", None, 0.5, [True, False]])
def test_a_flag_is_a_bool(value):
    with pytest.raises(ValueError, match=r"truncated is a \w+, not a bool"):
        flag(value, "truncated")
    assert [flag(each, "truncated") for each in (True, np.bool_(True), 1, np.array([1]))] == [True] * 4
    assert not flag(np.False_, "truncated")


ROWS = [
    *(np.array([one, 0, 0.5], dtype) for dtype in (np.float32, np.float64) for one in (1, np.inf, -np.nan)),
    *(np.array([2, bits], "u4").view("f4").repeat(2)[:3] for bits in (0x7F800001, 0xFFFFFFFF, 0x7FC00000)),
    *(np.array([2, 0, bits], "u8").view("f8") for bits in (0x7FF0000000000001, 0xFFFFFFFFFFFFFFFF)),
    np.array([3e38, 1, -3e38], np.float32),
    np.array([1.7e308, 1.7e308, 2], np.float64),
    np.array([np.inf, -np.inf, 0], np.float32),
    np.zeros(2, np.float32),
    np.zeros((1, 3), np.float32),
    np.zeros((3, 1), np.float64),
    np.arange(6, dtype=np.float32)[::2],
    np.zeros(3, ">f4"),
    np.ma.zeros(3, np.float32),
    np.zeros(3, np.int64),
    [1.0, 2.0, 3.0],
    None,
]


@pytest.mark.parametrize("dtype", [np.float32, np.float64, np.float16, np.int64])
@pytest.mark.parametrize("value", ROWS, ids=repr)
@pytest.mark.filterwarnings("ignore:overflow encountered in cast", "ignore:invalid value encountered in cast")
def test_the_short_way_of_a_row_finds_what_the_long_one_finds(dtype, value):
    space = spaces.describe(gym.Box(-100, 100, (3,), dtype), role="observation_space")
    environment = SimpleNamespace(step=lambda _: (value, 0.5, False, False, {}))

    def outcome(**more):
        try:
            step = stepper(environment, spaces.observer(space), copied=None, **more)
            observation, encoded, *others = step(0)
        except ValueError as error:
            return str(error)
        assert isinstance(observation, np.ndarray)
        assert not np.shares_memory(observation, value)
        return observation.dtype, observation.shape, observation.tobytes(), encoded, others

    assert outcome(of=space) == outcome()


@pytest.mark.parametrize(
    ("values", "found"),
    [
        ((1.5, True, False), (1.5, True, False)),
        ((1, False, np.True_), (1.0, False, True)),
        ((float("inf"), False, False), "the reward is inf"),
        ((float("nan"), False, False), "the reward is nan"),
        ((0.0, "no", None), "terminated is a str, not a bool"),
        ((0.0, False, None), "truncated is a NoneType, not a bool"),
        ((0.0, None, False), "terminated is a NoneType, not a bool"),
    ],
)
def test_reward_and_flags_of_a_step_are_looked_at(values, found):
    space = spaces.describe(gym.Discrete(2), role="observation_space")
    environment = SimpleNamespace(step=lambda _: (1, *values, {}))
    step = stepper(environment, spaces.observer(space), copied=None, of=space)
    if isinstance(found, str):
        with pytest.raises(ValueError, match=found):
            step(0)
    else:
        assert step(0)[2:5] == found
