"""`governor results RUN`: what came out of a run that has ended."""

from __future__ import annotations

import click

from governor.cli import ask, display


@click.command("results")
@ask.run_argument
@ask.json_option
@click.pass_obj
def command(broker: str | None, *, uid: str, as_json: bool) -> None:
    """Show the result of RUN: its outcome, phases, metrics and tasks."""
    found = ask.ask(broker, lambda executor: executor.result(uid))
    if as_json:
        display.print_json(found)
        return
    from governor.cli import tables  # noqa: PLC0415  # rich: not for --json

    tables.show(tables.result(found))
