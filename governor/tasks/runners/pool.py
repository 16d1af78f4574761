"""The runners of a driver: Ray actors, and what is said on their streams; how they end is in `fleet.deaths`.

Rules:
1. Every runner that was started ends in exactly one `RunnerGone`, whether we killed it or not.
2. News of a runner reach the listener in the order in which the runner sent them, its end last: all that a dead
   runner has written is read before.
3. Nothing here waits: calls into Ray run in Ray's thread, deaths in threads of their own.
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
from typing import TYPE_CHECKING, Any, Protocol

import msgspec

from governor import logs
from governor.processes import kill_tree
from governor.tasks.protocol import claims
from governor.tasks.protocol.wire import (
    Begun,
    Bundle,
    Hello,
    Leaving,
    Loading,
    LogLine,
    Over,
    StateUpdate,
    Work,
)
from governor.tasks.runner_process.runner import Runner
from governor.tasks.runners import remote_files
from governor.tasks.runners.channel import Gate
from governor.tasks.runners.deaths import Deaths
from governor.tasks.runners.handle import Elsewhere, Here, RunnerHandle
from governor.tasks.scheduling.events import RunnerGone, RunnerReady, Shape

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from governor.tasks.cluster.cluster import Cluster
    from governor.tasks.protocol.wire import FromRunner
    from governor.tasks.runners.channel import RunnerConnection

log = logs.get_logger()


class Listener(Protocol):
    """Who hears what happens to runners."""

    def runner_changed(self, event: RunnerReady | RunnerGone) -> None:
        """A runner is ready, or dead."""

    def runner_reported(
        self, runner: int, messages: Sequence[Begun | Over | Loading | LogLine | StateUpdate], now: float
    ) -> None:
        """All that one read gave, in order; `at` is in the driver's clock."""

    def runner_revoked(self, runner: int, tickets: tuple[int, ...]) -> None:
        """These were taken back."""


class Runners:
    """All runners of this driver.

    Args:
        run: uid of the run, for user code. run_folder: its files. socket_folder: of the unix socket.
        import_path: folders that runners put in front of ``sys.path``.
        mark: of the child of a daemon whose runners they are; theirs are below it.
    """

    def __init__(
        self,
        *,
        cluster: Cluster,
        run: str,
        run_folder: Path,
        socket_folder: Path,
        import_path: Sequence[str],
        mark: int = kill_tree.UNMARKED,
    ) -> None:
        self.ids = count()
        self.listener: Listener | None = None
        self._cluster = cluster
        self._run = run
        self._mark = mark or kill_tree.new_child_mark()
        self._folder = run_folder
        self._import_path = list(import_path)
        self._members: dict[int, RunnerHandle] = {}
        self._closing = False
        self._deaths = Deaths(cluster=cluster, members=self._members, gone=self._gone)
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
        """Ends in RunnerReady or RunnerGone; waits in Ray's queue for as long as its resources are taken. Once `close`
        has begun: nothing.
        """
        if self._closing:
            return
        taken = Counter(member.node for member in self._members.values() if not member.shape)
        planned = None if shape else self._cluster.next_node(taken)
        member = RunnerHandle(id=runner, shape=shape, planned=planned, number=self._free_number())
        self._members[runner] = member
        self._deaths.hold(member, self._start(member), "start")

    def _free_number(self) -> int:
        """The lowest that no runner has: numbers in marks come again, and two that live must not share one."""
        taken = {member.number for member in self._members.values()}
        return next(number for number in count() if number not in taken)

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
            self._deaths.hold(member, self._send_with_files(member, works), "inputs")

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
        if member is not None:
            self._deaths.kill(member, reason)

    def pid(self, runner: int) -> int:
        member = self._members.get(runner)
        return member.hello.pid if member and member.hello else 0

    def node(self, runner: int) -> str:
        member = self._members.get(runner)
        return member.hello.host if member and member.hello else ""

    async def close(self) -> None:
        """Kills every runner and sees it dead."""
        self._closing = True
        for runner in list(self._members):
            self.kill(runner, "the scheduler ends")
        await self._deaths.close()
        self._gate.close()
        self._files.shutdown(wait=False, cancel_futures=True)
        (self._folder / self._marker).unlink(missing_ok=True)

    def _send(self, member: RunnerHandle, works: Sequence[Work]) -> None:
        if member.connection is None:
            return
        try:
            member.connection.send([Bundle(list(works))])
        except Exception as error:  # noqa: BLE001  # whatever encoding raises: nothing was sent
            log.warning("runner.unsendable", runner=member.id, reason=f"{type(error).__name__}: {error}")
            member.connection.send([Bundle(list(map(remote_files.sendable, works)))])

    async def _send_with_files(self, member: RunnerHandle, works: Sequence[Work]) -> None:
        read = partial(remote_files.with_files, folder=self._folder)
        found = await self._loop.run_in_executor(self._files, lambda: list(map(read, works)))
        self._send(member, found)

    # -- life of one runner ---------------------------------------------------------------------------------

    async def _start(self, member: RunnerHandle) -> None:
        try:
            await self._cluster.call(lambda: self._create(member))
        except Exception as error:  # noqa: BLE001  # whatever Ray raises, the runner did not start
            refused = f"Ray refused the runner: {type(error).__name__}: {error}"
            self._deaths.unstarted(member, member.killing or refused)

    def _create(self, member: RunnerHandle) -> None:
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
            mark=kill_tree.mark_of_runner(self._mark, member.number),
        )

        def tell(outcome: Any) -> None:
            error = outcome.exception()
            with contextlib.suppress(RuntimeError):  # the loop is closed: nobody wants to know
                self._loop.call_soon_threadsafe(
                    self._deaths.call_ended, member, "" if error is None else str(error)
                )

        serving.future().add_done_callback(tell)

    def _welcome(self, connection: RunnerConnection, hello: Hello) -> None:
        """A runner has proven that it is one of ours."""
        member = self._members.get(hello.runner)
        if member is None or member.hello is not None:
            connection.close()
            return
        member.hello, member.connection = hello, connection
        connection.heard = lambda documents: self._heard(member, documents)
        if not hello.shares_folder:
            member.intake = remote_files.Intake(
                folder=self._folder,
                threads=self._files,
                tell=lambda documents: self._tell(member, documents),
                hold=partial(self._deaths.hold, member),
            )
        connection.closed = lambda: self._deaths.stream_ended(member)
        if connection.local and connection.peer_pid() == hello.pid:
            try:
                member.reach = Here(hello)
            except OSError:
                self._deaths.died(member)
                return
        else:
            member.reach = Elsewhere(hello, self._cluster, partial(self._deaths.hold, member))
        self._deaths.watch(member)
        if hello.mark == kill_tree.UNMARKED:
            log.warning("runner.unmarked", runner=member.id, node=hello.host)
        if self.listener is not None and member.killing is None:
            self.listener.runner_changed(RunnerReady(member.id, time.monotonic()))

    def _gone(self, member: RunnerHandle, reason: str) -> None:
        del self._members[member.id]
        if self.listener is not None:
            self.listener.runner_changed(RunnerGone(member.id, time.monotonic(), reason, member.lost))

    # -- what they say --------------------------------------------------------------------------------------

    def _heard(self, member: RunnerHandle, documents: list[FromRunner]) -> None:
        """What one read gave; it gets our times before it may have to wait."""
        if not isinstance(member.reach, Here):
            now = time.monotonic()
            documents = [_at(each, now) if isinstance(each, Begun | Over) else each for each in documents]
        if member.intake is None:
            self._tell(member, documents)
        else:
            member.intake.take(documents)

    def _tell(self, member: RunnerHandle, documents: list[FromRunner]) -> None:
        news: list[Begun | Over | Loading | LogLine | StateUpdate] = []
        for document in documents:
            match document:
                case Begun() | Over() | Loading() | LogLine() | StateUpdate():
                    news.append(document)
                case Leaving(exit_code):
                    member.exit_code = exit_code
        if news and self.listener is not None:
            self.listener.runner_reported(member.id, news, time.monotonic())

    def _revoked(self, runner: int, tickets: tuple[int, ...] | None) -> None:
        if runner not in self._members:
            return
        if tickets is None:  # some may be out of the pipe, and nobody would ever execute them
            self.kill(runner, "its node did not say what it has taken back")
        elif self.listener is not None:
            self.listener.runner_revoked(runner, tickets)


def _at(said: Begun | Over, now: float) -> Begun | Over:
    """The same, in our clock: it was said just now."""
    return msgspec.structs.replace(said, at=now)
