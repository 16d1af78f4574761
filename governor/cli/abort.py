"""`governor abort RUN`: end a run now, in order."""

from __future__ import annotations

import click

from governor.cli import ask, display
from governor.messages import Done


@click.command("abort")
@ask.run_argument
@click.option("--reason", default="", help="Kept in the run's record.")
@ask.json_option
@click.pass_obj
def command(broker: str | None, *, uid: str, reason: str, as_json: bool) -> None:
    """Abort RUN. Its end is an event of the run: `governor watch RUN` waits for it."""
    ask.ask(broker, lambda executor: executor.abort(uid, reason=reason))
    if as_json:
        display.print_json(Done())
    else:
        click.echo(f"run {uid} is being aborted; `governor watch {uid}` waits for its end")
