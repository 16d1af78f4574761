"""The rules of one episode: prompts, answers, steps, limits, and what each fault makes of it."""

import json
import math
import re

import pytest

from governor.episodes.text.actor_pool import ActorPool, EnvironmentEndpoint
from governor.episodes.text.environments.environment import (
    EnvironmentCrashed,
    EnvironmentFault,
    EnvironmentHung,
    EnvironmentUnreachable,
    TextStep,
)
from tests.support.language_models.text_stage import Parrot, Walk
from tests.support.language_models.text_world import SYSTEM


@pytest.mark.parametrize(
    ("message_cut", "turns"), [(1, [9]), (3, [5, 6, 7, 8, 9]), (6, list(range(10))), (0, list(range(10))), (-1, list(range(10)))]
)  # fmt: skip
async def test_a_prompt_is_cut_to_the_system_message_and_the_last_turns(stage, message_cut, turns):
    stage.world.length = 1
    await stage.play("walk_1", message_cut=message_cut)
    asked = stage.world.asked[0][1]["messages"]
    assert asked == [SYSTEM, *({"role": "user", "content": f"turn {n}"} for n in turns)]
    assert stage.notes.rows[0].messages == asked


async def test_without_a_system_message_in_front_it_is_cut_to_the_last_turns(stage):
    class Strips:
        def handle(self, env_name, env_id, step, prompt):
            return prompt[1:]

    stage.world.length = 1
    await stage.play("walk_1", episode_handler=Strips())
    assert [message["content"] for message in stage.world.asked[0][1]["messages"]] == [
        f"turn {n}" for n in (5, 6, 7, 8, 9)
    ]


async def test_every_step_is_recorded_with_the_version_of_the_weights(stage):
    await stage.play("walk_1")
    rows = stage.notes.rows
    assert [(row.step_id, row.response, row.step_reward, row.terminated, row.truncated) for row in rows] == [
        (1, "go", 1.0, False, False),
        (2, "go", 1.0, False, False),
        (3, "go", 1.0, True, False),
    ]
    assert [json.loads(row.env_state) for row in rows] == [{"weight_version": 7}] * 3
    assert (stage.notes.sessions[0].llm_model, stage.notes.sessions[0].group_id) == ("model", "g")


@pytest.mark.parametrize(("message_cut", "trainable"), [(3, [True] * 3), (0, [False, False, True])])
@pytest.mark.parametrize("limit", [{}, {"max_steps": 3}])
async def test_with_a_cut_every_step_is_trainable_without_only_the_last(stage, message_cut, trainable, limit):
    await stage.play("endless_1" if limit else "walk_1", message_cut=message_cut, **limit)
    assert [row.is_trainable for row in stage.notes.rows] == trainable


async def test_at_max_steps_an_episode_is_truncated_and_on_record_so(stage):
    result, episodes = await stage.play("endless_1", max_steps=4)
    assert result == {"endless_1": 4.0}
    assert (episodes["endless_1"].outcome, episodes["endless_1"].reason) == ("truncated", "max_steps 4")
    assert [row.truncated for row in stage.notes.rows] == [False, False, False, True]
    assert len(stage.world.steps["endless_1"]) == 4


async def test_an_end_at_max_steps_is_the_environments_own(stage):
    _, episodes = await stage.play("walk_1", "cut_1", max_steps=3)
    assert (episodes["walk_1"].outcome, episodes["cut_1"].reason) == ("terminated", "")


async def test_an_empty_prompt_ends_the_episode(stage):
    result, episodes = await stage.play("brief_1")
    assert result == {"brief_1": 2.0}
    assert (episodes["brief_1"].outcome, episodes["brief_1"].reason) == ("terminated", "the prompt was empty")


@pytest.mark.parametrize("message_cut", [3, 0])
async def test_an_answer_that_was_cut_off_is_recorded_and_never_stepped(stage, message_cut):
    stage.world.answer = lambda _: {"finish": "length"} if len(stage.world.asked) == 2 else {}
    result, episodes = await stage.play("walk_1", message_cut=message_cut)
    assert result == {"walk_1": 1.0}
    assert (episodes["walk_1"].outcome, episodes["walk_1"].steps) == ("truncated", 1)
    last = stage.notes.rows[-1]
    assert (last.step_id, last.step_reward, last.terminated, last.truncated, last.is_trainable) == (
        2,
        0,
        True,
        True,
        True,
    )
    assert len(stage.world.steps["walk_1"]) == 1


@pytest.mark.parametrize(
    ("fault", "outcome", "broken"),
    [
        (EnvironmentHung("no answer"), "timed_out", ["no answer"]),
        (EnvironmentCrashed("it died"), "crashed", ["it died"]),
        (EnvironmentUnreachable("no server"), "failed", ["no server"]),
        (EnvironmentFault("it raised"), "failed", ["it raised"]),
        (ValueError("what?"), "failed", ["ValueError: what? (text_stage.py)"]),
    ],
)
async def test_what_an_environment_did_wrong_names_the_outcome(stage, fault, outcome, broken):
    made = iter([Walk(fault=fault), Walk()])

    async def make_endpoint():
        return EnvironmentEndpoint("inproc", None, next(made))

    pool = ActorPool([("lake", "1", "g"), ("lake", "2", "g")], make_endpoint, pool_size=1)
    _, episodes = await stage.play(pool=pool, chat_model=Parrot())
    assert episodes["lake_1"].outcome == outcome
    assert [re.sub(r":\d+\)$", ")", one.reason) for one in pool.quarantined] == broken
    assert episodes["lake_2"].outcome == "terminated"
    await pool.aclose()


async def test_an_environment_left_in_a_call_is_not_played_in_again(stage):
    class Stuck(Walk):
        async def step(self, action, *, key, timeout):  # noqa: ASYNC109 - the protocol's
            await stage.world.hold.wait()

    made = iter([Stuck(), Walk()])

    async def make_endpoint():
        return EnvironmentEndpoint("inproc", None, next(made))

    pool = ActorPool([("lake", "1", "g"), ("lake", "2", "g")], make_endpoint, pool_size=1)
    _, episodes = await stage.play(pool=pool, chat_model=Parrot(), episode_timeout=0.5)
    assert [episodes[key].outcome for key in ("lake_1", "lake_2")] == ["timed_out", "terminated"]
    assert [one.reason for one in pool.quarantined] == ["it was left in the middle of a call"]
    await pool.aclose()


async def test_a_handle_without_an_environment_fails_alone(stage):
    async def make_endpoint():
        return EnvironmentEndpoint("http", None)

    pool = ActorPool([("lake", "1", "g")], make_endpoint)
    _, episodes = await stage.play(pool=pool)
    assert (episodes["lake_1"].outcome, episodes["lake_1"].steps) == ("failed", 0)
    assert episodes["lake_1"].reason.startswith("environment: ")


async def test_a_reward_that_is_no_number_fails_the_episode(stage):
    class Odd(Walk):
        async def step(self, action, *, key, timeout):  # noqa: ASYNC109 - the protocol's
            return TextStep(math.nan, False, False, {})

    async def make_endpoint():
        return EnvironmentEndpoint("inproc", None, Odd())

    _, episodes = await stage.play(pool=ActorPool([("lake", "1", "g")], make_endpoint), chat_model=Parrot())
    assert (episodes["lake_1"].outcome, episodes["lake_1"].reason) == (
        "failed",
        "environment.step: the reward is nan",
    )
    assert episodes["lake_1"].total_reward == 0.0
