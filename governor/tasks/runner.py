"""The inside of a runner: a Ray actor that calls user code in its main thread, one run at a time.

Rules:
1. Its one Ray call, `serve`, lasts as long as the runner. Work and reports travel over a stream socket: a report is in
   the kernel before user code is called, so that neither the GIL nor a kill can hold it back.
2. Each run is one Begun and one Over, whatever user code raises, SystemExit and KeyboardInterrupt too. The Over of a
   run leaves together with the Begun of the next.
3. `TaskCancelled` is raised in user code only: never in our own, and never in another attempt than the one meant.
4. The process is a child subreaper: what its tasks leave behind stays below it, to be found when it is killed.
5. Its exit code is known to nobody outside Ray, so `os._exit` by user code is announced before it happens.
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
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, NoReturn

import msgspec
import psutil
import ray

from governor import prctl
from governor.tasks import calls, values
from governor.tasks.api import TaskCancelled, TaskContext
from governor.tasks.claims import CANCEL_SIGNAL, TICKET
from governor.tasks.wire import (
    LENGTH,
    Begun,
    File,
    Hello,
    Leaving,
    Line,
    Loading,
    Over,
    Told,
    Work,
    decode_bundle,
    frames,
)

if TYPE_CHECKING:
    from collections.abc import Callable

    from governor.tasks.wire import Bundle, FromRunner, Input

LINES_PER_ATTEMPT: Final = 200
LINE_LENGTH: Final = 4000
READ_BYTES: Final = 256 * 1024


class Runner:
    """The actor. Built by Ray; `serve` returns only when the scheduler's socket is closed."""

    def __init__(self, *, run: str, run_folder: str, import_path: list[str]) -> None:
        self._run = run
        self._folder = Path(run_folder)
        sys.path[:0] = [folder for folder in import_path if folder not in sys.path]
        self._pid = os.getpid()
        self._main = threading.get_ident()
        self._work: Work | None = None
        self._run_id = 0
        self._lines = 0
        self._open = 0
        """The ticket that user code is called for, 0 outside of it: TaskCancelled may be raised while it is not 0."""
        self._asked: set[int] = set()
        self._cancelled = False
        self._sending = threading.Lock()
        self._in = bytearray()
        self._claims = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)
        self._cancels = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)

    def serve(self, *, path: str, address: tuple[str, int], secret: bytes, runner: int, marker: str) -> None:
        """Works until it is killed. Call once. `marker` is a file in the run's folder: whoever sees it shares it."""
        prctl.adopt_orphans()
        # Ray's own handler turns the signal into an exception inside user code; a signal is meant to kill.
        signal.signal(signal.SIGTERM, signal.SIG_DFL)
        signal.signal(CANCEL_SIGNAL, self._on_cancel)
        self._leave = os._exit
        os._exit = self._announced_exit  # type: ignore[assignment]
        self._socket = _connect(path, address)
        self._log = self._logger()
        self._shares = (self._folder / marker).exists()
        self._say(
            Hello(
                secret=secret,
                runner=runner,
                pid=self._pid,
                created=psutil.Process().create_time(),
                node=ray.get_runtime_context().get_node_id(),
                host=socket.gethostname(),
                claims=self._claims[0],
                cancels=self._cancels[1],
                shares_folder=self._shares,
            )
        )
        try:
            while True:
                self._execute(self._receive())
        except OSError:  # the scheduler is gone, or user code has closed our descriptors
            self._leave(1)

    # -- bundles --------------------------------------------------------------------------------------------

    def _receive(self) -> Bundle:
        while True:
            if len(self._in) >= LENGTH.size:
                end = LENGTH.size + LENGTH.unpack_from(self._in)[0]
                if len(self._in) >= end:
                    bundle = decode_bundle(self._in[LENGTH.size : end])
                    del self._in[:end]
                    return bundle
            data = self._socket.recv(READ_BYTES)
            if not data:
                raise OSError("the scheduler has closed the connection")
            self._in += data

    def _execute(self, bundle: Bundle) -> None:
        works = {work.ticket: work for work in bundle.works}
        os.write(self._claims[1], b"".join(map(TICKET.pack, works)))
        over: list[FromRunner] = []
        while True:
            try:
                claim = os.read(self._claims[0], TICKET.size)
            except BlockingIOError:  # done, or the rest was taken back
                break
            over = self._attempt(works[TICKET.unpack(claim)[0]], over)
        self._say(*over)

    def _attempt(self, work: Work, over: list[FromRunner]) -> list[FromRunner]:
        """Executes the runs of an attempt; `over` is what is still to be said of the one before."""
        self._work, self._lines, self._cancelled = work, 0, False
        try:
            target, args = self._load(work, over)
        except BaseException as error:  # noqa: BLE001  # rule 2
            failed = [self._failed(work, run, error, 0.0) for run in work.runs]
            for run, each in zip(work.runs, failed, strict=True):
                over += [Begun(work.ticket, run, time.monotonic()), each]
            return over
        began = 0.0
        for run in work.runs:
            at = time.monotonic()
            began = began or at
            self._run_id = run
            self._say(*over, Begun(work.ticket, run, at))
            call = partial(calls.call_it, target, args=args, offers=self._offers(work, run, began))
            over = self._one_run(work, run, at, call)
            if self._cancelled:
                over[-1] = msgspec.structs.replace(over[-1], dropped=True)
                break
        return over

    def _load(self, work: Work, over: list[FromRunner]) -> tuple[Any, Any]:
        """The callable and its arguments; says so first when that may take its time."""
        pickled = work.call.startswith("pickled:")
        if pickled or work.args_key or not calls.is_loaded(work.call):
            self._say(*over, Loading(work.ticket))
            over.clear()
        if not (pickled or work.args_key):
            return calls.find(work.call), work.args
        from governor.tasks import functions  # noqa: PLC0415  # only where something is pickled

        target = functions.fetch(work.call) if pickled else calls.find(work.call)
        return target, functions.fetch(work.args_key) if work.args_key else work.args

    # -- one run --------------------------------------------------------------------------------------------

    def _offers(self, work: Work, run: int, began: float) -> dict[str, Callable[[], Any]]:
        """What a callable may take beside its arguments; made when it does."""
        return {"inputs": lambda: self._inputs(work), "context": lambda: self._context(work, run, began)}

    def _one_run(self, work: Work, run: int, at: float, call: Callable[[], Any]) -> list[FromRunner]:
        try:
            try:
                self._open = work.ticket
                if self._asked:  # it was asked to end before it had begun
                    self._raise_if_asked()
                returned = call()
            finally:
                self._open = 0
            ended = time.monotonic()
            if returned is None:
                return [Over(work.ticket, run, ended, ended - at)]
            return self._keep(work, run, returned, at, ended)
        except values.Unserialisable as error:
            now = time.monotonic()
            return [Over(work.ticket, run, now, now - at, error=str(error))]
        except BaseException as error:  # noqa: BLE001  # rule 2
            self._open = 0
            return [self._failed(work, run, error, time.monotonic() - at)]

    def _keep(self, work: Work, run: int, returned: Any, at: float, ended: float) -> list[FromRunner]:
        kept = values.keep(
            returned,
            folder=self._folder,
            stem=f"{work.stem}-{run}",
            payload_inline=work.payload_inline,
            writes=self._shares,
        )
        over = Over(
            work.ticket,
            run,
            ended,
            ended - at,
            value=kept.value,
            value_file=kept.value_file,
            metrics=kept.metrics,
            payload=kept.payload,
        )
        return [*(File(name, data) for name, data in kept.files), over]

    def _failed(self, work: Work, run: int, error: BaseException, seconds: float) -> Over:
        return Over(
            work.ticket,
            run,
            time.monotonic(),
            seconds,
            error=_one_line(error),
            traceback="".join(traceback.format_exception(error)[-30:]),
        )

    def _inputs(self, work: Work) -> dict[str, Any]:
        inputs: dict[str, Any] = {}
        for name, runs in work.inputs.items():
            loaded = [self._load_input(item) for item in runs]
            inputs[name] = loaded if name in work.repeated else loaded[0]
        return inputs

    def _load_input(self, item: Input) -> Any:
        if item.file is None:
            return item.value
        if item.data is not None:
            return values.read(item.data, suffix=Path(item.file).suffix)
        return values.load(self._folder / item.file)

    def _context(self, work: Work, run: int, began: float) -> TaskContext:
        left = None if work.timeout is None else work.timeout - (time.monotonic() - began)
        return TaskContext(
            run=self._run,
            batch=work.batch,
            task=work.task,
            run_id=run,
            attempt=work.attempt,
            deadline=None if left is None else time.time() + left,
            run_folder=self._folder,
            log=self._log,
            model=work.model,
            is_eval=work.is_eval,
            tell=self._tell,
        )

    # -- cancellation ---------------------------------------------------------------------------------------

    def _on_cancel(self, *_: object) -> None:
        """The signal's handler, in the main thread, between two of its instructions."""
        try:
            data = os.read(self._cancels[0], 1024 * TICKET.size)
        except OSError:
            return
        self._asked = {ticket for (ticket,) in TICKET.iter_unpack(data)}
        self._raise_if_asked()

    def _raise_if_asked(self) -> None:
        if self._open and self._open in self._asked:
            self._open = 0
            self._cancelled = True
            self._asked = set()
            raise TaskCancelled("the task was cancelled")

    # -- reports --------------------------------------------------------------------------------------------

    def _say(self, *messages: FromRunner) -> None:
        """Returns when it is in the kernel."""
        if messages:
            with self._sending:
                self._socket.sendall(frames(messages))

    def _say_from_user_code(self, message: FromRunner) -> None:
        """As `_say`, called by user code: a half-sent frame must not be interrupted."""
        if threading.get_ident() != self._main:
            self._say(message)
            return
        opened, self._open = self._open, 0
        try:
            self._say(message)
        finally:
            self._open = opened
        self._raise_if_asked()

    def _tell(self, **state: Any) -> None:
        """Raises TypeError for what is no plain data."""
        if self._work is not None and os.getpid() == self._pid:
            self._say_from_user_code(Told(self._work.ticket, state))

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
        if self._lines <= LINES_PER_ATTEMPT and os.getpid() == self._pid and self._work is not None:
            line = Line(self._work.ticket, self._run_id, level, text[: LINE_LENGTH + 100])
            self._say_from_user_code(line)

    def _announced_exit(self, code: int = 0, /) -> NoReturn:
        if os.getpid() == self._pid:  # a forked child of user code leaves in its own way
            self._open = 0
            try:
                self._say(Leaving(code))
            except OSError:  # its socket is closed already
                self._leave(code)
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


def _connect(path: str, address: tuple[str, int]) -> socket.socket:
    """The unix socket where it is to be had, that is on the scheduler's machine; else TCP. Raises OSError."""
    local = socket.socket(socket.AF_UNIX)
    try:
        local.connect(path)
    except OSError:
        local.close()
    else:
        return local
    remote = socket.create_connection(address)
    remote.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    return remote


def _one_line(error: BaseException) -> str:
    """Type, message and place of an exception; an exit by its code."""
    if isinstance(error, SystemExit):
        return f"the task called sys.exit({error.code!r})"
    if isinstance(error, TaskCancelled):
        return "the task was cancelled"
    try:
        text = " ".join(str(error).split())
    except Exception:  # noqa: BLE001  # a broken __str__ of user code
        text = "(its message cannot be read)"
    frames_of = traceback.extract_tb(error.__traceback__)
    user = [frame for frame in frames_of if Path(frame.filename).parent != Path(__file__).parent]
    place = f" ({Path(user[-1].filename).name}:{user[-1].lineno})" if user else ""
    name = type(error).__name__
    return f"{name}: {text[:1500]}{place}" if text else f"{name}{place}"
