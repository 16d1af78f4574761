"""The runners of a driver: Ray actors, their streams, their deaths.

Rules:
1. Every runner that was started ends in exactly one `RunnerGone`, whether we killed it or not.
2. On this machine a death is seen through a pidfd, at once; elsewhere through the end of the stream or of the actor's
   one Ray call.
3. News of a runner reach the listener in the order in which the runner sent them, its end last: all that a dead
   runner has written is read before.
4. Nothing here waits: calls into Ray run in Ray's thread, deaths in threads of their own.
"""

from __future__ import annotations

import asyncio
import secrets
import time
from concurrent.futures import ThreadPoolExecutor
from itertools import count
from typing import TYPE_CHECKING, Any, Final, Protocol

import msgspec

from governor import logs
from governor.tasks import reaper, values
from governor.tasks.channel import Gate
from governor.tasks.cluster import Cluster, demand
from governor.tasks.member import Elsewhere, Here, Member
from governor.tasks.runner import Runner
from governor.tasks.story import RunnerGone, RunnerReady, Shape
from governor.tasks.wire import Begun, Bundle, File, Hello, Input, Leaving, Line, Loading, Over, Told, Work

if TYPE_CHECKING:
    from collections.abc import Coroutine, Sequence
    from pathlib import Path

    from governor.tasks.channel import Connection
    from governor.tasks.wire import FromRunner

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
        self._threads = ThreadPoolExecutor(max_workers=4, thread_name_prefix="kill")
        self._loop = asyncio.get_running_loop()
        self._secret = secrets.token_bytes(32)
        self._marker = f".governor-{secrets.token_hex(8)}"
        (run_folder / self._marker).touch()
        host = "127.0.0.1" if cluster.own is None else cluster.own.host
        self._gate = Gate(folder=socket_folder, host=host, secret=self._secret, welcome=self._welcome)
        actor: Any = cluster.ray.remote(Runner)
        self._actor = actor

    def warm(self) -> list[tuple[int, Shape, bool]]:
        """The living runners that hold no resources: number, shape, ready or still on its way."""
        return [
            (member.id, member.shape, member.hello is not None)
            for member in self._members.values()
            if not member.shape and member.killing is None and member.end is None
        ]

    def start(self, runner: int, shape: Shape) -> None:
        """Ends in RunnerReady or RunnerGone; waits in Ray's queue for as long as its resources are taken."""
        member = self._members[runner] = Member(id=runner, shape=shape)
        self._hold(self._start(member), f"runner.{runner}.start")

    def send(self, runner: int, works: Sequence[Work]) -> None:
        """Hands a bundle to an idle runner. If it is dead already, its `RunnerGone` says so."""
        member = self._members.get(runner)
        if member is None or member.connection is None:
            return
        if member.hello is not None and not member.hello.shares_folder:
            works = [self._with_files(work) for work in works]
        member.connection.send([Bundle(list(works))])

    def revoke(self, runner: int) -> None:
        """Takes back what the runner has not begun; the listener hears which, on this machine at once."""
        member = self._members.get(runner)
        if member is not None and member.reach is not None:
            member.reach.take_back(lambda tickets: self._revoked(runner, tickets))

    def cancel(self, runner: int, ticket: int) -> None:
        """Takes back what the runner has not begun, then raises TaskCancelled in this attempt, if it is at it."""
        self.revoke(runner)
        member = self._members.get(runner)
        if member is not None and member.reach is not None:
            member.reach.ask_to_end(ticket)

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
        self._gate.close()
        self._threads.shutdown(wait=False, cancel_futures=True)
        (self._folder / self._marker).unlink(missing_ok=True)

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
        if self.listener is not None and member.killing is None:
            self.listener.runner_changed(RunnerReady(member.id, time.monotonic()))

    def _call_ended(self, member: Member, text: str) -> None:
        if not member.ended.done():
            member.ended.set_result(text)
        if not isinstance(member.reach, Here):
            self._died(member)

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
        self._announce_end(member, member.why_dead(told, self._cluster.is_lost(member.node)))

    async def _kill(self, member: Member) -> None:
        reason = member.killing or ""
        if isinstance(member.reach, Here):
            self._stop_watching(member)
            left = await self._loop.run_in_executor(self._threads, member.reach.kill_tree)
            if left:
                log.error("runner.unkillable", runner=member.id, pids=left, seconds=reaper.KILL_SECONDS)
                reason = f"{reason}; processes {left} could not be killed"
            self._announce_end(member, reason)
        elif isinstance(member.reach, Elsewhere):
            await member.reach.kill_tree()
        await self._cluster.call(lambda: self._ray_kill(member))
        if member.id in self._members:
            await asyncio.wait({member.ended}, timeout=reaper.KILL_SECONDS)
            self._announce_end(member, reason)

    def _ray_kill(self, member: Member) -> None:
        """In Ray's thread, behind the actor's creation."""
        if member.actor is not None:
            self._cluster.ray.kill(member.actor, no_restart=True)

    def _stop_watching(self, member: Member) -> None:
        if isinstance(member.reach, Here) and member.reach.is_open:
            self._loop.remove_reader(member.reach.handle)

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
        now = time.monotonic()
        here = isinstance(member.reach, Here)
        news: list[Begun | Over | Loading | Line | Told] = []
        for document in documents:
            match document:
                case Over(ticket, run) if not here:
                    news.append(_at(document, now))
                case Begun(ticket, run) if not here:
                    news.append(Begun(ticket, run, now))
                case Leaving(exit_code):
                    member.exit_code = exit_code
                case File(name, data):
                    self._take_file(name, data)
                case Hello():
                    continue
                case _:
                    news.append(document)
        if news and self.listener is not None:
            self.listener.runner_said(member.id, news, now)

    def _revoked(self, runner: int, tickets: tuple[int, ...]) -> None:
        if self.listener is not None:
            self.listener.runner_revoked(runner, tickets)

    def _take_file(self, name: str, data: bytes) -> None:
        path = (self._folder / name).resolve()
        if not path.is_relative_to(self._folder.resolve()) or path.suffix not in values.SUFFIXES:
            log.warning("runner.bad_file", name=name)
            return
        values.write(path, data)

    def _with_files(self, work: Work) -> Work:
        """Inputs that lie in files, with their contents."""
        if not any(item.file for items in work.inputs.values() for item in items):
            return work
        inputs = {
            name: [
                item
                if item.file is None
                else Input(file=item.file, data=(self._folder / item.file).read_bytes())
                for item in items
            ]
            for name, items in work.inputs.items()
        }
        return msgspec.structs.replace(work, inputs=inputs)

    def _hold(self, work: Coroutine[Any, Any, None], name: str) -> asyncio.Task[None]:
        task: asyncio.Task[None] = asyncio.create_task(work, name=name)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return task


def _at(over: Over, now: float) -> Over:
    """The same, in our clock: it was said just now."""
    return msgspec.structs.replace(over, at=now)
