"""The end of an episode is whole: whoever is cancelled meanwhile, whatever user code raises, however long a pool takes."""

import asyncio
import re

import pytest

from governor.episodes import trajectories
from governor.episodes.text import episode
from governor.episodes.text.actor_pool import ActorHandle
from governor.episodes.text.sessions import DataManager
from tests.support.language_models.text_stage import SECONDS, Parrot, Walk
from tests.support.recorded_steps import run_code


class OwnPool:
    """Of a user: `done` does not return while it is `held`."""

    pool_size = 1

    def __init__(self, *ids, held=False):
        self.left = list(ids)
        self.held = held

    async def start(self):
        pass

    async def acquire(self):
        return ActorHandle("lake", self.left.pop(0), "g", "inproc", None, Walk()) if self.left else None

    async def done(self, actor):
        if self.held:
            await asyncio.Event().wait()


async def cancels_itself():
    task = asyncio.ensure_future(asyncio.sleep(SECONDS))
    task.cancel()
    await task


async def test_a_run_that_is_cancelled_while_an_episode_ends_has_its_whole_end_on_record(stage, tmp_path):
    class Handler:
        told, go_on = asyncio.Event(), asyncio.Event()

        async def on_episode_end(self, **_):
            self.told.set()
            await self.go_on.wait()

    handler, manager = Handler(), DataManager(tmp_path)
    interactor = stage.interactor("walk_1", data_manager=manager, episode_handler=handler)
    run = asyncio.create_task(interactor.run_all_environments())
    await asyncio.wait_for(handler.told.wait(), SECONDS)
    run.cancel()
    handler.go_on.set()
    with pytest.raises(asyncio.CancelledError):
        await asyncio.wait_for(run, SECONDS)
    manager.close()
    assert [(one.key, one.outcome) for one in interactor.episodes] == [("walk_1", "terminated")]
    assert set(trajectories.read(tmp_path, "interactor").to_pandas().outcome) == {"terminated"}


async def test_a_hook_that_cancels_itself_affects_its_episode_alone(stage):
    class Handler:
        async def handle(self, env_name, env_id, step, prompt):
            if env_id == "0":
                await cancels_itself()
            return prompt

        async def on_episode_end(self, *, env_id, **_):
            if env_id == "1":
                await cancels_itself()

    _, episodes = await stage.play(
        pool=OwnPool("0", "1", "2"), chat_model=Parrot(), episode_handler=Handler()
    )
    told = {key: re.sub(r" \(\S+:\d+\)$", "", one.reason) for key, one in episodes.items()}
    assert {key: (one.outcome, told[key]) for key, one in episodes.items()} == {
        "lake_0": ("failed", "handler: CancelledError"),
        "lake_1": ("terminated", ""),
        "lake_2": ("terminated", ""),
    }


async def test_a_pool_that_never_takes_back_holds_up_nothing_for_long(stage, monkeypatch):
    monkeypatch.setattr(episode, "END_SECONDS", 0.2)
    result, _ = await stage.play(pool=OwnPool("0", "1", held=True), chat_model=Parrot())
    assert result == {"lake_0": 3.0, "lake_1": 3.0}


PLAYED = """
import asyncio
from governor.episodes import ActorPool, Interactor, StaticBaseURLProvider
from governor.episodes.text.actor_pool import EnvironmentEndpoint
from tests.support.language_models.text_stage import Parrot, Walk
from tests.support.language_models.text_world import Notes

async def endpoint():
    return EnvironmentEndpoint("inproc", None, Walk())

async def main():
    pool = ActorPool([("walk", "1", "g")], endpoint)
    interactor = Interactor(pool, StaticBaseURLProvider("http://x"), "k", "m", Notes(), chat_model=Parrot())
    await interactor.run_all_environments()
    await pool.aclose()
    print(interactor.episodes[0].outcome)

asyncio.run(main())
"""


def test_the_standard_output_of_a_script_is_its_own(capfd):
    assert run_code(PLAYED) == 0
    assert capfd.readouterr().out == "terminated\n"
