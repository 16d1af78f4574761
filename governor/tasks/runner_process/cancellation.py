"""How a signal becomes a `TaskCancelled` in user code, in the process of a runner.

Rules:
1. It is raised in user code only, in the main thread, and only in the attempt that is to be cancelled: `ticket` is not 0
   while user code runs, and a pipe carries the ticket that the signal is for.
2. Once `ticket` is cleared in the main thread, nothing is raised.
3. A coroutine is cancelled; the exception is raised only if user code blocks its loop.
4. The signal is repeated until the pipe is read. An exception raised in a finalizer, where Python ignores it, is lost:
   the runner is killed after the grace period.
"""

from __future__ import annotations

import _signal  # type: ignore[import-not-found]  # `signal.getsignal` looks for an enum's member, which takes 2 µs of each run
import inspect
import os
import signal
from contextlib import contextmanager
from typing import TYPE_CHECKING

from governor.tasks.api import TaskCancelled
from governor.tasks.protocol.ticket_pipe import CANCEL_SIGNAL, TICKET
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
        self._read, self.pipe = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)

    def listen(self) -> None:
        """Installs the handler, in the main thread; also after user code has replaced it."""
        if _signal.getsignal(CANCEL_SIGNAL) != self._on_signal:
            signal.signal(CANCEL_SIGNAL, self._on_signal)

    def reset(self) -> None:
        """Another driver begins, whose tickets may be the same numbers."""
        self._asked = frozenset()

    def enter(self, ticket: int) -> None:
        """User code is called next. Raises TaskCancelled if the attempt has been cancelled already."""
        self.ticket = ticket
        if self._asked:
            self._raise_if_asked(inspect.currentframe())

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

    def _on_signal(self, _: int, frame: FrameType | None) -> None:
        """Runs in the main thread, between two of its instructions."""
        try:
            data = os.read(self._read, 1024 * TICKET.size)
        except OSError:
            return
        self._asked = frozenset(ticket for (ticket,) in TICKET.iter_unpack(data))
        self._raise_if_asked(frame)

    def _raise_if_asked(self, frame: FrameType | None) -> None:
        if self.ticket not in self._asked:  # no ticket is 0
            return
        self.fired = True
        self._asked = frozenset()
        if calls.cancel_coroutine(frame):
            return
        self.ticket = 0
        raise TaskCancelled("the task was cancelled")
