"""`governor resume RUN`: a new run that keeps the results of RUN, and does what failed, timed out or is missing."""

from __future__ import annotations

import click

from governor.cli import ask
from governor.cli.hand_in import hand_in, options


@click.command("resume")
@ask.run_argument
@options
@ask.json_option
@click.pass_context
def command(ctx: click.Context, *, uid: str, key: str | None, watch: bool, wait: bool, as_json: bool) -> None:
    """Start a new run that keeps what RUN has finished, and print its id.

    Tasks that succeeded and episodes that ended by themselves are kept with their values and files, and so is what the
    agents had learned. All else is done: what failed, timed out, was cancelled or never began. RUN must have ended, and
    stays as it is; a run that finished with nothing missing is refused. A run of `governor run` is resumed by
    `governor run --resume RUN`.
    """
    hand_in(ctx, lambda executor: executor.resume(uid, key=key), watch=watch, wait=wait, as_json=as_json)
