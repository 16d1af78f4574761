"""User code in a fork. The process that was started is its supervisor: it exits after the fork has exited, on request, or when its
parent exits, and kills all that user code has started, also in sessions of their own.

`started` starts a module so, for one order; it calls `enter` first. It imports what a conductor would import: nothing from the
current folder (-P).
"""

from __future__ import annotations

import os
import resource
import signal
import subprocess
import sys
from contextlib import contextmanager, suppress
from multiprocessing.connection import Connection, Pipe
from typing import TYPE_CHECKING, Final

from governor.processes import guard, prctl

if TYPE_CHECKING:
    from collections.abc import Iterator

KILL_ALL: Final = signal.SIGUSR1
"""For the supervisor; the kernel sends it when the process that started it exits."""
_AWAITED: Final = frozenset({signal.SIGCHLD, signal.SIGTERM, KILL_ALL})
"""SIGTERM is for its group: the supervisor waits whether the fork exits by it."""


@contextmanager
def started(
    module: str, order: bytes, *, output: int = subprocess.DEVNULL, folder: str = ""
) -> Iterator[tuple[Connection, subprocess.Popen[bytes]]]:
    """A process of `module`, and where to read what it sends. At the end it is gone, with all below it and its `folder`, also if
    this process is killed. `output` is a descriptor for what it prints. Raises OSError.
    """
    reading, writing = Pipe(duplex=False)
    file = os.memfd_create("order")
    try:
        with writing, open(file, "wb", closefd=False) as stream:  # a descriptor
            stream.write(order)
            stream.flush()
            os.lseek(file, 0, os.SEEK_SET)
            process = subprocess.Popen(
                [
                    sys.executable,
                    "-P",
                    "-m",
                    module,
                    str(writing.fileno()),
                    str(os.getpid()),
                    str(file),
                    folder,
                ],
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=output,
                env={**os.environ, "PYTHONPATH": os.pathsep.join(path for path in sys.path if path)},
                pass_fds=[writing.fileno(), file],
                start_new_session=True,
            )
    except BaseException:
        reading.close()
        raise
    finally:
        os.close(file)
    try:
        yield reading, process
    finally:
        reading.close()
        with suppress(ProcessLookupError):
            process.send_signal(KILL_ALL)
            process.send_signal(signal.SIGCONT)  # user code may have stopped its whole group
        process.wait()


def enter() -> tuple[Connection, bytes]:
    """In the process that `started` has started: the order, and where to send to; returns in the fork."""
    answers, parent, file = map(int, sys.argv[1:4])
    with open(file, "rb") as stream:  # noqa: PTH123  # a descriptor
        order = stream.read()
    os.set_inheritable(answers, False)
    fork(parent=parent, descriptor=answers, folder=sys.argv[4])
    return Connection(answers, readable=False), order


def fork(*, parent: int, descriptor: int, folder: str = "") -> None:
    """Returns in the fork; the supervisor does not return, closes `descriptor`, and removes `folder` at the end. `parent` is the pid
    of its parent. Its exit is that of the fork.
    """
    supervisor = os.getpid()
    prctl.adopt_orphans()
    mask = signal.pthread_sigmask(signal.SIG_BLOCK, _AWAITED)
    prctl.die_with_parent(expected=parent, number=KILL_ALL)
    worker = os.fork()
    if worker == 0:
        prctl.die_with_parent(expected=supervisor)
        signal.pthread_sigmask(signal.SIG_SETMASK, mask)
        return
    os.close(descriptor)
    signal.signal(signal.SIGCHLD, lambda *_: None)  # its default disposition drops it
    status = guard.reap().get(worker)
    while status is None and signal.sigwaitinfo(_AWAITED).si_signo != KILL_ALL:
        status = guard.reap().get(worker)
    guard.sweep()
    if folder:
        import shutil  # noqa: PLC0415  # most have none

        shutil.rmtree(folder, ignore_errors=True)
    _end_as(-signal.SIGKILL if status is None else os.waitstatus_to_exitcode(status))


def _end_as(code: int) -> None:
    """`code` is minus the signal that ended the fork, or its exit code."""
    if code < 0:
        resource.setrlimit(resource.RLIMIT_CORE, (0, 0))  # the fork has left its own
        with suppress(OSError):  # SIGKILL has no handler
            signal.signal(-code, signal.SIG_DFL)
        signal.pthread_sigmask(signal.SIG_UNBLOCK, {-code})
        os.kill(os.getpid(), -code)
    os._exit(code)
