"""How a signal becomes a `TaskCancelled` in user code, in the process of a runner.

Rules:
1. It is raised in user code only, in the main thread, and only in the attempt that is to be cancelled: `ticket` is not 0
   while user code runs, and a pipe carries the ticket that the signal is for.
2. Once `ticket` is cleared behind user code, nothing is raised.
3. A coroutine is cancelled, once; the exception is raised only if user code blocks its loop.
4. The signal is repeated until the pipe is found empty and the attempt has ended. The ticket is put back when Python has ignored the
   exception, as it does in finalizers and in callbacks of weak references.
"""

from __future__ import annotations

import _signal  # type: ignore[import-not-found]  # `signal.getsignal` looks for an enum's member, which takes 2 µs of each run
import inspect
import os
import signal
import sys
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING, Final

from governor.tasks.api import TaskCancelled
from governor.tasks.protocol.ticket_pipe import CANCEL_SIGNAL, MOST, TICKET
from governor.tasks.runner_process import calls

if TYPE_CHECKING:
    from collections.abc import Iterator
    from types import FrameType


class Cancellation:
    """The runner's end of the pipe, and the signal's handler."""

    def __init__(self) -> None:
        self.ticket = 0
        """Of the attempt whose user code is running; 0 outside of user code."""
        self.fired = False
        """Whether the current attempt has been cancelled."""
        self._asked: frozenset[int] = frozenset()
        self._raised_ticket = 0
        """Of the exception that was raised in the current run."""
        self._is_handling = False
        """While it is, a signal has no effect: the ticket stays in the pipe."""
        self._previous_hook = sys.unraisablehook
        self._read, self.pipe = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)

    def listen(self) -> None:
        """Installs the handler and the hook, in the main thread; also after user code has replaced them."""
        if _signal.getsignal(CANCEL_SIGNAL) != self._on_signal:
            signal.signal(CANCEL_SIGNAL, self._on_signal)
        if sys.unraisablehook != self._on_ignored:
            self._previous_hook, sys.unraisablehook = sys.unraisablehook, self._on_ignored

    def reset(self) -> None:
        """Another driver begins, whose tickets may be the same numbers."""
        self._asked = frozenset()
        with suppress(OSError):  # empty
            os.read(self._read, MOST * TICKET.size)

    def enter(self, ticket: int) -> None:
        """User code is called next. Raises TaskCancelled if the attempt has been cancelled already."""
        self.ticket, self._raised_ticket = ticket, 0
        if self._asked:
            self._raise_if_asked(inspect.currentframe())

    def leave(self) -> None:
        """User code has returned."""
        self.ticket = self._raised_ticket = 0

    @contextmanager
    def held_off(self) -> Iterator[None]:
        """Defers a cancellation while our code, called by user code, must not be interrupted; raises it at the end."""
        ticket, self.ticket = self.ticket, 0
        try:
            yield
        finally:
            self.ticket = ticket
        if ticket and self._asked:
            self._raise_if_asked(inspect.currentframe())

    def forget(self) -> None:
        """In a child that user code has forked: removes the handler and the pipe."""
        os.close(self._read)
        os.close(self.pipe)
        if signal.getsignal(CANCEL_SIGNAL) == self._on_signal:
            signal.signal(CANCEL_SIGNAL, signal.SIG_DFL)
        if sys.unraisablehook == self._on_ignored:
            sys.unraisablehook = self._previous_hook

    def _on_signal(self, _: int, frame: FrameType | None) -> None:
        """Runs in the main thread, between two of its instructions."""
        if self._is_handling:
            return
        self._is_handling = True
        while frame is not None and frame.f_code is _HANDLER:  # another signal, before the flag was set
            frame = frame.f_back
        try:
            data = os.read(self._read, MOST * TICKET.size)
            self._asked = frozenset(ticket for (ticket,) in TICKET.iter_unpack(data))
            self._raise_if_asked(frame)
        except OSError:  # empty
            pass
        finally:
            self._is_handling = False

    def _raise_if_asked(self, frame: FrameType | None) -> None:
        if self.ticket not in self._asked:  # no ticket is 0
            return
        self.fired = True
        self._asked = frozenset()
        if calls.cancel_coroutine(frame):
            return
        self.ticket, self._raised_ticket = 0, self.ticket
        raise TaskCancelled("the task was cancelled")

    def _on_ignored(self, ignored: sys.UnraisableHookArgs) -> None:
        """Python's hook for exceptions in finalizers."""
        if not (self._raised_ticket and isinstance(ignored.exc_value, TaskCancelled)):
            previous, self._previous_hook = self._previous_hook, sys.__unraisablehook__
            try:
                previous(ignored)
            finally:
                self._previous_hook = previous  # one of the user's own may call this one
            return
        self._is_handling = True
        self.ticket, self._raised_ticket = self._raised_ticket, 0
        self._put_back()
        self._is_handling = False

    def _put_back(self) -> None:
        """The driver sends the signal again while the pipe is not empty."""
        with suppress(OSError):  # full of other requests, of which each sees to the signal
            os.write(self.pipe, TICKET.pack(self.ticket))


_HANDLER: Final = Cancellation._on_signal.__code__  # noqa: SLF001  # our own
