"""`governor status [RUN]`: the daemon, its runs, and what they wait for."""

from __future__ import annotations

import click

from governor.cli import ask, display


@click.command("status")
@click.argument("uid", metavar="[RUN]", required=False)
@ask.json_option
@click.pass_obj
def command(broker: str | None, *, uid: str | None, as_json: bool) -> None:
    """Show the daemon and its runs, or one RUN with its processes."""
    report = ask.ask(broker, lambda executor: executor.status(uid))
    if as_json:
        display.print_json(report)
        return
    from governor.cli import tables  # noqa: PLC0415  # rich: not for --json

    tables.show(tables.status(report, conductors=uid is not None))
