"""Shared by the client verbs: their options, the connection to the daemon, and following a run to its end."""

from __future__ import annotations

import asyncio
import os
from contextlib import suppress
from typing import TYPE_CHECKING, Final, TypeVar

import click

from governor.cli.rendering.lines import say
from governor.cli.rendering.view import RunView
from governor.errors import ExitCode, GovernorError, NoSuchRun
from governor.locations import default_state_dir, run_folders, single_run_folders

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Awaitable, Callable
    from pathlib import Path

    from governor.cli.rendering.display import Display
    from governor.executor import Executor
    from governor.executor.watching import Watching
    from governor.messages import WatchEnd

T = TypeVar("T")

STATUS_SECONDS: Final = 2.0
"""Between two questions for the status of a run that is followed."""
NUMBER: Final = click.IntRange(0, 1_000_000_000)
"""Of episodes, runs, events, and how many to keep."""
FROM_1: Final = click.IntRange(1, 1_000_000_000)

json_option = click.option("--json", "as_json", is_flag=True, help="Machine-readable output.")
run_argument = click.argument("uid", metavar="RUN")


def ask(broker: str | None, question: Callable[[Executor], Awaitable[T]]) -> T:
    """The answer of the daemon to `question`. Raises GovernorError, and KeyboardInterrupt for Ctrl-C."""
    from governor.executor import Executor  # noqa: PLC0415  # not for `--help`

    async def asked() -> T:
        async with Executor(broker) as executor:
            return await question(executor)

    return asyncio.run(asked())


def is_elsewhere(broker: str | None) -> bool:
    """Whether the daemon may be on another machine, so that no file on this one is of its runs."""
    return "tcp://" in (broker or os.environ.get("GOVERNOR_BROKER", "")) or (
        not broker and bool(os.environ.get("GOVERNOR_CONTEXT"))
    )


def kept_folder(state_dir: Path, uid: str, *, instead_of: GovernorError) -> Path:
    """The folder of the run below `state_dir`, whose daemon is not asked. Raises `instead_of` if it is not there, NoSuchRun if several
    runs begin with `uid`.
    """
    found = run_folders(state_dir, uid)
    if not found:
        raise instead_of
    if len(found) > 1:
        names = ", ".join(sorted(run.name for run in found)[:5])
        raise NoSuchRun(uid, f"{uid!r} is the beginning of several runs: {names}")
    return found[0]


def message_of(error: GovernorError, broker: str | None) -> str:
    """What a verb says of it. Of a run that its daemon does not have, but `governor run` has played it here: what shows it."""
    if not isinstance(error, NoSuchRun) or str(error) != str(NoSuchRun(error.uid)) or is_elsewhere(broker):
        return str(error)
    found = single_run_folders(default_state_dir(), error.uid)
    if len(found) != 1:
        return str(error)
    uid = found[0].name
    return (
        f"{uid} is a run of `governor run`, in {found[0]}: `governor report {uid}` shows it, `governor logs {uid}` its output, "
        f"and `governor run --resume {uid}` goes on with it"
    )


async def follow(executor: Executor, uid: str, *, display: Display, after: int = 0) -> WatchEnd | None:
    """Shows the events of the run with numbers above `after` until it has ended, or the daemon goes down.

    The earlier events are read too: the view needs them.
    """
    report = await executor.status(uid)
    view = RunView.of(report.runs[0]) if report.runs else RunView(uid=uid)
    events = executor.watch(view.uid)
    asking = asyncio.create_task(_keep_asking(executor, view), name="follow.status")
    try:
        return await _shown(events, view, display, after)
    finally:
        asking.cancel()


async def _shown(events: Watching, view: RunView, display: Display, after: int) -> WatchEnd | None:
    with display as show:
        async for event in _with_pauses(events):
            if event is not None:
                view.on(event)
            if event is None or event.seq > after:
                show(event, view)
    return events.end


async def _keep_asking(executor: Executor, view: RunView) -> None:
    """Keeps the status of the view up to date, if its display wants one."""
    while True:
        await asyncio.sleep(STATUS_SECONDS)
        if view.wants_status:
            with suppress(GovernorError):  # the watch tells what is wrong
                view.status = next(iter((await executor.status(view.uid)).runs), None)


async def _with_pauses(events: AsyncIterator[T], seconds: float = 1.0) -> AsyncIterator[T | None]:
    """The events as they come, and None for each time that `seconds` pass without one."""
    coming = asyncio.ensure_future(anext(events))
    try:
        while True:
            await asyncio.wait({coming}, timeout=seconds)
            if not coming.done():
                yield None
                continue
            try:
                event = coming.result()
            except StopAsyncIteration:
                return
            coming = asyncio.ensure_future(anext(events))
            yield event
    finally:
        coming.cancel()
        await asyncio.wait({coming})


def exit_code(end: WatchEnd | None) -> ExitCode:
    """The exit code of a verb that followed a run."""
    if end is None or end.outcome == "interrupted":
        return ExitCode.TRY_AGAIN
    return ExitCode.DONE if end.outcome == "finished" else ExitCode.RUN_ENDED_BADLY


def finish(ctx: click.Context, uid: str, end: WatchEnd | None, *, what: str = "run") -> None:
    """Exits with the exit code for the end of a followed run or group. If the daemon goes down, the run does not end with it."""
    code = exit_code(end)
    if code == ExitCode.TRY_AGAIN:
        say(
            f"governor: the daemon is going down; {what} {uid} goes on when it is started again "
            f"(`governor watch {uid}`)",
            err=True,
        )
    ctx.exit(code)


def follow_submitted(
    ctx: click.Context,
    asked: Callable[[Executor], Awaitable[WatchEnd | None]],
    submitted: list[str],
    *,
    follows: bool,
    what: str = "run",
) -> None:
    """Submits and, where it `follows`, exits by the end. `asked` puts the id into `submitted`: from then on Ctrl-C detaches."""
    try:
        end = ask(ctx.obj, asked)
    except KeyboardInterrupt:
        if not submitted:
            raise
        detach(ctx, submitted[0], what=what)
        return
    if follows:
        finish(ctx, submitted[0], end, what=what)


def detach(ctx: click.Context, uid: str, *, what: str = "run") -> None:
    """Exits after Ctrl-C, which ended only this client."""
    say(
        f"governor: detached; {what} {uid} goes on. `governor watch {uid}` comes back to it, "
        f"`governor abort {uid}` ends it",
        err=True,
    )
    ctx.exit(ExitCode.INTERRUPTED)
