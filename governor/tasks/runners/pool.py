"""The runners of a driver: Ray actors, and the messages on their streams; how each ends is in `handle`.

Rules:
1. Every runner that was started ends in exactly one `RunnerGone`, whether we killed it or not.
2. Messages of a runner reach the listener in the order in which it sent them, its end last: everything that it has
   written is read before.
3. Nothing here blocks: calls into Ray run in Ray's thread, terminations in threads of their own.
"""

from __future__ import annotations

import asyncio
import heapq
import secrets
import time
from collections import Counter
from functools import cache, partial
from itertools import count
from typing import TYPE_CHECKING, Any, Final, Protocol

import ray

from governor import logs
from governor.processes import kill_tree
from governor.tasks.cluster.warm_runners import ActorCall
from governor.tasks.protocol import ticket_pipe
from governor.tasks.protocol.wire import REPORTS, Bundle, Hello, Leaving, Serve, WorkItem
from governor.tasks.runner_process import settings
from governor.tasks.runner_process.runner import Runner
from governor.tasks.runner_process.settings import RunnerSettings
from governor.tasks.runners import remote_files
from governor.tasks.runners.channel import RunnerListener
from governor.tasks.runners.handle import RunnerHandle, ray_options
from governor.tasks.runners.node_loss import NodeWatches
from governor.tasks.runners.process import LocalProcess, RemoteProcess
from governor.tasks.runners.remote_output import RemoteOutput
from governor.tasks.runners.states import Cause, RunnerState
from governor.tasks.scheduling.bundles import RUN_SECONDS
from governor.tasks.scheduling.events import RunnerGone, RunnerReady, Shape

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Collection, Mapping, Sequence
    from pathlib import Path

    from governor.tasks.cluster.cluster import Cluster
    from governor.tasks.cluster.warm_runners import IdleRunner, WarmRunners
    from governor.tasks.protocol.wire import FromRunner, Report
    from governor.tasks.runners.channel import RunnerConnection
    from governor.tasks.runners.process import RunnerProcess

ACTOR_NAMESPACE: Final = "governor"
"""Of Ray: the names of runners are not among those of a user's own actors."""
MANY_RUNS: Final = 8
"""So many on a runner are worth it to collect its reports."""

log = logs.get_logger()


class Listener(Protocol):
    """Receives the events of runners."""

    def runner_changed(self, event: RunnerReady | RunnerGone) -> None:
        """A runner is ready, or has exited."""

    def runner_reported(self, runner: int, messages: Sequence[Report], now: float) -> None:
        """All messages of one read, in order; `at` is in the driver's clock."""

    def runner_revoked(self, runner: int, tickets: tuple[int, ...]) -> None:
        """These attempts were taken back."""


class Runners:
    """All runners of this driver.

    Args:
        run: uid of the run, for user code. run_folder: its files. socket_folder: of the unix socket.
        import_path: folders that runners put in front of ``sys.path``.
        working_folder: where runners work, on machines that have it, in front of ``sys.path`` too; None: where Ray starts them.
        variables: environment variables of runners.
        mark: process mark of the daemon's child that owns them; their own marks are derived from it.
        spools: where runners put what user code prints, as those of `conductor`; None: Ray has it.
        warm: idle runners of this process, which are used again; None: no runner outlives `close`. keep_seconds: how long an
            idle runner is kept there after `close`.
        before_remote: awaited before a runner on another machine is ready.
    """

    def __init__(
        self,
        *,
        cluster: Cluster,
        run: str,
        run_folder: Path,
        socket_folder: Path,
        import_path: Sequence[str],
        working_folder: str | None = None,
        variables: Mapping[str, str] | None = None,
        mark: int = kill_tree.UNMARKED,
        spools: Path | None = None,
        conductor: str = "tasks",
        warm: WarmRunners | None = None,
        keep_seconds: float = 0.0,
        before_remote: Callable[[], Awaitable[None]] | None = None,
    ) -> None:
        self.ids = count()
        self.listener: Listener
        self._cluster = cluster
        self._run = run
        self._mark = mark or kill_tree.new_child_mark()
        self._folder = run_folder
        self._import_path = tuple(import_path)
        self._spools, self._conductor = spools, conductor
        self._remote_output = RemoteOutput(cluster=cluster, folder=spools or run_folder, conductor=conductor)
        self._warm = warm
        self._keep_seconds = keep_seconds
        self._before_remote = before_remote
        self._working_folder = working_folder
        self._variables = dict(variables or {})
        self._handles: dict[int, RunnerHandle] = {}
        self._plain_on: Counter[str] = Counter()
        """Plain runners by node."""
        self._free_numbers: list[int] = []
        """Numbers in marks, a heap: the lowest is used again, and no two running runners share one."""
        self._new_numbers = count()
        self._tasks: set[asyncio.Task[None]] = set()
        self._node_watches = NodeWatches(cluster=cluster, on_lost=self._node_lost)
        self._closing = False
        self._secret = secrets.token_bytes(32)
        self._marker = f".governor-{secrets.token_hex(8)}"
        (run_folder / self._marker).touch()
        host = "127.0.0.1" if cluster.own is None else cluster.own.host
        self._connections = RunnerListener(
            folder=socket_folder, host=host, secret=self._secret, on_runner=self._accept_runner
        )

    def start(self, runner: int, shape: Shape) -> None:
        """Ends in RunnerReady or RunnerGone; waits in Ray's queue while its resources are in use. Does nothing once
        `close` has begun.
        """
        if self._closing:
            return
        handle = self._handles[runner] = RunnerHandle(
            id=runner,
            shape=shape,
            number=heapq.heappop(self._free_numbers) if self._free_numbers else next(self._new_numbers),
            planned=None if shape else self._cluster.nodes.next_node(self._plain_on),
            cluster=self._cluster,
            tasks=self._tasks,
            on_gone=self._gone,
        )
        if not shape:
            self._plain_on[handle.node] += 1
        handle.start(self._create)

    def send(self, runner: int, work_items: Sequence[WorkItem]) -> None:
        """Sends a bundle to an idle runner. If that has exited, its `RunnerGone` follows. Raises ValueError for more than
        `ticket_pipe.MOST` work items.
        """
        if len(work_items) > ticket_pipe.MOST:
            raise ValueError(f"a bundle of {len(work_items)} attempts: {ticket_pipe.MOST} are the most")
        handle = self._handles.get(runner)
        if handle is None or handle.process is None:
            return
        if handle.process.hello.shares_folder or not remote_files.needs_files(work_items):
            _send(handle.process, work_items)
        else:
            handle.track(self._send_with_files(handle.process, work_items), "inputs")

    def revoke(self, runner: int) -> None:
        """Takes back attempts that the runner has not begun, then calls `runner_revoked`; on this machine at once."""
        if (process := self._process(runner)) is not None:
            process.take_back()

    def cancel(self, runner: int, ticket: int) -> None:
        """Takes back attempts that the runner has not begun, then raises TaskCancelled in this one, if it is running."""
        if (process := self._process(runner)) is not None:
            process.cancel(ticket)

    def kill(self, runner: int, reason: str, *, is_idle: bool = False) -> None:
        """Ends in RunnerGone once the process and its descendants have exited. Ray does not report the end of an idle one
        as a death.
        """
        handle = self._handles.get(runner)
        if handle is not None:
            handle.end(Cause.DISMISSED if is_idle else Cause.KILLED, reason)

    def release(self, idle: Collection[int]) -> None:
        """Ends runners that have no work, or keeps them for another driver; each ends in RunnerGone."""
        for runner in idle:
            handle = self._handles.get(runner)
            if handle is not None and not self._keep(handle):
                handle.end(Cause.DISMISSED, "not needed any more")

    def pid(self, runner: int) -> int:
        process = self._process(runner)
        return 0 if process is None else process.hello.pid

    def node(self, runner: int) -> str:
        process = self._process(runner)
        return "" if process is None else process.hello.host

    async def close(self, idle: Collection[int] = ()) -> None:
        """Ends every runner and waits for its exit, but for those of the `idle` ones that are kept."""
        self._closing = True
        self.release(idle)
        for runner in list(self._handles):
            self.kill(runner, "the scheduler ends")
        if self._tasks:
            await asyncio.wait(set(self._tasks), timeout=2 * kill_tree.KILL_SECONDS)
        self._node_watches.close()
        await self._remote_output.close()
        self._connections.close()
        (self._folder / self._marker).unlink(missing_ok=True)

    def _keep(self, handle: RunnerHandle) -> bool:
        if self._warm is None or self._keep_seconds <= 0 or not self._warm.is_open():
            return False
        kept = handle.keep(self._import_path)
        if kept is None:
            return False
        if not self._warm.keep(kept, seconds=self._keep_seconds):
            kept.end()
        return True

    def _process(self, runner: int) -> RunnerProcess | None:
        handle = self._handles.get(runner)
        return None if handle is None else handle.process

    async def _send_with_files(self, process: RunnerProcess, work_items: Sequence[WorkItem]) -> None:
        read = partial(remote_files.with_files, folder=self._folder)
        _send(process, await asyncio.to_thread(lambda: list(map(read, work_items))))

    # -- start and end of one runner ------------------------------------------------------------------------

    def _create(self, handle: RunnerHandle) -> None:
        """In Ray's thread."""
        driver = Serve(
            run=self._run,
            run_folder=str(self._folder),
            path=self._connections.path,
            address=self._connections.address,
            secret=self._secret,
            runner=handle.id,
            marker=self._marker,
            spools=None if self._spools is None else str(self._spools),
            conductor=self._conductor,
        )
        if (kept := self._take(handle)) is not None:
            handle.kept = kept
            handle.follow_actor(kept.actor, kept.call)
            kept.serve(driver)
            return
        name = handle.settings = f"runner-{secrets.token_hex(16)}"
        given = RunnerSettings(
            import_path=list(self._import_path),
            working_folder=self._working_folder,
            variables=self._variables,
            mark=kill_tree.mark_of_runner(self._mark, handle.number),
            driver=driver,
        )
        settings.store(name, given)
        options = ray_options(handle.shape, planned=handle.planned, nodes=len(self._cluster.nodes))
        actor = _actor_class().options(name=name, namespace=ACTOR_NAMESPACE, **options).remote()
        handle.follow_actor(actor, ActorCall(actor.serve.remote()))

    def _take(self, handle: RunnerHandle) -> IdleRunner | None:
        """A warm runner for this one, if it is plain and meant for this machine."""
        own = self._cluster.own
        if self._warm is None or handle.shape or handle.planned not in (None, own and own.id):
            return None
        return self._warm.take(worker=self._cluster.worker, import_path=self._import_path)

    def _accept_runner(self, connection: RunnerConnection, hello: Hello) -> None:
        """A runner is connected and authenticated."""
        handle = self._handles.get(hello.runner)
        if handle is None or handle.process is not None:
            connection.close()
            return
        if hello.is_stale:
            connection.close()
            handle.end(Cause.NOT_BACK)
            return
        process: RunnerProcess
        known: dict[str, Any] = {
            "connection": connection,
            "hello": hello,
            "track": handle.track,
            "on_revoked": partial(self._revoked, handle.id),
        }
        if connection.local and connection.peer_pid() == hello.pid:
            known["control"] = handle.control_of(hello)
            try:
                process = LocalProcess(**known, on_exit=partial(handle.end, Cause.EXITED))
            except OSError:
                connection.close()
                handle.end(Cause.EXITED)
                return
        else:
            process = RemoteProcess(**known, cluster=self._cluster)
            self._node_watches.follow(hello.node, hello.host)
            self._remote_output.follow(hello)
        if not hello.shares_folder:
            process.file_receiver = remote_files.FileReceiver(
                folder=self._folder,
                deliver=partial(self._deliver, process),
                track=handle.track,
            )
        connection.on_documents = partial(self._on_documents, process)
        connection.on_closed = partial(handle.end, Cause.STREAM_ENDED)
        if hello.mark == kill_tree.UNMARKED:
            log.warning("runner.unmarked", runner=handle.id, node=hello.host)
        before = handle.node
        is_ready = handle.connect(process)
        if not handle.shape:
            self._plain_on[before] -= 1
            self._plain_on[handle.node] += 1
        if is_ready:
            self._prepare(handle, is_local=connection.local)

    def _prepare(self, handle: RunnerHandle, *, is_local: bool) -> None:
        if is_local or self._before_remote is None:
            self._announce(handle)
        else:
            handle.track(self._prepare_remote(handle, self._before_remote()), "prepare")

    async def _prepare_remote(self, handle: RunnerHandle, before: Awaitable[None]) -> None:
        await before
        if handle.state is RunnerState.REMOTE:
            self._announce(handle)

    def _announce(self, handle: RunnerHandle) -> None:
        self.listener.runner_changed(RunnerReady(time.monotonic(), handle.id))

    def _node_lost(self, node: str) -> None:
        for handle in list(self._handles.values()):
            if handle.process is not None and handle.node == node:
                handle.end(Cause.CALL_ENDED)

    def _gone(self, handle: RunnerHandle, reason: str) -> None:
        del self._handles[handle.id]
        if not handle.is_kept:  # a runner that lives on has its mark
            heapq.heappush(self._free_numbers, handle.number)
        if not handle.shape:
            self._plain_on[handle.node] -= 1
        if handle.is_to_be_replaced and not self._closing:
            self.start(handle.id, handle.shape)
            return
        self.listener.runner_changed(RunnerGone(time.monotonic(), handle.id, reason, handle.lost))

    # -- messages -------------------------------------------------------------------------------------------

    def _on_documents(self, process: RunnerProcess, documents: list[FromRunner]) -> None:
        """Receives the documents of one read; those of remote runners get our time before they may have to wait."""
        documents = process.in_our_clock(documents)
        process.count(documents)
        if process.runs_left >= MANY_RUNS:
            process.connection.rest(process.runs_left * RUN_SECONDS)
        if process.file_receiver is None:
            self._deliver(process, documents)
        else:
            process.file_receiver.receive(documents)

    def _deliver(self, process: RunnerProcess, documents: list[FromRunner]) -> None:
        for document in documents:
            if type(document) is Leaving:
                process.exit_code = document.exit_code
        news: list[Any] = [document for document in documents if type(document) in REPORTS]
        if news:
            self.listener.runner_reported(process.hello.runner, news, time.monotonic())

    def _revoked(self, runner: int, tickets: tuple[int, ...] | None) -> None:
        if runner not in self._handles:
            return
        if tickets is None:  # some may be out of the pipe, and would never be executed
            self.kill(runner, "its node did not report which attempts it has taken back")
        else:
            self.listener.runner_revoked(runner, tickets)


@cache
def _actor_class() -> Any:
    """Once in a process: Ray keeps what it knows of each that is made."""
    return ray.remote(Runner)


def _send(process: RunnerProcess, work_items: Sequence[WorkItem]) -> None:
    process.runs_left = sum(len(work.runs) for work in work_items)  # it was idle
    try:
        process.connection.send([Bundle(list(work_items))])
    except Exception as error:  # noqa: BLE001  # whatever encoding raises: nothing was sent
        reason = f"{type(error).__name__}: {error}"
        log.warning("runner.send_failed", runner=process.hello.runner, reason=reason)
        process.connection.send([Bundle(list(map(remote_files.sendable, work_items)))])
