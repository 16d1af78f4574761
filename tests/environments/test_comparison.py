"""What the comparison finds: each value of a step, changed on record alone, in each kind of game."""

import gymnasium.spaces as gym
import numpy as np
import pyarrow as pa
import pytest

from tests.environments import catalogue, comparison, report, runs
from tests.environments.catalogue import Game
from tests.environments.comparison import ALONE, Row, Turn
from tests.environments.runs import Played
from tests.environments.values import of_column, of_space

SPACE = gym.Dict(
    {
        "image": gym.Box(0, 255, (2, 3), np.uint8),
        "place": gym.Tuple([gym.Discrete(9), gym.Box(-1, 1, (2,), np.float32)]),
        "mission": gym.Text(20),
    }
)
VALUE = {
    "image": np.arange(6).reshape(2, 3),
    "place": (np.int64(3), [0.5, 0.1]),
    "mission": "go",
}


def test_a_value_has_the_dtype_of_its_space():
    assert of_space(SPACE, VALUE) == of_space(
        SPACE,
        {"image": np.uint8([[0, 1, 2], [3, 4, 5]]), "mission": "go", "place": (3, np.float32([0.5, 0.1]))},
        exact=True,
    )
    with pytest.raises(TypeError, match="not in the form of"):
        of_space(SPACE, VALUE, exact=True)


@pytest.mark.parametrize(
    "other",
    [
        VALUE | {"image": np.arange(1, 7).reshape(2, 3)},
        VALUE | {"image": np.arange(6).reshape(3, 2)},
        VALUE | {"place": (2, [0.5, 0.1])},
        VALUE | {"place": (3, [0.5, 0.2])},
        VALUE | {"mission": "stay"},
    ],
)
def test_values_that_differ_have_different_forms(other):
    assert of_space(SPACE, other) != of_space(SPACE, VALUE)


def test_arrays_that_are_kept_as_digests_differ_in_one_pixel():
    space, image = gym.Box(0, 255, (40, 40), np.uint8), np.zeros((40, 40), np.uint8)
    before = of_space(space, image)
    image[39, 39] = 1
    assert of_space(space, image) != before


def test_a_nested_column_gives_the_forms_of_its_values():
    image = pa.field("image", pa.list_(pa.uint8(), 6), metadata={"shape": "[2, 3]"})
    floats = pa.field("1", pa.list_(pa.float32(), 2), metadata={"shape": "[2]"})
    kind = pa.struct(
        [image, ("place", pa.struct([pa.field("0", pa.int64()), floats])), ("mission", pa.string())]
    )
    value = {"image": range(6), "place": {"0": 3, "1": [0.5, np.float32(0.1)]}, "mission": "go"}
    column = pa.array([value, None, value], kind)
    assert of_column(pa.field("observation", kind), column) == [
        of_space(SPACE, VALUE),
        None,
        of_space(SPACE, VALUE),
    ]


# -- steps --------------------------------------------------------------------------------------------------


def alone(*rows):
    return [{ALONE: row} for row in rows]


MADE = [
    ("reset", 7, 1),
    ("step", 0, 2, 0.5, False, False),
    ("step", 1, 3, 1.5, True, False),
]
KEPT = alone(Row(1, 0, 0.5, False, False), Row(2, 1, 1.5, True, False))


def told(made, kept, *, max_steps=10):
    return [*comparison.differences(made, kept, max_steps=max_steps)]


def test_steps_that_are_on_record_as_they_were_do_not_differ():
    assert told(comparison.returned(MADE)[7], KEPT) == []


def test_the_last_episode_of_a_seed_counts():
    assert told(comparison.returned([("reset", 7, 9), *MADE])[7], KEPT) == []


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("observation", 4),
        ("action", 4),
        ("reward", 0.5),
        ("reward", 1),
        ("terminated", False),
        ("truncated", True),
    ],
)
def test_each_value_of_a_step_that_differs_is_found(name, value):
    kept = [KEPT[0], {ALONE: KEPT[1][ALONE]._replace(**{name: value})}]
    [text] = told(comparison.returned(MADE)[7], kept)
    assert text.startswith(f"step 1  {name}: {value!r} on record")


def test_a_step_that_is_missing_is_found():
    assert told(comparison.returned(MADE)[7], KEPT[:1]) == ["1 steps on record, 2 played"]


def test_the_step_that_max_steps_cuts_is_truncated():
    kept = [KEPT[0], {ALONE: KEPT[1][ALONE]._replace(truncated=True)}]
    assert told(comparison.returned(MADE)[7], kept, max_steps=2) == []
    assert told(comparison.returned(MADE)[7], KEPT, max_steps=2) != []


def test_a_player_that_is_missing_is_found():
    events = [
        ("reset all", 7, {"red": 1, "blue": 2}),
        (
            "step all",
            {"red": 0, "blue": 1},
            {},
            {"red": 1.0, "blue": 2.0},
            dict.fromkeys(("red", "blue"), (True, False)),
        ),
    ]
    made = comparison.returned(events)[7]
    red, blue = Row(1, 0, 1.0, True, False), Row(2, 1, 2.0, True, False)
    assert told(made, [{"red": red, "blue": blue}]) == []
    assert told(made, [{"red": red}]) == ["step 0: players ['red'] on record, ['red', 'blue'] took part"]


TURNS = [
    ("reset turns", 7),
    ("last", "red", 1, 0.0, False, False),
    ("turn", "red", 0),
    ("last", "blue", 2, -1.0, False, False),
    ("turn", "blue", 1),
    ("last", "red", 3, 3.0, True, False),
    ("turn", "red", None),
    ("last", "blue", 4, 0.25, True, False),
]
IDLE = Row(None, None, 0.0, False, False)
TAKEN = [
    {"red": Row(1, 0, 1.0, False, False), "blue": IDLE._replace(reward=-1.0)},
    {"red": IDLE._replace(reward=2.0, terminated=True), "blue": Row(2, 1, 0.25, True, False)},
]


def test_turns_that_are_on_record_as_they_were_do_not_differ():
    made = comparison.returned(TURNS)[7]
    assert made.turns[2] == Turn(2, "red", 3.0, True, False)
    assert told(made, TAKEN) == []


@pytest.mark.parametrize(
    ("player", "changed", "expected"),
    [
        ("red", {"reward": 1.5}, "step 2 red: rewards of 2.5 on record, last() said 3.0"),
        ("red", {"terminated": False}, "step 1 red terminated: False on record, True returned"),
        ("red", {"observation": 3}, "step 1 red observation: 3 on record, None returned"),
        ("blue", {"observation": 3}, "step 1 blue observation: 3 on record, 2 returned"),
        ("blue", {"action": 0}, "step 1 blue action: 0 on record, 1 returned"),
    ],
)
def test_each_value_of_a_turn_that_differs_is_found(player, changed, expected):
    kept = [TAKEN[0], TAKEN[1] | {player: TAKEN[1][player]._replace(**changed)}]
    assert told(comparison.returned(TURNS)[7], kept) == [expected]


def test_what_an_agent_saw_otherwise_is_found():
    seen = [("act", ALONE, 1, 0), ("act", ALONE, 2, 1)]
    assert [*comparison.unseen(seen, {7: KEPT})] == []
    assert len([*comparison.unseen([seen[0], ("act", ALONE, 3, 1)], {7: KEPT})]) == 1
    assert len([*comparison.unseen(seen[:1], {7: KEPT})]) == 1


def test_what_an_environment_raises_or_does_not_return_from_is_told():
    played = [("resets", 7), *MADE, ("resets", 8), ("raised", "reset", "ValueError: 8"), ("resets", 9)]
    assert comparison.raised(played[:4]) == []
    assert comparison.raised(played) == ["reset: ValueError: 8", "reset(seed=9) does not return"]
    assert [*comparison.returned(played)] == [7]


# -- games --------------------------------------------------------------------------------------------------


@pytest.fixture(autouse=True)
def user_code(monkeypatch):
    monkeypatch.setenv("PYTHONPATH", runs.ROOT)


@pytest.mark.system
@pytest.mark.parametrize("transport", ["in_process", "conductors"])
def test_what_gymnasium_has_without_more_packages_plays(tmp_path, transport):
    names = ("CartPole-v1", "Blackjack-v1", "Taxi-v4")
    games = [game for game in catalogue.of_gymnasium() if game.name in names]
    assert len(games) == len(names)
    for played in runs.play(games, transport, tmp_path / "run", episodes=lambda _: 4):
        assert (played.episodes, played.faults, played.raised) == (4, [], "")
        assert played.steps >= 4


@pytest.mark.long
@pytest.mark.system
def test_a_game_that_does_not_play_spoils_no_other(tmp_path):
    good = Game(group="", name="CartPole-v1", entry="gymnasium:CartPole-v1", max_steps=5)
    gone = Game(group="", name="None-v0", entry="gymnasium:None-v0", max_steps=5)
    played, refused = runs.play([good, gone], "in_process", tmp_path / "run", episodes=lambda _: 2)
    assert (played.episodes, played.steps, played.faults) == (2, 10, [])
    [fault] = refused.faults
    assert "None" in fault


def test_the_table_names_each_game_that_does_not_play():
    game = Game(group="corridors", name="Hall-v0", entry="halls:Hall", max_steps=5)
    lines = [
        report.Line(game=game, played=[Played(game=game, transport="in_process", episodes=2, steps=9)]),
        report.Line(game=game, refused="ImportError: no bricks"),
        report.Line(game=game, played=[Played(game=game, transport="conductors", faults=["step 3 differs"])]),
    ]
    assert "| corridors | 3 | 1 | 2 | at most 5 | 2 episodes, 9 steps |" in report.table(lines)
    assert report.exceptions(lines).splitlines() == [
        "* `Hall-v0`: its package does not build it: ImportError: no bricks",
        "* `Hall-v0`: **fault**: conductors: step 3 differs",
    ]
