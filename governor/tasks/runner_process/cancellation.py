"""How a signal becomes a `TaskCancelled` in user code, in the process of a runner.

Rules:
1. It is raised in user code only, in the main thread, and only in the attempt that was meant: `ticket` is not 0 while
   user code is at work, and the signal names its ticket through a pipe.
2. Whoever clears `ticket` in the main thread has decided: from there on nothing is raised.
3. A coroutine is cancelled; the exception is raised where user code holds its loop.
4. Until the pipe is read, the signal is sent again. What was raised where Python ignores exceptions, in a finalizer, is
   lost: whoever asked kills the runner after the grace.
"""

from __future__ import annotations

import inspect
import os
import signal
from contextlib import contextmanager
from typing import TYPE_CHECKING

from governor.tasks.api import TaskCancelled
from governor.tasks.protocol.claims import CANCEL_SIGNAL, TICKET
from governor.tasks.runner_process import calls

if TYPE_CHECKING:
    from collections.abc import Iterator
    from types import FrameType


class Cancellation:
    """The runner's end of the pipe, and the signal's handler."""

    def __init__(self) -> None:
        self.ticket = 0
        """Of the attempt whose user code is at work; 0 outside of user code."""
        self.fired = False
        """Whether the attempt in work has been cancelled."""
        self._asked: frozenset[int] = frozenset()
        self._read, self.pipe = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)

    def listen(self) -> None:
        """In the main thread; again where user code has taken the signal for itself."""
        if signal.getsignal(CANCEL_SIGNAL) != self._on_signal:
            signal.signal(CANCEL_SIGNAL, self._on_signal)

    def enter(self, ticket: int) -> None:
        """User code is called next. Raises TaskCancelled when that was not wanted any more."""
        self.ticket = ticket
        if self._asked:
            self._raise_if_asked(inspect.currentframe())

    @contextmanager
    def held_off(self) -> Iterator[None]:
        """In user code, for a while of ours that must not be interrupted; raises what came meanwhile at its end."""
        ticket, self.ticket = self.ticket, 0
        try:
            yield
        finally:
            self.ticket = ticket
        if ticket and self._asked:
            self._raise_if_asked(inspect.currentframe())

    def forget(self) -> None:
        """In a child that user code has forked: the signal is none of ours."""
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
