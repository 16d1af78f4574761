"""The verbs that ask the daemon one question: `status`, `explain`, `list`, `pause`, `continue`, `abort`, `reload`."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from governor.cli import ask
from governor.cli.rendering import display
from governor.cli.rendering.lines import clean, say
from governor.messages import Done
from governor.units import durations

if TYPE_CHECKING:
    from governor.messages import Changed, ExplainedLine


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


reason_option = click.option("--reason", default="", help="Kept in the run's record.")
dry_run_option = click.option(
    "--dry-run", is_flag=True, help="Say whether that would change something, and change nothing."
)


@click.command("pause", short_help="Begin nothing further of a run.")
@ask.run_argument
@click.option("--hard", is_flag=True, help="Interrupt what runs, and leave the slot to others.")
@reason_option
@dry_run_option
@ask.json_option
@click.pass_obj
def pause(broker: str | None, *, uid: str, hard: bool, reason: str, dry_run: bool, as_json: bool) -> None:
    """Have no further episode or task of RUN begin, until `governor continue RUN`, also over a restart of the daemon. What runs, ends;
    with --hard it is interrupted, and done again later.
    """
    found = ask.ask(broker, lambda executor: executor.pause(uid, reason, hard=hard, dry_run=dry_run))
    _say_changed(found, "is paused", "is paused already", as_json=as_json)


@click.command("continue", short_help="End the pause of a run.")
@ask.run_argument
@reason_option
@dry_run_option
@ask.json_option
@click.pass_obj
def go_on(broker: str | None, *, uid: str, reason: str, dry_run: bool, as_json: bool) -> None:
    """Have a paused RUN go on, also where one of its conditions has asked for the pause."""
    found = ask.ask(broker, lambda executor: executor.continue_(uid, reason, dry_run=dry_run))
    _say_changed(found, "goes on", "is not paused", as_json=as_json)


def _say_changed(found: Changed, done: str, was: str, *, as_json: bool) -> None:
    if as_json:
        display.print_json(found)
    elif found.dry_run and found.changed:
        say(f"run {found.uid} is {found.state}: that would change it")
    else:
        say(f"run {found.uid} {done if found.changed else was}")


@click.command("abort", short_help="End a run in order.")
@ask.run_argument
@reason_option
@ask.json_option
@click.pass_obj
def abort(broker: str | None, *, uid: str, reason: str, as_json: bool) -> None:
    """Abort RUN. Its end is an event of the run: `governor watch RUN` waits for it."""
    ask.ask(broker, lambda executor: executor.abort(uid, reason=reason))
    if as_json:
        display.print_json(Done())
    else:
        say(f"run {uid} is being aborted; `governor watch {uid}` waits for its end")


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
