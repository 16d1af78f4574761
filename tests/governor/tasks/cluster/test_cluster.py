"""The nodes of a cluster: a second raylet, no unix socket and no shared folder stand for another machine."""

from __future__ import annotations

import asyncio
import socket
import tempfile
import threading
import time
from collections import Counter
from types import SimpleNamespace

import pytest
import pytest_asyncio
from structlog.testing import capture_logs

from governor.errors import ConductorError
from governor.messages import TaskSpec
from governor.tasks.cluster.cluster import Cluster
from governor.tasks.cluster.nodes import Nodes, RayNode
from governor.tasks.engine import Engine
from governor.tasks.scheduling.events import BatchSpec, RunnerGone
from tests.support.living import lives
from tests.support.tasks.ends import Ends
from tests.support.tasks.runner_world import USER_CODE, hide, open_world
from tests.support.tasks.second_node import SecondNode

pytestmark = [pytest.mark.ray, pytest.mark.asyncio(loop_scope="session")]

FAR = {"node_b": 2}
SETTINGS = b"\0\0\0\4\0\0\0\0\0"
"""As a gRPC server answers to the greeting."""


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


def is_empty(folder):
    return not list(folder.iterdir())


# -- without another machine ---------------------------------------------------------------------------------


async def test_plain_runners_go_where_the_most_cpus_are_free():
    assert Nodes().next_node({}) is None
    nodes = Nodes(
        RayNode(id=name, host=name, port=1, resources={"CPU": cpus} if cpus else {})
        for name, cpus in [("head", 0.0), ("small", 2.0), ("large", 6.0)]
    )
    taken = Counter()
    for _ in range(8):
        taken[nodes.next_node(taken)] += 1
    assert taken == {"small": 2, "large": 6}


async def test_a_machine_that_is_no_node_is_told_how_to_become_one():
    cluster = Cluster(address="203.0.113.9:6379", token_path=None, namespace="x")
    here, elsewhere = (
        RayNode(id=host, host=host, port=1, resources={}) for host in ("127.0.0.1", "203.0.113.9")
    )
    cluster._alive = (elsewhere,)
    cluster.own = here
    cluster._require_own_node()
    cluster.own = elsewhere
    with pytest.raises(ConductorError, match=r"ray start --address=203\.0\.113\.9:6379 --num-cpus=0"):
        cluster._require_own_node()


@pytest.mark.parametrize("joins", [False, True])
async def test_this_machine_may_become_a_node_meanwhile_and_ray_itself_is_not_asked_before(
    monkeypatch, joins
):
    """Ray would wait a minute for that, as long as `deadlines.start` is, and not say so."""
    monkeypatch.setattr("governor.tasks.cluster.cluster.OWN_NODE_SECONDS", 0.0 if not joins else 60.0)
    monkeypatch.setattr("governor.tasks.cluster.cluster.OWN_NODE_PAUSE", 0.0)
    raylet = await asyncio.start_server(lambda _, writer: writer.write(SETTINGS), "127.0.0.1", 0)
    gone = socket.create_server(("127.0.0.1", 0))
    other, dead = ("203.0.113.9", 1), gone.getsockname()
    gone.close()
    found = iter([[other, dead], [dead, other, raylet.sockets[0].getsockname()]])
    monkeypatch.setattr("governor.tasks.cluster.cluster.raylets", lambda address, token_path: next(found))
    cluster, connected = Cluster(address="203.0.113.9:6379", token_path=None, namespace="x"), []
    cluster._gone = asyncio.get_running_loop().create_future()
    monkeypatch.setattr(cluster, "_connect", lambda: connected.append("now"))
    try:
        if joins:
            await cluster._connect_here()
        else:
            with pytest.raises(ConductorError, match=r"its nodes: .*203\.0\.113\.9\).*ray start --address="):
                await cluster._connect_here()
    finally:
        raylet.close()
        cluster._thread.shutdown()
    assert bool(connected) is joins


@pytest.mark.parametrize(
    ("answer", "reason"),
    [
        (b"HTTP/1.0 400 Bad Request\r\n\r\n", "something else listens there"),
        (b"-ERR unknown command\r\n", "something else listens there"),
        (SETTINGS, None),
        (b"", None),
    ],
)
async def test_a_server_that_is_not_ray_is_told_at_once(answer, reason):
    async def reply(_, writer):
        writer.write(answer)
        writer.close()

    server = await asyncio.start_server(reply, "127.0.0.1", 0)
    port = server.sockets[0].getsockname()[1]
    cluster = Cluster(address=f"127.0.0.1:{port}", token_path=None, namespace="x")
    try:
        if reason is None:
            await cluster._reachable()
        else:
            with pytest.raises(ConductorError, match=f"no Ray at 127.0.0.1:{port}: {reason}"):
                await cluster._reachable()
    finally:
        server.close()
        cluster._thread.shutdown()


async def test_an_address_that_swallows_all_packets_is_given_up_before_the_start_of_a_run(monkeypatch):
    monkeypatch.setattr("governor.tasks.cluster.cluster.REACH_SECONDS", 0.05)
    full = socket.create_server(("127.0.0.1", 0), backlog=0)
    host, port = full.getsockname()
    waiting = [socket.socket() for _ in range(4)]  # the kernel drops what comes when the backlog is full
    cluster = Cluster(address=f"{host}:{port}", token_path=None, namespace="x")
    try:
        for each in waiting:
            each.setblocking(False)
            each.connect_ex((host, port))
        with pytest.raises(ConductorError, match=f"no Ray at {host}:{port}: no answer within 0.05 s"):
            await cluster._reachable()
    finally:
        cluster._thread.shutdown()
        for each in [full, *waiting]:
            each.close()


async def test_ray_that_hangs_is_not_waited_for(monkeypatch):
    monkeypatch.setattr("governor.tasks.cluster.cluster.CONNECT_SECONDS", 0.2)
    monkeypatch.setattr("governor.tasks.cluster.cluster.LEAVE_SECONDS", 0.2)
    hanging, told = threading.Event(), []
    server = await asyncio.start_server(lambda _, writer: writer.write(SETTINGS), "127.0.0.1", 0)
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


@pytest.mark.parametrize(("at_work", "level"), [(True, "warning"), (False, "debug")])
async def test_a_connection_that_was_shut_down_is_said_once_and_followed_no_longer(
    monkeypatch, at_work, level
):
    monkeypatch.setattr("governor.tasks.cluster.cluster.REFRESH_SECONDS", 0.001)
    cluster = Cluster(address="", token_path=None, namespace="x")
    cluster._gone = asyncio.get_running_loop().create_future()
    cluster.ray, cluster.worker = object(), "of a connection that is gone"
    try:
        with capture_logs() as lines:
            async with asyncio.timeout(60):
                await cluster.follow(SimpleNamespace(is_active=lambda: at_work))
    finally:
        cluster._thread.shutdown()
    [line] = lines
    assert (line["event"], line["log_level"]) == ("ray.request_failed", level)
    assert "was shut down in this process" in line["reason"]


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
        assert Counter(world.node_of(runner) for runner in runners)[node.id] == 2
        special = await world.ready(shape=(("node_b", 2.0),))
        assert world.node_of(special) == node.id


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
    assert node.id not in runners._node_watches.watched
    for (name, _), (runner, pid) in ends.started.items():
        assert runner not in there or not lives(pid), name
    await engine.close()
    assert is_empty(sockets)
