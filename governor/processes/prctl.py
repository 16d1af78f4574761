"""The three prctl(2) calls that the process tree needs; stdlib only, so the guard stays small.

PR_SET_PDEATHSIG is bound to the *thread* that forked, is not inherited by fork, and sends nothing when the parent is
dead already: hence the comparison with the expected parent after each call.
"""

from __future__ import annotations

import ctypes
import os
import signal

_PR_SET_PDEATHSIG = 1
_PR_SET_NAME = 15
_PR_SET_CHILD_SUBREAPER = 36

_libc = ctypes.CDLL(None, use_errno=True)


def _prctl(option: int, argument: int | bytes) -> None:
    """Raises OSError when the kernel refuses."""
    value = argument if isinstance(argument, bytes) else ctypes.c_ulong(argument)
    zero = ctypes.c_ulong(0)
    if _libc.prctl(ctypes.c_int(option), value, zero, zero, zero) != 0:
        code = ctypes.get_errno()
        raise OSError(code, f"prctl({option}): {os.strerror(code)}")


def die_with_parent(*, expected: int, number: int = signal.SIGKILL) -> None:
    """Sends this process signal `number` when its parent dies; kills it now if the parent is not `expected` any more."""
    _prctl(_PR_SET_PDEATHSIG, number)
    if os.getppid() != expected:
        os.kill(os.getpid(), signal.SIGKILL)


def adopt_orphans() -> None:
    """Orphaned descendants become children of this process (PR_SET_CHILD_SUBREAPER), not of init."""
    _prctl(_PR_SET_CHILD_SUBREAPER, 1)


def name_process(name: str) -> None:
    """The name that ps and top show; the kernel keeps 15 bytes."""
    _prctl(_PR_SET_NAME, name.encode()[:15])
