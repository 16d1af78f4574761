"""`governor reload`: the daemon reads its configuration again; returns when that is in force, or was refused."""

from __future__ import annotations

import click

from governor.cli import ask, display


@click.command("reload")
@ask.json_option
@click.pass_obj
def command(broker: str | None, *, as_json: bool) -> None:
    """Have the daemon read its configuration again, all or nothing. Exit 78, with all faults, when it is refused."""
    found = ask.ask(broker, lambda executor: executor.reload())
    if as_json:
        display.print_json(found)
    else:
        click.echo(f"{', '.join(found.changed) or 'nothing'} changed")
