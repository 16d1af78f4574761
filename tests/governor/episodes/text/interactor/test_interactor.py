"""Many episodes at once: the result, deadlines, steps that are never sent twice, cancellation."""

import asyncio
import contextlib
import gc
import inspect
import json
import math
import signal
import tracemalloc

import psutil
import pytest

from governor.episodes import trajectories
from governor.episodes.text.actor_pool import (
    ActorHandle,
    ActorPool,
    EnvironmentEndpoint,
    NoEnvironments,
    PoolBusy,
)
from governor.episodes.text.base_urls import StaticBaseURLProvider
from governor.episodes.text.environments.environment import EnvironmentHung
from governor.episodes.text.interactor import Interactor
from governor.errors import UsageError
from tests.support.language_models.text_stage import SECONDS, Parrot, Walk
from tests.support.language_models.text_world import Notes
from tests.support.recorded_steps import run_code


def test_names_and_defaults_are_those_that_users_know():
    parameters = inspect.signature(Interactor).parameters
    assert list(parameters)[:15] == [
        "pool", "base_url_provider", "api_key", "model", "data_manager", "temperature", "max_steps", "message_cut",
        "env_http_timeout_s", "max_workers", "http_retries", "http_retry_backoff_s", "verbose",
        "log_actions_preview_chars", "episode_handler",
    ]  # fmt: skip
    assert [parameters[name].default for name in list(parameters)[5:15]] == [
        0.3, 1000, 3, 30.0, None, 2, 0.5, True, 120, None,
    ]  # fmt: skip


async def test_the_result_has_the_total_reward_of_each_environment(stage):
    result, episodes = await stage.play("walk_1", "walk_2", "cut_1")
    assert result == {"walk_1": 3.0, "walk_2": 3.0, "cut_1": 3.0}
    assert {key: one.outcome for key, one in episodes.items()} == {
        "walk_1": "terminated",
        "walk_2": "terminated",
        "cut_1": "truncated",
    }
    one = episodes["walk_1"]
    assert (one.env_name, one.env_id, one.group_id, one.steps, one.reason) == ("walk", "1", "g", 3, "")
    assert 0 < one.seconds < SECONDS
    assert [step.action for step in stage.world.steps["walk_1"]] == ["go"] * 3


async def test_the_model_is_asked_as_it_is_set(stage):
    await stage.play("walk_1", temperature=0.7)
    path, body = stage.world.asked[0]
    assert (path, body["model"], body["temperature"]) == ("/v1/chat/completions", "model", 0.7)
    assert stage.world.authorizations == {"Bearer key"}


# what went wrong at the peer


async def test_a_failed_episode_is_in_the_result_as_nan_with_its_reason(stage):
    result, episodes = await stage.play("gone_1", "garbled_1", "walk_1")
    assert result["walk_1"] == 3.0
    assert math.isnan(result["gone_1"])
    assert math.isnan(result["garbled_1"])
    assert (episodes["gone_1"].outcome, episodes["garbled_1"].outcome) == ("failed", "failed")
    assert "404" in episodes["gone_1"].reason


async def test_a_refusal_of_the_model_is_not_asked_for_again(stage):
    stage.world.answer = lambda _: {"status": 401}
    result, episodes = await stage.play("walk_1")
    assert math.isnan(result["walk_1"])
    assert episodes["walk_1"].reason.startswith("model: ")
    assert len(stage.world.asked) == 1


async def test_a_step_that_got_no_answer_in_time_is_never_sent_again(stage):
    result, episodes = await stage.play("sticky_1", "walk_1", env_http_timeout_s=0.5, http_retries=5)
    assert (episodes["sticky_1"].outcome, episodes["walk_1"].outcome) == ("timed_out", "terminated")
    assert math.isnan(result["sticky_1"])
    assert episodes["sticky_1"].total_reward == 1.0
    assert len(stage.world.steps["sticky_1"]) == 2


@pytest.mark.parametrize("name", ["torn", "ill"])
async def test_a_step_that_may_have_been_taken_is_never_sent_again(stage, name):
    result, _ = await stage.play(f"{name}_1", http_retries=5)
    assert math.isnan(result[f"{name}_1"])
    assert len(stage.world.steps[f"{name}_1"]) == 1


async def test_each_step_has_a_key_of_its_own_in_every_run(stage):
    await stage.play("walk_1", "walk_2")
    await stage.play("walk_1")
    keys = [step.key for steps in stage.world.steps.values() for step in steps]
    assert None not in keys
    assert len(set(keys)) == len(keys) > 6


async def test_prompts_are_asked_for_again(stage):
    result, _ = await stage.play("flaky_1")
    assert result == {"flaky_1": 3.0}


async def test_an_episode_has_a_deadline(stage):
    result, episodes = await stage.play("mute_1", "walk_1", episode_timeout=0.5)
    assert (episodes["mute_1"].outcome, episodes["walk_1"].outcome) == ("timed_out", "terminated")
    assert episodes["mute_1"].reason == "not done within 0.5 s, at work: the environment"
    assert math.isnan(result["mute_1"])


async def test_the_deadline_holds_while_the_model_thinks(stage):
    async def never(body):
        await stage.world.hold.wait()

    stage.world.gate = never
    _, episodes = await stage.play("walk_1", episode_timeout=0.5)
    assert (episodes["walk_1"].outcome, episodes["walk_1"].reason) == (
        "timed_out",
        "not done within 0.5 s, at work: the model",
    )


# many at once, and none left


async def test_max_workers_play_at_once_and_no_more(stage):
    reached = asyncio.Event()

    async def gate(body):
        if stage.world.together == 3:
            reached.set()
        await reached.wait()

    stage.world.gate = gate
    tasks = [f"walk_{n}" for n in range(9)]
    result, _ = await stage.play(pool=stage.pool(*tasks, pool_size=8), max_workers=3)
    assert result == dict.fromkeys(tasks, 3.0)
    assert stage.world.most == 3


async def test_no_more_play_at_once_than_the_pool_has_places(stage):
    interactor = stage.interactor("walk_1", max_workers=64)
    assert interactor.workers == 4


class Ends:
    def __init__(self):
        self.ended = []

    def on_episode_end(self, *, env_name, env_id, total_reward, info):
        self.ended.append((env_name, env_id))


async def test_a_cancelled_run_leaves_nothing_running_and_says_so(stage):
    before = asyncio.all_tasks()
    pool = stage.pool("walk_1", "sticky_1", "sticky_2", pool_size=2)
    handler = Ends()
    interactor = stage.interactor(pool=pool, episode_handler=handler)
    run = asyncio.create_task(interactor.run_all_environments())

    async def both_stuck():
        while len(stage.world.steps["sticky_1"]) + len(stage.world.steps["sticky_2"]) < 4:
            stage.world.arrived.clear()
            await stage.world.arrived.wait()

    await asyncio.wait_for(both_stuck(), SECONDS)
    run.cancel()
    run.cancel()
    with pytest.raises(asyncio.CancelledError):
        await asyncio.wait_for(run, SECONDS)
    outcomes = {episode.key: episode.outcome for episode in interactor.episodes}
    assert outcomes == {"walk_1": "terminated", "sticky_1": "cancelled", "sticky_2": "cancelled"}
    assert all(math.isnan(one.result) for one in interactor.episodes if one.outcome == "cancelled")
    assert not pool._leases
    assert set(handler.ended) == {("walk", "1"), ("sticky", "1"), ("sticky", "2")}
    left = {task for task in asyncio.all_tasks() - before if "interactor" in task.get_name()}
    assert left == set()


async def test_a_run_cancelled_while_the_pool_starts_has_no_episodes(stage):
    async def never():
        stage.world.arrived.set()
        await stage.world.hold.wait()

    pool = ActorPool([("walk", "1", "g")], never)
    interactor = stage.interactor(pool=pool)
    run = asyncio.create_task(interactor.run_all_environments())
    await asyncio.wait_for(stage.world.arrived.wait(), SECONDS)
    run.cancel()
    with pytest.raises(asyncio.CancelledError):
        await run
    assert interactor.episodes == []
    await pool.aclose()


async def test_when_no_environment_can_come_the_run_says_so_and_keeps_what_was_played(stage):
    made = 0

    async def make_endpoint():
        nonlocal made
        made += 1
        if made > 1:
            raise OSError("no room")
        return EnvironmentEndpoint("inproc", None, Walk(fault=EnvironmentHung("no answer")))

    pool = ActorPool([("lake", str(n), "g") for n in range(3)], make_endpoint, pool_size=1, start_backoff=0.0)
    interactor = stage.interactor(pool=pool, chat_model=Parrot())
    with pytest.raises(NoEnvironments, match="no room"):
        await asyncio.wait_for(interactor.run_all_environments(), SECONDS)
    assert [(one.key, one.outcome) for one in interactor.episodes] == [("lake_0", "timed_out")]


async def test_workers_without_a_place_wait_for_those_at_play(stage):
    made, waits = 0, 0

    async def make_endpoint():
        nonlocal made
        made += 1
        if made == 2:
            raise OSError("no room")
        return EnvironmentEndpoint("http", stage.world.url)

    class Counting(ActorPool):
        async def acquire(self):
            nonlocal waits
            try:
                return await super().acquire()
            except PoolBusy:
                waits += 1
                go.set()
                raise

    async def gate(body):
        await go.wait()

    go, stage.world.gate = asyncio.Event(), gate
    tasks = [("walk", "1", "g"), ("walk", "2", "g")]
    pool = Counting(tasks, make_endpoint, pool_size=2, start_attempts=1, acquire_timeout=0.05)
    result, _ = await stage.play(pool=pool)
    assert result == {"walk_1": 3.0, "walk_2": 3.0}
    assert waits >= 1


async def test_a_pool_of_the_users_that_cannot_take_back_does_not_stop_the_others(stage):
    class Own:
        pool_size = 1

        def __init__(self):
            self.left = ["walk_1", "walk_2"]

        async def start(self):
            pass

        async def acquire(self):
            if not self.left:
                return None
            name, number = self.left.pop(0).split("_")
            return ActorHandle(name, number, "g", "http", stage.world.url)

        async def done(self, actor):
            raise RuntimeError("lost it")

    result, _ = await stage.play(pool=Own())
    assert result == {"walk_1": 3.0, "walk_2": 3.0}


async def test_one_run_at_a_time_and_the_next_one_counts_anew(stage):
    interactor = stage.interactor("walk_1")
    run = asyncio.create_task(interactor.run_all_environments())
    await asyncio.sleep(0)
    with pytest.raises(UsageError):
        await interactor.run_all_environments()
    assert await run == {"walk_1": 3.0}
    assert await interactor.run_all_environments() == {}
    assert interactor.episodes == []


async def test_after_aclose_neither_an_environment_nor_the_model_is_asked(stage):
    async def make_endpoint():
        return EnvironmentEndpoint("inproc", None, Walk())

    interactor = stage.interactor("walk_1")
    assert await interactor.run_all_environments() == {"walk_1": 3.0}
    await interactor.aclose()
    await interactor.aclose()
    asked = len(stage.world.asked)
    for pool, whose in (
        (stage.pool("walk_2"), "environment: "),
        (ActorPool([("lake", "1")], make_endpoint), "model: "),
    ):
        interactor.pool = pool
        await interactor.run_all_environments()
        (episode,) = interactor.episodes
        assert episode.reason.startswith(whose)
        assert "closed" in episode.reason
    assert (len(stage.world.asked), stage.world.steps["walk_2"]) == (asked, [])


@pytest.mark.parametrize("on_record", [None, lambda actor, record: None])
async def test_memory_is_flat_over_many_episodes(on_record):
    async def make_endpoint():
        return EnvironmentEndpoint("inproc", None, Walk())

    class Nothing(Notes):
        async def create_session(self, **named):
            return object()

        async def record_step(self, **step):
            pass

    marks = {}

    def tasks():
        for number in range(2001):
            if number in {1000, 2000}:
                gc.collect()
                marks[number] = tracemalloc.get_traced_memory()[0]
                if on_record is None:
                    interactor.episodes.clear()  # records are the result: what else grows is a leak
            yield "lake", str(number), "g"

    pool = ActorPool(tasks(), make_endpoint, pool_size=8)
    interactor = Interactor(
        pool, StaticBaseURLProvider("http://x"), "k", "m", Nothing(), chat_model=Parrot(), on_record=on_record
    )
    tracemalloc.start()
    try:
        await interactor.run_all_environments()
    finally:
        tracemalloc.stop()
        await pool.aclose()
        await interactor.aclose()
    assert marks[2000] - marks[1000] < 100_000


KILLED = """
import asyncio, os, signal, sys
from pathlib import Path
from tests.support.language_models.text_stage import Parrot
from governor.episodes import ActorPool, DataManager, Interactor, StaticBaseURLProvider
from governor.episodes.text.actor_pool import process_endpoints

class Killed(DataManager):
    recorded = 0

    def record_step(self, **step):
        super().record_step(**step)
        self.recorded += 1
        if self.recorded == 38:
            os.kill(os.getpid(), signal.SIGKILL)

async def main():
    tasks = [("walk", str(number), "g") for number in range(2)]
    pool = ActorPool(tasks, process_endpoints("tests.support.user_code.text_walks:Sticky"), pool_size=2)
    manager = Killed(Path(sys.argv[1]))
    interactor = Interactor(pool, StaticBaseURLProvider("http://x"), "k", "m", manager, chat_model=Parrot())
    await interactor.run_all_environments()

asyncio.run(main())
"""


def test_a_process_that_is_killed_leaves_no_environment_not_even_one_that_hangs_and_all_that_was_recorded(
    tmp_path,
):
    assert run_code(KILLED, tmp_path) == -signal.SIGKILL
    steps = trajectories.read(tmp_path, "interactor").to_pandas()
    assert len(steps) == 38
    assert all(ids == [*range(1, len(ids) + 1)] for ids in steps.groupby("session").step_id.apply(list))
    assert set(steps.step_reward) == {1.0}
    assert steps.outcome.isna().all()
    for pid in {json.loads(state)["pid"] for state in steps.env_state}:
        with contextlib.suppress(psutil.NoSuchProcess):
            psutil.Process(pid).wait(SECONDS)
