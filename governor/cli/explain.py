"""`governor explain RUN`: the activities and waits of a run, since when, and until when at most."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from governor.cli import ask, display
from governor.cli.lines import clean
from governor.units import durations

if TYPE_CHECKING:
    from governor.messages import ExplainedLine


@click.command("explain")
@ask.run_argument
@ask.json_option
@click.pass_obj
def command(broker: str | None, *, uid: str, as_json: bool) -> None:
    """Show what RUN is doing, what it waits for, since when, and until when at most."""
    found = ask.ask(broker, lambda executor: executor.explain(uid))
    if as_json:
        display.print_json(found)
        return
    click.echo(clean(f"run {found.uid} ({found.name})"))
    for line in found.lines:
        click.echo(f"  {_text_of(line, now=found.at)}")


def _text_of(line: ExplainedLine, *, now: float) -> str:
    since = "" if line.since is None else f" - for {durations.text(max(now - line.since, 0.0))}"
    until = "" if line.until is None else f", {durations.text(max(line.until - now, 0.0))} more at most"
    return f"{clean(line.what)}{since}{until}"
