"""Hooks see every prompt and every end, and what they do wrong stays in their episode."""

import threading

import pytest
from structlog.testing import capture_logs

from governor.episodes.text.episode_handler import EpisodeHandler
from tests.support.language_models.text_stage import SECONDS
from tests.support.reasons import without_place


class Remarks(EpisodeHandler):
    def __init__(self):
        self.seen, self.ended = [], []

    async def handle(self, env_name, env_id, step, prompt):
        self.seen.append((env_name, env_id, step))
        return [*prompt, {"role": "user", "content": "mind the step"}]

    async def on_episode_end(self, *, env_name, env_id, total_reward, info):
        self.ended.append((env_name, env_id, total_reward, info))


class SyncRemarks:
    def __init__(self):
        self.seen, self.ended, self.threads = [], [], set()

    def handle(self, env_name, env_id, step, prompt):
        self.threads.add(threading.current_thread())
        self.seen.append((env_name, env_id, step))
        return [*prompt, {"role": "user", "content": "mind the step"}]

    def on_episode_end(self, *, env_name, env_id, total_reward, info):
        self.ended.append((env_name, env_id, total_reward, info))


@pytest.mark.parametrize("make", [Remarks, SyncRemarks])
async def test_a_handler_sees_every_prompt_and_every_end(stage, make):
    handler = make()
    await stage.play("walk_1", episode_handler=handler)
    assert handler.seen == [("walk", "1", 1), ("walk", "1", 2), ("walk", "1", 3)]
    assert handler.ended == [("walk", "1", 3.0, {"n": 3})]
    assert stage.world.asked[0][1]["messages"][-1]["content"] == "mind the step"
    assert threading.main_thread() not in getattr(handler, "threads", set())


class OnlyEnds:
    def __init__(self):
        self.ended = []

    async def on_episode_end(self, **end):
        self.ended.append(end)


@pytest.mark.parametrize("make", [EpisodeHandler, OnlyEnds])
async def test_a_handler_need_not_have_a_word_about_prompts(stage, make):
    handler = make()
    result, _ = await stage.play("walk_1", episode_handler=handler)
    assert result == {"walk_1": 3.0}
    assert stage.world.asked[0][1]["messages"][-1]["content"] == "turn 9"
    end = {"env_name": "walk", "env_id": "1", "total_reward": 3.0, "info": {"n": 3}}
    assert getattr(handler, "ended", [end]) == [end]


async def test_a_handler_that_raises_fails_that_episode_only(stage):
    class Raises(Remarks):
        async def handle(self, env_name, env_id, step, prompt):
            if (env_id, step) == ("1", 2):
                raise ValueError("no such step")
            return prompt

    handler = Raises()
    result, episodes = await stage.play("walk_1", "walk_2", episode_handler=handler)
    assert result["walk_2"] == 3.0
    assert (episodes["walk_1"].outcome, without_place(episodes["walk_1"].reason)) == (
        "failed",
        "handler: ValueError: no such step",
    )
    assert ("walk", "1", 1.0, {"n": 1}) in handler.ended


async def test_a_handler_that_raises_at_the_end_is_logged_and_the_reward_stands(stage):
    class Raises(Remarks):
        def on_episode_end(self, *, env_name, env_id, total_reward, info):
            if env_id == "1":
                raise ValueError("cannot end")

    with capture_logs() as logged:
        result, episodes = await stage.play("walk_1", "walk_2", episode_handler=Raises())
    assert result == {"walk_1": 3.0, "walk_2": 3.0}
    assert (episodes["walk_1"].outcome, episodes["walk_1"].reason) == ("terminated", "")
    (line,) = (line for line in logged if line["event"] == "episode.end_failed")
    assert (line["at"], without_place(line["reason"])) == ("handler", "ValueError: cannot end")


async def test_a_handler_that_returns_no_prompt_ends_the_episode(stage):
    class Forgets(Remarks):
        async def handle(self, env_name, env_id, step, prompt):
            prompt.append({})

    result, episodes = await stage.play("walk_1", episode_handler=Forgets())
    assert result == {"walk_1": 0.0}
    assert episodes["walk_1"].reason == "the prompt is None, no list of messages"


async def test_a_handler_that_hangs_is_ended_by_the_deadline(stage):
    done = threading.Event()

    class Hangs(SyncRemarks):
        def handle(self, env_name, env_id, step, prompt):
            done.wait(SECONDS)

    try:
        _, episodes = await stage.play("walk_1", episode_handler=Hangs(), episode_timeout=0.5)
    finally:
        done.set()
    assert (episodes["walk_1"].outcome, episodes["walk_1"].reason) == (
        "timed_out",
        "not done within 0.5 s, at work: the handler",
    )
