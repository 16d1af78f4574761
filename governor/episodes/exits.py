"""``os._exit`` of user code is told before it is done: in which episodes, and where it stands.

It ends the process with no word of its own. A thread that runs user code says by `tells` how to name what it is at; a thread
that has said nothing, and a forked child, leave as ever. What ends a process from outside Python is not heard here.
"""

from __future__ import annotations

import contextlib
import os
import sys
import threading
import traceback
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from typing import NoReturn

SHOWN: Final = 8
"""Episodes that are named; of a vector there may be thousands."""

_thread = threading.local()


def tells(at_work: Callable[[], str]) -> None:
    """This thread runs user code; `at_work` names what it is at, as ``environment.step of episode 3``, or is ""."""
    _thread.at_work = at_work


def place(where: str, episodes: Sequence[int]) -> str:
    """As ``agent.act of episodes 3, 4``; "" where there are none."""
    if not episodes:
        return ""
    more = f" and {len(episodes) - SHOWN} more" if len(episodes) > SHOWN else ""
    shown = ", ".join(map(str, episodes[:SHOWN]))
    return f"{where} of episode{'s' if len(episodes) > 1 else ''} {shown}{more}"


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
