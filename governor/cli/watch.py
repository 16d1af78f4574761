"""`governor watch RUN`: follow a run to its end. Ctrl-C detaches."""

from __future__ import annotations

import click

from governor.cli import ask, groups
from governor.cli.rendering import display
from governor.cli.rendering.lines import say


@click.command("watch", short_help="Follow a run to its end.")
@ask.run_argument
@click.option(
    "--after",
    metavar="SEQ",
    type=ask.NUMBER,
    default=0,
    help="Show events above this number only.",
)
@ask.json_option
@click.pass_context
def command(ctx: click.Context, *, uid: str, after: int, as_json: bool) -> None:
    """Follow RUN, or a group of runs, to its end; exit 0 when it finished, 1 when it ended badly. Ctrl-C detaches only."""
    if groups.is_group(uid):
        groups.watch(ctx, uid, as_json=as_json)
        return
    shown = display.choose(as_json=as_json)
    try:
        end = ask.ask(ctx.obj, lambda executor: ask.follow(executor, uid, display=shown, after=after))
    except KeyboardInterrupt:
        ask.detach(ctx, uid)
        return
    if as_json and end is not None:
        display.print_json(end)
    elif end is not None and end.outcome != "interrupted":
        say(f"run {uid} {end.outcome}; `governor results {uid}` shows its result")
    ask.finish(ctx, uid, end)
