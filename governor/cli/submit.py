"""`governor submit FILE`: submit a run to the daemon."""

from __future__ import annotations

from pathlib import Path

import click

from governor.cli import ask
from governor.cli.hand_in import hand_in, options


@click.command("submit")
@click.argument("file", type=click.Path(path_type=Path))
@options
@ask.json_option
@click.pass_context
def command(
    ctx: click.Context, *, file: Path, key: str | None, watch: bool, wait: bool, as_json: bool
) -> None:
    """Submit the run of FILE to the daemon and print its id."""
    from governor.cli.check import checked  # noqa: PLC0415  # pydantic: not for --help

    run = checked(file, here=False)
    hand_in(ctx, lambda executor: executor.submit(run, key=key), watch=watch, wait=wait, as_json=as_json)
