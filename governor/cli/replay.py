"""`governor replay RUN`: replay the record of a run in the state machine, and show the first difference."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from governor.cli import ask
from governor.cli.rendering import display
from governor.cli.rendering.lines import counted, say
from governor.errors import ExitCode

if TYPE_CHECKING:
    from governor.executor import Executor
    from governor.runs.record.replay import Replayed


@click.command("replay", short_help="Check a record against the state machine.")
@ask.run_argument
@ask.json_option
@click.pass_context
def command(ctx: click.Context, *, uid: str, as_json: bool) -> None:
    """Replay the record of RUN in the state machine; exit 0 when both agree, 1 when not.

    A run in work is replayed up to its last event.
    """
    found = ask.ask(ctx.obj, lambda executor: _replay(executor, uid))
    if as_json:
        display.print_json(found)
    else:
        far = "" if found.ended else f", now {found.state}"
        say(
            f"run {found.uid}: {counted(found.events, 'event')}, {counted(found.steps, 'step')} of the machine, "
            f"{counted(found.invocations, 'invocation')} of the daemon{far}"
        )
        say(_verdict(found))
    ctx.exit(ExitCode.DONE if found.difference is None else ExitCode.RUN_ENDED_BADLY)


def _verdict(found: Replayed) -> str:
    if found.difference is None:
        return "the record agrees with the machine"
    first = found.difference
    return f"first difference, event {first.seq} {first.kind}: expected {first.expected}; recorded {first.recorded}"


async def _replay(executor: Executor, uid: str) -> Replayed:
    from governor.runs.record.replay import Replay  # noqa: PLC0415  # the machine: not for --help

    [run] = (await executor.status(uid)).runs
    replay = Replay(run.uid)
    async for event in executor.watch(run.uid, follow=False):
        if not replay.take(event):
            break
    return replay.end()
