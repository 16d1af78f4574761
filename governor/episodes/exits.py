"""Reports ``os._exit`` of user code before the process exits: in which episodes, and the stack.

A thread that runs user code registers with `set_description` how to describe its current work, and what is to be done before the
process exits. In a thread without a description, and in a forked child, ``os._exit`` is not reported; nor is an end of the process from
outside Python.
"""

from __future__ import annotations

import contextlib
import os
import threading
from typing import TYPE_CHECKING, Final

from governor.failures import stack_of

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from typing import NoReturn

    from governor.failures import Reason

SHOWN: Final = 8
"""Episodes that are listed; a vector may have thousands."""

_thread = threading.local()


def set_description(
    describe_current: Callable[[], str], *, before_exit: Callable[[], object] | None = None
) -> None:
    """This thread runs user code; `describe_current` returns, for example, ``environment.step of episode 3``, or "". `before_exit` hands
    over what has ended, in a bounded time.
    """
    _thread.describe_current, _thread.before_exit = describe_current, before_exit


def describe(where: str, episodes: Sequence[int]) -> str:
    """For example ``agent.act of episodes 3, 4``; "" without episodes."""
    if not episodes:
        return ""
    more = f" and {len(episodes) - SHOWN} more" if len(episodes) > SHOWN else ""
    shown = ", ".join(map(str, episodes[:SHOWN]))
    return f"{where} of episode{'s' if len(episodes) > 1 else ''} {shown}{more}"


def announce(report: Callable[[Reason], None]) -> None:
    """From now on `report` gets the reason, in one line, with the stack before ``os._exit`` ends this process. It may block."""
    leave, pid = os._exit, os.getpid()

    def announced(status: int = 0, /) -> NoReturn:
        describe_current = getattr(_thread, "describe_current", None)
        if os.getpid() == pid and describe_current is not None and (description := describe_current()):
            with contextlib.suppress(Exception):  # the process exits all the same
                if _thread.before_exit is not None:
                    _thread.before_exit()
            with contextlib.suppress(Exception):
                report(stack_of(threading.get_ident(), f"os._exit({status}) in {description}"))
        leave(status)

    os._exit = announced  # type: ignore[assignment]
