import numpy as np
import pytest
from gymnasium import spaces as gym

from governor.episodes import spaces
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


class Own(gym.Space):
    """A space of somebody's own."""


@pytest.mark.parametrize(
    ("space", "said"),
    [
        (Own(), "action_space: Own is none of gymnasium's own spaces: use those"),
        (Own(shape=(2,), dtype=np.float32), "action_space: Own is none"),
        ("Discrete(2)", "action_space is a str, not a gymnasium space"),
        (gym.Dict(a=gym.Tuple([gym.Discrete(2), Own()])), 'action_space["a"][1]: Own is none'),
        (gym.Graph(gym.Box(0, 1), Own()), "action_space.edges: Own is none"),
        (gym.Sequence(Own()), "action_space[]: Own is none"),
        (gym.Dict({1.5: gym.Discrete(2)}), "action_space: the key 1.5 is of type float: keys must be texts or integers"),
        (gym.Dict({"1": gym.Discrete(2), 1: gym.Discrete(2)}), "action_space: two of the keys ('1', 1) have the same text"),
        (gym.Dict({"\ud800": gym.Discrete(2)}), "action_space: '\\ud800' has characters that UTF-8 cannot encode"),
        (gym.Text(3, charset="a\ud800"), "action_space: 'a\\ud800' has characters that UTF-8 cannot encode"),
    ],
)  # fmt: skip
def test_other_spaces_are_named_in_the_refusal(space, said):
    with pytest.raises(ConductorError) as raised:
        spaces.describe(space, role="action_space")
    assert raised.value.reason.startswith(said)


def test_a_space_of_texts_with_a_rule_of_its_own_takes_any_text():
    class Missions(gym.Space):
        def __init__(self):
            super().__init__(dtype=str)

    spec = spaces.describe(Missions(), role="x")
    conform, given = spaces.conformer(spec), spaces.build(spec, seed=3)
    assert conform("get the ball, é") == "get the ball, é"
    assert isinstance(given, gym.Text)
    assert given.contains("get the ball")
    assert given.contains("")
    for odd in (3, "\ud800"):
        with pytest.raises(ValueError, match=r"is no text|UTF-8"):
            conform(odd)


def test_the_keys_of_a_dict_stay_in_their_order():
    space = gym.Dict([("b", gym.Discrete(2)), ("a", gym.Discrete(2))])
    assert [*spaces.build(spaces.describe(space, role="x")).spaces] == ["b", "a"]


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
        (gym.Box(-1, 1, (2,)), np.array([1e300, 0.0]), "beyond the range of float32"),
        (gym.Box(-1, 1, (2,), np.float16), [70_000, 0], "beyond the range of float16"),
        (gym.Discrete(4), np.True_, "no integer"),
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
    assert spaces.conformer(spaces.Discrete(n=2, start=0))(True) == 1
    assert box([np.inf, -np.inf]).tolist() == [np.inf, -np.inf]


def test_numbers_are_rounded_whatever_numpy_was_told_to_raise():
    box = spaces.conformer(spaces.describe(gym.Box(-1, 1, (2,)), role="x"))
    with np.errstate(all="raise"):
        assert box(np.array([1e-50, 1.0])).tolist() == [0.0, 1.0]


def test_a_difference_is_told_in_a_line_without_raw_bounds():
    wide = np.linspace(-1, 1, 100, dtype=np.float32)
    made = {
        "wide": gym.Box(-2 - np.abs(wide), 2 + wide, (100,), np.float32),
        "wider": gym.Box(-3 + wide * 0, 3 + wide, (100,), np.float32),
        "inner": gym.Box(np.where(wide < 0, -3, -2), 3 + wide, (100,), np.float32),
        "none": gym.Box(0, 1, (0,), np.uint8),
        "many": gym.MultiDiscrete(range(2, 500)),
        "left": gym.Discrete(2),
        "words": gym.Dict(a=gym.Tuple([gym.Text(3), gym.Sequence(gym.Discrete(2))])),
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
    assert difference("words", "left").startswith("observations of Dict('a': Tuple(Text(1 to 3 of '0123")
    both = spaces.difference((told["left"], told["wide"]), (told["wide"], told["left"]))
    assert "; actions of Box(" in both
