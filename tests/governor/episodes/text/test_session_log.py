"""Every kind of data manager is told every step, once, and before the episode is reported."""

import asyncio
import threading

import pytest

from governor.episodes.text.sessions import DataManager
from governor.episodes.trajectories import finalize, read
from tests.support.language_models.text_stage import SECONDS
from tests.support.language_models.text_world import Notes
from tests.support.reasons import without_place


async def test_a_data_manager_may_be_async(stage):
    class Async(Notes):
        async def create_session(self, **named):
            return super().create_session(**named)

        async def record_step(self, *, session, weight_version, env_state, **step):
            session.total_reward += step["step_reward"]
            self.rows.append((weight_version, env_state))

    notes = Async()
    result, _ = await stage.play("walk_1", data_manager=notes)
    assert result == {"walk_1": 3.0}
    assert notes.rows == [(7, {"n": 1}), (7, {"n": 2}), (7, {"n": 3})]


async def test_a_data_manager_that_cannot_record_fails_the_episode(stage):
    class Full(Notes):
        def record_step(self, **step):
            if step["step_id"] == 2 and step["session"].env == "walk_1":
                raise OSError(28, "No space left on device")

    _, episodes = await stage.play("walk_1", "walk_2", data_manager=Full())
    assert (episodes["walk_1"].outcome, episodes["walk_2"].outcome) == ("failed", "terminated")
    assert (
        without_place(episodes["walk_1"].reason)
        == "data manager: OSError: [Errno 28] No space left on device"
    )


async def test_an_end_is_on_record_before_its_episode_is_reported(stage):
    ends = []

    class Ending(Notes):
        def end_session(self, session, *, outcome, reason=""):
            ends.append((session.env, outcome, reason, len(interactor.episodes)))

    interactor = stage.interactor("walk_1", "gone_1", data_manager=Ending(), max_workers=1)
    await interactor.run_all_environments()
    assert [end[:2] + end[3:] for end in ends] == [("walk_1", "terminated", 0), ("gone_1", "failed", 1)]
    assert "404" in ends[1][2]


async def test_sessions_on_disk_are_whole_and_apart_from_the_run_before(stage, tmp_path):
    for _ in range(2):
        manager = DataManager(tmp_path)
        _, episodes = await stage.play("walk_1", "gone_1", data_manager=manager)
        manager.close()
        stage.world.steps.clear()
    finalize(tmp_path, "interactor")
    table = read(tmp_path).to_pandas()
    assert table["session"].nunique() == 2
    mine = table[table["session"] == episodes["walk_1"].session_id]
    assert list(mine["step_reward"]) == [1.0] * 3
    assert set(mine["weight_version"]) == {7}
    assert set(mine["outcome"]) == {"terminated"}


async def test_a_record_is_whole_although_its_caller_is_cancelled(stage):
    begun, go, done = threading.Event(), threading.Event(), []

    class Slow(Notes):
        def record_step(self, **step):
            begun.set()
            go.wait(SECONDS)
            done.append(step["step_id"])

        def end_session(self, session, *, outcome, reason=""):
            done.append(outcome)

    interactor = stage.interactor("walk_1", data_manager=Slow())
    run = asyncio.create_task(interactor.run_all_environments())
    await asyncio.to_thread(begun.wait, SECONDS)
    run.cancel()
    go.set()
    with pytest.raises(asyncio.CancelledError):
        await asyncio.wait_for(run, SECONDS)
    assert done == [1, "cancelled"]


async def test_a_cancelled_run_waits_for_the_record_that_is_being_made(stage):
    begun, go, done = asyncio.Event(), asyncio.Event(), []

    class Slow(Notes):
        async def record_step(self, **step):
            begun.set()
            await go.wait()
            done.append(step["step_id"])

    class Ends:
        async def on_episode_end(self, **end):
            asyncio.get_running_loop().call_later(
                0.2, go.set
            )  # all that the run does by itself is done before

    interactor = stage.interactor("walk_1", data_manager=Slow(), episode_handler=Ends())
    run = asyncio.create_task(interactor.run_all_environments())
    await asyncio.wait_for(begun.wait(), SECONDS)
    run.cancel()
    with pytest.raises(asyncio.CancelledError):
        await asyncio.wait_for(run, SECONDS)
    assert done == [1]


async def test_sync_methods_run_in_one_thread_beside_the_loop(stage):
    threads = set()

    class Where(Notes):
        def create_session(self, **named):
            threads.add(threading.current_thread())
            return super().create_session(**named)

        def record_step(self, **step):
            threads.add(threading.current_thread())

    await stage.play("walk_1", "walk_2", data_manager=Where())
    assert len(threads) == 1
    assert threading.main_thread() not in threads
