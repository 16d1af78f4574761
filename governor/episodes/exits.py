"""``os._exit`` of user code is told before it is done: in which episode, and where it stands.

It ends the process with no word of its own. A thread that runs user code says by `tells` how to name what it is at; a thread
that has said nothing, and a forked child, leave as ever. What ends a process from outside Python is not heard here.
"""

from __future__ import annotations

import contextlib
import os
import sys
import threading
import traceback
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import NoReturn

_thread = threading.local()


def tells(at_work: Callable[[], str]) -> None:
    """This thread runs user code; `at_work` names what it is at, as ``environment.step of episode 3``, or is ""."""
    _thread.at_work = at_work


def announce(say: Callable[[str, str], None]) -> None:
    """From now on `say` gets the reason, in one line, and the stack before this process leaves by ``os._exit``. It may block."""
    leave, pid = os._exit, os.getpid()

    def announced(status: int = 0, /) -> NoReturn:
        at_work = getattr(_thread, "at_work", None)
        if os.getpid() == pid and at_work is not None and (place := at_work()):
            stack = "".join(traceback.format_stack(sys._getframe(1)))  # noqa: SLF001  # inspect is slow to import
            with contextlib.suppress(Exception):  # it leaves all the same
                say(f"os._exit({status}) in {place}", stack)
        leave(status)

    os._exit = announced  # type: ignore[assignment]
