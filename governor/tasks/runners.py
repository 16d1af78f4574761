"""The runners of a task conductor: Ray actors, the socket to them, their deaths.

Rules:
1. Every runner that was started ends in exactly one `RunnerGone`, whether we killed it or not.
2. On this machine a death is seen through a pidfd, at once; elsewhere through the end of the actor's one Ray call.
3. News of a runner reach the listener in the order in which the runner sent them, its end last.
"""

from __future__ import annotations

import asyncio
import os
import socket
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from itertools import count
from typing import TYPE_CHECKING, Any, Final, Protocol

import msgspec
import zmq

from governor import logs
from governor.tasks import reaper
from governor.tasks.cluster import Cluster, demand
from governor.tasks.runner import Runner
from governor.tasks.story import RunnerGone, RunnerReady, Shape
from governor.tasks.wire import FromRunner, Hello, Leaving, Work, decode_from_runner, encode

if TYPE_CHECKING:
    from governor.messages import ConductorSpec

WORDS_SECONDS: Final = 1.0
"""How long after a crash Ray is waited for, to say why."""
MESSAGES_PER_TURN: Final = 256

log = logs.get_logger()


class Listener(Protocol):
    """Who hears what happens to runners."""

    def runner_changed(self, event: RunnerReady | RunnerGone) -> None:
        """A runner is ready, or dead."""

    def runner_said(self, runner: int, message: FromRunner, now: float) -> None:
        """News of its attempt."""


@dataclass(slots=True)
class Member:
    """One runner; `died` is set by the end of its process or of its Ray call, whichever is seen first."""

    id: int
    shape: Shape
    actor: Any = None
    ended: asyncio.Future[str] = field(default_factory=lambda: asyncio.get_running_loop().create_future())
    hello: Hello | None = None
    handle: int | None = None
    exit_code: int | None = None
    killing: str | None = None
    end: asyncio.Task[None] | None = None


class Runners:
    """All runners of this conductor, over all its phases."""

    def __init__(self, *, cluster: Cluster, spec: ConductorSpec) -> None:
        self.ids = count()
        self.listener: Listener | None = None
        self._cluster = cluster
        self._spec = spec
        self._members: dict[int, Member] = {}
        self._tasks: set[asyncio.Task[None]] = set()
        self._killers = ThreadPoolExecutor(max_workers=4, thread_name_prefix="kill")
        self._loop = asyncio.get_running_loop()
        self._context = zmq.Context(io_threads=1)
        self._socket: zmq.Socket[bytes] = self._context.socket(zmq.ROUTER)
        self._public_key, secret_key = zmq.curve_keypair()
        self._socket.curve_secretkey = secret_key
        self._socket.curve_server = True
        self._socket.setsockopt(zmq.ROUTER_MANDATORY, 1)
        self._socket.setsockopt(zmq.SNDHWM, 0)
        self._socket.setsockopt(zmq.RCVHWM, 0)
        self._socket.setsockopt(zmq.LINGER, 0)
        own = cluster.own
        self._socket.bind(f"tcp://{'127.0.0.1' if own is None else own.host}:*")
        self._endpoint: str = self._socket.getsockopt_string(zmq.LAST_ENDPOINT)
        self._loop.add_reader(self._socket.fileno(), self._drain)
        actor: Any = cluster.ray.remote(Runner)
        self._actor = actor

    def warm(self) -> list[tuple[int, Shape, bool]]:
        """The living runners that hold no resources: number, shape, ready or still on its way."""
        return [
            (member.id, member.shape, member.hello is not None)
            for member in self._members.values()
            if member.killing is None and not member.shape and member.end is None
        ]

    def start(self, runner: int, shape: Shape) -> None:
        """Ends in RunnerReady or RunnerGone; waits in Ray's queue for as long as its resources are taken."""
        member = self._members[runner] = Member(id=runner, shape=shape)
        self._hold(self._start(member), f"runner.{runner}.start")

    def send(self, runner: int, work: Work) -> None:
        """Hands an attempt to an idle runner. If it is dead already, its `RunnerGone` says so."""
        try:
            self._socket.send_multipart([b"%d" % runner, encode(work)], zmq.DONTWAIT)
        except zmq.ZMQError as error:
            log.debug("runner.unreachable", runner=runner, reason=str(error))
        self._loop.call_soon(self._drain)  # the FD is edge-triggered: a send may have taken the edge

    def kill(self, runner: int, reason: str) -> None:
        """Ends in RunnerGone once the process and all below it are seen dead."""
        member = self._members.get(runner)
        if member is None or member.killing is not None:
            return
        member.killing = reason
        if member.end is None:
            member.end = self._hold(self._kill(member), f"runner.{runner}.kill")

    async def close(self) -> None:
        """Kills every runner and sees it dead."""
        for runner in list(self._members):
            self.kill(runner, "the task conductor ends")
        if self._tasks:
            await asyncio.wait(set(self._tasks), timeout=2 * reaper.KILL_SECONDS)
        self._loop.remove_reader(self._socket.fileno())
        self._context.destroy(linger=0)
        self._killers.shutdown(wait=False, cancel_futures=True)

    # -- life of one runner ---------------------------------------------------------------------------------

    async def _start(self, member: Member) -> None:
        try:
            await self._cluster.call(lambda: self._create(member))
        except Exception as error:  # noqa: BLE001  # whatever Ray raises, the runner did not start
            self._announce_end(member, f"Ray refused the runner: {type(error).__name__}: {error}")

    def _create(self, member: Member) -> None:
        """In Ray's thread."""
        if member.killing is not None:
            raise RuntimeError(member.killing)
        wanted = demand(member.shape)
        options: dict[str, Any] = {
            "num_cpus": wanted.pop("CPU", 0),
            "num_gpus": wanted.pop("GPU", 0),
            "max_restarts": 0,
            "max_task_retries": 0,
        }
        if "memory" in wanted:
            options["memory"] = int(wanted.pop("memory"))
        if len(self._cluster.nodes) > 1:
            options["scheduling_strategy"] = "SPREAD"
        member.actor = self._actor.options(**options, resources=wanted).remote(
            run=self._spec.uid, run_folder=self._spec.run_folder, import_folder=self._spec.import_folder
        )
        serving = member.actor.serve.remote(
            endpoint=self._endpoint, identity=b"%d" % member.id, server_key=self._public_key
        )

        def tell(outcome: Any) -> None:
            error = outcome.exception()
            self._loop.call_soon_threadsafe(self._call_ended, member, "" if error is None else str(error))

        serving.future().add_done_callback(tell)

    def _call_ended(self, member: Member, text: str) -> None:
        if not member.ended.done():
            member.ended.set_result(text)
        if member.handle is None:
            self._died(member)

    def _died(self, member: Member) -> None:
        """Its process, or its Ray call, has ended without our doing."""
        if member.handle is not None:
            self._loop.remove_reader(member.handle)
        if member.end is None:
            member.end = self._hold(self._crash(member), f"runner.{member.id}.crash")

    async def _crash(self, member: Member) -> None:
        """Waits for Ray's word on it; what the runner said before its death is read meanwhile."""
        await asyncio.wait({member.ended}, timeout=WORDS_SECONDS)
        self._drain()
        told = member.ended.result() if member.ended.done() else ""
        self._announce_end(member, _why(member, told))

    async def _kill(self, member: Member) -> None:
        reason = member.killing or ""
        hello, handle = member.hello, member.handle
        if hello is not None and handle is not None:
            self._loop.remove_reader(handle)
            left = await self._loop.run_in_executor(self._killers, reaper.kill_tree, hello.pid, handle)
            if left:
                log.error("runner.unkillable", runner=member.id, pids=left, seconds=reaper.KILL_SECONDS)
                reason = f"{reason}; processes {left} could not be killed"
            self._announce_end(member, reason)
        await self._cluster.call(lambda: self._ray_kill(member))
        if handle is None:
            await asyncio.wait({member.ended}, timeout=reaper.KILL_SECONDS)
            self._announce_end(member, reason)

    def _ray_kill(self, member: Member) -> None:
        """In Ray's thread, behind the actor's creation."""
        if member.actor is not None:
            self._cluster.ray.kill(member.actor, no_restart=True)

    def _announce_end(self, member: Member, reason: str) -> None:
        if self._members.pop(member.id, None) is None:
            return
        if member.handle is not None:
            self._loop.remove_reader(member.handle)
            os.close(member.handle)
            member.handle = None
        if self.listener is not None:
            self.listener.runner_changed(RunnerGone(member.id, time.monotonic(), reason))

    # -- the socket -----------------------------------------------------------------------------------------

    def _drain(self) -> None:
        """Reads what is there, a bounded number at a time."""
        for _ in range(MESSAGES_PER_TURN):
            try:
                identity, body = self._socket.recv_multipart(zmq.DONTWAIT)
            except zmq.Again:
                return
            except (ValueError, zmq.ZMQError) as error:
                if self._socket.closed:
                    return
                log.warning("runner.malformed", reason=str(error))
                continue
            try:
                self._heard(int(identity), decode_from_runner(body))
            except (ValueError, msgspec.MsgspecError) as error:
                log.warning("runner.malformed", reason=str(error))
        self._loop.call_soon(self._drain)

    def _heard(self, runner: int, message: FromRunner) -> None:
        member = self._members.get(runner)
        if member is None:
            return
        match message:
            case Hello():
                self._greeted(member, message)
            case Leaving():
                member.exit_code = message.exit_code
            case _ if self.listener is not None:
                self.listener.runner_said(runner, message, time.monotonic())

    def _greeted(self, member: Member, hello: Hello) -> None:
        member.hello = hello
        own = self._cluster.own
        if own is not None and hello.node == own.id and hello.host == socket.gethostname():
            member.handle = reaper.open_pid(hello.pid, hello.created)
            if member.handle is None:
                self._died(member)
                return
            self._loop.add_reader(member.handle, self._died, member)
        if self.listener is not None and member.killing is None:
            self.listener.runner_changed(RunnerReady(member.id, time.monotonic()))

    def pid(self, runner: int) -> int:
        member = self._members.get(runner)
        return member.hello.pid if member and member.hello else 0

    def node(self, runner: int) -> str:
        member = self._members.get(runner)
        return member.hello.host if member and member.hello else ""

    def _hold(self, work: Any, name: str) -> asyncio.Task[None]:
        task: asyncio.Task[None] = asyncio.create_task(work, name=name)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return task


def _why(member: Member, told: str) -> str:
    """What is known about a death that was not ours, in one line."""
    if member.hello is None:
        lines = [line.strip() for line in told.splitlines() if line.strip()]
        return f"the runner died before it was ready: {' '.join(lines)[-500:] or 'Ray does not say why'}"
    who = f"the runner's process {member.hello.pid}"
    if member.exit_code is not None:
        return f"{who} ended by os._exit({member.exit_code})"
    if "memory" in told and "OOM" not in told:
        return f"{who} was killed by Ray: {' '.join(told.split())[:500]}"
    return f"{who} was killed by a signal or crashed in native code"
