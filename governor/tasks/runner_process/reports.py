"""Messages of a runner: its own reports, and the log lines and state of user code, on one stream.

Rules:
1. A call returns when the message is in the kernel: it arrives even if the process exits next.
2. Frames are whole: threads take turns, and TaskCancelled is deferred until a frame is written.
3. Text that has no UTF-8 form (a file name, say) is escaped: a report can always be written.
"""

from __future__ import annotations

import logging
import threading
import time
from typing import TYPE_CHECKING, Any, Final

from governor.episodes.metrics import checked
from governor.tasks.protocol import values
from governor.tasks.protocol.wire import (
    Leaving,
    LogLine,
    Reported,
    StateUpdate,
    frames,
)
from governor.tasks.runner_process.run_metrics import RunMetrics

if TYPE_CHECKING:
    import socket

    from governor.tasks.protocol.wire import FromRunner
    from governor.tasks.runner_process.cancellation import Cancellation

LINES_PER_ATTEMPT: Final = 200
LINE_LENGTH: Final = 4000


class RunnerReports:
    """The runner's end of the stream."""

    def __init__(self, sock: socket.socket, cancellation: Cancellation) -> None:
        self.sock = sock
        self.log = self._logger()
        self._cancellation = cancellation
        self._main = threading.get_ident()
        self._sending = threading.Lock()
        self._disabled = False
        self._ticket = self._run = self._lines = 0
        self._metrics = RunMetrics(time.monotonic())

    def begin_attempt(self, ticket: int) -> None:
        """Messages of user code belong to this attempt from now on."""
        self._ticket, self._lines = ticket, 0
        self.log.disabled = False  # `logging.config` disables what it does not name

    def begin_run(self, run: int) -> None:
        self._run = run
        self._metrics = RunMetrics(time.monotonic())

    @property
    def metrics(self) -> dict[str, float]:
        """What the current run has reported: the last value of each name."""
        return self._metrics.figures()

    def report(self, **values: Any) -> None:
        """For user code (`TaskContext.report`). Raises TypeError, which names the value, for what is no number."""
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

    def line(self, level: str, text: str) -> None:
        """Sends a log line of user code; beyond `LINES_PER_ATTEMPT` lines are dropped, after one notice."""
        self._lines += 1
        if self._lines > LINES_PER_ATTEMPT or self._disabled or not self._ticket:
            return
        text = text[:LINE_LENGTH]
        if self._lines == LINES_PER_ATTEMPT:
            text = f"{text}\n(further lines of this attempt are dropped)"
        self._send_for_user_code(LogLine(self._ticket, self._run, level, utf8(text)))

    def announce_exit(self, code: int) -> None:
        """Reports that the process is about to call `os._exit`."""
        self._cancellation.ticket = 0
        try:
            self.send(Leaving(code))
        except OSError:  # user code has closed the socket
            return

    def disable(self) -> None:
        """In a child that user code has forked: the stream belongs to its parent."""
        self._disabled = True
        self.sock.close()

    def _send_for_user_code(self, message: FromRunner) -> None:
        if threading.get_ident() != self._main:
            self.send(message)
            return
        with self._cancellation.held_off():
            self.send(message)

    def _logger(self) -> logging.Logger:
        log = logging.getLogger("task")
        log.setLevel(logging.DEBUG)
        log.propagate = False
        log.handlers = [_Forward(self)]
        return log


class _Forward(logging.Handler):
    def __init__(self, reports: RunnerReports) -> None:
        super().__init__()
        self._reports = reports

    def handle(self, record: logging.LogRecord) -> bool:
        """Without the handler's lock, which TaskCancelled could leave locked; a report needs none."""
        if self.filter(record):
            self.emit(record)
        return True

    def emit(self, record: logging.LogRecord) -> None:
        try:
            self._reports.line(record.levelname.lower(), self.format(record))
        except Exception:  # noqa: BLE001  # as logging has it: a bad log call does not end the task
            self.handleError(record)


def utf8(text: str) -> str:
    """The text, with escapes for characters that have no UTF-8 form."""
    return text if text.isascii() else text.encode("utf-8", "backslashreplace").decode()
