"""Runs from scripts and notebooks, each with one blocking call: `governor.run`; `governor.submit` and `governor.wait` for a daemon, and the
same for groups of runs.

Rules:
1. `run` is the verb `governor run` in a process of its own (`script_process`). Nothing of the run outlives its caller: the process
   is told when that dies, by SIGKILL too, and aborts the run in order.
2. That process has a session of its own, so that Ctrl-C reaches the caller alone. The caller passes it on: the first one
   aborts the run in order, the second one ends it at once. Then KeyboardInterrupt is raised. Python raises it in the
   main thread alone: a call in another thread does not notice Ctrl-C, and its run goes on until it or the caller has ended.
3. An event loop that runs in the calling thread, as in a notebook, is neither used nor needed.
4. Progress that can't be printed (its reader is gone) does not end the run: nothing more is shown.
"""

from __future__ import annotations

import asyncio
import operator
import os
import select
import signal
import subprocess
import sys
import threading
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager, suppress
from typing import TYPE_CHECKING, Any, Final, SupportsIndex, TypeAlias, TypeVar

import msgspec

from governor import clock
from governor.cli.rendering import display
from governor.cli.rendering.view import RunView
from governor.errors import GovernorError, UsageError, from_refusal
from governor.executor import Executor
from governor.message_stream import READ_BYTES, MessageBuffer
from governor.messages import Refused, RunEvent, RunResult
from governor.result import Result

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Iterator, Mapping
    from pathlib import Path

    from governor.group_results import GroupResult
    from governor.run_file.load import Run

T = TypeVar("T")
End: TypeAlias = RunResult | Refused

PAUSE_MS: Final = 1000
"""After so many milliseconds without an event the progress is shown anew."""
OTHER_RUNS: Final = "; governor.submit takes a run that is no file, for a daemon"

_decode = msgspec.msgpack.Decoder[RunEvent | RunResult | Refused](RunEvent | RunResult | Refused).decode


def run(
    file: str | Path | None = None,
    *,
    resume: str | None = None,
    state_dir: str | Path | None = None,
    ray_cpus: int | None = None,
    progress: bool = True,
) -> Result:
    """Runs a run file to its end, without a daemon, and returns its result: ``governor.run("run.yaml")``.

    The same as the verb `governor run`, for scripts and notebooks; it blocks until the run has ended. A run that fails does not
    raise: its result has the outcome ``failed`` and the reason (`Result.raise_for_outcome` raises). Its report is
    ``report.html`` in the result's `run_folder`. Ctrl-C aborts the run in
    order and then raises KeyboardInterrupt; pressed again, it ends the run at once. That holds for calls in the main thread:
    Ctrl-C does not reach one in another thread. If the calling process dies (or the thread that called), the run is aborted, and
    none of its processes is left.

    Args:
        file: the path of the run file.
        resume: instead of `file`, the id of an earlier run of this function or of `governor run`: what it has finished is
            kept, and the rest is done.
        state_dir: the folder for the run's files. By default a new one; with `resume` that of the earlier run.
        ray_cpus: the CPUs that the run's Ray head offers.
        progress: show the progress: live in a terminal, else as lines.

    Raises:
        RunFileError: the run file has faults. All of them are in the text and in `faults`; nothing has run.
        UsageError: neither or both of `file` and `resume` are given, or an argument of another type.
        ConfigError: `state_dir` or `ray_cpus` makes no sense.
        NotPermitted: the operating system refuses a file or folder.
        NoSuchRun: there is no run `resume`.
        AlreadyEnded: the run `resume` has finished, and nothing of it is missing.
        TryAgain: the disk is full or read-only, or the run's journal can't be read or written.
        GovernorError: the process of the run has died.
    """
    arguments = _arguments(file, resume, state_dir, ray_cpus)
    process: subprocess.Popen[bytes] | None = None
    try:
        with _ctrl_c_later():
            process = _started(arguments)
        with _while_read(display.choose(as_json=False, quiet=not progress)) as show:
            uid, end = _follow(process, show)
        process.wait()
    except BaseException:
        if process is not None:
            _interrupt(process)
        raise
    finally:
        if process is not None and process.stdout is not None:
            process.stdout.close()
    if isinstance(end, RunResult):
        return Result.of(end)
    if end is not None:
        raise from_refusal(end, source=str(file or resume))
    place = "" if state_dir is None else f", state_dir={str(state_dir)!r}"
    hint = f"; governor.run(resume={uid!r}{place}) goes on with it" if uid else ""
    raise GovernorError(
        f"the process of the run has ended with exit code {process.returncode}, before the run had ended{hint}"
    )


def submit(
    run: Run | Mapping[str, Any] | str | Path,
    key: str | None = None,
    *,
    folder: str | Path | None = None,
    broker: str | None = None,
) -> str:
    """Submits a run to the daemon and returns its id: ``governor.wait(governor.submit("run.yaml"))``.

    The same as `Executor.submit`, which tells of the arguments and errors; without an event loop. `broker` is the daemon's
    endpoint, by default that which the command line finds, too.
    """
    return _ask(broker, lambda executor: executor.submit(run, key, folder=folder))


def wait(uid: str, *, broker: str | None = None) -> Result:
    """Waits until a run of the daemon has ended, and returns its result.

    The same as `Executor.wait`, which tells of the errors; without an event loop. Ctrl-C ends the waiting alone: the run goes on.
    """
    return _ask(broker, lambda executor: executor.wait(uid))


def submit_group(
    run: Run | Mapping[str, Any] | str | Path,
    key: str | None = None,
    *,
    matrix: Mapping[str, Any] | None = None,
    folder: str | Path | None = None,
    broker: str | None = None,
) -> str:
    """Submits all runs of a run file with a matrix to the daemon, or none, and returns the id of their group:
    ``governor.wait_group(governor.submit_group("run.yaml", matrix={"seed": "range(5)"})).table()``.

    The same as `Executor.submit_group`, which tells of the arguments and errors; without an event loop. `broker` as of `submit`.
    """
    return _ask(broker, lambda executor: executor.submit_group(run, key, folder=folder, matrix=matrix)).uid


def wait_group(uid: str, *, broker: str | None = None) -> GroupResult:
    """Waits until all runs of a group have ended, and returns its results.

    The same as `Executor.wait_group`, without an event loop. Ctrl-C ends the waiting alone: the runs go on.
    """
    return _ask(broker, lambda executor: executor.wait_group(uid))


def _arguments(file: object, resume: object, state_dir: object, ray_cpus: object) -> list[str]:
    """The verb's arguments. Raises UsageError."""
    if (file is None) == (resume is None):
        raise UsageError("give a run file, or resume=UID with the id of an earlier run")
    for name, path in (("file", file), ("state_dir", state_dir)):
        if path is not None and not (isinstance(path, str | os.PathLike) and os.fspath(path)):
            raise UsageError(
                f"{name} must be a path, not {path!r:.60}{OTHER_RUNS if name == 'file' and path else ''}"
            )
    if resume is not None and not (isinstance(resume, str) and resume):
        raise UsageError(f"resume must be the id of an earlier run, not {resume!r:.60}")
    cpus = operator.index(ray_cpus) if isinstance(ray_cpus, SupportsIndex) else 0
    if ray_cpus is not None and cpus < 1:
        raise UsageError(f"ray_cpus must be a whole number above 0, not {ray_cpus!r:.60}")
    if state_dir is not None and os.path.expanduser(str(state_dir)).startswith("~"):  # noqa: PTH111  # Path raises RuntimeError
        raise UsageError(
            f"state_dir {str(state_dir)!r}: no user of that name has a home folder; give the whole path"
        )
    options = {"--resume": resume, "--state-dir": state_dir, "--ray-cpus": cpus or None}
    arguments = [f"{name}={value}" for name, value in options.items() if value is not None]
    return [*arguments, *([] if file is None else ["--", str(file)])]


def _started(arguments: list[str]) -> subprocess.Popen[bytes]:
    """SIGINT waits until the process has begun: Python's own start would answer it by a traceback."""
    mask = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    try:
        return subprocess.Popen(
            [sys.executable, "-P", "-m", "governor.script_process", str(os.getpid()), "--framed", *arguments],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            env={name: value for name, value in os.environ.items() if name != "NOTIFY_SOCKET"},
            start_new_session=True,
        )
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, mask)


@contextmanager
def _ctrl_c_later() -> Iterator[None]:
    """Ctrl-C takes effect at the end: no process is left that its caller does not know. Blocking the signal would
    not do: another thread of the process, as those of numpy, would take it.
    """
    usual = signal.getsignal(signal.SIGINT)
    if threading.current_thread() is not threading.main_thread() or usual is None:
        yield
        return
    pressed: list[int] = []
    signal.signal(signal.SIGINT, lambda number, _: pressed.append(number))
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, usual)
        if pressed:
            signal.raise_signal(signal.SIGINT)


@contextmanager
def _while_read(inner: display.Display) -> Iterator[display.Show]:
    """Rule 4. A ValueError comes from a stream that is closed."""
    broken = False
    with ExitStack() as stack:
        show = stack.enter_context(inner)

        def show_if_read(event: RunEvent | None, view: RunView) -> None:
            nonlocal broken
            if broken:
                return
            try:
                show(event, view)
            except (OSError, ValueError):
                broken = True

        try:
            yield show_if_read
        finally:
            with suppress(OSError, ValueError):
                stack.close()


def _follow(process: subprocess.Popen[bytes], show: display.Show) -> tuple[str, End | None]:
    """The id of the run, and its result, or why there is none."""
    assert process.stdout is not None  # noqa: S101  # asked for in `_started`
    pipe, received = process.stdout.fileno(), MessageBuffer()
    view, end = RunView(uid=""), None
    arrivals = select.poll()
    arrivals.register(pipe, select.POLLIN)
    while True:
        while (message := received.next_message(_decode)) is not None:
            if isinstance(message, RunEvent):
                view.uid = message.uid
                view.on(message)
                show(message, view)
            else:
                end = message
        if not arrivals.poll(PAUSE_MS):
            show(None, view)
        elif data := os.read(pipe, READ_BYTES):
            received.feed(data)
        else:
            return view.uid, end


def _interrupt(process: subprocess.Popen[bytes]) -> None:
    """Rule 2. Returns when the process has ended."""
    while True:
        with suppress(KeyboardInterrupt):
            if process.stdout is not None:
                process.stdout.close()  # unread messages must not block it
            if process.poll() is None:
                process.send_signal(signal.SIGINT)
                process.wait()
            return


def _ask(broker: str | None, question: Callable[[Executor], Awaitable[T]]) -> T:
    """The daemon's answer. The thread has an event loop of its own (rule 3)."""
    asked: list[tuple[asyncio.AbstractEventLoop, asyncio.Task[Any]]] = []
    left = threading.Event()

    async def ask() -> T:
        task = asyncio.current_task()
        assert task is not None  # noqa: S101  # a coroutine of asyncio.run
        asked.append((asyncio.get_running_loop(), task))
        if left.is_set():  # before it was asked
            raise asyncio.CancelledError
        async with Executor(broker) as executor:
            return await question(executor)

    with ThreadPoolExecutor(max_workers=1, thread_name_prefix="governor.ask") as thread:
        try:
            return clock.result_of(thread.submit(lambda: asyncio.run(ask())))
        except BaseException:
            left.set()
            for loop, task in asked:
                with suppress(RuntimeError):  # it has ended
                    loop.call_soon_threadsafe(task.cancel)
            raise
