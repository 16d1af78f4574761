"""A handle leads to its environment, over HTTP or in process, or the error says why not."""

import threading

import psutil
import pytest

from governor.episodes.text.actor_pool import ActorHandle, ActorPool, NoEnvironments, process_endpoints
from tests.support.language_models.text_stage import Parrot
from tests.support.user_code.text_walks import Walk


class OwnPool:
    """As users write them: each actor has its task in it."""

    pool_size = 2

    def __init__(self, **environments):
        self.left = [
            ActorHandle(key, "1", "g", "inproc", None, environment)
            for key, environment in environments.items()
        ]

    async def start(self):
        pass

    async def acquire(self):
        return self.left.pop() if self.left else None

    async def done(self, actor):
        pass


@pytest.mark.parametrize(
    ("handle", "message"),
    [
        (ActorHandle("walk", "1", "g"), "has no environment: transport 'http', base_url None"),
        (ActorHandle("walk", "1", "g", "inproc"), "has no environment: transport 'inproc'"),
        (ActorHandle("walk", "1", "g", "pigeon", "http://host"), "has no environment: transport 'pigeon'"),
    ],
)
async def test_a_handle_that_leads_nowhere_says_why(stage, handle, message):
    pool = OwnPool()
    pool.left.append(handle)
    _, episodes = await stage.play(pool=pool)
    assert (episodes["walk_1"].outcome, episodes["walk_1"].steps) == ("failed", 0)
    assert episodes["walk_1"].reason.startswith(f"environment: UsageError: the actor {message}")


async def test_an_object_of_the_users_plays_in_a_process_of_its_own_and_leaves_neither_it_nor_a_thread(stage):
    before = set(psutil.Process().children()), threading.active_count()
    pool = OwnPool(walk=Walk(), stuck=Walk(fault="hang"), dead=Walk(fault="exit"), bad=Walk(fault="raise"))
    result, episodes = await stage.play(pool=pool, chat_model=Parrot(), env_http_timeout_s=2.0)
    assert {one.env_name: one.outcome for one in episodes.values()} == {
        "walk": "terminated",
        "stuck": "timed_out",
        "dead": "crashed",
        "bad": "failed",
    }
    assert result["walk_1"] == 3.0
    assert "ValueError: no way" in episodes["bad_1"].reason
    assert set(psutil.Process().children()) == before[0]
    assert threading.active_count() <= before[1] + 1  # that of the data manager


@pytest.mark.parametrize(("reuse", "processes"), [(True, 1), (False, 2)])
async def test_a_pool_of_processes_is_warm_and_gone_when_it_is_closed(stage, reuse, processes):
    before = set(psutil.Process().children())
    pids = set()

    class Ends:
        def on_episode_end(self, *, env_name, env_id, total_reward, info):
            pids.add(info["pid"])

    make = process_endpoints("tests.support.user_code.text_walks:Walk", {"steps": 1}, reuse=reuse)
    pool = ActorPool([("walk", "1", "g"), ("walk", "2", "g")], make, pool_size=1)
    await pool.start()
    assert len(set(psutil.Process().children()) - before) == 1
    result, _ = await stage.play(pool=pool, chat_model=Parrot(), episode_handler=Ends())
    await pool.aclose()
    assert result == {"walk_1": 1.0, "walk_2": 1.0}
    assert len(pids) == processes
    assert set(psutil.Process().children()) == before


async def test_a_hung_process_of_a_pool_is_replaced(stage):
    pool = ActorPool(
        [("walk", "1", "g"), ("walk", "2", "g")],
        process_endpoints("tests.support.user_code.text_walks:Walk", {"fault": "hang"}),
        pool_size=1,
    )
    _, episodes = await stage.play(pool=pool, chat_model=Parrot(), env_http_timeout_s=0.5)
    await pool.aclose()
    assert {one.outcome for one in episodes.values()} == {"timed_out"}
    assert len(pool.quarantined) == 2


async def test_a_process_whose_environment_does_not_start_is_gone(stage):
    pool = ActorPool(
        [("walk", "1", "g")],
        process_endpoints("tests.support.user_code.text_walks:Walk", {"no": "such"}),
        start_attempts=2,
        start_backoff=0.0,
    )
    before, descriptors = set(psutil.Process().children()), psutil.Process().num_fds()
    with pytest.raises(NoEnvironments, match=r"no start in 2 attempts: .*TypeError"):
        await pool.start()
    await pool.aclose()
    assert set(psutil.Process().children()) <= before
    assert psutil.Process().num_fds() <= descriptors


def test_the_names_are_found_in_the_package():
    import governor.episodes

    known = {
        "ActorHandle",
        "ActorPool",
        "DataManager",
        "EpisodeHandler",
        "Interactor",
        "StaticBaseURLProvider",
    }
    assert known | {"SessionSuffixBaseURLProvider", "Transition"} <= set(governor.episodes.__all__)
    for name in governor.episodes.__all__:
        assert getattr(governor.episodes, name).__name__ == name
    with pytest.raises(AttributeError):
        governor.episodes.Nothing  # noqa: B018
