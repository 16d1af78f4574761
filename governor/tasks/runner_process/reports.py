"""Messages of a runner: its own reports, and the state that user code sets, on one stream.

Rules:
1. A call returns when the message is in the kernel: it arrives even if the process exits next.
2. Frames are whole: threads take turns, and TaskCancelled is deferred until a frame is written.
3. Text that has no UTF-8 form (a file name, say) is escaped: a report can always be written.
"""

from __future__ import annotations

import threading
import time
from typing import TYPE_CHECKING, Any

from governor.episodes.metrics import checked
from governor.output import capture
from governor.tasks.protocol import values
from governor.tasks.protocol.wire import (
    Leaving,
    Reported,
    StateUpdate,
    frames,
)
from governor.tasks.runner_process.run_metrics import RunMetrics

if TYPE_CHECKING:
    import socket

    from governor.tasks.protocol.wire import FromRunner
    from governor.tasks.runner_process.cancellation import Cancellation


class RunnerReports:
    """The runner's end of the stream."""

    def __init__(self, sock: socket.socket, cancellation: Cancellation) -> None:
        self.sock = sock
        self.log = capture.logger()
        self._cancellation = cancellation
        self._main = threading.get_ident()
        self._sending = threading.Lock()
        self._disabled = False
        self._ticket = self._run = 0
        self._metrics: RunMetrics | None = None
        """Of a run that has reported numbers."""

    def begin_attempt(self, ticket: int) -> None:
        """Messages of user code belong to this attempt from now on."""
        self._ticket, self._metrics = ticket, None
        self.log.disabled = False  # `logging.config` disables what it does not name

    def begin_run(self, run: int) -> None:
        self._run, self._metrics = run, None

    @property
    def metrics(self) -> dict[str, float]:
        """What the current run has reported: the last value of each name."""
        return {} if self._metrics is None else self._metrics.figures()

    def take_reported(self) -> list[FromRunner]:
        """What the current run has reported and nobody has heard of."""
        if self._metrics is None or not (found := self._metrics.take()):
            return []
        return [Reported(self._ticket, self._run, found)]

    def report(self, **values: Any) -> None:
        """For user code (`TaskContext.report`). Raises TypeError, which names the value, for what is no number."""
        if self._metrics is None:
            self._metrics = RunMetrics(time.monotonic())
        metrics = self._metrics
        if metrics.add(checked(values, of="context.report"), time.monotonic()):
            found = metrics.take()
            if self._ticket and not self._disabled:
                self._send_for_user_code(Reported(self._ticket, self._run, found))

    def send(self, *messages: FromRunner) -> None:
        """Sends messages. Raises OSError when the connection is closed."""
        if messages:
            data = frames(
                messages
            )  # not under the lock: encoding may collect garbage, and user code's finalizers may log
            with self._sending:
                self.sock.sendall(data)

    def tell(self, **state: Any) -> None:
        """For user code (`TaskContext.tell`): sets keys of the runner's state. Raises TypeError for data that is not plain."""
        if not values.is_shallow(state):
            raise TypeError(f"the state is nested more than {values.DEEPEST} levels deep")
        if self._ticket and not self._disabled:
            self._send_for_user_code(StateUpdate(self._ticket, state))

    def _send_for_user_code(self, message: FromRunner) -> None:
        if threading.get_ident() != self._main:
            self.send(message)
            return
        with self._cancellation.held_off():
            self.send(message)

    def announce_exit(self, code: int) -> None:
        """Reports that the process is about to call `os._exit`."""
        self._cancellation.leave()
        try:
            self.send(Leaving(code))
        except OSError:  # user code has closed the socket
            return

    def disable(self) -> None:
        """In a child that user code has forked: the stream belongs to its parent."""
        self._disabled = True
        self.sock.close()
