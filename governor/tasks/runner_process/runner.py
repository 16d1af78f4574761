"""The inside of a runner: a Ray actor that calls user code in its main thread, one run at a time.

Rules:
1. Its one Ray call, `serve`, lasts as long as the runner. Work and reports are sent over a stream socket: a report is in
   the kernel before user code is called, so that neither the GIL nor a kill can delay it. An idle runner may get a `Serve`
   there: then it works for another driver of the same process.
2. Each run is one Begun and one Over, whatever user code raises, SystemExit and KeyboardInterrupt too. The Over of a
   run is sent together with the Begun of the next.
3. Runs do not share state: each gets new copies of its arguments and inputs, and of an object that is called.
4. The process is a child subreaper: processes that its tasks leave behind stay its descendants, and are found when it is
   killed. It bears a mark that they inherit, so they are found, too, after it has exited. A child that user code has
   forked is no runner: it exits where it would return to our code.
5. Its exit code is not visible outside Ray, so `os._exit` by user code is reported before it happens.
"""

from __future__ import annotations

import contextlib
import os
import signal
import socket
import sys
import threading
import time
import traceback
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, NoReturn, TypeAlias

import msgspec
import ray

from governor import logs
from governor.errors import ConductorError
from governor.failures import Reason, place_in, reason_of, utf8
from governor.message_stream import MessageStream
from governor.processes import kill_tree, prctl, user_folder
from governor.processes.identity import ProcessIdentity
from governor.tasks.api import TaskCancelled, TaskContext
from governor.tasks.protocol import values
from governor.tasks.protocol.ticket_pipe import TICKET
from governor.tasks.protocol.wire import (
    LARGEST,
    Begun,
    Bundle,
    File,
    Hello,
    Loading,
    Over,
    Serve,
    WorkItem,
    decode_to_runner,
    keep_alive,
)
from governor.tasks.runner_process import calls, pickled, settings
from governor.tasks.runner_process.cancellation import Cancellation
from governor.tasks.runner_process.missing_folder import with_advice
from governor.tasks.runner_process.output import RunnerOutput
from governor.tasks.runner_process.pickled import PREFIX
from governor.tasks.runner_process.program import ProgramFailed
from governor.tasks.runner_process.reports import RunnerReports

if TYPE_CHECKING:
    from governor.tasks.protocol.wire import FromRunner, Input
    from governor.tasks.runner_process.settings import RunnerSettings

Loaded: TypeAlias = tuple[Any, Any]
"""The callable of a task and its arguments."""
ERROR_LENGTH: Final = 1500
_WALL: Final = 0x40000000
"""Of `waitid`, from <linux/wait.h>: children of any kind."""


class Runner:
    """The actor. All other code is in `Serving`: Ray wraps each method of an actor, at a microsecond for each call."""

    def __init__(self) -> None:
        self._settings = settings.take()
        self._serving = Serving(self._settings)

    def serve(self) -> None:
        """Executes work until it is killed. Call once."""
        self._serving.serve(self._settings.driver, mark=self._settings.mark)


class Serving:
    """The runner's loop; `serve` never returns."""

    def __init__(self, given: RunnerSettings) -> None:
        logs.as_user_output()
        sys.path[:0] = [folder for folder in given.import_path if folder not in sys.path]
        os.environ.update(given.variables)  # also on a machine without the folder
        self._without_folder = ""
        if given.working_folder is not None:
            try:
                user_folder.enter(given.working_folder)
            except ConductorError as error:
                self._without_folder = error.reason
        self._pid = os.getpid()
        self._began = time.time()
        self._forked = False
        self._threads = threading.active_count()
        self._loaded: set[tuple[str, bool]] = set()
        """Packs that were unpickled before, so that fetching from them is quick."""
        self._cancellation = Cancellation()
        self._output = RunnerOutput()
        self._ticket_pipe = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)

    def serve(self, first: Serve, *, mark: int) -> None:
        """`mark` is the process mark."""
        prctl.adopt_orphans()
        # Ray's own handler turns the signal into an exception inside user code; a signal is meant to kill.
        signal.signal(signal.SIGTERM, signal.SIG_DFL)
        # Ray reaps children itself (its subreaper option): each would seem to have exited with 0.
        signal.signal(signal.SIGCHLD, signal.SIG_DFL)
        self._cancellation.listen()
        self._mark = kill_tree.mark_self(mark)
        self._identity = ProcessIdentity.of(self._pid)
        self._node = ray.get_runtime_context().get_node_id()
        sock = _connect(first)
        self._reports = RunnerReports(sock, self._cancellation)
        self._leave = os._exit
        os._exit = self._announced_exit  # type: ignore[assignment]
        os.register_at_fork(after_in_child=self._after_fork)
        if sock.family != socket.AF_UNIX:  # another machine
            self._without_folder = ""
        driver, is_stale = first, False
        try:
            while True:
                driver = self._serve_driver(driver, is_stale=is_stale)
                self._loaded.clear()
                self._cancellation.reset()
                is_stale = calls.changed_since(self._began) or _has_children()
                self._reports.begin_attempt(0)  # threads that are left have nothing to say to another driver
                sock, self._reports.sock = self._reports.sock, _connect(driver)
                sock.close()
        except OSError:  # the scheduler is gone, or user code has closed our descriptors
            self._leave(1)
        except BaseException:  # noqa: BLE001  # user code has replaced our descriptors: the runner cannot go on
            traceback.print_exc()
            self._leave(1)

    def _serve_driver(self, driver: Serve, *, is_stale: bool) -> Serve:
        """Works for this driver, which is connected, until another one takes the runner over; returns that one."""
        sock = self._reports.sock
        spools = "" if is_stale else self._output.serve(driver, is_here=sock.family == socket.AF_UNIX)
        self._run, self._folder = driver.run, Path(driver.run_folder)
        self._shares_folder = (self._folder / driver.marker).exists()
        self._reports.send(
            Hello(
                secret=driver.secret,
                runner=driver.runner,
                identity=self._identity,
                mark=self._mark,
                node=self._node,
                host=socket.gethostname(),
                ticket_pipe=self._ticket_pipe[0],
                cancel_pipe=self._cancellation.pipe,
                shares_folder=self._shares_folder,
                is_stale=is_stale,
                spools=spools,
            )
        )
        while is_stale:
            signal.pause()  # the driver has Ray end it, which is no death then
        pickled.serve(Path(driver.path).parent / pickled.FOLDER if sock.family == socket.AF_UNIX else None)
        messages = MessageStream(sock, max_bytes=LARGEST, blocking=True)
        while isinstance(message := messages.wait_message(decode_to_runner), Bundle):
            self._execute(message)
        return message

    # -- bundles --------------------------------------------------------------------------------------------

    def _execute(self, bundle: Bundle) -> None:
        work_items = {work.ticket: work for work in bundle.work_items}
        os.write(self._ticket_pipe[1], b"".join(map(TICKET.pack, work_items)))
        over: list[FromRunner] = []
        while True:
            try:
                claim = os.read(self._ticket_pipe[0], TICKET.size)
            except BlockingIOError:  # all done, or the others were taken back
                break
            over = self._attempt(work_items[TICKET.unpack(claim)[0]], over)
            self._cancellation.listen()
        self._output.end()
        if over and (threading.active_count() > self._threads or _has_children()):
            over[-1] = msgspec.structs.replace(over[-1], leaves_processes=True)
        self._reports.send(*over)

    def _attempt(self, work: WorkItem, over: list[FromRunner]) -> list[FromRunner]:
        """Executes the runs of an attempt; `over` are messages about the one before that are not sent yet."""
        self._cancellation.fired = False
        self._reports.begin_attempt(work.ticket)
        self._output.begin(work, work.runs[0])
        try:
            loaded: Loaded | None = self._load(work, over)
        except BaseException as error:  # noqa: BLE001  # rule 2
            self._end_child()
            for run in work.runs:
                over += [Begun(work.ticket, run, time.monotonic()), self._failed(work, run, error, 0.0)]
            return over
        began = time.monotonic()
        for run in work.runs:
            at = time.monotonic()
            self._reports.begin_run(run)
            if loaded is None:
                self._output.begin(work, run)
            self._reports.send(*over, Begun(work.ticket, run, at))
            over = self._one_run(work, run, loaded, began=began, at=at)
            over[:0] = self._reports.take_reported()
            loaded = None
            if self._cancellation.fired:
                over[-1] = msgspec.structs.replace(over[-1], dropped=True)
                break
        return over

    def _load(self, work: WorkItem, over: list[FromRunner]) -> Loaded:
        """The callable and its arguments; sends `Loading` first if that may take long."""
        if self._without_folder:
            raise FileNotFoundError(self._without_folder)
        if work.args_key or work.call.startswith(PREFIX):
            # objects in one pack, and arguments of the same call, need the same modules
            pack = work.call.partition("#")[0], bool(work.args_key)
            if not (is_loaded := pack in self._loaded):
                self._loaded.add(pack)
        else:
            is_loaded = calls.is_loaded(work.call)
        if not is_loaded:
            self._reports.send(*over, Loading(work.ticket))
            over.clear()
        return self._fetch(work, last=len(work.runs) == 1)

    def _fetch(self, work: WorkItem, *, last: bool) -> Loaded:
        """Both as new copies, so that runs do not share them; no copy for the `last` run that needs them."""
        target = (pickled.fetch if work.call.startswith(PREFIX) else calls.find)(work.call)
        if work.args_key:
            return target, pickled.fetch(work.args_key)
        return target, work.args if last or not work.args else _copy(work.args)

    # -- one run --------------------------------------------------------------------------------------------

    def _one_run(
        self, work: WorkItem, run: int, loaded: Loaded | None, *, began: float, at: float
    ) -> list[FromRunner]:
        """Monotonic times: `began` of the attempt, `at` of the run."""
        offers = {"inputs": lambda: self._inputs(work), "context": lambda: self._context(work, run, began)}
        try:
            try:
                self._cancellation.enter(work.ticket)
                target, args = loaded or self._fetch(work, last=run == work.runs[-1])
                returned = calls.call_it(target, args=args, offers=offers)
            finally:
                self._cancellation.leave()
                self._output.end_run()
            ended = time.monotonic()
            if self._forked:
                self._leave(0)
            if returned is None:
                return [Over(work.ticket, run, ended, ended - at, metrics=self._reports.metrics)]
            return self._store(work, run, returned, at, ended)
        except values.Unserialisable as error:
            now = time.monotonic()
            return [Over(work.ticket, run, now, now - at, error=utf8(str(error)))]
        except BaseException as error:  # noqa: BLE001  # rule 2
            self._end_child()
            return [self._failed(work, run, error, time.monotonic() - at)]

    def _store(self, work: WorkItem, run: int, returned: Any, at: float, ended: float) -> list[FromRunner]:
        stored = values.store(
            returned,
            folder=self._folder,
            stem=f"{work.stem}-{run}",
            payload_inline=work.payload_inline,
            writes=self._shares_folder,
            keeps_tuples=work.keeps_tuples,
        )
        over = Over(
            work.ticket,
            run,
            ended,
            ended - at,
            value=stored.value,
            value_file=stored.value_file,
            metrics=self._reports.metrics | stored.metrics,
            payload=stored.payload,
        )
        return [*(File(name, data) for name, data in stored.files), over]

    def _failed(self, work: WorkItem, run: int, error: BaseException, seconds: float) -> Over:
        reason = _reason_of(error, cancelled=self._cancellation.fired)
        if not self._shares_folder:
            reason = with_advice(reason, error, folder=self._folder)
        return Over(
            work.ticket,
            run,
            time.monotonic(),
            seconds,
            error=str(reason),
            traceback=reason.traceback,
            metrics=self._reports.metrics,
            crashed=isinstance(error, ProgramFailed) and error.crashed,
        )

    def _inputs(self, work: WorkItem) -> dict[str, Any]:
        inputs: dict[str, Any] = {}
        for name, runs in work.inputs.items():
            loaded = [self._load_input(item) for item in runs]
            inputs[name] = loaded if name in work.repeated else loaded[0]
        return inputs

    def _load_input(self, item: Input) -> Any:
        if item.file is None:
            return _copy(item.value) if type(item.value) in (dict, list) else item.value
        if item.data is not None:
            return values.read(item.data, suffix=Path(item.file).suffix)
        return values.load(self._folder / item.file)

    def _context(self, work: WorkItem, run: int, began: float) -> TaskContext:
        left = None if work.timeout is None else work.timeout - (time.monotonic() - began)
        return TaskContext(
            run=self._run,
            batch=work.batch,
            task=work.task,
            run_id=run,
            attempt=work.attempt,
            deadline=None if left is None else time.time() + left,
            run_folder=self._folder,
            log=self._reports.log,
            model=work.model,
            is_eval=work.is_eval,
            tell=self._reports.tell,
            report=self._reports.report,
        )

    # -- ends of processes ----------------------------------------------------------------------------------

    def _after_fork(self) -> None:
        """User code has forked; this is the child."""
        self._forked = True
        self._reports.disable()
        self._cancellation.forget()
        for end in self._ticket_pipe:
            os.close(end)

    def _end_child(self) -> None:
        """Exits if this is a forked child that an exception has returned to our code; does nothing in the runner itself."""
        if self._forked:
            traceback.print_exc()
            self._leave(1)

    def _announced_exit(self, code: int = 0, /) -> NoReturn:
        if os.getpid() == self._pid:  # not in a forked child of user code
            self._reports.announce_exit(code)
        self._leave(code)


def _connect(driver: Serve) -> socket.socket:
    """Connects to the unix socket on the scheduler's machine, elsewhere by TCP. Raises OSError."""
    local = socket.socket(socket.AF_UNIX)
    try:
        local.connect(driver.path)
    except OSError:
        local.close()
    else:
        return local
    remote = socket.create_connection(driver.address)
    remote.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    keep_alive(remote)
    return remote


def _has_children() -> bool:
    """Also of its threads, and those that were adopted; whether they run or have exited."""
    try:
        os.waitid(os.P_ALL, 0, os.WEXITED | os.WNOHANG | os.WNOWAIT | _WALL)
    except ChildProcessError:
        return False
    return True


def _copy(plain: Any) -> Any:
    """A deep copy of plain data."""
    return msgspec.msgpack.decode(msgspec.msgpack.encode(plain))


def _reason_of(error: BaseException, *, cancelled: bool) -> Reason:
    """As `failures.reason_of`; for SystemExit the code."""
    reason = reason_of(error, length=ERROR_LENGTH)
    if _is_cancellation(error, cancelled=cancelled):
        return Reason("the task was cancelled", reason.traceback)
    if isinstance(error, SystemExit):
        with contextlib.suppress(BaseException):  # a code may be any object of user code
            called = f"the task called sys.exit({error.code!r})"[:ERROR_LENGTH]
            return Reason(utf8(called) + place_in(reason), reason.traceback)
    return reason


def _is_cancellation(error: BaseException, *, cancelled: bool) -> bool:
    if type(error) in (BaseExceptionGroup, ExceptionGroup):  # subclasses are user code
        return all(_is_cancellation(each, cancelled=cancelled) for each in error.exceptions)  # type: ignore[attr-defined]
    return isinstance(error, TaskCancelled) or (cancelled and type(error).__name__ == "CancelledError")
