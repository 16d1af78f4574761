"""The runners of a driver: Ray actors, their streams, their deaths.

Rules:
1. Every runner that was started ends in exactly one `RunnerGone`, whether we killed it or not.
2. On this machine a death is seen through a pidfd, at once; elsewhere through the end of the stream, of the actor's one
   Ray call, or of the node's raylet, and whatever is left of the runner is killed by the node's agent.
3. News of a runner reach the listener in the order in which the runner sent them, its end last: all that a dead
   runner has written is read before.
4. Nothing here waits: calls into Ray run in Ray's thread, deaths in threads of their own.
"""

from __future__ import annotations

import asyncio
import contextlib
import secrets
import time
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from itertools import count
from typing import TYPE_CHECKING, Any, Final, Protocol

import msgspec

from governor import logs
from governor.tasks.actor.runner import Runner
from governor.tasks.exchange import claims, reaper
from governor.tasks.exchange.wire import Begun, Bundle, Hello, Leaving, Line, Loading, Over, Told, Work
from governor.tasks.fleet import remote_files
from governor.tasks.fleet.channel import Gate
from governor.tasks.fleet.member import AGENT_SECONDS, LOST_SECONDS, Elsewhere, Here, Member
from governor.tasks.planning.story import RunnerGone, RunnerReady, Shape

if TYPE_CHECKING:
    from collections.abc import Coroutine, Sequence
    from pathlib import Path

    from governor.tasks.exchange.wire import FromRunner
    from governor.tasks.fleet.channel import Connection
    from governor.tasks.fleet.cluster import Cluster

WORDS_SECONDS: Final = 1.0
"""How long after a crash Ray is waited for, to say why."""
LAST_SECONDS: Final = 1.0
"""Between the end of a runner's stream and that of its process."""

log = logs.get_logger()


class Listener(Protocol):
    """Who hears what happens to runners."""

    def runner_changed(self, event: RunnerReady | RunnerGone) -> None:
        """A runner is ready, or dead."""

    def runner_said(
        self, runner: int, messages: Sequence[Begun | Over | Loading | Line | Told], now: float
    ) -> None:
        """All that one read gave, in order; `at` is in the driver's clock."""

    def runner_revoked(self, runner: int, tickets: tuple[int, ...]) -> None:
        """These were taken back."""


class Runners:
    """All runners of this driver.

    Args:
        run: uid of the run, for user code. run_folder: its files. socket_folder: of the unix socket.
        import_path: folders that runners put in front of ``sys.path``.
    """

    def __init__(
        self, *, cluster: Cluster, run: str, run_folder: Path, socket_folder: Path, import_path: Sequence[str]
    ) -> None:
        self.ids = count()
        self.listener: Listener | None = None
        self._cluster = cluster
        self._run = run
        self._folder = run_folder
        self._import_path = list(import_path)
        self._members: dict[int, Member] = {}
        self._tasks: set[asyncio.Task[None]] = set()
        self._node_watches: dict[str, asyncio.Task[None]] = {}
        self._threads = ThreadPoolExecutor(max_workers=4, thread_name_prefix="kill")
        self._files = ThreadPoolExecutor(max_workers=2, thread_name_prefix="files")
        self._loop = asyncio.get_running_loop()
        self._secret = secrets.token_bytes(32)
        self._marker = f".governor-{secrets.token_hex(8)}"
        (run_folder / self._marker).touch()
        host = "127.0.0.1" if cluster.own is None else cluster.own.host
        self._gate = Gate(folder=socket_folder, host=host, secret=self._secret, welcome=self._welcome)
        actor: Any = cluster.ray.remote(Runner)
        self._actor = actor

    def start(self, runner: int, shape: Shape) -> None:
        """Ends in RunnerReady or RunnerGone; waits in Ray's queue for as long as its resources are taken."""
        taken = Counter(member.node for member in self._members.values() if not member.shape)
        planned = None if shape else self._cluster.next_node(taken)
        member = self._members[runner] = Member(id=runner, shape=shape, planned=planned)
        self._hold(self._start(member), f"runner.{runner}.start")

    def send(self, runner: int, works: Sequence[Work]) -> None:
        """Hands a bundle to an idle runner. If it is dead already, its `RunnerGone` says so. Raises ValueError for
        more than `claims.MOST`.
        """
        if len(works) > claims.MOST:
            raise ValueError(f"a bundle of {len(works)} attempts: {claims.MOST} are the most")
        member = self._members.get(runner)
        if member is None or member.hello is None:
            return
        if member.hello.shares_folder or not remote_files.needs_files(works):
            self._send(member, works)
        else:
            self._hold(self._send_with_files(member, works), f"runner.{runner}.files")

    def revoke(self, runner: int) -> None:
        """Takes back what the runner has not begun; the listener hears which, on this machine at once."""
        member = self._members.get(runner)
        if member is not None and member.reach is not None:
            member.reach.take_back(lambda tickets: self._revoked(runner, tickets))

    def cancel(self, runner: int, ticket: int) -> None:
        """Takes back what the runner has not begun, then raises TaskCancelled in this attempt, if it is at it."""
        member = self._members.get(runner)
        if member is not None and member.reach is not None:
            member.reach.cancel(ticket, lambda tickets: self._revoked(runner, tickets))

    def kill(self, runner: int, reason: str) -> None:
        """Ends in RunnerGone once the process and all below it are seen dead."""
        member = self._members.get(runner)
        if member is None or member.killing is not None:
            return
        member.killing = reason
        if member.end is None:
            member.end = self._hold(self._kill(member), f"runner.{runner}.kill")

    def pid(self, runner: int) -> int:
        member = self._members.get(runner)
        return member.hello.pid if member and member.hello else 0

    def node(self, runner: int) -> str:
        member = self._members.get(runner)
        return member.hello.host if member and member.hello else ""

    async def close(self) -> None:
        """Kills every runner and sees it dead."""
        for runner in list(self._members):
            self.kill(runner, "the scheduler ends")
        if self._tasks:
            await asyncio.wait(set(self._tasks), timeout=2 * reaper.KILL_SECONDS)
        for watch in self._node_watches.values():
            watch.cancel()
        self._gate.close()
        for threads in (self._threads, self._files):
            threads.shutdown(wait=False, cancel_futures=True)
        (self._folder / self._marker).unlink(missing_ok=True)

    def _send(self, member: Member, works: Sequence[Work]) -> None:
        if member.connection is None:
            return
        try:
            member.connection.send([Bundle(list(works))])
        except Exception as error:  # noqa: BLE001  # whatever encoding raises: nothing was sent
            log.warning("runner.unsendable", runner=member.id, reason=f"{type(error).__name__}: {error}")
            member.connection.send([Bundle(list(map(remote_files.sendable, works)))])

    async def _send_with_files(self, member: Member, works: Sequence[Work]) -> None:
        read = partial(remote_files.with_files, folder=self._folder)
        found = await self._loop.run_in_executor(self._files, lambda: list(map(read, works)))
        self._send(member, found)

    # -- life of one runner ---------------------------------------------------------------------------------

    async def _start(self, member: Member) -> None:
        try:
            await self._cluster.call(lambda: self._create(member))
        except Exception as error:  # noqa: BLE001  # whatever Ray raises, the runner did not start
            refused = f"Ray refused the runner: {type(error).__name__}: {error}"
            self._announce_end(member, member.killing or refused)

    def _create(self, member: Member) -> None:
        """In Ray's thread."""
        if member.killing is not None:
            raise RuntimeError(member.killing)
        options = member.options(nodes=len(self._cluster.nodes))
        member.actor = self._actor.options(**options).remote(
            run=self._run, run_folder=str(self._folder), import_path=self._import_path
        )
        serving = member.actor.serve.remote(
            path=self._gate.path,
            address=self._gate.address,
            secret=self._secret,
            runner=member.id,
            marker=self._marker,
        )

        def tell(outcome: Any) -> None:
            error = outcome.exception()
            with contextlib.suppress(RuntimeError):  # the loop is closed: nobody wants to know
                self._loop.call_soon_threadsafe(self._call_ended, member, "" if error is None else str(error))

        serving.future().add_done_callback(tell)

    def _welcome(self, connection: Connection, hello: Hello) -> None:
        """A runner has proven that it is one of ours."""
        member = self._members.get(hello.runner)
        if member is None or member.hello is not None:
            connection.close()
            return
        member.hello, member.connection = hello, connection
        connection.heard = lambda documents: self._heard(member, documents)
        if not hello.shares_folder:
            member.intake = remote_files.Intake(
                folder=self._folder, threads=self._files, tell=lambda documents: self._tell(member, documents)
            )
        connection.closed = lambda: self._stream_ended(member)
        if connection.local and connection.peer_pid() == hello.pid:
            try:
                member.reach = Here(hello)
            except OSError:
                self._died(member)
                return
            self._loop.add_reader(member.reach.handle, self._died, member)
        else:
            member.reach = Elsewhere(hello, self._cluster, self._loop)
            known = self._node_watches.get(hello.node)
            if known is None or known.done():
                watch = asyncio.create_task(self._watch_node(hello.node), name=f"node.{hello.host}.watch")
                self._node_watches[hello.node] = watch
        if self.listener is not None and member.killing is None:
            self.listener.runner_changed(RunnerReady(member.id, time.monotonic()))

    def _call_ended(self, member: Member, text: str) -> None:
        if not member.ended.done():
            member.ended.set_result(text)
        if not isinstance(member.reach, Here):
            self._died(member)

    async def _watch_node(self, node: str) -> None:
        """Its raylet may be gone long before Ray says so, and its runners do not notice."""
        try:
            await self._cluster.node_lost(node)
        except Exception as error:  # noqa: BLE001  # whatever Ray raises: it is lost, which others see
            log.warning("node.unwatched", node=node, reason=f"{type(error).__name__}: {error}")
            return
        log.warning("node.lost", node=node)
        for member in list(self._members.values()):
            if member.hello is not None and member.hello.node == node:
                self._call_ended(member, "")

    def _stream_ended(self, member: Member) -> None:
        """Its process is dead, or user code has closed what was not its own."""
        if not isinstance(member.reach, Here):
            self._died(member)
        elif member.end is None:  # its death is seen next; if it lives, it is of no use
            reason = "the runner's connection was closed by the code of its task"
            self._loop.call_later(LAST_SECONDS, self._kill_deaf, member, reason)

    def _kill_deaf(self, member: Member, reason: str) -> None:
        if member.end is None and member.id in self._members:
            self.kill(member.id, reason)

    def _died(self, member: Member) -> None:
        """Its process, its stream or its Ray call has ended without our doing."""
        self._stop_watching(member)
        if member.end is None:
            member.end = self._hold(self._crash(member), f"runner.{member.id}.crash")

    async def _crash(self, member: Member) -> None:
        """Waits for Ray's word on it; what the runner said before its death is read meanwhile."""
        await asyncio.wait({member.ended}, timeout=WORDS_SECONDS)
        told = member.ended.result() if member.ended.done() else ""
        lost = isinstance(member.reach, Elsewhere) and await self._cluster.is_lost(member.node)
        if isinstance(member.reach, Elsewhere):  # its stream or its raylet may have ended before its process
            await self._kill_elsewhere(member, member.reach, lost=lost)
        await self._end(member, member.why_dead(told, lost))
        await self._ray_kill(member)

    async def _kill(self, member: Member) -> None:
        reason = member.killing or ""
        if member.reach is None:  # it is on its way
            await self._kill_by_ray(member)
        left: list[int] = []
        if isinstance(member.reach, Here):
            left = await self._kill_here(member, member.reach)
        elif isinstance(member.reach, Elsewhere):
            lost = await self._cluster.is_lost(member.node)
            left = await self._kill_elsewhere(member, member.reach, lost=lost)
        if left:
            log.error("runner.unkillable", runner=member.id, pids=left, seconds=reaper.KILL_SECONDS)
            reason = f"{reason}; processes {left} could not be killed"
        await self._end(member, reason)
        await self._ray_kill(member)

    async def _kill_here(self, member: Member, reach: Here) -> list[int]:
        self._stop_watching(member)
        try:
            return await self._loop.run_in_executor(self._threads, reach.kill_tree)
        except OSError as error:  # no descriptors are left to look at the tree
            log.exception("runner.tree_unseen", runner=member.id, reason=str(error))
            await self._kill_by_ray(member)
            return []

    async def _kill_elsewhere(self, member: Member, reach: Elsewhere, *, lost: bool) -> list[int]:
        """By the node's agent; where that does not answer, by Ray."""
        left = await reach.kill_tree(seconds=LOST_SECONDS if lost else AGENT_SECONDS)
        if left is None and not lost:
            await self._kill_by_ray(member)
        return left or []

    async def _kill_by_ray(self, member: Member) -> None:
        await self._ray_kill(member)
        await asyncio.wait({member.ended}, timeout=reaper.KILL_SECONDS)

    async def _ray_kill(self, member: Member) -> None:
        """What is left of the actor. Again: nothing."""

        def kill() -> None:
            """In Ray's thread, behind the actor's creation."""
            actor, member.actor = member.actor, None
            if actor is not None:
                self._cluster.ray.kill(actor, no_restart=True)

        try:
            await self._cluster.call(kill)
        except Exception as error:  # noqa: BLE001  # whatever Ray raises: it is lost, and its actors with it
            log.warning("runner.not_told_ray", runner=member.id, reason=f"{type(error).__name__}: {error}")

    def _stop_watching(self, member: Member) -> None:
        if isinstance(member.reach, Here) and member.reach.is_open:
            self._loop.remove_reader(member.reach.handle)

    async def _end(self, member: Member, reason: str) -> None:
        """Announces it, once all that it has said is told."""
        if member.connection is not None and member.intake is not None:
            member.connection.closed = None
            member.connection.drain()
            await member.intake.settled()
        self._announce_end(member, reason)

    def _announce_end(self, member: Member, reason: str) -> None:
        if member.id not in self._members:
            return
        if member.connection is not None:
            member.connection.closed = None
            member.connection.drain()
            member.connection.close()
        del self._members[member.id]
        self._stop_watching(member)
        if member.reach is not None:
            member.reach.close()
        if self.listener is not None:
            self.listener.runner_changed(RunnerGone(member.id, time.monotonic(), reason))

    # -- what they say --------------------------------------------------------------------------------------

    def _heard(self, member: Member, documents: list[FromRunner]) -> None:
        """What one read gave; it gets our times before it may have to wait."""
        if not isinstance(member.reach, Here):
            now = time.monotonic()
            documents = [_at(each, now) if isinstance(each, Begun | Over) else each for each in documents]
        if member.intake is None:
            self._tell(member, documents)
        else:
            member.intake.take(documents)

    def _tell(self, member: Member, documents: list[FromRunner]) -> None:
        news: list[Begun | Over | Loading | Line | Told] = []
        for document in documents:
            match document:
                case Begun() | Over() | Loading() | Line() | Told():
                    news.append(document)
                case Leaving(exit_code):
                    member.exit_code = exit_code
        if news and self.listener is not None:
            self.listener.runner_said(member.id, news, time.monotonic())

    def _revoked(self, runner: int, tickets: tuple[int, ...]) -> None:
        if self.listener is not None and runner in self._members:
            self.listener.runner_revoked(runner, tickets)

    def _hold(self, work: Coroutine[Any, Any, None], name: str) -> asyncio.Task[None]:
        task: asyncio.Task[None] = asyncio.create_task(work, name=name)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return task


def _at(said: Begun | Over, now: float) -> Begun | Over:
    """The same, in our clock: it was said just now."""
    return msgspec.structs.replace(said, at=now)
