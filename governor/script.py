"""Runs from scripts and notebooks, each with one blocking call: `governor.run`; `governor.submit` and `governor.wait` for a daemon.

Rules:
1. `run` is the verb `governor run` in a process of its own (`script_process`). Nothing of the run outlives its caller: the process
   is told when that dies, by SIGKILL too, and aborts the run in order.
2. That process has a session of its own, so that Ctrl-C reaches the caller alone. The caller passes it on: the first one
   aborts the run in order, the second one ends it at once. Then KeyboardInterrupt is raised.
3. An event loop that runs in the calling thread, as in a notebook, is neither used nor needed.
"""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from typing import TYPE_CHECKING, Any, TypeAlias, TypeVar

import msgspec

from governor.cli import display
from governor.cli.view import RunView
from governor.errors import GovernorError, UsageError, from_refusal
from governor.executor import Executor
from governor.messages import Refused, RunEvent, RunResult
from governor.result import Result

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Mapping
    from pathlib import Path
    from typing import IO

    from governor.run_file.load import Run

T = TypeVar("T")
End: TypeAlias = RunResult | Refused

_message = msgspec.json.Decoder(RunEvent | RunResult | Refused)


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
    raise: its result has the outcome ``failed`` and the reason (`Result.raise_for_outcome` raises). Ctrl-C aborts the run in
    order and then raises KeyboardInterrupt; pressed again, it ends the run at once. If the calling process dies, the run
    is aborted, and none of its processes is left.

    Args:
        file: the path of the run file.
        resume: instead of `file`, the id of an earlier run of this function or of `governor run`: what it has finished is
            kept, and the rest is done.
        state_dir: the folder for the run's files. By default a new one; with `resume` that of the earlier run.
        ray_cpus: the CPUs that the run's Ray head offers.
        progress: show the progress: live in a terminal, else as lines.

    Raises:
        RunFileError: the run file has faults. All of them are in the text and in `faults`; nothing has run.
        UsageError: neither or both of `file` and `resume` are given.
        NoSuchRun: there is no run `resume`.
        AlreadyEnded: the run `resume` has finished, and nothing of it is missing.
        TryAgain: the disk is full or read-only.
        GovernorError: the process of the run has died.
    """
    if (file is None) == (resume is None):
        raise UsageError("give a run file, or resume=UID with the id of an earlier run")
    options = {"--resume": resume, "--state-dir": state_dir, "--ray-cpus": ray_cpus}
    arguments = [f"{name}={value}" for name, value in options.items() if value is not None]
    arguments += [] if file is None else ["--", str(file)]
    process = subprocess.Popen(
        [sys.executable, "-P", "-m", "governor.script_process", str(os.getpid()), "--json", *arguments],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        env={name: value for name, value in os.environ.items() if name != "NOTIFY_SOCKET"},
        start_new_session=True,
    )
    assert process.stdout is not None  # noqa: S101  # asked for above
    try:
        with display.choose(as_json=False, quiet=not progress) as show:
            uid, end = _follow(process.stdout, show)
        process.wait()
    except BaseException:
        _interrupt(process)
        raise
    finally:
        process.stdout.close()
    if isinstance(end, RunResult):
        return Result.of(end)
    if end is not None:
        raise from_refusal(end, source=str(file or resume))
    hint = f"; governor.run(resume={uid!r}) goes on with it" if uid else ""
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


def _follow(lines: IO[bytes], show: display.Show) -> tuple[str, End | None]:
    """The id of the run, and its result, or why there is none."""
    view, end = RunView(uid=""), None
    for line in lines:
        message = _message.decode(line)
        if isinstance(message, RunEvent):
            view.uid = message.uid
            view.on(message)
            show(message, view)
        else:
            end = message
    return view.uid, end


def _interrupt(process: subprocess.Popen[bytes]) -> None:
    """Rule 2. Returns when the process has ended."""
    if process.stdout is not None:
        process.stdout.close()  # unread messages must not block it
    while process.poll() is None:
        try:
            process.send_signal(signal.SIGINT)
            process.wait()
        except KeyboardInterrupt:
            continue


def _ask(broker: str | None, question: Callable[[Executor], Awaitable[T]]) -> T:
    """The daemon's answer. The thread has an event loop of its own (rule 3)."""
    asked: list[tuple[asyncio.AbstractEventLoop, asyncio.Task[Any]]] = []

    async def ask() -> T:
        task = asyncio.current_task()
        assert task is not None  # noqa: S101  # a coroutine of asyncio.run
        asked.append((asyncio.get_running_loop(), task))
        async with Executor(broker) as executor:
            return await question(executor)

    with ThreadPoolExecutor(max_workers=1, thread_name_prefix="governor.ask") as thread:
        answer = thread.submit(lambda: asyncio.run(ask()))
        try:
            return answer.result()
        except BaseException:
            for loop, task in asked:
                with suppress(RuntimeError):  # it has ended
                    loop.call_soon_threadsafe(task.cancel)
            raise
