"""The forkserver: started early, warm when it has imported what children need, seen when it dies.

Rules:
* Called from the main thread only: PDEATHSIG follows the thread that forked.
* A child sees the environment of the moment when the forkserver started.
* It is exec'd, so nothing of the daemon's memory, and no descriptor but three, is in it or in any child.
* When it dies its children die with it; the next `warm_up`, `warm` or `start` makes a new one.
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

from governor.conductors.preload import ORDER_VARIABLE, Order, Report
from governor.conductors.readiness import is_readable, readable
from governor.errors import ForkserverDied, ProcessError

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

PRELOAD: Final = (
    "numpy",
    "gymnasium",
    "zmq",
    "msgspec",
    "structlog",
    "psutil",
    "transport.broker",
    "governor.conductors.conductor",
    "governor.conductors.environment",
    "governor.conductors.agent",
    "governor.conductors.simulation",
    "governor.conductors.task",
    "governor.tasks.runners",
)
"""What children need, in this order; the last one brings Ray."""

WARM_SECONDS: Final = 60.0
"""How long a forkserver may take to import its modules. A cold disk needs 10 s for Ray."""


class _Internals:
    """What multiprocessing keeps to itself, and we need: the pids of its two helpers, and their end."""

    forkserver: Any = forkserver._forkserver  # noqa: SLF001
    tracker: Any = resource_tracker._resource_tracker  # noqa: SLF001


_internals = _Internals()
_server: Forkserver | None = None
_modules: tuple[str, ...] = PRELOAD


class Forkserver:
    """One life of the forkserver: its pid, its death, its report."""

    def __init__(self, *, pid: int, receiver: socket.socket, secret: str) -> None:
        self.pid = pid
        self.report: Report | None = None
        self._receiver = receiver
        self._secret = secret
        self._pidfd = os.pidfd_open(pid)

    def __repr__(self) -> str:
        state = "dead" if self.dead else "warm" if self.report else "cold"
        return f"Forkserver(pid={self.pid}, {state})"

    @property
    def dead(self) -> bool:
        return is_readable(self._pidfd)

    @property
    def fds(self) -> tuple[int, int]:
        """Readable when the report is there, or the forkserver is dead."""
        return self._receiver.fileno(), self._pidfd

    def collect(self) -> Report | None:
        """Takes the report if it has arrived; raises ForkserverDied if that happened before it came."""
        while self.report is None:
            try:
                datagram = self._receiver.recv(1 << 20)
            except BlockingIOError:
                break
            self.report = Report.load(datagram, self._secret)
        if self.report is None and self.dead:
            raise ForkserverDied(
                f"the forkserver died while it loaded its modules (pid {self.pid}); its stderr tells why",
                pid=self.pid,
            )
        return self.report

    def close(self) -> None:
        self._receiver.close()


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


async def warm(*, timeout: float = WARM_SECONDS) -> Report:  # noqa: ASYNC109 - one deadline, owned here
    """Waits, without blocking the loop, until children can be started in milliseconds; the forkserver's report.

    Starts a new forkserver if the last one died. Raises ProcessError after `timeout` seconds, or if it dies.
    """
    server = _ensure_server()
    try:
        async with asyncio.timeout(timeout):
            while (report := server.collect()) is None:
                await readable(*server.fds)
    except TimeoutError:
        raise _too_slow(server, timeout) from None
    return report


def warm_now(*, timeout: float = WARM_SECONDS) -> Forkserver:
    """The warm forkserver; blocks until it is, at most `timeout` seconds. Raises ProcessError as `warm` does."""
    server = _ensure_server()
    while server.collect() is None:
        if not is_readable(*server.fds, timeout=timeout):
            raise _too_slow(server, timeout)
    return server


def shut_down() -> None:
    """Ends the forkserver, with every child that still lives, and multiprocessing's resource tracker; reaps both."""
    global _server  # noqa: PLW0603 - see warm_up
    for pid in (_internals.forkserver._forkserver_pid, _internals.tracker._pid):  # noqa: SLF001 - see _Internals
        if pid is not None:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
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
        modules=("aiomultiprocess", "governor.conductors.child", *_modules),
        sys_path=tuple(sys.path),
        environ={name: os.environ.get(name) for name in changes},
        main_name=main.get("init_main_from_name"),
        main_path=main.get("init_main_from_path"),
    )
    try:
        with _environment({**changes, ORDER_VARIABLE: order.dump()}):
            forkserver.set_forkserver_preload([Order.__module__])
            forkserver.ensure_running()
        pid: int = _internals.forkserver._forkserver_pid  # noqa: SLF001 - see _Internals
        return Forkserver(pid=pid, receiver=receiver, secret=secret)
    except OSError as error:
        receiver.close()
        raise ProcessError(f"cannot start the forkserver: {error}") from error


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


def _too_slow(server: Forkserver, seconds: float) -> ProcessError:
    return ProcessError(
        f"the forkserver (pid {server.pid}) was not ready within {seconds:g} s: its imports hang, or it cannot "
        f"import {Order.__module__}",
        pid=server.pid,
    )
