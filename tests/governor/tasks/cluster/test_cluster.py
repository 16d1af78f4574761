"""Runners on other nodes: a second raylet, no unix socket and no shared folder stand for another machine."""

from __future__ import annotations

import asyncio
import contextlib
import tempfile
import threading
import time
from collections import Counter
from functools import partial

import numpy as np
import psutil
import pytest
import pytest_asyncio

from governor.errors import ConductorError
from governor.files import write_whole
from governor.messages import TaskSpec
from governor.tasks.cluster.cluster import Cluster, RayNode
from governor.tasks.engine import Engine
from governor.tasks.protocol.wire import (
    Begun,
    Input,
    Loading,
    LogLine,
    Over,
    StateUpdate,
)
from governor.tasks.runners.process import RemoteProcess
from governor.tasks.scheduling.events import BatchSpec, RunnerGone
from tests.support.ends import Ends
from tests.support.runner_world import USER_CODE, hide, open_world
from tests.support.second_node import SecondNode

pytestmark = [pytest.mark.ray, pytest.mark.asyncio(loop_scope="session")]

FAR = {"node_b": 2}


def dead(pid):
    try:
        return psutil.Process(pid).status() in (psutil.STATUS_ZOMBIE, psutil.STATUS_DEAD)
    except psutil.NoSuchProcess:
        return True


async def until(condition):
    """For what nobody tells us: the state of processes."""
    async with asyncio.timeout(10):
        while not condition():  # noqa: ASYNC110  # as said
            await asyncio.sleep(0.01)


async def seen(cluster, node_id):
    """Returns when actors can be put on a node: raylets hear of each other a little later than the GCS."""
    async with asyncio.timeout(60):
        while True:
            try:
                return await cluster.ask_agent(node_id, "ready")
            except cluster.ray.exceptions.RayError:
                await asyncio.sleep(0.1)


async def alone(cluster):
    """Returns when Ray itself has noticed that the other node is gone, which may take it 15 s."""
    async with asyncio.timeout(30):
        while len(cluster._alive) > 1:
            await asyncio.sleep(0.1)
            await cluster.refresh()


@pytest_asyncio.fixture(loop_scope="session")
async def join(harness, ray_head, tmp_path_factory):
    """Adds nodes; the cluster is as before at the end."""
    nodes = []

    async def join(*, num_cpus=2):
        temp_dir = tempfile.mkdtemp(prefix="n-", dir=ray_head.token_path.parent)
        node = SecondNode(ray_head, num_cpus=num_cpus, resources=FAR, temp_dir=temp_dir)
        nodes.append(await node.start())
        assert await harness.cluster.refresh()
        await seen(harness.cluster, node.id)
        return node

    yield join
    for node in nodes:
        await node.stop()
    await alone(harness.cluster)


@pytest_asyncio.fixture(scope="module", loop_scope="session")
async def far(harness, tmp_path_factory):
    """Runners that come by TCP and see nothing of the run's folder."""
    async with open_world(harness.cluster, tmp_path_factory.mktemp("run"), unix=False) as world:
        unshare(world.runners)
        yield world


def unshare(runners):
    """Takes the marker away by which runners know that they share the folder."""
    (runners._folder / runners._marker).unlink()


def kill_and_see(ray, actor):
    """Returns when no call is answered any more."""
    ray.kill(actor)
    with contextlib.suppress(ray.exceptions.RayActorError):
        while True:
            ray.get(actor.ready.remote())


def is_empty(folder):
    return not list(folder.iterdir())


def node_of(world, runner):
    return world.runners._handles[runner].node


# -- without another machine ---------------------------------------------------------------------------------


async def test_plain_runners_go_where_the_most_cpus_are_free():
    cluster = Cluster(address="", token_path=None, namespace="x")
    assert cluster.next_node({}) is None
    cluster._alive = tuple(
        RayNode(id=name, host=name, port=1, resources={"CPU": cpus} if cpus else {})
        for name, cpus in [("head", 0.0), ("small", 2.0), ("large", 6.0)]
    )
    taken = Counter()
    for _ in range(8):
        taken[cluster.next_node(taken)] += 1
    assert taken == {"small": 2, "large": 6}


async def test_ray_that_hangs_is_not_waited_for(monkeypatch):
    monkeypatch.setattr("governor.tasks.cluster.cluster.CONNECT_SECONDS", 0.2)
    monkeypatch.setattr("governor.tasks.cluster.cluster.LEAVE_SECONDS", 0.2)
    hanging, told = threading.Event(), []
    server = await asyncio.start_server(lambda *_: None, "127.0.0.1", 0)
    host, port = server.sockets[0].getsockname()
    cluster = Cluster(address=f"{host}:{port}", token_path=None, namespace="x")
    monkeypatch.setattr(cluster, "_connect", hanging.wait)
    monkeypatch.setattr(cluster, "_shut_down", lambda: told.append("left"))
    try:
        async with asyncio.timeout(10):
            with pytest.raises(ConductorError, match=r"did not answer within 0\.2 s"):
                await cluster.connect()
            await cluster.disconnect()
        assert not told
    finally:
        hanging.set()
        server.close()
    await asyncio.to_thread(cluster._thread.shutdown)
    assert told == ["left"]


async def test_far_runners_work_as_near_ones_do(far):
    runner = await far.ready()
    assert isinstance(far.runners._handles[runner].process, RemoteProcess)
    work_items = [far.work("give", args={"value": n}, runs=(0, 1)) for n in range(200)]
    begin = time.monotonic()
    far.runners.send(runner, work_items)
    await far.over(runner, work_items[-1])
    told = far.heard.all(runner, Begun | Over)
    wanted = [(work.ticket, run, kind) for work in work_items for run in work.runs for kind in (Begun, Over)]
    assert [(each.ticket, each.run, type(each)) for each in told] == wanted
    assert begin <= told[0].at <= told[-1].at <= time.monotonic()
    far.give_back(runner)


async def test_files_of_far_runners_are_written_here_before_their_end_is_told(far):
    folder = far.runners._folder
    (over,) = await far.run("far_deeds:give_array", args={"size": 200_000})
    assert over.value_file.endswith(".npy")
    assert np.array_equal(np.load(folder / over.value_file), np.arange(200_000))
    (over,) = await far.run("far_deeds:give_payload", args={"size": 100_000})
    assert [path.stat().st_size for path in folder.rglob("*.payload")] == [100_000]
    ends = await far.run("far_deeds:give_array", args={"size": 100_000}, runs=(0, 1, 2))
    assert [over.run for over in ends] == [0, 1, 2]
    assert all((folder / over.value_file).is_file() for over in ends)


async def test_inputs_in_files_travel_with_the_work(far):
    write_whole(far.runners._folder / "results/old.json", b'["x"]')
    inputs = {"a": [Input(file="results/old.json")], "b": [Input(value=2)]}
    (over,) = await far.run("far_deeds:give_inputs", inputs=inputs)
    assert over.value == {"a": ["x"], "b": 2}
    (over,) = await far.run("far_deeds:give_inputs", inputs={"a": [Input(file="results/none.json")]})
    assert over.error.startswith("RuntimeError: the task could not be sent to its runner: FileNotFoundError")


async def test_a_result_that_cannot_be_written_fails_its_run_alone(far):
    blocked = far.runners._folder / "blocked"
    blocked.write_text("a file where a folder is to be")
    runner = await far.ready()
    bad = far.work("far_deeds:give_array", args={"size": 9}, stem="blocked/t")
    good = far.work("far_deeds:give_array", args={"size": 9})
    far.runners.send(runner, [bad, good])
    assert (await far.over(runner, bad))[0].error.startswith("its result cannot be written: ")
    assert not (await far.over(runner, good))[0].error
    far.give_back(runner)


async def test_what_cannot_be_encoded_fails_and_what_is_beside_it_works(far):
    runner = await far.ready()
    good, bad, last = (
        far.work("nothing"),
        far.work("nothing", model=object()),
        far.work("nothing", task="\udc80"),
    )
    far.runners.send(runner, [good, bad, last])
    assert not (await far.over(runner, good))[0].error
    assert "could not be sent to its runner: TypeError" in (await far.over(runner, bad))[0].error
    assert "could not be sent to its runner: UnicodeEncodeError" in (await far.over(runner, last))[0].error
    far.give_back(runner)


async def test_work_is_taken_back_and_a_task_is_cancelled_by_the_nodes_agent(far):
    runner = await far.ready()
    first, *rest = work_items = [far.work("sleep"), *(far.work("nothing") for _ in range(9))]
    far.runners.send(runner, work_items)
    await far.begun(runner, first)
    far.runners.cancel(runner, first.ticket)
    (over,) = await far.over(runner, first)
    assert over.error == "the task was cancelled"
    taken = await far.heard.until(lambda: [each for each in far.heard.of[runner] if isinstance(each, tuple)])
    assert taken == [tuple(work.ticket for work in rest)]
    assert not far.heard.all(runner, Over | Begun | Loading | LogLine, rest[0].ticket)
    far.give_back(runner)


async def test_a_signal_that_was_lost_is_sent_again_by_the_nodes_agent(far, tmp_path):
    runner, note = await far.ready(), tmp_path / "note"
    work, after = far.work("deaf_until", args={"note": str(note)}), far.work("nothing")
    far.runners.send(runner, [work, after])
    await far.said(runner, StateUpdate, work.ticket)
    far.runners.cancel(runner, work.ticket)
    await far.heard.until(lambda: (after.ticket,) in far.heard.of[runner])
    note.touch()
    assert (await far.over(runner, work))[0].error == "the task was cancelled"
    far.give_back(runner)


async def test_a_far_tree_is_seen_dead_when_its_end_is_told(far):
    runner = await far.ready(fresh=True)
    process = psutil.Process(far.runners.pid(runner))
    work = far.work("fork_many")
    far.runners.send(runner, [work])
    await far.begun(runner, work)
    await until(lambda: len(process.children(recursive=True)) == 6)
    family = process.children(recursive=True)
    far.runners.kill(runner, "enough")
    gone = await far.gone(runner)
    assert all(dead(each.pid) for each in [process, *family])
    assert gone.reason == "enough"


@pytest.mark.parametrize(("call", "reason"), [("shoot", "killed by a signal"), ("drop_dead", "os._exit(3)")])
async def test_the_death_of_a_far_runner_is_told_with_its_reason(far, call, reason):
    runner = await far.ready(fresh=True)
    work = far.work(call)
    far.runners.send(runner, [work, far.work("nothing")])
    gone = await far.gone(runner, seconds=5)
    assert reason in gone.reason
    assert far.heard.all(runner, Begun, work.ticket)


async def test_a_far_runner_that_has_lost_its_stream_is_killed_before_its_end_is_told(far):
    runner = await far.ready(fresh=True)
    pid = far.runners.pid(runner)
    far.runners.send(runner, [far.work("far_deeds:close_sockets")])
    await far.gone(runner, seconds=10)
    assert dead(pid)


async def test_nothing_of_a_crashed_far_runner_lives_when_its_end_is_told(far, tmp_path):
    runner = await far.ready(fresh=True)
    far.runners.send(runner, [far.work("leave_behind", args={"note": str(tmp_path / "note")})])
    await far.gone(runner)
    left = [int(pid) for pid in (tmp_path / "note").read_text().split()]
    assert len(left) == 2
    assert all(map(dead, left))


async def test_a_far_runner_dies_when_nobody_knows_what_was_taken_back(far, harness):
    runner = await far.ready(fresh=True)
    pid = far.runners.pid(runner)
    first = far.work("sleep")
    far.runners.send(runner, [first, far.work("nothing")])
    await far.begun(runner, first)
    await harness.cluster.ask_agent(
        node_of(far, runner), "ready"
    )  # the runner has asked it too, and is answered
    agent = harness.cluster._agents[node_of(far, runner)]
    await harness.cluster.call(partial(kill_and_see, harness.cluster.ray, agent))
    far.runners.revoke(runner)
    gone = await far.gone(runner)
    assert gone.reason == "its node did not report which attempts it has taken back"
    assert dead(pid)
    assert far.heard.of[runner][-1] is gone
    assert not [each for each in far.heard.of[runner] if isinstance(each, tuple)]


async def test_an_agent_that_died_is_replaced(far, harness):
    runner = await far.ready(fresh=True)
    pid = far.runners.pid(runner)
    agent = harness.cluster._agents[node_of(far, runner)]
    await harness.cluster.call(lambda: harness.cluster.ray.kill(agent))
    far.runners.kill(runner, "enough")
    await far.gone(runner)
    assert dead(pid)


# -- two nodes -----------------------------------------------------------------------------------------------


async def test_a_node_that_joins_gives_places_and_one_that_leaves_takes_them(harness, join):
    shape = (("node_b", 1.0),)
    assert harness.cluster.slots(shape) == 0
    assert "no node of the Ray cluster has node_b 1" in harness.cluster.why_never(shape)
    node = await join(num_cpus=2)
    harness.engine.resize([(), shape])
    assert (harness.cluster.slots(()), harness.cluster.slots(shape)) == (4, 2)
    assert harness.engine._core.slots.capacity(()) == 4
    assert node.id in harness.cluster._agents
    await node.stop()
    await alone(harness.cluster)
    assert node.id not in harness.cluster._agents
    await harness.cluster.node_lost(node.id)
    await harness.cluster.refresh()
    assert not harness.cluster._lost
    harness.engine.resize([(), shape])
    assert harness.engine._core.slots.capacity(()) == 2
    assert harness.engine._core.slots.capacity(shape) == 0


async def test_runners_are_spread_and_resources_of_a_node_are_used(harness, join, tmp_path):
    node = await join(num_cpus=2)
    async with open_world(harness.cluster, tmp_path) as world:
        runners = await asyncio.gather(*(world.ready() for _ in range(4)))
        assert Counter(node_of(world, runner) for runner in runners)[node.id] == 2
        special = await world.ready(shape=(("node_b", 2.0),))
        assert node_of(world, special) == node.id


@pytest.mark.long
async def test_a_node_is_lost_its_tasks_go_on_elsewhere_and_that_costs_no_attempt(
    harness, join, tmp_path, tmp_path_factory
):
    from governor.tasks.runners.pool import Runners

    node = await join(num_cpus=2)
    sockets = tmp_path_factory.mktemp("s")
    runners = Runners(
        cluster=harness.cluster,
        run="x",
        run_folder=tmp_path,
        socket_folder=sockets,
        import_path=[str(USER_CODE)],
    )
    hide(runners)
    engine = Engine(runners=runners, cluster=harness.cluster, folder=tmp_path, grace=0.2)
    await engine.start()
    there = {each.id for each in runners._handles.values() if each.node == node.id}
    assert len(there) == 2
    ends, gone, held = Ends(), [], engine.runner_changed
    runners.listener.runner_changed = lambda event: (gone.append(event), held(event))
    tasks = [
        TaskSpec(id=name, call=f"far_deeds:{call}", retries=retries)
        for name, call, retries in [
            ("a", "brief", 1),
            ("b", "brief", 1),
            ("c", "brief", 0),
            ("d", "brief", 0),
        ]
    ]
    engine.submit(BatchSpec(id="b", tasks=tuple(tasks)), ends)
    await ends.until(lambda: len(ends.started) == 4)
    killed = time.monotonic()
    node.kill()
    await ends.until(lambda: ends.end is not None)
    assert harness.cluster.slots(()) == 2  # Ray believes in it for another ten seconds
    assert await harness.cluster.refresh()
    assert not await harness.cluster.refresh()
    lost = [event for event in gone if isinstance(event, RunnerGone) and event.runner in there]
    assert {event.runner for event in lost} == there
    assert max(event.now for event in lost) - killed < 4
    assert all("the node" in event.reason and "was lost" in event.reason for event in lost)
    hit = {name for (name, number), (runner, _) in ends.started.items() if number == 1 and runner in there}
    for task in tasks:
        record = ends.records[task.id]
        assert (record.outcome, record.attempts) == ("succeeded", 1)
    assert sorted((name, outcome) for name, outcome, _ in ends.retried) == sorted(
        (name, "crashed") for name in hit
    )
    assert len(hit) == 2
    assert node.id not in runners._node_watches
    for (name, _), (runner, pid) in ends.started.items():
        assert runner not in there or dead(pid), name
    await engine.close()
    assert is_empty(sockets)
