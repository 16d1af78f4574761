"""`governor logs RUN [NAME]`: what the user code of a run printed and logged. Ctrl-C detaches."""

from __future__ import annotations

import re
import shutil
import sys
import time
from datetime import datetime
from typing import TYPE_CHECKING, Any, Final

import click
import msgspec

from governor.cli import ask
from governor.cli.rendering import lines
from governor.messages import ReadOutput
from governor.units import durations

if TYPE_CHECKING:
    from governor.executor import Executor

LEVELS: Final = ("debug", "info", "warning", "error", "critical")
_ERASE: Final = "\r\x1b[K"
_MINUTES: Final = re.compile(r"(?<=\d)m$")
"""``10m``, as other programs take it: in a run file minutes are ``min``."""


class _Since(click.ParamType[float]):
    """A duration before now, or a time; in seconds since 1970."""

    name = "10m|TIME"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> float:
        try:
            return time.time() - durations.seconds(_MINUTES.sub("min", value))
        except ValueError:
            pass
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
@click.option("--run", metavar="N", type=int, help="Lines of this run of a task with `repeat`, from 0.")
@click.option("--attempt", metavar="N", type=int, help="Lines of this attempt, from 1.")
@click.option("--episode", metavar="N", type=int, help="Lines of this episode.")
@click.option("--evaluation", metavar="N", type=int, help="Lines of this evaluation, from 1.")
@click.option(
    "--level",
    type=click.Choice(LEVELS, case_sensitive=False),
    help="Lines that were logged at this level or above.",
)
@ask.json_option
@click.pass_context
def command(
    ctx: click.Context, /, *, uid: str, name: str | None, follow: bool, as_json: bool, **wanted: Any
) -> None:
    """Show what the user code of RUN printed and logged, of one conductor (NAME) or of all. Ctrl-C detaches only."""
    asked = ReadOutput(uid=uid, conductor=name, **wanted)
    redraws = follow and not as_json and sys.stdout.isatty()

    async def read(executor: Executor) -> None:
        async for page in executor.output_pages(asked, follow=follow):
            if redraws:
                click.echo(_ERASE, nl=False)
            for line in (*page.lines, *(() if follow else page.unfinished)):
                as_text = lines.escaped(msgspec.json.encode(line).decode()) if as_json else lines.output(line)
                click.echo(as_text)
            if redraws and page.unfinished:
                click.echo(_cut(lines.output(page.unfinished[-1])), nl=False)

    try:
        ask.ask(ctx.obj, read)
    except KeyboardInterrupt:
        ask.detach(ctx, uid)
    finally:
        if redraws:
            click.echo(_ERASE, nl=False)


def _cut(text: str) -> str:
    """The part that one row of the terminal shows: of a progress bar, for one."""
    return text[: shutil.get_terminal_size().columns - 1]
