"""`governor prune`: remove ended runs."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import TYPE_CHECKING

import click
import msgspec

from governor.cli import ask
from governor.cli.rendering import display
from governor.errors import NotPermitted, UsageError
from governor.locations import JOURNAL, RUNS
from governor.units import sizes

if TYPE_CHECKING:
    from governor.messages import Pruned


@click.command("prune", short_help="Remove ended runs.")
@click.option("--keep-runs", type=ask.NUMBER, metavar="N", help="Keep the newest N ended runs.")
@click.option(
    "--keep-days",
    type=click.FloatRange(0, ask.NUMBER.max),
    metavar="D",
    help="Keep runs that ended within the last D days, too.",
)
@click.option("--dry-run", is_flag=True, help="Show what would be removed, and remove nothing.")
@click.option(
    "--state-dir",
    type=click.Path(path_type=Path, exists=True, file_okay=False),
    metavar="FOLDER",
    help="Prune this state folder, whose daemon is not running: when its disk is full, for example.",
)
@ask.json_option
@click.pass_obj
def command(
    broker: str | None,
    *,
    keep_runs: int | None,
    keep_days: float | None,
    dry_run: bool,
    state_dir: Path | None,
    as_json: bool,
) -> None:
    """Remove ended runs, their records and their files. Without --keep-runs and --keep-days, by the daemon's configuration
    (keep_runs, keep_days). Their keys stay known: none starts a second run.
    """
    if state_dir is not None:
        found = asyncio.run(_without_daemon(state_dir, keep_runs, keep_days, dry_run=dry_run))
    else:
        found = ask.ask(broker, lambda executor: executor.prune(keep_runs, keep_days, dry_run=dry_run))
    if as_json:
        display.print_json(found)
        return
    for uid in found.uids:
        click.echo(uid)
    runs = f"{len(found.uids)} run{'' if len(found.uids) == 1 else 's'}"
    files = f"{sizes.text(found.bytes)} of files"
    if dry_run:
        text = f"{runs} would be pruned, {files}"
    elif found.removed:
        text = f"{runs} pruned, {files} removed"
    else:
        text = f"{runs} marked, the daemon is removing {files}"
    click.echo(f"governor: {text}", err=True)


async def _without_daemon(
    state_dir: Path, keep_runs: int | None, keep_days: float | None, *, dry_run: bool
) -> Pruned:
    from governor.daemon.state_lock import state_lock  # noqa: PLC0415  # as above
    from governor.journal import schema  # noqa: PLC0415  # not for --help
    from governor.journal.journal import Journal  # noqa: PLC0415  # as above
    from governor.journal.retention import Pruner, RetentionPolicy, requested_policy  # noqa: PLC0415  # as above

    keep = requested_policy(keep_runs, keep_days, otherwise=RetentionPolicy())
    path = state_dir / JOURNAL
    if not path.exists():
        raise UsageError(f"{state_dir} has no journal")
    with state_lock(state_dir):
        schema.check(path)
        journal = Journal(path)
        try:
            pruner = Pruner(journal, state_dir / RUNS, rest=0.0)
            found = await pruner.prune(keep, dry_run=dry_run)
            if dry_run:
                return found
            await pruner.finish()
            if left := journal.marked():
                raise NotPermitted(
                    f"files of {', '.join(left)} below {state_dir / 'runs'} can't be removed: check who owns them, and their folders; all other runs are pruned"
                )
            return msgspec.structs.replace(found, removed=True)
        finally:
            await journal.close()
