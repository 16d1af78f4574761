"""The forkserver: starts early, is warm when it has imported what children need, and is watched for its exit.

Rules:
* Called from the main thread only: PDEATHSIG follows the thread that forked. Only `_launch` starts a forkserver.
* A child sees the environment of the moment when the forkserver started.
* Ray takes as long to import as all else, and only task conductors need it: it is imported when the first one starts.
* It is exec'd, so nothing of the daemon's memory, and no descriptor but three, is in it or in any child.
* When it dies its children die with it; the next `warm_up`, `warm` or `start` starts a new one. A forkserver that does
  not finish an import or a fork in time is killed.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import secrets
import signal
import socket
import sys
import tempfile
import threading
from concurrent.futures import Future
from multiprocessing import forkserver, resource_tracker, spawn, util
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from governor import logs
from governor.errors import ForkserverDied, ProcessError
from governor.processes import open_files
from governor.processes.preload import LOAD_SIGNAL, ORDER_VARIABLE, Order, environment, read_report
from governor.processes.raw_output import RawOutput
from governor.processes.readiness import is_readable, readable
from governor.processes.silence import TICK_SECONDS, SilenceTimer

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

PRELOAD: Final = (
    "numpy",
    "gymnasium",
    "zmq",
    "msgspec",
    "structlog",
    "transport.broker",
    "governor.conductors.conductor",
    "governor.conductors.environment",
    "governor.conductors.environment_process",
    "governor.conductors.agent",
    "governor.conductors.simulation",
)
"""What all children need, in this order."""
PRELOAD_RAY: Final = ("governor.conductors.task", "governor.tasks.runners.pool")
"""What task conductors need besides; the last one brings Ray."""

WARM_SECONDS: Final = 60.0
"""How long a forkserver may take to import its modules. A cold disk needs 10 s for Ray."""
FORK_SECONDS: Final = 5.0
"""How long it may take to fork when it is warm: a matter of milliseconds."""


log = logs.get_logger()
_helper: Any = forkserver._forkserver  # noqa: SLF001
_tracker: Any = resource_tracker._resource_tracker  # noqa: SLF001
"""Private parts of multiprocessing that this module needs: the pids of its two helpers, and how to end them."""
_server: Forkserver | None = None
_modules: tuple[str, ...] = PRELOAD
_ray_modules: tuple[str, ...] = PRELOAD_RAY


class Forkserver:
    """One forkserver process: its pid, its exit, what it could not import."""

    def __init__(self, *, pid: int, receiver: socket.socket, secret: str, output: RawOutput) -> None:
        self.pid = pid
        self._output = output
        self.failures: dict[str, str] | None = None
        """The modules that it could not import, with their errors; None until it has reported."""
        self._awaited = 1
        """Reports that are still to come."""
        self._loading: asyncio.Task[None] | None = None
        self._receiver = receiver
        self._secret = secret
        self._pidfd = os.pidfd_open(pid)
        self._exit_reason = ""
        self._lock = threading.Lock()

    def __repr__(self) -> str:
        state = "dead" if self.dead else "cold" if self._awaited else "warm"
        return f"Forkserver(pid={self.pid}, {state})"

    def __del__(self) -> None:
        with contextlib.suppress(AttributeError):  # __init__ could not open one
            os.close(self._pidfd)

    @property
    def dead(self) -> bool:
        return is_readable(self._pidfd)

    async def warm(self, *, within: float) -> None:
        """Waits for its report, and kills it after `within` seconds without one. Raises ForkserverDied."""
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(within):
                while not self._has_reported():
                    await readable(self._receiver.fileno(), self._pidfd)
        if not self._has_reported():
            why = f"not ready within {within:g} s; its imports hang, or it cannot import {Order.__module__}"
            await self._kill(why)
            raise self._error()

    def is_copy(self) -> None:
        """It is a copy of this process, and has nothing to report."""
        self._awaited, self.failures = 0, {}

    def load_ray(self) -> None:
        """Has a warm one import Ray, once; returns at once. It forks nothing meanwhile, but finishes a fork first: else who
        ordered that fork would learn the pid of a child at work only after the import.
        """
        if self._loading is None and self.failures is not None and not self.dead:
            self._loading = asyncio.create_task(self._load(), name="forkserver.load_ray")

    async def warm_with_ray(self, *, within: float) -> None:
        """As `warm`, until it has imported Ray too."""
        loop = asyncio.get_running_loop()
        end = loop.time() + within
        self.load_ray()
        if self._loading is not None:
            await asyncio.wait({self._loading}, timeout=within)
        await self.warm(within=max(0.0, end - loop.time()))

    async def _load(self) -> None:
        """A task of its own: whoever needed Ray may be gone when its import hangs."""

        def signal_it() -> None:
            with (
                self._lock,
                contextlib.suppress(ProcessLookupError),
            ):  # its end is seen by who waits for the report
                self._awaited += 1
                signal.pidfd_send_signal(self._pidfd, LOAD_SIGNAL)

        before = len(self.failures or ())
        with contextlib.suppress(
            ForkserverDied, RuntimeError
        ):  # no thread is left: children import Ray themselves
            await _in_thread(signal_it)
            await self.warm(within=WARM_SECONDS)
            if self.failures and len(self.failures) > before:
                log.warning("forkserver.not_preloaded", failures=self.failures)

    def _has_reported(self) -> bool:
        """Reads what has arrived; whether no report is awaited. Raises ForkserverDied if the process died before it sent one."""
        while self._awaited:
            try:
                datagram = self._receiver.recv(1 << 20)
            except BlockingIOError:
                if self.dead:
                    why = next(reversed(self._output.log_new(pid=self.pid)), "it has printed nothing")
                    raise self._error(f"while it loaded its modules; its last line: {why}") from None
                return False
            if (failures := read_report(datagram, self._secret)) is not None:
                self._awaited -= 1
                self.failures = {**(self.failures or {}), **failures}
                self._output.log_new(pid=self.pid)
                self._output.remove()
        return True

    async def fork(self, order: Callable[[], object]) -> None:
        """Runs `order`, which blocks until this forkserver has answered it, in a thread; one order after the other.

        Raises ForkserverDied when the process died meanwhile, also when it was killed because it did not answer, and
        ProcessError where nothing was forked.
        """
        begun = threading.Event()

        def run() -> None:
            with self._lock:
                begun.set()
                if self.dead:  # else its successor would answer
                    raise EOFError
                order()

        try:
            forked = _in_thread(run)
        except RuntimeError as no_thread:
            raise ProcessError(f"no thread is left to fork in: {no_thread}") from no_thread
        await self._wait_for_answer(forked, begun)
        if (error := forked.exception()) is None:
            return
        if isinstance(error, EOFError | ConnectionError):  # the forkserver or the child has closed its end
            await self._wait_for_exit()
        if self.dead:
            raise self._error() from error
        raise ProcessError(f"no child came of it: {type(error).__name__}: {error}") from error

    async def _wait_for_answer(self, forked: asyncio.Future[None], begun: threading.Event) -> None:
        """Waits until `forked` is done. Raises ForkserverDied when the process is dead and no answer will come, ProcessError
        when it can't even be killed.
        """
        loop = asyncio.get_running_loop()
        silence = SilenceTimer(loop.time())
        was_dead = False
        while not (await asyncio.wait({forked}, timeout=TICK_SECONDS))[0]:
            if was_dead:
                raise self._error()
            if self._exit_reason:
                await self._wait_for_exit()
                if not self.dead:
                    raise ProcessError(f"{self._exit_reason}, and is alive", pid=self.pid)
            was_dead = self.dead
            if not begun.is_set() or not (was_dead or self._has_reported()):
                silence.reset(loop.time())
            elif silence.tick(loop.time()) >= FORK_SECONDS:
                await self._kill(f"silent for {FORK_SECONDS:g} s, and a process was to be forked")

    def close(self) -> None:
        self._receiver.close()

    def _error(self, when: str = "") -> ForkserverDied:
        return ForkserverDied(
            self._exit_reason or f"the forkserver (pid {self.pid}) died{when and f' {when}'}", pid=self.pid
        )

    async def _kill(self, why: str) -> None:
        """Kills it with all its children: it runs, but does not answer."""
        if not self._exit_reason:
            self._exit_reason = f"the forkserver (pid {self.pid}) was killed: {why}"
            log.error("forkserver.silent", pid=self.pid, reason=why)
        with contextlib.suppress(ProcessLookupError):
            signal.pidfd_send_signal(self._pidfd, signal.SIGKILL)
        await self._wait_for_exit()

    async def _wait_for_exit(self) -> None:
        """Waits for its exit, for one tick at most."""
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(TICK_SECONDS):
                await readable(self._pidfd)


def warm_up(
    *, preload: bool | Sequence[str] = True, ray: Sequence[str] = PRELOAD_RAY, folder: Path | None = None
) -> None:
    """Starts the forkserver if none runs, and returns at once while it imports its modules.

    Call it early, from the main thread, after `Notifier.from_environ` and before READY; `warm` waits for it.
    `preload`: True for PRELOAD, False for the child's own machinery alone, or names of modules. `ray`: those that are
    imported when a child needs Ray. The choice holds for later forkservers too. `folder`: where the forkserver's socket is put, in a folder `pymp-*` of its own that
    only SIGKILL can leave behind; without it, where temporary files are. Raises ProcessError when it cannot be started.
    """
    global _modules, _ray_modules  # noqa: PLW0603 - there is one forkserver in a process, as multiprocessing has it
    _ray_modules = tuple(ray)
    _modules = (PRELOAD if preload else ()) if isinstance(preload, bool) else tuple(preload)
    if folder is not None:
        _place_sockets_in(folder)
    _ensure_server()


async def warm(*, timeout: float = WARM_SECONDS, ray: bool = False) -> Forkserver:  # noqa: ASYNC109 - one deadline, owned here
    """Waits, without blocking the loop, until children can be started in milliseconds, with `ray` those that need Ray; the forkserver.

    Starts a new forkserver if the last one died. Raises ForkserverDied if it dies, or is killed after `timeout` seconds;
    ProcessError when it cannot be started.
    """
    server = _ensure_server()
    await server.warm(within=timeout)
    if ray:
        await server.warm_with_ray(within=timeout)
    return server


def use_copy() -> None:
    """The process that multiprocessing has started is a copy of this one (`child.keep_copy`), so it is warm."""
    global _server  # noqa: PLW0603 - see warm_up
    _server = Forkserver(
        pid=_helper._forkserver_pid,  # noqa: SLF001 - see _helper
        receiver=socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM),
        secret="",
        output=RawOutput(Path(os.devnull, "none"), event="forkserver.log"),
    )
    _server.is_copy()
    _helper.ensure_running = _do_nothing


def shut_down() -> None:
    """Ends the forkserver, with every child that still runs, and multiprocessing's resource tracker; reaps both."""
    global _server  # noqa: PLW0603 - see warm_up
    for pid in (_helper._forkserver_pid, _tracker._pid):  # noqa: SLF001 - see _helper
        if pid is not None:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
    vars(_helper).pop("ensure_running", None)
    with contextlib.suppress(FileNotFoundError):  # its socket was removed by another process
        _helper._stop()  # noqa: SLF001 - closes its fds, reaps it, removes its socket
    if _tracker._pid is not None:  # noqa: SLF001  # else it is that of the process that has started this one
        _tracker._stop()  # noqa: SLF001
    if _server is not None:
        _server.close()
        _server = None


def _ensure_server() -> Forkserver:
    global _server  # noqa: PLW0603 - see warm_up
    if threading.current_thread() is not threading.main_thread():
        raise ProcessError(
            "child processes are started from the main thread only: the kernel kills them when the thread ends "
            f"that forked them, and this is thread {threading.current_thread().name!r}"
        )
    try:
        os.getcwd()  # noqa: PTH109  # as multiprocessing does, to tell a child
    except FileNotFoundError:  # the daemon was started in a folder that has been removed since
        os.chdir("/")
    if _server is not None and _server.dead:
        _server.close()
        _server = None
    if _server is None:
        _server = _launch()
    return _server


def _launch() -> Forkserver:
    receiver = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM | socket.SOCK_NONBLOCK)
    receiver.bind("")  # the kernel picks a name in the abstract namespace: no file to leave behind
    secret = secrets.token_hex(16)
    output = RawOutput(Path(util.get_temp_dir()) / "forkserver.output", event="forkserver.log")
    main = spawn.get_preparation_data("")
    # The script's folder (-P) or a missing installation must not decide what the forkserver imports.
    root = str(Path(__file__).parents[2])
    paths = os.pathsep.join(filter(None, (root, os.environ.get("PYTHONPATH"))))
    changes = {"PYTHONPATH": paths, "PYTHONSAFEPATH": "1"}
    order = Order(
        daemon=os.getpid(),
        address=receiver.getsockname()[1:].decode(),
        secret=secret,
        modules=("aiomultiprocess", "governor.processes.child", *_modules),
        later=_ray_modules,
        sys_path=tuple(sys.path),
        environ={name: os.environ.get(name) for name in changes},
        main_name=main.get("init_main_from_name"),
        main_path=main.get("init_main_from_path"),
        raw_output=str(output.path),
        open_files=open_files.of_conductors(),
    )
    try:
        with environment({**changes, ORDER_VARIABLE: order.dump()}):
            forkserver.set_forkserver_preload([Order.__module__])
            resource_tracker.ensure_running()  # as the forkserver would: it unblocks SIGINT
            with _blocked(signal.SIGINT):
                forkserver.ensure_running()
        _helper.ensure_running = _do_nothing
        pid: int = _helper._forkserver_pid  # noqa: SLF001 - see _helper
        return Forkserver(pid=pid, receiver=receiver, secret=secret, output=output)
    except OSError as error:
        receiver.close()
        raise ProcessError(f"cannot start the forkserver: {error}") from error


def _in_thread(order: Callable[[], object]) -> asyncio.Future[None]:
    """As `asyncio.to_thread`, but no exit waits for the thread: `order` may never return."""
    done: Future[None] = Future()
    forked = asyncio.wrap_future(done)
    forked.add_done_callback(lambda _: forked.cancelled() or forked.exception())  # its waiter may be gone

    def run() -> None:
        try:
            order()
        except Exception as error:  # noqa: BLE001  # handed to the caller
            done.set_exception(error)
        else:
            done.set_result(None)

    threading.Thread(target=run, name="forking", daemon=True).start()
    return forked


@contextlib.contextmanager
def _blocked(number: signal.Signals) -> Iterator[None]:
    """A forkserver inherits it: a Ctrl-C at its terminal must not reach it before it ignores that."""
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {number})
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def _do_nothing() -> None:
    """Replaces multiprocessing's `ensure_running`: a fork must not start another forkserver, which had no order of ours."""


def _place_sockets_in(folder: Path) -> None:
    """Only the first call has an effect: multiprocessing makes its folder once, where temporary files are at that time."""
    before = tempfile.tempdir
    tempfile.tempdir = str(folder)
    try:
        util.get_temp_dir()
    finally:
        tempfile.tempdir = before
