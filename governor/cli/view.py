"""`governor view [RUN]`: the page of a report, live, in a browser on this machine. Ctrl-C ends it, and no run."""

from __future__ import annotations

import asyncio
import json
from typing import TYPE_CHECKING

import click

from governor.cli import ask
from governor.cli.rendering import lines

if TYPE_CHECKING:
    from collections.abc import Callable


@click.command("view", short_help="Show the runs live in a browser.")
@click.argument("uid", metavar="[RUN]", required=False)
@click.option(
    "--port",
    type=click.IntRange(0, 65535),
    default=0,
    show_default=True,
    help="Of 127.0.0.1; 0 takes a free one.",
)
@ask.json_option
@click.pass_obj
def command(broker: str | None, *, uid: str | None, port: int, as_json: bool) -> None:
    """Serve the page of `governor report` for all runs of the daemon, live, until Ctrl-C; first RUN, by default the newest.

    It listens on this machine alone, changes nothing, and shows the runs to whoever has the address: that has a token in it.
    """

    def show(url: str) -> None:
        lines.say(json.dumps({"url": url}) if as_json else f"View: {url}\nCtrl-C ends the view, and no run.")

    asyncio.run(_serve(broker, uid, port, show))


async def _serve(broker: str | None, uid: str | None, port: int, show: Callable[[str], None]) -> None:
    from governor.executor import Executor  # noqa: PLC0415  # not for `--help`
    from governor.report.live import Live  # noqa: PLC0415  # as above
    from governor.report.server import PageServer  # noqa: PLC0415  # as above

    async with Executor(broker, patience=0.0) as executor:
        report = await executor.status(uid)  # before anything is printed: is there a daemon, and the run?
        first = report.runs[0].uid if uid is not None else None
        async with PageServer(Live(executor), first=first).listening(port) as server:
            show(server.url)
            await asyncio.Event().wait()
