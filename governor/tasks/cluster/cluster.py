"""The connection to Ray: opened in a thread of its own, queried for the nodes, watched for its loss.

Ray terminates a driver 61 s after the GCS is lost, and fails every call for ever once its raylet is lost; if one of them
is frozen, its calls never return. So both are watched (`liveness`), the GCS also while a connection is being opened.
"""

from __future__ import annotations

import asyncio
import contextlib
import errno
import socket
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import TYPE_CHECKING, Any, Final, TypeVar

from governor import logs
from governor.episodes.entries import call_in_loop
from governor.errors import ConductorError
from governor.tasks.cluster.joining import join, raylets, worker_id
from governor.tasks.cluster.liveness import (
    all_answer,
    answers,
    ended,
    first_ended,
    first_words,
    is_settings,
    race,
    why,
)
from governor.tasks.cluster.nodes import Nodes, RayNode

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable
    from concurrent.futures import Future

    from governor.tasks.cluster.liveness import Server
    from governor.tasks.engine import Engine
    from governor.tasks.scheduling.events import Shape

CONNECT_SECONDS: Final = 60.0
REACH_SECONDS: Final = 15.0
"""For a connection to the GCS; the system itself tries for two minutes where a firewall drops its packets."""
OWN_NODE_SECONDS: Final = 20.0
"""For this machine to become a node, as it does when its raylet is started again. Ray waits for that as long as
`deadlines.start` is, and does not say so.
"""
OWN_NODE_PAUSE: Final = 0.5
LEAVE_SECONDS: Final = 10.0
"""Longest wait for the clean-up at the end: Ray may hang, and its thread with it."""
ASK_AGAIN_SECONDS: Final = 1.0
"""For a node that was taken for lost to answer again."""
REFRESH_SECONDS: Final = 5.0
"""Between two queries for the nodes: Ray does not notify its drivers of nodes that join."""
AGENT_THREADS: Final = 16

T = TypeVar("T")

log = logs.get_logger()


class Cluster:
    """Ray as seen by one driver. All calls into Ray run in one thread, so that none can block the event loop."""

    def __init__(self, *, address: str, token_path: str | None, namespace: str) -> None:
        self.address = address
        self.namespace = namespace
        self._token_path = token_path
        self._thread = ThreadPoolExecutor(max_workers=1, thread_name_prefix="ray")
        self._agents: dict[str, Any] = {}
        self._alive: tuple[RayNode, ...] = ()
        """Nodes that Ray reports as alive; `_lost` are the ids of those that were found lost before."""
        self._lost: set[str] = set()
        self._reported: set[str] = set()
        """Ids of nodes at the last `refresh`."""
        self._gone: asyncio.Future[str]
        """Done with the reason, once Ray is known to be lost."""
        self.own: RayNode | None = None
        self.ray: Any = None
        self.worker = ""
        """Ray's id of this process on this connection."""

    @property
    def nodes(self) -> Nodes:
        """Those that are alive, and were not found lost."""
        return Nodes(node for node in self._alive if node.id not in self._lost)

    async def connect(self) -> None:
        """Opens the connection. Without an address, that of this process is used, and left open at the end.

        Raises ConductorError within `CONNECT_SECONDS`.
        """
        self._gone = asyncio.get_running_loop().create_future()
        try:
            async with asyncio.timeout(CONNECT_SECONDS):
                if not self.address:
                    await self.call(self._use_existing)
                else:
                    await self._reachable()
                    await self._join()
            self._reported = {node.id for node in self.nodes}
        except TimeoutError:
            where = f"Ray at {self.address}" if self.address else "Ray of this process"
            raise ConductorError(f"{where} did not answer within {CONNECT_SECONDS:g} s") from None
        except ConductorError:
            raise
        except Exception as error:  # Ray raises many types, RuntimeError and ConnectionError among them
            why = _first_line(error)
            if "InvalidAuthToken" in str(error.__context__) or "InvalidAuthToken" in str(error):
                why = f"it does not accept the token ({self._token_path or 'none is configured'})"
            raise ConductorError(f"no connection to Ray at {self.address}: {why}") from error

    async def _join(self) -> None:
        """`_connect_here`, aborted when the GCS is lost meanwhile: Ray would wait for it."""
        joined, lost = await race("ray.join", self._connect_here(), first_ended(self._servers()))
        if joined.cancelled():
            raise ConductorError(f"no connection to Ray at {self.address}: {lost.result()}")
        joined.result()

    async def _connect_here(self) -> None:
        if not await asyncio.to_thread(_is_here, self.address.rpartition(":")[0]):
            await self._wait_for_own_node()
        await self.call(self._connect)

    async def _wait_for_own_node(self) -> None:
        ask = partial(raylets, self.address, token_path=self._token_path)
        end = asyncio.get_running_loop().time() + OWN_NODE_SECONDS
        while True:
            nodes = await self.call(ask)
            for host, port in nodes:  # Ray believes some 15 s in a raylet that is gone
                if _is_here(host) and await answers(host, port, silence=ASK_AGAIN_SECONDS):
                    return
            if asyncio.get_running_loop().time() >= end:
                raise self._no_node(host for host, _ in nodes)
            await asyncio.sleep(OWN_NODE_PAUSE)

    async def call(self, function: Callable[[], T]) -> T:
        """Runs a call into Ray in Ray's thread. Raises ConductorError once the connection has been shut down, and at once
        when Ray is known to be lost: that thread may wait for it for ever.
        """

        def guarded() -> T:
            # Without one, Ray would start a cluster of its own now; another one is not ours.
            if self.ray is not None and worker_id() != self.worker:
                raise ConductorError("the connection to Ray was shut down in this process")
            return function()

        called = asyncio.get_running_loop().run_in_executor(self._thread, guarded)
        either: set[asyncio.Future[Any]] = {called, self._gone}
        try:
            await asyncio.wait(either, return_when=asyncio.FIRST_COMPLETED)
            if not called.done():
                raise ConductorError(f"Ray is lost: {self._gone.result()}")
            return called.result()
        finally:
            called.cancel()

    async def call_at_end(self, function: Callable[[], object]) -> None:
        """As `call`, but waits at most `LEAVE_SECONDS`; the call is made later then. Does nothing if the connection has been
        shut down: that has cleaned up already.
        """
        called = asyncio.ensure_future(self.call(function))
        done, _ = await asyncio.wait({called}, timeout=LEAVE_SECONDS)
        if not done:
            log.error("ray.call_timeout", seconds=LEAVE_SECONDS)
            called.add_done_callback(_drop_result)
            return
        with contextlib.suppress(ConductorError):
            called.result()

    async def lost(self) -> str:
        """Waits until the GCS or this node's raylet is gone or silent; returns the reason."""
        return self._note_loss(await first_ended(self._servers()))

    async def answers(self) -> bool:
        """Whether the GCS and this node's raylet answer."""
        found = await all_answer(self._servers())
        if not found:
            self._note_loss("it does not answer")
        return found

    def _note_loss(self, reason: str) -> str:
        """Idempotent."""
        if not self._gone.done():
            self._gone.set_result(reason)
        return reason

    def _servers(self) -> list[Server]:
        host, _, port = self.address.rpartition(":")
        own = [] if self.own is None else [(self.own.host, self.own.port, "Ray's raylet")]
        return [(host, int(port), "Ray's GCS"), *own]

    def slots(self, shape: Shape) -> int:
        """As of `Nodes`."""
        return self.nodes.slots(shape)

    def why_never(self, shape: Shape) -> str:
        """As of `Nodes`."""
        return self.nodes.why_never(shape)

    async def refresh(self) -> bool:
        """Queries the nodes; True if any joined or left since the last call, or since `connect`."""
        before = self._reported
        await self.call(self._ask_nodes)
        for node in self._alive:
            if node.id in self._lost and await answers(node.host, node.port, silence=ASK_AGAIN_SECONDS):
                self._lost.discard(node.id)
        self._lost.intersection_update(node.id for node in self._alive)
        self._reported = {node.id for node in self.nodes}
        return before != self._reported

    async def follow(self, engine: Engine) -> None:
        """Adapts the number of slots to nodes that join and leave, until it is cancelled or the connection is shut down. Lost runners
        are handled elsewhere.
        """
        while True:
            await asyncio.sleep(REFRESH_SECONDS)
            try:
                is_changed = await self.refresh()
            except Exception as error:  # noqa: BLE001  # Ray raises many types; it may answer again
                gone = isinstance(error, ConductorError)  # for good; scripts do that between their calls
                tell = log.debug if gone and not engine.is_active() else log.warning
                tell("ray.request_failed", reason=f"{type(error).__name__}: {error}")
                if gone:
                    return
                continue
            if is_changed:
                log.info("ray.nodes", nodes=len(self.nodes))
                engine.resize(engine.shapes())

    async def is_lost(self, node_id: str) -> bool:
        """Whether this node is lost: its raylet does not answer."""
        try:
            node = await self._known(node_id)
        except Exception:  # noqa: BLE001  # whatever Ray raises: Ray itself is lost
            return False
        return node is None or not await answers(node.host, node.port)

    async def node_lost(self, node_id: str) -> None:
        """Returns when the raylet of this node is gone. The node is removed from `nodes` then; Ray itself takes some 15 s
        for that. Raises any error of Ray when Ray is lost.
        """
        node = await self._known(node_id)
        if node is not None:
            await ended(node.host, node.port, node_id)
        self._lost.add(node_id)

    async def _known(self, node_id: str) -> RayNode | None:
        """The node, also if it joined after the last `refresh`; None if it has left."""
        if all(node.id != node_id for node in self._alive):
            await self.call(self._ask_nodes)
        return next((node for node in self._alive if node.id == node_id), None)

    async def ask_agent(self, node_id: str, method: str, *arguments: Any) -> Any:
        """Calls a method of a node's agent (`node_agent.NodeAgent`), which is started on first use. Raises any error of
        Ray if the agent is dead; the next call starts a new one.
        """
        loop = asyncio.get_running_loop()
        answer: asyncio.Future[Future[Any]] = loop.create_future()

        def set_answer(outcome: Future[Any]) -> None:
            if not answer.done():
                answer.set_result(outcome)

        def ask() -> None:
            when_done(getattr(self._agent(node_id), method).remote(*arguments), loop, set_answer)

        await self.call(ask)
        outcome = await answer
        if outcome.exception() is not None:
            self._agents.pop(node_id, None)
        return outcome.result()

    def call_unawaited(self, function: Callable[[], object]) -> None:
        """Has a call into Ray made in Ray's thread, by and by. It must not raise."""
        self._thread.submit(function)

    async def disconnect(self) -> None:
        """Closes a connection that `connect` has opened; an earlier one is left as it is."""
        # queued behind a cancelled `connect`, which is still running in the thread
        if self.address or self._agents or self.ray is None:
            await self.call_at_end(self._shut_down)
        self._thread.shutdown(wait=False)

    def _shut_down(self) -> None:
        """In Ray's thread."""
        if self.ray is None:
            return
        if self.address:
            self.ray.shutdown()
        else:
            for agent in self._agents.values():
                self.ray.kill(agent)
            self._agents.clear()

    def close(self) -> None:
        """Closes without waiting: the process exits soon after, and Ray's actors exit with their driver."""
        self._thread.shutdown(wait=False, cancel_futures=True)

    def _agent(self, node_id: str) -> Any:
        """In Ray's thread."""
        from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy  # noqa: PLC0415  # Ray is imported late

        from governor.tasks.cluster.node_agent import NodeAgent  # noqa: PLC0415  # only where there are other nodes

        agent = self._agents.get(node_id)
        if agent is None:
            strategy = NodeAffinitySchedulingStrategy(node_id=node_id, soft=False)
            remote: Any = self.ray.remote(NodeAgent)
            agent = remote.options(
                num_cpus=0, max_restarts=0, max_concurrency=AGENT_THREADS, scheduling_strategy=strategy
            ).remote()
            self._agents[node_id] = agent
        return agent

    async def _reachable(self) -> None:
        host, colon, port = self.address.rpartition(":")
        if not colon or not port.isdigit():
            raise ConductorError(f'"{self.address}" is no Ray address of the form host:port')
        try:
            async with asyncio.timeout(REACH_SECONDS):
                said = await first_words(host, int(port))
        except TimeoutError:
            raise ConductorError(f"no Ray at {self.address}: no answer within {REACH_SECONDS:g} s") from None
        except OSError as error:
            raise ConductorError(f"no Ray at {self.address}: {why(error)}") from None
        if said and not is_settings(said):
            raise ConductorError(
                f"no Ray at {self.address}: something else listens there; the address is that of the GCS, as `ray start --head` "
                "prints it (its port is 6379 by default; 8265 is that of the dashboard)"
            )

    def _connect(self) -> None:
        self.ray = join(self.address, token_path=self._token_path, namespace=self.namespace)
        self.worker = worker_id()
        self._ask_nodes()
        self._require_own_node()

    def _require_own_node(self) -> None:
        """Ray takes a driver on a machine that is no node for one on another node: runners would not find it."""
        if self.own is not None and not _is_here(self.own.host):
            raise self._no_node(node.host for node in self._alive)

    def _no_node(self, hosts: Iterable[str]) -> ConductorError:
        return ConductorError(
            f"this machine is no node of the Ray cluster at {self.address} (its nodes: "
            f"{', '.join(sorted(set(hosts)))}): a driver needs one here; "
            f"`ray start --address={self.address} --num-cpus=0` makes one that executes nothing"
        )

    def _use_existing(self) -> None:
        import ray  # noqa: PLC0415  # the caller has imported it

        if not ray.is_initialized():
            raise ConductorError("Ray is not initialized in this process, and no address was given")
        self.ray, self.worker = ray, worker_id()
        self._ask_nodes()

    def _ask_nodes(self) -> None:
        here = self.ray.get_runtime_context().get_node_id()
        self._alive = tuple(
            RayNode(
                id=node["NodeID"],
                host=node["NodeManagerAddress"],
                port=node["NodeManagerPort"],
                resources=node["Resources"],
            )
            for node in self.ray.nodes()
            if node["Alive"]
        )
        alive = {node.id for node in self._alive}
        for gone in self._agents.keys() - alive:  # in Ray's thread: the loop may change it meanwhile
            self._agents.pop(gone, None)
        self.own = next((node for node in self._alive if node.id == here), None)


def when_done(call: Any, loop: asyncio.AbstractEventLoop, then: Callable[[Future[Any]], None]) -> None:
    """Has `then` called in the loop with the outcome of a call into an actor."""
    call.future().add_done_callback(lambda outcome: call_in_loop(loop, partial(then, outcome)))


def _is_here(host: str) -> bool:
    """Whether an address is one of this machine."""
    try:
        with socket.create_server((host, 0)):
            return True
    except OSError as error:
        return error.errno != errno.EADDRNOTAVAIL


def _drop_result(called: asyncio.Future[Any]) -> None:
    """Retrieves the exception of a future that is no longer awaited."""
    if not called.cancelled():
        called.exception()


def _first_line(error: BaseException) -> str:
    lines = str(error).strip().splitlines()
    return f"{type(error).__name__}: {lines[0]}" if lines else type(error).__name__
