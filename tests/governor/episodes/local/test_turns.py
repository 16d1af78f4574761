"""Environments whose players take turns: rewards, transitions, players that come and go, faults, and what is on record."""

import json
from itertools import pairwise

import pytest
from pettingzoo.test import api_test

from governor.episodes.players import assignment
from tests.support.in_process_commands import turns
from tests.support.reasons import without_place
from tests.support.recorded_steps import rows


def learned(path):
    return [json.loads(line) for line in path.read_text().splitlines()]


async def test_a_transition_goes_from_turn_to_turn(harness):
    log = harness.folder / "told"
    command = turns(agent="turns_world:ByLegalLot", params={"one": {"log": str(log)}}, stones=6)
    records, _ = await harness.play(episodes=1, **command)
    assert not records[0].reason
    steps = rows(harness.folder / "run", "ann", "ben")
    told = {name: [one for one in learned(log) if one["player"] == name] for name in ("ann", "ben")}
    for place, name in enumerate(("ann", "ben")):
        mine = [row[place] for row in steps]
        turns_of = [number for number, one in enumerate(mine) if one["action"] is not None]
        assert turns_of == [*range(place, len(steps), 2)]
        bounds = [*turns_of, len(steps)]
        expected = [
            (mine[at]["observation"], mine[at]["action"], sum(one["reward"] for one in mine[at:until]))
            for at, until in pairwise(bounds)
        ]
        assert [(one["observation"], one["action"], one["reward"]) for one in told[name]] == expected
        assert [one["next_observation"] for one in told[name][:-1]] == [
            mine[at]["observation"] for at in turns_of[1:]
        ]
        assert [one["terminated"] for one in told[name]] == [False] * (len(turns_of) - 1) + [True]
        assert records[0].values[name] == sum(one["reward"] for one in mine)
    assert records[0].outcome == "terminated"
    assert records[0].value == sum(records[0].values.values())
    assert records[0].steps == len(steps)


async def test_a_player_that_does_not_act_has_its_rewards_on_record(harness):
    await harness.play(episodes=1, **turns(stones=7))
    steps = rows(harness.folder / "run", "ann", "ben")
    first_ann, first_ben = steps[0]
    assert (first_ann["observation"], first_ann["action"], first_ann["reward"]) != (None, None, None)
    assert {name: first_ben[name] for name in ("observation", "action", "weight_version")} == {
        "observation": None, "action": None, "weight_version": None,
    }  # fmt: skip
    assert (first_ben["reward"], first_ben["terminated"]) == (0.25, False)
    assert [one["terminated"] for one in steps[-1]] == [True, True]


async def test_players_that_join_and_leave(harness):
    log = harness.folder / "told"
    command = turns(
        agent="turns_world:ByLegalLot", late=2, quits="ben", stones=20, params={"one": {"log": str(log)}}
    )
    records, _ = await harness.play(episodes=1, **command)
    assert (records[0].outcome, sorted(records[0].values)) == ("truncated", ["ann", "ben", "cat"])
    steps = rows(harness.folder / "run", "ann", "ben", "cat")
    assert steps[0][2] is None
    assert steps[1][1]["truncated"]
    assert all(ben is None for _, ben, _ in steps[2:])
    assert [one["action"] is not None for _, _, one in steps[2:]] == [True, False] * (len(steps[2:]) // 2) + (
        [True] if len(steps) % 2 else []
    )
    left = [one for one in learned(log) if one["player"] == "ben"]
    assert [(one["terminated"], one["truncated"]) for one in left] == [(False, True)]


async def test_max_steps_counts_steps_of_the_environment_and_cuts_every_transition(harness):
    log = harness.folder / "told"
    command = turns(agent="turns_world:ByLegalLot", stones=20, params={"one": {"log": str(log)}})
    records, _ = await harness.play(episodes=1, max_steps=3, **command)
    assert (records[0].outcome, records[0].steps) == ("truncated", 3)
    told = learned(log)
    assert [(one["player"], one["truncated"]) for one in told] == [
        ("ann", False),
        ("ben", True),
        ("ann", True),
    ]
    steps = rows(harness.folder / "run", "ann", "ben")
    assert [(ann["truncated"], ben["truncated"]) for ann, ben in steps] == [(False, False)] * 2 + [
        (True, True)
    ]
    assert told[1]["next_observation"] == told[2]["next_observation"] < steps[2][0]["observation"]


async def test_what_last_says_counts_where_rewards_differ(harness):
    right, _ = await harness.play(name="right", episodes=3, **turns(stones=12))
    wrong, _ = await harness.play(name="wrong", episodes=3, **turns(env="Forgetful", stones=12))
    assert [record.values for record in wrong] == [record.values for record in right]
    steps = rows(harness.folder / "run", "episode", "ann", phase="wrong")
    ann = [one["reward"] for episode, one in steps if episode == 0]
    assert sum(ann) == wrong[0].values["ann"]


async def test_an_illegal_move_ends_the_game_for_all(harness):
    records, _ = await harness.play(episodes=1, **turns(env="Illegal", agent="parallel_world:Told"))
    assert (records[0].outcome, records[0].reason) == ("terminated", "")
    assert records[0].values == {"ann": -5.0, "ben": 0.0}


@pytest.mark.parametrize(
    ("more", "reason"),
    [
        ({"fault": "reset"}, "environment.reset: RuntimeError: no stones"),
        ({"fault": "nobody"}, "environment.reset: ValueError: it has no player"),
        ({"fault": "step"}, "environment.step: ValueError: a stone broke"),
        ({"fault": "nan", "at": 1}, "environment.step: ValueError: player 'ben': the reward is nan"),
        ({"fault": "undead"}, "environment.step: ValueError: player 'ann' has left, and has another turn"),
        (
            {"fault": "vanish", "at": 1},
            "environment.step: ValueError: player 'ben' is not in agents any more, but neither terminated nor truncated",
        ),
        (
            {"fault": "mask"},
            "environment.reset: ValueError: player 'ann': action_mask: shape (2,) where there are 4 actions",
        ),
        (
            {"agent": "turns_world:ByLegalLot", "params": {"one": {"fault": "act"}}},
            "agent.act of ann: KeyError: 'ann'",
        ),
        (
            {"agent": "turns_world:ByLegalLot", "params": {"one": {"fault": "learn"}}},
            "agent.learn of ann: ZeroDivisionError",
        ),
    ],
)
async def test_a_fault_is_a_failed_episode_and_names_the_player(harness, more, reason):
    records, _ = await harness.play(name="inner", episodes=1, **turns(**more))
    assert (records[0].outcome, without_place(records[0].reason)) == ("failed", reason)
    command = await harness.apart(turns(**more))
    apart, _ = await harness.play(name="outer", episodes=1, incarnation=2, **command)
    assert (apart[0].outcome, apart[0].reason) == ("failed", records[0].reason)


@pytest.mark.parametrize("name", ["agent_iter", "last"])
def test_a_class_with_one_of_the_methods_of_aec_takes_turns(name):
    assert assignment.takes_turns(type("Own", (), {name: lambda _: None})())
    assert not assignment.takes_turns(type("Own", (), {"reset": lambda _: None})())


async def test_pettingzoos_own_test_accepts_the_game(harness):
    """So what the tests play is what PettingZoo calls an AEC environment."""
    from turns_world import Nim

    api_test(Nim(stones=9), num_cycles=50)
    assert harness
