"""The inside of a runner: a Ray actor that calls user code in its main thread, one attempt at a time.

Rules:
1. Its one Ray call, `serve`, lasts as long as the runner: work and reports travel over a zmq socket of its own, so
   that a start is reported by zmq's I/O thread even when the task at once holds the GIL.
2. Whatever user code raises is an outcome of the attempt, SystemExit and KeyboardInterrupt too.
3. The process is a child subreaper: what its tasks leave behind stays below it, to be found when it is killed.
4. Its exit code is known to nobody outside Ray, so `os._exit` by user code is announced before it happens.
"""

from __future__ import annotations

import logging
import os
import signal
import socket
import sys
import threading
import time
import traceback
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, NoReturn

import psutil
import ray
import zmq

from governor import prctl
from governor.tasks import calls, values
from governor.tasks.api import TaskContext
from governor.tasks.wire import Begun, Hello, Leaving, Line, Loading, Over, Work, decode_work, encode

if TYPE_CHECKING:
    from governor.tasks.wire import FromRunner, Input

LINES_PER_ATTEMPT: Final = 200
LINE_LENGTH: Final = 4000
LAST_WORDS_MS: Final = 500


class Runner:
    """The actor. Built by Ray; `serve` returns only when the scheduler's socket cannot be used."""

    def __init__(self, *, run: str, run_folder: str, import_folder: str) -> None:
        self._run = run
        self._folder = Path(run_folder)
        if import_folder not in sys.path:
            sys.path.insert(0, import_folder)
        self._pid = os.getpid()
        self._ticket = 0
        self._lines = 0
        self._sending = threading.Lock()
        self._context = zmq.Context(io_threads=1)
        self._socket: zmq.Socket[bytes] = self._context.socket(zmq.DEALER)

    def serve(self, *, endpoint: str, identity: bytes, server_key: bytes) -> None:
        """Works until it is killed. Call once."""
        prctl.adopt_orphans()
        # Ray's own handler turns the signal into an exception inside user code; a signal is meant to kill.
        signal.signal(signal.SIGTERM, signal.SIG_DFL)
        self._leave = os._exit
        os._exit = self._announced_exit  # type: ignore[assignment]
        self._socket.curve_serverkey = server_key
        self._socket.curve_publickey, self._socket.curve_secretkey = zmq.curve_keypair()
        self._socket.setsockopt(zmq.ROUTING_ID, identity)
        self._socket.setsockopt(zmq.SNDHWM, 0)
        self._socket.setsockopt(zmq.LINGER, 0)
        self._socket.connect(endpoint)
        self._log = self._logger()
        created = psutil.Process().create_time()
        node = ray.get_runtime_context().get_node_id()
        self._say(Hello(pid=self._pid, created=created, node=node, host=socket.gethostname()))
        while True:
            self._attempt(decode_work(self._socket.recv()))

    def _attempt(self, work: Work) -> None:
        self._ticket, self._lines = work.ticket, 0
        began = time.perf_counter()
        try:
            if not calls.is_loaded(work.call):
                self._say(Loading(ticket=work.ticket))
            target = calls.find(work.call)
            offers = self._offers(work)
            self._say(Begun(ticket=work.ticket))
            began = time.perf_counter()
            returned = calls.call_it(target, args=work.args, offers=offers)
            seconds = time.perf_counter() - began
            kept = values.keep(returned, folder=self._folder, stem=work.stem)
            over = Over(ticket=work.ticket, seconds=seconds, **kept)
        except values.Unserialisable as error:
            over = Over(ticket=work.ticket, seconds=time.perf_counter() - began, error=str(error))
        except BaseException as error:  # noqa: BLE001  # rule 2
            over = Over(
                ticket=work.ticket,
                seconds=time.perf_counter() - began,
                error=_one_line(error),
                traceback="".join(traceback.format_exception(error)[-30:]),
            )
        self._say(over)

    def _offers(self, work: Work) -> dict[str, Any]:
        inputs: dict[str, Any] = {}
        for name, runs in work.inputs.items():
            loaded = [self._load(item) for item in runs]
            inputs[name] = loaded if name in work.repeated else loaded[0]
        context = TaskContext(
            run=self._run,
            task=work.task,
            run_id=work.run,
            attempt=work.attempt,
            deadline=None if work.timeout is None else time.time() + work.timeout,
            run_folder=self._folder,
            log=self._log,
        )
        return {"inputs": inputs, "context": context}

    def _load(self, item: Input) -> Any:
        return item.value if item.file is None else values.load(self._folder / item.file)

    def _say(self, message: FromRunner) -> None:
        with self._sending:
            self._socket.send(encode(message))

    def _logger(self) -> logging.Logger:
        log = logging.getLogger("task")
        log.setLevel(logging.DEBUG)
        log.propagate = False
        log.handlers = [_Forward(self)]
        return log

    def forward(self, level: str, text: str) -> None:
        """Passes a line of user code on; past `LINES_PER_ATTEMPT` lines are dropped, and that is said once."""
        self._lines += 1
        if self._lines == LINES_PER_ATTEMPT:
            text = f"{text[:LINE_LENGTH]}\n(further lines of this attempt are dropped)"
        if self._lines <= LINES_PER_ATTEMPT and os.getpid() == self._pid:
            self._say(Line(ticket=self._ticket, level=level, text=text[: LINE_LENGTH + 100]))

    def _announced_exit(self, code: int = 0, /) -> NoReturn:
        if os.getpid() == self._pid:  # a forked child of user code leaves in its own way
            self._say(Leaving(ticket=self._ticket, exit_code=code))
            self._socket.close(linger=LAST_WORDS_MS)
            self._context.term()
        self._leave(code)


class _Forward(logging.Handler):
    def __init__(self, runner: Runner) -> None:
        super().__init__()
        self._runner = runner

    def emit(self, record: logging.LogRecord) -> None:
        try:
            self._runner.forward(record.levelname.lower(), self.format(record))
        except Exception:  # noqa: BLE001  # as logging has it: a bad log call does not end the task
            self.handleError(record)


def _one_line(error: BaseException) -> str:
    """Type, message and place of an exception; an exit by its code."""
    if isinstance(error, SystemExit):
        return f"the task called sys.exit({error.code!r})"
    try:
        text = " ".join(str(error).split())
    except Exception:  # noqa: BLE001  # a broken __str__ of user code
        text = "(its message cannot be read)"
    frames = traceback.extract_tb(error.__traceback__)
    user = [frame for frame in frames if Path(frame.filename).parent != Path(__file__).parent]
    place = f" ({Path(user[-1].filename).name}:{user[-1].lineno})" if user else ""
    name = type(error).__name__
    return f"{name}: {text[:1500]}{place}" if text else f"{name}{place}"
