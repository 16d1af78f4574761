"""`governor submit FILE`: hand a run to the daemon."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import click

from governor.cli import ask, display
from governor.messages import Submitted

if TYPE_CHECKING:
    from governor.executor import Executor
    from governor.messages import WatchEnd


@click.command("submit")
@click.argument("file", type=click.Path(path_type=Path))
@click.option("--key", help="Submitting again with the same key gives the same run.")
@click.option(
    "--watch", is_flag=True, help="Follow the run to its end and exit by its outcome. Ctrl-C detaches only."
)
@click.option("--wait", is_flag=True, help="As --watch, but show the result only.")
@ask.json_option
@click.pass_context
def command(
    ctx: click.Context, *, file: Path, key: str | None, watch: bool, wait: bool, as_json: bool
) -> None:
    """Hand the run of FILE to the daemon and print its id."""
    from governor.cli.check import checked  # noqa: PLC0415  # pydantic: not for --help

    checked(file)
    taken: list[str] = []

    async def submit(executor: Executor) -> WatchEnd | None:
        uid = await executor.submit(file, key=key)
        taken.append(uid)
        if as_json:
            display.print_json(Submitted(uid=uid))
        else:
            click.echo(f"run {uid}" if watch or wait else uid)
        if not (watch or wait):
            return None
        shown = display.choose(as_json=as_json, quiet=wait and not watch)
        end = await ask.follow(executor, uid, display=shown)
        await _show_end(executor, uid, end, as_json=as_json)
        return end

    try:
        end = ask.ask(ctx.obj, submit)
    except KeyboardInterrupt:
        if not taken:
            raise
        ask.detach(ctx, taken[0])
        return
    if watch or wait:
        ask.finish(ctx, taken[0], end)


async def _show_end(executor: Executor, uid: str, end: WatchEnd | None, *, as_json: bool) -> None:
    if end is None or end.outcome == "interrupted":
        return
    found = await executor.result(uid)
    if as_json:
        display.print_json(found)
    else:
        from governor.cli import tables  # noqa: PLC0415  # rich: not for --json

        tables.show(tables.result(found))
