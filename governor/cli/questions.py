"""The verbs that ask the daemon one question: `status`, `explain`, `list`, `reload`."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from governor.cli import ask
from governor.cli.rendering import display
from governor.cli.rendering.lines import clean, say
from governor.units import durations

if TYPE_CHECKING:
    from governor.messages import ExplainedLine


@click.command("status", short_help="Show the daemon and its runs, or one run.")
@click.argument("uid", metavar="[RUN]", required=False)
@ask.json_option
@click.pass_obj
def status(broker: str | None, *, uid: str | None, as_json: bool) -> None:
    """Show the daemon and its runs, or one RUN with its processes."""
    report = ask.ask(broker, lambda executor: executor.status(uid))
    if as_json:
        display.print_json(report)
        return
    from governor.cli.rendering import tables  # noqa: PLC0415  # rich: not for --json

    tables.show(tables.status(report, conductors=uid is not None))


@click.command("explain", short_help="Show what a run waits for, and how long.")
@ask.run_argument
@ask.json_option
@click.pass_obj
def explain(broker: str | None, *, uid: str, as_json: bool) -> None:
    """Show what RUN is doing, what it waits for, since when, and until when at most."""
    found = ask.ask(broker, lambda executor: executor.explain(uid))
    if as_json:
        display.print_json(found)
        return
    say(clean(f"run {found.uid} ({found.name})"))
    for line in found.lines:
        say(f"  {_text_of(line, now=found.at)}")


def _text_of(line: ExplainedLine, *, now: float) -> str:
    since = "" if line.since is None else f" - for {durations.text(max(now - line.since, 0.0))}"
    until = "" if line.until is None else f", {durations.text(max(line.until - now, 0.0))} more at most"
    return f"{clean(line.what)}{since}{until}"


@click.command("list", short_help="List all runs.")
@click.option(
    "--limit", type=click.IntRange(min=1, max=10_000), default=100, show_default=True, help="At most so many."
)
@click.option("--after", metavar="RUN", help="Those submitted before this run: the next page.")
@ask.json_option
@click.pass_obj
def list_runs(broker: str | None, *, limit: int, after: str | None, as_json: bool) -> None:
    """List the runs of the daemon, newest first, ended ones too. Where there are more than --limit, the last line says how to
    list the next ones.
    """
    found = ask.ask(broker, lambda executor: executor.list(limit, after=after))
    if as_json:
        display.print_json(found)
        return
    from governor.cli.rendering import tables  # noqa: PLC0415  # rich: not for --json

    tables.show(tables.runs(found))
    if found.more:
        say(f"governor: there are more: `governor list --after {found.runs[-1].uid}`", err=True)


@click.command("reload", short_help="Have the daemon read its configuration.")
@ask.json_option
@click.pass_obj
def reload(broker: str | None, *, as_json: bool) -> None:
    """Have the daemon read its configuration again, all or nothing. Exit 78, with all faults, when it is refused."""
    found = ask.ask(broker, lambda executor: executor.reload())
    if as_json:
        display.print_json(found)
    else:
        say(f"{', '.join(found.changed) or 'nothing'} changed")
