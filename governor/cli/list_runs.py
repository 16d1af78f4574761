"""`governor list`: all runs of this daemon."""

from __future__ import annotations

import click

from governor.cli import ask, display


@click.command("list")
@click.option(
    "--limit", type=click.IntRange(min=1, max=10_000), default=100, show_default=True, help="At most so many."
)
@ask.json_option
@click.pass_obj
def command(broker: str | None, *, limit: int, as_json: bool) -> None:
    """List the runs of the daemon, ended ones too."""
    found = ask.ask(broker, lambda executor: executor.list(limit))
    if as_json:
        display.print_json(found)
        return
    from governor.cli import tables  # noqa: PLC0415  # rich: not for --json

    tables.show(tables.runs(found))
