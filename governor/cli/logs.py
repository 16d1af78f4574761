"""`governor logs RUN [NAME]`: what the user code of a run printed and logged. Ctrl-C detaches.

The daemon is asked. Where none answers, or it has no such run (of `governor run`, for one), the run's files are read.
"""

from __future__ import annotations

import re
import shutil
import sys
import time
from contextlib import suppress
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import click
import msgspec

from governor.cli import ask
from governor.cli.rendering import lines
from governor.errors import GovernorError, NoSuchRun, NotPermitted, Unreachable
from governor.locations import default_state_dir
from governor.messages import ReadOutput
from governor.units import durations

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from governor.executor import Executor
    from governor.messages import OutputPage

LEVELS: Final = ("debug", "info", "warning", "error", "critical")
FOLLOW_SECONDS: Final = 0.3
"""Between two looks at files that grow."""
_ERASE: Final = "\r\x1b[K"
_MINUTES: Final = re.compile(r"(?<=\d)m$")
"""``10m``, as other programs take it: in a run file minutes are ``min``."""


class _Since(click.ParamType[float]):
    """A duration before now, or a time; in seconds since 1970."""

    name = "10m|TIME"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> float:
        with suppress(ValueError):
            return time.time() - durations.seconds(_MINUTES.sub("min", value))
        try:
            return datetime.fromisoformat(value).timestamp()
        except ValueError:
            self.fail(
                f"{value!r} is neither a duration with its unit (90s, 10m, 2h, 1d) nor a time with its date (2026-01-31T12:00)",
                param,
                ctx,
            )


@click.command("logs", short_help="Show what user code printed and logged.")
@ask.run_argument
@click.argument("name", required=False)
@click.option("--follow", "-f", is_flag=True, help="Go on until the run has ended.")
@click.option("--since", type=_Since(), help="Lines since then: a duration before now, or a local time.")
@click.option("--task", metavar="ID", help="Lines of this task.")
@click.option("--run", metavar="N", type=ask.NUMBER, help="Lines of this run of a task with `repeat`.")
@click.option("--attempt", metavar="N", type=ask.FROM_1, help="Lines of this attempt.")
@click.option("--episode", metavar="N", type=ask.NUMBER, help="Lines of this episode.")
@click.option("--evaluation", metavar="N", type=ask.FROM_1, help="Lines of this evaluation.")
@click.option(
    "--level",
    type=click.Choice(LEVELS, case_sensitive=False),
    help="Lines that were logged at this level or above.",
)
@click.option(
    "--state-dir",
    type=click.Path(path_type=Path, exists=True, file_okay=False),
    help="Read the run's files in this state folder, without a daemon.",
)
@ask.json_option
@click.pass_context
def command(
    ctx: click.Context,
    /,
    *,
    uid: str,
    name: str | None,
    follow: bool,
    state_dir: Path | None,
    as_json: bool,
    **wanted: Any,
) -> None:
    """Show what the user code of RUN printed and logged, of one conductor (NAME) or of all. Ctrl-C detaches only.

    Where no daemon answers, or it has no such run, the files of the run are read: those of `governor run`, too.
    """
    asked = ReadOutput(uid=uid, conductor=name, **wanted)
    printer = _Printer(follow=follow, as_json=as_json)
    try:
        if state_dir is not None:
            missing = NoSuchRun(uid, f"no run {uid!r} in {state_dir}")
            printer.print_all(_kept_pages(state_dir, asked, follow=follow, instead_of=missing))
        else:
            _ask(ctx.obj, asked, printer)
    except KeyboardInterrupt:
        ask.detach(ctx, uid)
    finally:
        printer.close()


class _Printer:
    def __init__(self, *, follow: bool, as_json: bool) -> None:
        self.follow = follow
        self.has_begun = False
        self._as_json = as_json
        self._redraws = follow and not as_json and sys.stdout.isatty()

    def print_all(self, pages: Iterable[OutputPage]) -> None:
        for page in pages:
            self.print(page)

    def print(self, page: OutputPage) -> None:
        self.has_begun = True
        if self._redraws:
            click.echo(_ERASE, nl=False)
        for line in (*page.lines, *(() if self.follow else page.unfinished)):
            as_json = self._as_json
            click.echo(lines.escaped(msgspec.json.encode(line).decode()) if as_json else lines.output(line))
        if self._redraws and page.unfinished:
            click.echo(_cut(lines.output(page.unfinished[-1])), nl=False)

    def close(self) -> None:
        if self._redraws:
            click.echo(_ERASE, nl=False)


def _ask(broker: str | None, asked: ReadOutput, printer: _Printer) -> None:
    """Prints what the daemon has, or what the files of the run have."""

    async def read(executor: Executor) -> None:
        async for page in executor.output_pages(asked, follow=printer.follow):
            printer.print(page)

    try:
        ask.ask(broker, read)
    except (Unreachable, NotPermitted, NoSuchRun) as error:
        if printer.has_begun or ask.is_elsewhere(broker):
            raise
        kept = _kept_pages(default_state_dir(), asked, follow=printer.follow, instead_of=error)
        printer.print_all(kept)


def _kept_pages(
    state_dir: Path, asked: ReadOutput, *, follow: bool, instead_of: GovernorError
) -> Iterator[OutputPage]:
    """As `Executor.output_pages`, from the files of the run below `state_dir`. Raises `instead_of` if it is not there, NoSuchRun,
    UsageError, NotPermitted.
    """
    from governor.output import reader  # noqa: PLC0415  # not for `--help`

    run_folder = ask.kept_folder(state_dir, asked.uid, instead_of=instead_of)
    folder = reader.folder_of(run_folder)
    lines.say(f"governor: these are the lines in {folder}", err=True)
    conductors = None if asked.conductor is None else reader.conductors_named(folder, asked.conductor, list)
    while True:
        grows = follow and _may_grow(run_folder)  # before they are read: none is missed
        try:
            page = reader.page_of(folder, asked, conductors)
        except PermissionError as error:
            raise NotPermitted(f"{error.filename} can't be read: {error.strerror}") from None
        yield page
        asked = msgspec.structs.replace(asked, cursor=page.cursor)
        if not page.more:
            if not grows:
                return
            time.sleep(FOLLOW_SECONDS)


def _may_grow(run_folder: Path) -> bool:
    """Whether a daemon is at work there, that of `governor run` for one, and has not seen the end of the run."""
    from governor.daemon.state_lock import is_served  # noqa: PLC0415  # not for `--help`
    from governor.output import spool  # noqa: PLC0415  # as above

    is_over = (run_folder / "result.json").exists() and not spool.folder_of(run_folder).exists()
    return not is_over and is_served(run_folder.parents[1])


def _cut(text: str) -> str:
    """The part that one row of the terminal shows: of a progress bar, for one."""
    return text[: shutil.get_terminal_size().columns - 1]
