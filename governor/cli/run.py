"""`governor run FILE`: everything in one process tree, without a daemon: broker, governor, Ray head, progress, result.

Rules:
1. The file is checked in full before anything of it is started. A resumed run is used as it was recorded.
2. The first Ctrl-C (SIGTERM, or the terminal's end) aborts the run in order and waits for its end; the second one exits at
   once, and the guard kills and removes what is left.
3. If the reader of standard output goes away, the run continues.
"""

from __future__ import annotations

import asyncio
import atexit
import contextlib
import functools
import os
import shutil
import signal
import sys
import tempfile
import time
from pathlib import Path
from typing import TYPE_CHECKING

import click

from governor.cli import ask
from governor.cli.check import checked
from governor.cli.rendering import display, failures, lines
from governor.errors import ExitCode, GovernorError, JournalError, NoRoom, NoSuchRun, UsageError
from governor.output.lines import plain
from governor.processes import guard

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Iterator, Sequence

    from governor.cli.rendering.view import RunView
    from governor.config import Config
    from governor.daemon.daemon import Daemon
    from governor.daemon.systemd import SystemdNotifier
    from governor.executor import Executor
    from governor.messages import OutputLine, RunEvent, RunResult, WatchEnd

SHOWN_AT_ONCE = 100
"""Lines of user code that a terminal shows, several times a second."""
REPORT_SECONDS = 30.0
"""How long the report of a run that has ended may take."""
HOOK_SECONDS = 10.0
"""How long its hooks may take to be tried."""
OUTPUT_SECONDS = 5.0
"""How long the last lines of a run that has ended may take."""


@click.command("run", short_help="Run FILE to its end, without a daemon.")
@click.argument("file", type=click.Path(path_type=Path), required=False)
@click.option(
    "--resume",
    metavar="RUN",
    help="Instead of FILE: keep the results of an earlier `governor run`, and do the rest.",
)
@click.option(
    "--state-dir",
    type=click.Path(path_type=Path),
    help="The folder for the run's files. Default: a new folder; with --resume that of RUN.",
)
@click.option("--ray-cpus", type=int, help="CPUs that the run's Ray head offers.")
@click.option("--log-level", default="warning", show_default=True, help="debug, info, warning or error.")
@click.option("--quiet", "-q", is_flag=True, help="Show the result only, and log lines from --log-level up.")
@ask.json_option
@click.option("--framed", is_flag=True, hidden=True)  # for `governor.run`
@click.pass_context
def command(
    ctx: click.Context,
    *,
    file: Path | None,
    resume: str | None,
    state_dir: Path | None,
    ray_cpus: int | None,
    log_level: str,
    quiet: bool,
    as_json: bool,
    framed: bool,
) -> None:
    """Run FILE to its end, without a daemon, and show its result; exit 1 when it ended badly."""
    if (file is None) == (resume is None):
        raise click.UsageError("Give a run FILE, or --resume RUN.")
    folder = _folder()

    from governor import config as configuration  # noqa: PLC0415  # not for --help
    from governor.daemon.systemd import SystemdNotifier  # noqa: PLC0415  # as above
    from governor.processes import process  # noqa: PLC0415  # after _folder, see there

    notifier = SystemdNotifier.from_environ()
    options = {
        "state_dir": state_dir or (_new_state_dir(file) if file else _state_dir_of(resume or "")),
        "runtime_dir": folder / "run",
        "ray.num_cpus": ray_cpus,
        "log_level": log_level,
    }
    config = configuration.load(options=options)
    if resume is not None:
        _require_journal(config.state_dir, resume)
    # The forkserver imports its modules during the check; nothing of the run itself is started.
    process.warm_up(folder=folder)
    run = checked(file) if file is not None else None
    if run is not None and run.cells:
        raise UsageError(
            f"{file} has a matrix, it is a group of {len(run.cells)} runs: `governor submit` hands them to a daemon (`governor serve`)"
        )
    shown = _tolerant_display(display.choose(as_json=as_json, quiet=quiet, framed=framed))
    show_result = functools.partial(display.show_result, as_json=as_json, framed=framed)
    show_report = None if framed else functools.partial(lines.say, err=as_json)
    show_output = None if quiet else functools.partial(_show_output, is_raw=framed)

    async def begin(executor: Executor) -> str:
        return await (
            _resume(executor, resume or "", config.state_dir) if run is None else executor.submit(run)
        )

    running = _run(
        begin,
        config=config,
        notifier=notifier,
        shown=shown,
        show_result=show_result,
        show_report=show_report,
        show_output=show_output,
        as_data=as_json or framed,
    )
    ctx.exit(asyncio.run(running))


async def _resume(executor: Executor, uid: str, state_dir: Path) -> str:
    """An interrupted run is continued by the daemon; one that has ended is resumed by a new run."""
    try:
        [run] = (await executor.status(uid)).runs
    except NoSuchRun as error:
        if str(error) != str(NoSuchRun(uid)):  # several begin with it
            raise
        raise NoSuchRun(uid, f"no run {uid!r} in {state_dir}; --state-dir names another folder") from None
    return await executor.resume(run.uid) if run.ended_at is not None else run.uid


async def _run(
    begin: Callable[[Executor], Awaitable[str]],
    *,
    config: Config,
    notifier: SystemdNotifier,
    shown: display.Display,
    show_result: Callable[[RunResult], None],
    show_report: Callable[[str], None] | None,
    show_output: Callable[[Sequence[OutputLine]], None] | None,
    as_data: bool,
) -> int:
    from governor import logs  # noqa: PLC0415  # heavy, and only after the check
    from governor.daemon.daemon import Daemon  # noqa: PLC0415  # as above
    from governor.executor import Executor  # noqa: PLC0415  # as above
    from governor.runs.run_log import EVENTS  # noqa: PLC0415  # as above

    logs.configure(log_format=logs.choose_format(), level=config.log_level, without=EVENTS)
    async with (
        Daemon(config=config, notifier=notifier).running() as daemon,
        Executor(config.client_endpoint, awaits_restart=False) as executor,
    ):
        uid = await begin(executor)
        try:
            with _two_signals(executor, uid, config.runtime_dir.parent):
                end = await _follow(executor, uid, shown, daemon, show_output)
                if end is not None and end.outcome != "interrupted":
                    result = await executor.result(uid)
                    with _tolerant():
                        show_result(result)
                        if not as_data:
                            await failures.show_end(executor, result, state_dir=config.state_dir)
                        await _report(executor, result, show_report)
                    if left := await daemon.hooks.settle(HOOK_SECONDS):
                        told = f"governor: {left} hooks are not delivered yet: `governor serve --state-dir {config.state_dir}` goes on with that"
                        lines.say(told, err=True)
        except (JournalError, NoRoom) as error:
            hint = f"when that is repaired, `governor run --resume {uid}` continues it"
            raise type(error)(f"{error}; {hint}") from error
    return ask.exit_code(end)


async def _report(executor: Executor, result: RunResult, show: Callable[[str], None] | None) -> None:
    """Writes the report of the run, and names it. A run has ended as it has, also without one."""
    from governor.cli import report  # noqa: PLC0415  # only where a run has ended

    try:
        async with asyncio.timeout(REPORT_SECONDS):
            file = await report.write_for(executor, result)
    except TimeoutError:
        why = f"it took longer than {REPORT_SECONDS:g} s"
    except Exception as error:  # noqa: BLE001  # whatever is wrong with the page, the run has ended as it has
        why = str(error) if isinstance(error, GovernorError | OSError) else repr(error)
    else:
        if show is not None:
            show(f"Report: {file}")
        return
    lines.say(f"governor: no report was written: {why}; `governor report {result.uid}` writes one", err=True)


async def _follow(
    executor: Executor,
    uid: str,
    shown: display.Display,
    daemon: Daemon,
    show_output: Callable[[Sequence[OutputLine]], None] | None,
) -> WatchEnd | None:
    """Follows until the end of the run, or of the daemon: that ends when the disk is full, for example."""

    async def follow() -> WatchEnd | None:
        if show_output is None:
            return await ask.follow(executor, uid, display=shown)
        output = asyncio.create_task(_follow_output(executor, uid, show_output), name="run.output")
        try:
            with shown as show:
                end = await ask.follow(executor, uid, display=contextlib.nullcontext(show))
                if end is not None and end.outcome != "interrupted":
                    await asyncio.wait({output}, timeout=OUTPUT_SECONDS)
                return end
        finally:
            output.cancel()
            await asyncio.wait({output})

    following = asyncio.create_task(follow(), name="run.follow")
    crash = asyncio.create_task(daemon.crash(), name="run.crash")
    try:
        await asyncio.wait({following, crash}, return_when=asyncio.FIRST_COMPLETED)
        if following.done():
            return following.result()
        raise crash.result()
    finally:
        following.cancel()
        crash.cancel()
        await asyncio.wait({following, crash})


async def _follow_output(executor: Executor, uid: str, show: Callable[[Sequence[OutputLine]], None]) -> None:
    from governor.messages import ReadOutput  # noqa: PLC0415  # not for --help

    async for page in executor.output_pages(ReadOutput(uid=uid), follow=True):
        if page.lines:
            show(page.lines)


def _show_output(found: Sequence[OutputLine], *, is_raw: bool) -> None:
    """Prints what user code printed to standard error: above the progress on a terminal, where nobody reads thousands of lines a second."""
    left_out = max(len(found) - SHOWN_AT_ONCE, 0) if sys.stderr.isatty() else 0
    text = [
        lines.output(line, is_short=True) if not is_raw or line.dropped else plain(line.text)
        for line in found[left_out:]
    ]
    if left_out:
        text.insert(0, f"… {left_out:,} lines, which are in the run's files")
    with contextlib.suppress(OSError, ValueError):  # the terminal is gone
        sys.stderr.write("\n".join((*text, "")))  # which the live panel has replaced, unlike click's


@contextlib.contextmanager
def _tolerant_display(inner: display.Display) -> Iterator[display.Show]:
    """A display that drops its output when the reader is gone (rule 3)."""
    with contextlib.ExitStack() as stack:
        show = stack.enter_context(inner)

        def show_if_read(event: RunEvent | None, view: RunView) -> None:
            with _tolerant():
                show(event, view)

        try:
            yield show_if_read
        finally:
            with _tolerant():
                stack.close()


@contextlib.contextmanager
def _tolerant() -> Iterator[None]:
    """Drops further output after a broken pipe, or when the terminal is closed."""
    from governor.cli import drop_output  # noqa: PLC0415  # it imports this module on demand

    try:
        yield
    except OSError:
        drop_output()


@contextlib.contextmanager
def _two_signals(executor: Executor, uid: str, folder: Path) -> Iterator[None]:
    """Rule 2. A second signal exits with 130 at once."""
    loop = asyncio.get_running_loop()
    aborting: list[asyncio.Task[None]] = []

    def on_signal(number: signal.Signals) -> None:
        if aborting:
            shutil.rmtree(folder, ignore_errors=True)
            os._exit(ExitCode.INTERRUPTED)
        aborting.append(loop.create_task(abort(number.name), name="run.abort"))
        with contextlib.suppress(OSError):  # the terminal is gone
            click.echo(f"governor: {number.name}: aborting the run in order; once more exits now", err=True)

    async def abort(name: str) -> None:
        await executor.abort(uid, reason=f"{name} at `governor run`")

    signals = [signal.SIGINT, signal.SIGTERM]
    if signal.getsignal(signal.SIGHUP) is not signal.SIG_IGN:  # as below nohup
        signals.append(signal.SIGHUP)
    for number in signals:
        loop.add_signal_handler(number, on_signal, number)
    try:
        yield
    finally:
        for number in signals:
            loop.remove_signal_handler(number)
        for task in aborting:
            task.cancel()


def _new_state_dir(file: Path) -> Path:
    from governor.locations import default_state_dir  # noqa: PLC0415  # as in command

    state_dir = default_state_dir()
    with contextlib.suppress(OSError):  # told where the run's own folder is made
        state_dir.mkdir(mode=0o700, parents=True, exist_ok=True)
    stamp = time.strftime("%Y%m%d-%H%M%S")
    return state_dir / "single" / f"{file.resolve().parent.name}-{stamp}-{os.getpid()}"


def _state_dir_of(uid: str) -> Path:
    """The state folder of an earlier `governor run`, by the id of its run, or a unique beginning of that."""
    from governor.locations import default_state_dir, single_run_folders  # noqa: PLC0415  # as in command

    found = single_run_folders(default_state_dir(), uid)
    folders = {run.parents[1] for run in found}
    if len(folders) > 1:
        names = sorted({run.name for run in found})
        raise NoSuchRun(uid, f"{uid!r} is the beginning of several runs: {', '.join(names[:5])}")
    if not folders:
        single = default_state_dir() / "single"
        raise NoSuchRun(uid, f"no run {uid!r} below {single}; --state-dir names another folder")
    return folders.pop()


def _require_journal(state_dir: Path, uid: str) -> None:
    """A daemon would make one, in any folder. Raises NoSuchRun."""
    from governor.locations import JOURNAL  # noqa: PLC0415  # as in command

    with contextlib.suppress(PermissionError):  # told where the folder is used
        if not (state_dir / JOURNAL).exists():
            raise NoSuchRun(
                uid,
                f"no run {uid!r} in {state_dir}, which has no {JOURNAL}; --state-dir names another folder",
            )


def _folder() -> Path:
    """A short folder of mode 0700 for sockets, removed when this process ends; that of the guard, where there is one.

    Call it before multiprocessing is imported: exit handlers run in reverse order, and multiprocessing's own one needs its
    folder, which is in this one.
    """
    given = os.environ.pop(guard.FOLDER, "")
    folder = Path(given or tempfile.mkdtemp(prefix="governor-"))
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    return folder
