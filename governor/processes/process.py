"""Child processes of the daemon: aiomultiprocess.Process on the warm forkserver, watched, each a group of its own.

Rules:
* `warm_up` early, `await warm()` before READY, then `start`; all from the main thread.
* A child sees the environment of the moment when the forkserver started, and the daemon's sys.path and working
  directory of the moment of its own start.
* Nothing calls `join()`: an exit is an event. When the leader of a group has ended, the rest of its group is killed.
* A child whose forkserver dies is dead, with exit code -9.
"""

from __future__ import annotations

import asyncio
import atexit
import contextlib
import multiprocessing.process
import os
import signal
from types import SimpleNamespace
from typing import TYPE_CHECKING, Final

import aiomultiprocess
import aiomultiprocess.core

from governor import logs
from governor.errors import ForkserverDied, ProcessError, text_of
from governor.processes import child, forkserver, kill_tree
from governor.processes.forkserver import (
    PRELOAD,
    Forkserver,
    warm,
    warm_up,
)
from governor.processes.identity import (
    NEVER,
    ProcessIdentity,
    boot_id,
    zombie_exit_code,
)
from governor.processes.readiness import is_readable, readable

if TYPE_CHECKING:
    import socket

__all__ = ["PRELOAD", "ChildProcess", "shut_down", "start", "warm", "warm_up"]

REAP_SECONDS: Final = 1.0
"""How long the forkserver may take to report the exit code of a dead child; a frozen one never does."""

_children: set[ChildProcess] = set()
_cleanups: set[asyncio.Task[None]] = set()

log = logs.get_logger()


class ChildProcess:
    """A child process, leader of its own process group. Created by `start`. All that it starts has its `mark`."""

    def __init__(self, *, process: aiomultiprocess.Process, server: Forkserver, mark: int) -> None:
        self.name: str = process.name
        self.pid: int = process.pid
        self.mark = mark
        self._process = process
        self._server = server
        self.lost_forkserver: int | None = None
        """Set with the exit code: the pid of its forkserver, if this child died because that died."""
        self._exit_code: int | None = None
        self._pidfd: int | None = None
        self.identity = ProcessIdentity(pid=self.pid, ticks=NEVER, boot=boot_id())
        try:
            self._pidfd = os.pidfd_open(self.pid)
            self.identity = ProcessIdentity.of(self.pid)
        except ProcessLookupError:
            pass  # ended already, and reaped by the forkserver
        except OSError:
            if self._pidfd is not None:
                os.close(self._pidfd)
            raise

    def __repr__(self) -> str:
        state = "alive" if self.exit_code is None else f"exit code {self.exit_code}"
        return f"ChildProcess(name={self.name!r}, pid={self.pid}, {state})"

    @property
    def exit_code(self) -> int | None:
        """None while it runs; negative when a signal ended it, -9 when its forkserver died."""
        if self._exit_code is None:
            self._collect()
        return self._exit_code

    async def wait(self) -> int:
        """Waits for the exit, and returns its code. Any number of callers may wait."""
        while (code := self.exit_code) is None:
            # Its death first, then the code: when the forkserver dies the sentinel is readable before the child is dead.
            if self._pidfd is not None:
                await readable(self._pidfd)
            if self._exit_code is None:
                await self._wait_for_code()
        return code

    async def _wait_for_code(self) -> None:
        """Returns when the forkserver has reported the code, or when the code was read from the zombie."""
        try:
            async with asyncio.timeout(REAP_SECONDS):
                await readable(self._process.aio_process.sentinel)
        except TimeoutError:
            if self._exit_code is None and (code := zombie_exit_code(self.pid)) is not None:
                log.warning("process.not_reaped", pid=self.pid, name=self.name, forkserver=self._server.pid)
                self._end(code)

    def signal(self, number: int) -> bool:
        """Sends a signal to the process group; False when the child has ended already."""
        if self.exit_code is not None:
            return False
        try:
            os.killpg(self.pid, number)
        except ProcessLookupError:
            # Just forked and not yet leader of its group, which is empty otherwise; or dead.
            with contextlib.suppress(ProcessLookupError):
                os.kill(self.pid, number)
        return True

    def _collect(self) -> None:
        if self._pidfd is not None and not is_readable(self._pidfd):
            return
        if self._process.aio_process.sentinel is None or not is_readable(self._process.aio_process.sentinel):
            return
        code: int = self._process.exitcode
        # multiprocessing reports 255 when the forkserver died with the code; PDEATHSIG killed the child then.
        if code == 255 and self._server.dead:
            self.lost_forkserver, code = self._server.pid, -signal.SIGKILL
        self._process.close()
        self._end(code)

    def _end(self, code: int) -> None:
        self._exit_code = code
        self._kill_rest_of_group()
        _children.discard(self)
        if self._pidfd is not None:
            os.close(self._pidfd)
            self._pidfd = None

    def _kill_rest_of_group(self) -> None:
        with contextlib.suppress(ProcessLookupError):
            if ProcessIdentity.of(self.pid) != self.identity:
                return  # another process has the pid, so the group is gone
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(self.pid, signal.SIGKILL)


async def start(
    *,
    name: str,
    target: str,
    payload: bytes,
    connection: socket.socket | None = None,
    ray: bool = False,
    starts_processes: bool = False,
) -> ChildProcess:
    """Starts `async def function(payload: bytes) -> int | None`, named `module:function`, in a child process; `ray`: it needs Ray.
    `connection`: the child gets a duplicate of it as second argument. `starts_processes`: it will call `start` itself, and keeps a
    copy of itself as its forkserver.

    Takes some milliseconds when the forkserver is warm (`warm`). Raises ForkserverDied, ProcessError off the main thread or when
    no child can be started. A start that is cancelled leaves no child behind.
    """
    server = await warm(ray=ray)
    work = {"mark": _new_mark(), "starts_processes": starts_processes}
    starting = asyncio.create_task(
        _spawn(server, name, (target, payload, connection), work), name=f"start {name}"
    )
    try:
        return await asyncio.shield(starting)
    except asyncio.CancelledError:
        cleanup = asyncio.create_task(_kill_unwanted(starting), name=f"end {name}")
        _cleanups.add(cleanup)
        cleanup.add_done_callback(_cleanups.discard)
        await asyncio.wait({cleanup})
        raise


def _new_mark() -> int:
    """One that no child has: those of a process that is a child itself are few (`kill_tree`)."""
    while (mark := kill_tree.new_child_mark()) in {child.mark for child in _children}:
        pass
    return mark


async def _spawn(
    server: Forkserver, name: str, args: tuple[object, ...], work: dict[str, int]
) -> ChildProcess:
    # Else aiomultiprocess starts a SyncManager: it blocks the loop, outlives the daemon, and is used by its Worker alone.
    aiomultiprocess.core._manager = SimpleNamespace(Namespace=SimpleNamespace)  # noqa: SLF001 - a test watches the name
    aiomultiprocess.set_start_method("forkserver")
    process = aiomultiprocess.Process(
        name=name, target=child.run_target, args=args, kwargs=work, process_target=child.enter
    )

    def fork() -> None:
        process.start()
        # At each start multiprocessing polls all children that it knows, in that thread; this module does so in its own.
        multiprocessing.process._children.discard(process.aio_process)  # type: ignore[attr-defined]  # noqa: SLF001

    try:
        await server.fork(fork)
    except ForkserverDied:
        raise
    except (ProcessError, OSError) as error:
        raise ProcessError(f"cannot start {name}: {text_of(error)}") from error
    try:
        started = ChildProcess(process=process, server=server, mark=work["mark"])
    except OSError as error:  # no descriptor is left to watch it
        with contextlib.suppress(ProcessLookupError):
            os.kill(process.pid, signal.SIGKILL)
        raise ProcessError(f"cannot watch {name}: {type(error).__name__}: {error}") from error
    _children.add(started)
    return started


async def _kill_unwanted(starting: asyncio.Task[ChildProcess]) -> None:
    with contextlib.suppress(ProcessError):
        unwanted = await starting
        unwanted.signal(signal.SIGKILL)
        await unwanted.wait()
        await asyncio.to_thread(kill_tree.kill_tree, unwanted.pid, None, unwanted.mark)


def shut_down() -> None:
    """Kills the children that still run, ends the forkserver and multiprocessing's resource tracker, and reaps both.

    Call it last, when every child has been terminated; a later `start` starts a new forkserver.
    """
    _kill_remaining()
    forkserver.shut_down()


def _kill_remaining() -> None:
    for left in list(_children):
        left.signal(signal.SIGKILL)


# Runs before multiprocessing's own exit function, which joins every child, however long that takes.
atexit.register(_kill_remaining)
