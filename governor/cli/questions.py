"""The verbs that ask the daemon one question: `status`, `explain`, `list`, `reload`."""

from __future__ import annotations

import shlex
from typing import TYPE_CHECKING

import click

from governor.cli import ask, matrix
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
@click.option("--group", metavar="GROUP", help="Only runs of this group, with their values of its matrix.")
@click.option(
    "--label",
    "labels",
    metavar="KEY=VALUE",
    multiple=True,
    help="Only runs with this label; may be given several times.",
)
@click.option(
    "--state", metavar="STATE", help="Only runs that are queued, running, finished, failed and so on."
)
@click.option(
    "--param",
    "params",
    metavar="PATH",
    multiple=True,
    help="Show this value of a matrix: its path, or the end of it.",
)
@click.option("--metric", "metrics", metavar="NAME", multiple=True, help="Show this metric, as return_mean.")
@click.option(
    "--sort",
    metavar="KEY",
    help="By a metric, a value of a matrix, or seconds, name, submitted, started, ended; the lowest first.",
)
@click.option("--descending", is_flag=True, help="With --sort: the highest first.")
@ask.json_option
@click.pass_obj
def list_runs(
    broker: str | None,
    *,
    limit: int,
    after: str | None,
    group: str | None,
    labels: tuple[str, ...],
    state: str | None,
    params: tuple[str, ...],
    metrics: tuple[str, ...],
    sort: str | None,
    descending: bool,
    as_json: bool,
) -> None:
    """List the runs of the daemon, newest first, ended ones too. Where there are more than --limit, the last line says how to
    list the next ones.
    """
    wanted = matrix.labels_of(labels)
    found = ask.ask(
        broker,
        lambda executor: executor.list(
            limit, after=after, group=group, labels=wanted, state=state, sort=sort, descending=descending
        ),
    )
    if as_json:
        display.print_json(found)
        return
    from governor.cli.rendering import tables  # noqa: PLC0415  # rich: not for --json

    tables.show(tables.runs(found, params=params, metrics=metrics, of_group=group is not None))
    if found.more and sort is None:
        only = [("--group", group), *(("--label", text) for text in labels), ("--state", state)]
        options = [word for name, value in only if value is not None for word in (name, value)]
        again = shlex.join(["governor", "list", *options, "--after", found.runs[-1].uid])
        say(f"governor: there are more: `{again}`", err=True)
    elif found.more:
        say("governor: there are more: a higher --limit shows them", err=True)


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
