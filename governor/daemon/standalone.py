"""A `RunGovernor` that serves by itself, in a script: without a daemon, at the broker of somebody else.

Rules:
1. It is a daemon with one slot, in the script's event loop, with a broker of its own for its conductors and a temporary
   folder: what becomes of the other broker disturbs no run. At that it is a worker among others, whose service is its uid.
2. Nothing is resumed: when it ends, its runs are aborted first, and their record goes with it.
3. The first Ctrl-C or SIGTERM does that in order, the second one at once; then the signal has the effect that it has without
   this module. Signals for which the script has handlers of its own are left to these.
4. A sweeper kills what is left when the script is killed.
"""

from __future__ import annotations

import asyncio
import functools
import gc
import hashlib
import os
import shutil
import signal
import socket
import tempfile
import threading
from contextlib import AsyncExitStack, ExitStack, contextmanager, suppress
from multiprocessing import util
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from governor import config, logs
from governor.daemon import folders
from governor.daemon.daemon import Daemon
from governor.daemon.systemd import SystemdNotifier
from governor.errors import AlreadyEnded, GovernorError, TryAgain, Unreachable, UsageError
from governor.messages import Abort
from governor.processes import kill_tree, sweeper
from governor.runs import run_governor
from transport import endpoints
from transport.errors import TransportError
from transport.frames import service_name

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from types import FrameType

    from governor.config import Config
    from governor.processes.process import ChildProcess

SIGNALS: Final = (signal.SIGINT, signal.SIGTERM)
NOT_REGISTERED: Final = "no broker registers this RunGovernor at {}; is that its endpoint for workers?"
BROKERS_OWN: Final = "mmi."
CHECK_SECONDS: Final = 1.0
"""A run on its way from the queue to the slot is back in the queue by then."""
RESULT_SECONDS: Final = 1.0
"""Clients that have followed an aborted run to its end ask for its result within this time."""
LONGEST_PARENT: Final = 44
"""Bytes; the paths of sockets are below it. Records are where `TMPDIR` says, however long."""
MEMORY: Final = Path("/dev/shm")  # noqa: S108  # a folder of mode 0700 is made in it
MEMORY_BYTES: Final = 2**30
"""Room that must be left there: Ray keeps its objects there too."""
LAST_OF_ALL: Final = -200
"""Multiprocessing removes its own folder with -100."""

log = logs.get_logger()
_in_work = threading.Lock()
"""One process has one forkserver and one mark."""


class RunGovernor(run_governor.RunGovernor):
    """Governs the runs that are submitted to it over a broker: ``await RunGovernor(broker.worker_endpoint, "my-governor").run()``.

    It is the worker of a service at the broker, and needs no daemon. ``Executor(broker.client_endpoint, service="my-governor")``
    submits runs to it, follows and aborts them, reads their results, and stops it. Runs are played one after the other. Their journal
    is in memory (in ``/dev/shm``, if that has 1 GiB left), steps and results in temporary files below ``TMPDIR``: when `run`
    returns both are gone.

    Args:
        broker_uri: the broker's endpoint for workers.
        uid: the name of its service, unique at the broker. By default ``RunGovernor-`` and a new UUID.

    Attributes:
        state: the state of the run in work; ``state.name`` is ``pristine`` where there is none.
        experiment_run: the `Run` in work, or None; `experiment_run_id` is its id.
        current_phase: the index of the phase at work, from 0; `current_episode` counts its episodes that have ended.
        termination_condition: the conditions of that phase, from its `until`.
        env_conductors: the processes that keep environments, by name, with their ``pid``; so `agent_conductors`,
            `sim_controllers`. `dead_children` are the names of those that died.
        errors: errors of its own, each with the name of the state.
        stopping: whether the run in work is ending.
    """

    def __init__(self, broker_uri: str, uid: str | None = None) -> None:
        super().__init__(broker_uri, uid)
        self._asked: list[str] = []
        """Why it is to end, each time."""
        self._loop: asyncio.AbstractEventLoop | None = None
        self._ends = asyncio.Event()
        self._failure: BaseException | None = None
        self._starting: asyncio.Timeout | None = None
        """It is at an end when this RunGovernor is asked to end before it serves."""

    @property
    def shutdown(self) -> bool:
        """Whether it is to end. Set it, in any thread: `run` aborts the run in work and those that wait, and returns."""
        return bool(self._asked)

    @shutdown.setter
    def shutdown(self, value: bool) -> None:
        if value:
            self.stop("shutdown was set")
        elif self._asked:
            raise UsageError("a shutdown can't be taken back: build another RunGovernor")

    def stop(self, reason: str = "") -> None:
        """Sets `shutdown`; the aborted runs have this reason."""
        self._asked.append(reason or "stopped by request")
        if self._loop is not None:
            with suppress(RuntimeError):  # the loop is closed
                self._loop.call_soon_threadsafe(self._end)

    def _end(self) -> None:
        self._ends.set()
        starting, self._starting = self._starting, None
        if starting is not None:
            starting.reschedule(0)

    async def run(self) -> None:
        """Serves until `shutdown` is set, a client stops it, or a signal comes; nothing is left of its runs then.

        Ctrl-C, SIGTERM and a cancellation abort its runs in order. Call it in the main thread.

        Raises:
            UsageError: `broker_uri` is no endpoint, or `uid` no name of a service; or it has ended with an error before.
            Unreachable: no broker has registered it within 10 s. Later it waits for a broker that is gone.
            TryAgain: this process has another RunGovernor at work, or this user another one of this uid at the broker, on this
                machine; or the disk is full.
            ProcessError: it was called in another thread, or a process that it needs could not be kept alive.
        """
        if self._failure is not None:
            raise UsageError(f"this RunGovernor has ended already ({self._failure!r}): build another one")
        if self.shutdown:
            return
        try:
            endpoint = str(endpoints.parse_connect(str(self.broker_uri)))
            service_name(self.uid)
        except TransportError as error:
            raise UsageError(str(error)) from error
        if self.uid.startswith(BROKERS_OWN):
            raise UsageError(
                f"{self.uid!r} is a service of the broker itself, as all whose names begin with {BROKERS_OWN!r}"
            )
        logs.use_standard_logging()
        self._loop = asyncio.get_running_loop()
        with _alone_in_process(), _claimed(endpoint, self.uid), _deferred(self._on_signal):
            try:
                await self._serve(endpoint)
            except BaseException as error:
                self._failure = None if self._asked else error
                raise
            finally:
                self._asked = self._asked or ["it has ended"]

    async def _serve(self, endpoint: str) -> None:
        folder = _folder(os.getpid())
        state = Path(tempfile.mkdtemp(prefix="governor-"))
        journal_folder = _journal_folder() or state
        options = {"state_dir": state, "runtime_dir": folder / "run", "log_level": "warning"}
        settings = config.load(options=options)
        left: list[ChildProcess] = []
        try:
            with ExitStack() as taken, _collecting_as_before():
                taken.enter_context(sweeper.beside(folder, state, journal_folder))
                taken.enter_context(folders.acquired(settings))
                host = _Host(self, settings, taken)
                host.journal_folder = journal_folder
                async with AsyncExitStack() as stack:
                    if self._asked:
                        return
                    try:
                        await self._start(host, stack, endpoint)
                    except (TimeoutError, GovernorError):
                        if self._asked:
                            return
                        raise
                    try:
                        await self._until_asked(host)
                    finally:
                        left = await self._end_runs(host)
        finally:
            for child in left:
                await asyncio.to_thread(kill_tree.kill_tree, child.pid, None, child.mark)
            for made in {state, journal_folder}:
                await asyncio.to_thread(shutil.rmtree, made, ignore_errors=True)

    async def _start(self, host: _Host, stack: AsyncExitStack, endpoint: str) -> None:
        """Raises TimeoutError when it is asked to end meanwhile, Unreachable when no broker registers it."""
        async with asyncio.timeout(None) as starting:
            self._starting = starting
            try:
                await stack.enter_async_context(host.running())
                gc.unfreeze()  # all that is the script's
                try:
                    await host.register(stack, endpoint, self.uid, None)
                except TimeoutError:
                    raise Unreachable(endpoint, text=NOT_REGISTERED.format(endpoint)) from None
            finally:
                self._starting = None

    async def _until_asked(self, host: _Host) -> None:
        """Raises the error that has ended the daemon."""
        if self._asked:
            return
        asked = asyncio.create_task(self._ends.wait(), name=f"{self.uid}.ends")
        crash = asyncio.create_task(host.crash(), name=f"{self.uid}.crash")
        try:
            await asyncio.wait({asked, crash}, return_when=asyncio.FIRST_COMPLETED)
            if crash.done():
                raise crash.result()
        finally:
            asked.cancel()
            crash.cancel()

    async def _end_runs(self, host: _Host) -> list[ChildProcess]:
        """Aborts all runs, and returns when they have ended; the processes of one for which that is no longer possible."""
        reason = self._asked[0] if self._asked else "its RunGovernor was cancelled"
        ending = asyncio.create_task(host.end_runs(reason), name=f"{self.uid}.end_runs")
        gone = asyncio.create_task(host.gone.wait(), name=f"{self.uid}.gone")
        try:
            await asyncio.wait({ending, gone}, return_when=asyncio.FIRST_COMPLETED)
            if ending.done():
                ending.result()
            elif self._active is not None:
                log.error("run.lost", run=self._active.uid, reason=reason)
                return [*self._active.effects.processes.values()]
            return []
        finally:
            ending.cancel()
            gone.cancel()

    def _on_signal(self, number: int) -> None:
        name = signal.Signals(number).name
        if self._asked:
            self.post_stop(f"{name} again", urgent=True)
        self.stop(name)


class _Host(Daemon):
    """What serves the RunGovernor."""

    def __init__(self, governor: RunGovernor, settings: Config, taken: ExitStack) -> None:
        super().__init__(
            config=settings,
            notifier=SystemdNotifier(address=None),
            acquired_folders=taken,
            governors=[governor],
        )
        self.gone = asyncio.Event()
        """It handles no events any more."""
        self._alone = governor
        self._moved = asyncio.Event()
        """Set after each transition."""

    def stop(self, reason: str) -> None:
        """Asks the RunGovernor to end."""
        self._alone.stop(reason)

    def end(self, reason: str) -> None:
        self.stop(reason)

    async def end_runs(self, reason: str) -> None:
        """Aborts all runs, and returns when they have ended, or when an error of the daemon interrupts them."""
        self.is_stopping = True
        asked: set[str] = set()
        while self._background.crash is None and (left := self._unended()):
            self._moved.clear()
            for uid in left:
                if (uid not in asked or uid in self.queue) and await self._abort(uid, reason):
                    asked.add(uid)
            if self._unended():
                with suppress(TimeoutError):
                    async with asyncio.timeout(CHECK_SECONDS):
                        await self._moved.wait()
        if asked:
            await asyncio.sleep(RESULT_SECONDS)

    def _unended(self) -> list[str]:
        in_work = self._alone.experiment_run_id
        return [*([in_work] if in_work else []), *self.queue.uids(), *self.held]

    async def _abort(self, uid: str, reason: str) -> bool:
        """False for a run between queue and slot: it comes back to the queue."""
        try:
            await self.api.steering.abort(Abort(uid=uid, reason=reason), {})
        except AlreadyEnded:
            pass
        except TryAgain:  # it is ending
            return uid == self._alone.experiment_run_id
        return True

    def _changed(self, governor: run_governor.RunGovernor) -> None:
        super()._changed(governor)
        self._moved.set()

    async def _govern(self, governor: run_governor.RunGovernor) -> None:
        try:
            await super()._govern(governor)
        finally:
            self.gone.set()


def _journal_folder() -> Path | None:
    """A new one in memory; None where the machine keeps too little there, as containers do."""
    with suppress(OSError):
        if shutil.disk_usage(MEMORY).free >= MEMORY_BYTES:
            return Path(tempfile.mkdtemp(prefix="governor-", dir=MEMORY))
    return None


@functools.cache
def _folder(_pid: int) -> Path:
    """A short one of mode 0700 for this process, not for one of which it is a fork; removed when it ends, after multiprocessing has
    removed its own folder in it.
    """
    is_long = len(os.fsencode(tempfile.gettempdir())) > LONGEST_PARENT
    folder = Path(tempfile.mkdtemp(prefix="governor-", dir="/tmp" if is_long else None))  # noqa: S108  # it makes a folder of mode 0700
    util.Finalize(None, shutil.rmtree, (folder, True), exitpriority=LAST_OF_ALL)
    return folder


@contextmanager
def _alone_in_process() -> Iterator[None]:
    """Raises TryAgain."""
    if not _in_work.acquire(blocking=False):
        raise TryAgain(
            "this process, or that of which it is a fork, has a RunGovernor at work: start another one in a process of its own "
            "(`spawn`), or a daemon with `slots`"
        )
    try:
        yield
    finally:
        _in_work.release()


@contextmanager
def _claimed(endpoint: str, uid: str) -> Iterator[None]:
    """Raises TryAgain where another process serves as `uid` at this broker: each would get some of the requests."""
    name = hashlib.blake2b(f"{endpoint} {uid}".encode(), digest_size=16).hexdigest()
    with socket.socket(socket.AF_UNIX) as claim:
        try:
            claim.bind(f"\0run-governor-{os.getuid()}-{name}")  # the kernel releases it with the process
        except OSError as error:
            raise TryAgain(
                f"another RunGovernor {uid!r} serves at {endpoint}: choose another uid, or stop that one"
            ) from error
        yield


@contextmanager
def _deferred(on_signal: Callable[[int], None]) -> Iterator[None]:
    """Rule 3. `on_signal` is called in the event loop."""
    loop, arrived = asyncio.get_running_loop(), list[int]()

    def keep(number: int, _: FrameType | None) -> None:
        arrived.append(number)
        loop.call_soon_threadsafe(on_signal, number)

    usual: dict[signal.Signals, Any] = {}
    if threading.current_thread() is threading.main_thread():
        usual = {number: before for number in SIGNALS if _is_usual(before := signal.getsignal(number))}
    for number in usual:
        signal.signal(number, keep)
    try:
        yield
    finally:
        for number, before in usual.items():
            signal.signal(number, before)
        if arrived:
            if usual[signal.Signals(arrived[0])] is signal.SIG_DFL:  # this is the end: nothing runs at exit
                shutil.rmtree(_folder(os.getpid()), ignore_errors=True)
            signal.raise_signal(arrived[0])


def _is_usual(handler: object) -> bool:
    """Whether it is that of Python, or of `asyncio.run`."""
    of_runner = isinstance(getattr(getattr(handler, "func", None), "__self__", None), asyncio.Runner)
    return of_runner or handler in {signal.SIG_DFL, signal.default_int_handler}


@contextmanager
def _collecting_as_before() -> Iterator[None]:
    """A daemon turns the collector of garbage on; this one is the script's."""
    before = gc.isenabled()
    try:
        yield
    finally:
        (gc.enable if before else gc.disable)()
