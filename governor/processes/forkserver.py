"""The forkserver: started early, warm when it has imported what children need, seen when it dies.

Rules:
* Called from the main thread only: PDEATHSIG follows the thread that forked. Nobody but `_launch` starts one.
* A child sees the environment of the moment when the forkserver started.
* It is exec'd, so nothing of the daemon's memory, and no descriptor but three, is in it or in any child.
* When it dies its children die with it; the next `warm_up`, `warm` or `start` makes a new one. One that is silent when
  it should import or fork is as good as dead: it is killed.
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
from multiprocessing import forkserver, resource_tracker, spawn, util
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from governor import logs
from governor.errors import ForkserverDied, ProcessError
from governor.processes import open_files
from governor.processes.preload import ORDER_VARIABLE, Order, PreloadReport
from governor.processes.readiness import is_readable, readable
from governor.processes.silence import BEAT_SECONDS, SilenceTimer

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence

PRELOAD: Final = (
    "numpy",
    "gymnasium",
    "zmq",
    "msgspec",
    "structlog",
    "transport.broker",
    "governor.conductors.conductor",
    "governor.conductors.environment",
    "governor.conductors.agent",
    "governor.conductors.simulation",
    "governor.conductors.task",
    "governor.tasks.runners.pool",
)
"""What children need, in this order; the last one brings Ray."""

WARM_SECONDS: Final = 60.0
"""How long a forkserver may take to import its modules. A cold disk needs 10 s for Ray."""
FORK_SECONDS: Final = 5.0
"""How long it may take to fork when it is warm: a matter of milliseconds."""


class _Internals:
    """What multiprocessing keeps to itself, and we need: the pids of its two helpers, and their end."""

    forkserver: Any = forkserver._forkserver  # noqa: SLF001
    tracker: Any = resource_tracker._resource_tracker  # noqa: SLF001


log = logs.get_logger()
_internals = _Internals()
_server: Forkserver | None = None
_modules: tuple[str, ...] = PRELOAD


class Forkserver:
    """One life of the forkserver: its pid, its death, its report."""

    def __init__(self, *, pid: int, receiver: socket.socket, secret: str) -> None:
        self.pid = pid
        self.report: PreloadReport | None = None
        self._receiver = receiver
        self._secret = secret
        self._pidfd = os.pidfd_open(pid)
        self._obituary = ""
        self._one_by_one = threading.Lock()

    def __repr__(self) -> str:
        state = "dead" if self.dead else "warm" if self.report else "cold"
        return f"Forkserver(pid={self.pid}, {state})"

    def __del__(self) -> None:
        with contextlib.suppress(AttributeError):  # there was no descriptor left for it
            os.close(self._pidfd)

    @property
    def dead(self) -> bool:
        return is_readable(self._pidfd)

    def collect(self) -> PreloadReport | None:
        """Takes the report if it has arrived; raises ForkserverDied if that happened before it came."""
        while self.report is None:
            try:
                datagram = self._receiver.recv(1 << 20)
            except BlockingIOError:
                break
            self.report = PreloadReport.load(datagram, self._secret)
        if self.report is None and self.dead:
            raise self._died("while it loaded its modules; its stderr tells why")
        return self.report

    async def reported(self, *, within: float) -> PreloadReport:
        """Its report; it is killed when that has not come so many seconds later. Raises ForkserverDied."""
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(within):
                while self.collect() is None:
                    await readable(self._receiver.fileno(), self._pidfd)
        if (report := self.collect()) is None:
            why = f"not ready within {within:g} s; its imports hang, or it cannot import {Order.__module__}"
            await self._kill(why)
            raise self._died()
        return report

    async def fork(self, order: Callable[[], object]) -> None:
        """Carries out `order`, which blocks until this forkserver has answered it, in a thread; one order after the other.

        Raises ForkserverDied when it died meanwhile, of its silence for one, and ProcessError where nothing was forked.
        """
        begun = threading.Event()

        def carry_out() -> None:
            with self._one_by_one:
                begun.set()
                if self.dead:  # what would answer is its successor
                    raise EOFError
                order()

        try:
            forked = _in_thread(carry_out)
        except RuntimeError as no_thread:
            raise ProcessError(f"no thread is left to fork in: {no_thread}") from no_thread
        await self._answered(forked, begun)
        if (error := forked.exception()) is None:
            return
        if isinstance(
            error, EOFError | ConnectionError
        ):  # the forkserver has closed its end, or the child has
            await self._seen_dead()
        if self.dead:
            raise self._died() from error
        raise ProcessError(f"no child came of it: {type(error).__name__}: {error}") from error

    async def _answered(self, forked: asyncio.Future[None], begun: threading.Event) -> None:
        """Raises ForkserverDied when it is dead and no answer will come, ProcessError when it can't even be killed."""
        loop = asyncio.get_running_loop()
        silence = SilenceTimer(loop.time())
        was_dead = False
        while not (await asyncio.wait({forked}, timeout=BEAT_SECONDS))[0]:
            if was_dead:
                raise self._died()
            if self._obituary:
                await self._seen_dead()
                if not self.dead:
                    raise ProcessError(f"{self._obituary}, and is alive", pid=self.pid)
            was_dead = self.dead
            if not begun.is_set():
                silence.heard(loop.time())
            elif silence.passed(loop.time()) >= FORK_SECONDS:
                await self._kill(f"silent for {FORK_SECONDS:g} s, and a process was to be forked")

    def close(self) -> None:
        self._receiver.close()

    def _died(self, when: str = "") -> ForkserverDied:
        return ForkserverDied(
            self._obituary or f"the forkserver (pid {self.pid}) died{when and f' {when}'}", pid=self.pid
        )

    async def _kill(self, why: str) -> None:
        """With all its children: it is alive and does nothing."""
        if not self._obituary:
            self._obituary = f"the forkserver (pid {self.pid}) was killed: {why}"
            log.error("forkserver.silent", pid=self.pid, reason=why)
        with contextlib.suppress(ProcessLookupError):
            signal.pidfd_send_signal(self._pidfd, signal.SIGKILL)
        await self._seen_dead()

    async def _seen_dead(self) -> None:
        """Or a beat has passed."""
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(BEAT_SECONDS):
                await readable(self._pidfd)


def warm_up(*, preload: bool | Sequence[str] = True, folder: Path | None = None) -> None:
    """Starts the forkserver if none lives, and returns at once while it imports its modules.

    Call it early, from the main thread, after `Notifier.from_environ` and before READY; `warm` waits for it.
    `preload`: True for PRELOAD, False for the child's own machinery alone, or names of modules. The choice holds
    for later forkservers too. `folder`: where the forkserver's socket is put, in a folder `pymp-*` of its own that
    only SIGKILL can leave behind; without it, where temporary files are. Raises ProcessError when it cannot be started.
    """
    global _modules  # noqa: PLW0603 - there is one forkserver in a process, as multiprocessing has it
    _modules = (PRELOAD if preload else ()) if isinstance(preload, bool) else tuple(preload)
    if folder is not None:
        _keep_sockets_in(folder)
    _ensure_server()


async def warm(*, timeout: float = WARM_SECONDS) -> PreloadReport:  # noqa: ASYNC109 - one deadline, owned here
    """Waits, without blocking the loop, until children can be started in milliseconds; the forkserver's report.

    Starts a new forkserver if the last one died. Raises ForkserverDied if it dies, of being killed after `timeout` seconds
    for one; ProcessError when it cannot be started.
    """
    return await _ensure_server().reported(within=timeout)


async def warm_server() -> Forkserver:
    """As `warm`; the forkserver itself."""
    server = _ensure_server()
    await server.reported(within=WARM_SECONDS)
    return server


def shut_down() -> None:
    """Ends the forkserver, with every child that still lives, and multiprocessing's resource tracker; reaps both."""
    global _server  # noqa: PLW0603 - see warm_up
    for pid in (_internals.forkserver._forkserver_pid, _internals.tracker._pid):  # noqa: SLF001 - see _Internals
        if pid is not None:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
    vars(_internals.forkserver).pop("ensure_running", None)
    with contextlib.suppress(FileNotFoundError):  # its socket, which somebody else has removed
        _internals.forkserver._stop()  # noqa: SLF001 - closes its fds, reaps it, removes its socket
    _internals.tracker._stop()  # noqa: SLF001
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
        sys_path=tuple(sys.path),
        environ={name: os.environ.get(name) for name in changes},
        main_name=main.get("init_main_from_name"),
        main_path=main.get("init_main_from_path"),
        open_files=open_files.of_conductors(),
    )
    try:
        with _environment({**changes, ORDER_VARIABLE: order.dump()}):
            forkserver.set_forkserver_preload([Order.__module__])
            forkserver.ensure_running()
        _internals.forkserver.ensure_running = _leave_it  # who is to fork does not start another one
        pid: int = _internals.forkserver._forkserver_pid  # noqa: SLF001 - see _Internals
        return Forkserver(pid=pid, receiver=receiver, secret=secret)
    except OSError as error:
        receiver.close()
        raise ProcessError(f"cannot start the forkserver: {error}") from error


def _in_thread(order: Callable[[], object]) -> asyncio.Future[None]:
    """As `asyncio.to_thread`, but nobody's end waits for it: what it asks may never answer."""
    loop = asyncio.get_running_loop()
    done: asyncio.Future[None] = loop.create_future()
    done.add_done_callback(lambda _: done.cancelled() or done.exception())  # perhaps nobody waits any more

    def settle(error: Exception | None) -> None:
        if error is None:
            done.set_result(None)
        else:
            done.set_exception(error)

    def carry_out() -> None:
        failure: Exception | None = None
        try:
            order()
        except Exception as error:  # noqa: BLE001  # the caller's to judge
            failure = error
        with contextlib.suppress(RuntimeError):  # the loop is closed: nobody waits
            loop.call_soon_threadsafe(settle, failure)

    threading.Thread(target=carry_out, name="forking", daemon=True).start()
    return done


def _leave_it() -> None:
    """In place of multiprocessing's `ensure_running`: that would start a forkserver without our order."""


def _keep_sockets_in(folder: Path) -> None:
    """The first call decides: multiprocessing makes its folder once, where temporary files are at that time."""
    before = tempfile.tempdir
    tempfile.tempdir = str(folder)
    try:
        util.get_temp_dir()
    finally:
        tempfile.tempdir = before


@contextlib.contextmanager
def _environment(changes: Mapping[str, str]) -> Iterator[None]:
    before = {name: os.environ.get(name) for name in changes}
    os.environ.update(changes)
    try:
        yield
    finally:
        for name, value in before.items():
            if value is None:
                del os.environ[name]
            else:
                os.environ[name] = value
