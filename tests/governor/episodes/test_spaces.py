import numpy as np
import pytest
from gymnasium import spaces as gym

from governor.episodes import spaces
from governor.episodes.conforming import finite_reward, flag
from governor.errors import ConductorError

SPACES = [
    gym.Discrete(4),
    gym.Discrete(3, start=-1),
    gym.Box(-1, 1, (2, 3), np.float32),
    gym.Box(0, 255, (4, 4, 3), np.uint8),
    gym.Box(-np.inf, np.inf, (), np.float64),
    gym.MultiDiscrete([2, 5]),
    gym.MultiDiscrete([[2, 5], [3, 3]], start=[[1, 1], [0, 0]]),
    gym.MultiBinary(5),
    gym.MultiBinary((2, 2)),
]


@pytest.mark.parametrize("space", SPACES, ids=str)
def test_a_space_comes_back_equal_and_its_samples_conform(space):
    spec = spaces.describe(space, role="action_space")
    again = spaces.build(spec, seed=1)
    assert again == space
    conform = spaces.conformer(spec)
    for _ in range(5):
        sample = conform(again.sample())
        assert space.contains(sample)
        assert isinstance(sample, int | np.ndarray)


@pytest.mark.parametrize("space", [gym.Text(3), gym.Tuple([gym.Discrete(2)]), "Discrete(2)"])
def test_other_spaces_are_named_in_the_refusal(space):
    with pytest.raises(ConductorError, match=f"action_space.*{type(space).__name__}"):
        spaces.describe(space, role="action_space")


@pytest.mark.parametrize(
    ("space", "value", "message"),
    [
        (gym.Discrete(4), 4, "4 is not in"),
        (gym.Discrete(4), -1, "-1 is not in"),
        (gym.Discrete(4), 1.5, "no integer"),
        (gym.Discrete(4), None, "no integer"),
        (gym.Discrete(4), "left", "no integer"),
        (gym.Box(-1, 1, (2,)), [0.0], "shape"),
        (gym.Box(-1, 1, (2,)), [0.0, float("nan")], "NaN"),
        (gym.Box(-1, 1, (2,)), ["a", "b"], "no array"),
        (gym.Box(-1, 1, (2,)), None, "no array|shape"),
        (gym.MultiDiscrete([2, 2]), [0.5, 1.0], "fractions"),
        (gym.MultiDiscrete([2, 2]), [float("nan"), 1.0], "fractions"),
        (gym.Box(0, 255, (2,), np.uint8), [300, 1], "beyond the range"),
        (gym.Box(0, 255, (2,), np.uint8), np.array([-1, 1]), "beyond the range"),
    ],
)
def test_a_value_of_another_kind_is_refused_in_one_line(space, value, message):
    with pytest.raises(ValueError, match=message) as raised:
        spaces.conformer(spaces.describe(space, role="x"))(value)
    assert "\n" not in str(raised.value)


def test_plain_lists_and_numpy_scalars_are_brought_into_form():
    assert type(spaces.conformer(spaces.Discrete(n=4, start=0))(np.int64(3))) is int
    box = spaces.conformer(spaces.describe(gym.Box(-1, 1, (2,)), role="x"))
    assert box([0, 1]).dtype == np.float32
    image = spaces.conformer(spaces.describe(gym.Box(0, 255, (2,), np.uint8), role="x"))
    assert image([255.0, 0.0]).tolist() == [255, 0]


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


def test_a_difference_is_told_in_a_line_without_raw_bounds():
    wide = np.linspace(-1, 1, 100, dtype=np.float32)
    made = {
        "wide": gym.Box(-2 - np.abs(wide), 2 + wide, (100,), np.float32),
        "wider": gym.Box(-3 + wide * 0, 3 + wide, (100,), np.float32),
        "inner": gym.Box(np.where(wide < 0, -3, -2), 3 + wide, (100,), np.float32),
        "none": gym.Box(0, 1, (0,), np.uint8),
        "many": gym.MultiDiscrete(range(2, 500)),
        "left": gym.Discrete(2),
    }
    told = {name: spaces.describe(space, role="x") for name, space in made.items()}

    def difference(old, new):
        text = spaces.difference((told[old], told["left"]), (told[new], told["left"]))
        assert len(text) < 150
        return text

    assert (
        difference("wide", "left")
        == "observations of Box(-3 to 3, (100,), float32), and gets Discrete(n=2, start=0)"
    )
    assert difference("left", "wider").endswith("and gets Box(-3 to 4, (100,), float32)")
    assert difference("wider", "inner").endswith("and gets the same with other bounds")
    assert "Box((0,), uint8)" in difference("wide", "none")
    assert "MultiDiscrete((2, 3, 4, 5, 6, 7, ...), (498,), start=(0, 0, 0, 0, 0, 0, ...))" in difference(
        "left", "many"
    )
    both = spaces.difference((told["left"], told["wide"]), (told["wide"], told["left"]))
    assert "; actions of Box(" in both
