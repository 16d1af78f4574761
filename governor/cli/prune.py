"""`governor prune`: let ended runs go."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import TYPE_CHECKING

import click
import msgspec

from governor.cli import ask, display
from governor.errors import NotPermitted, UsageError
from governor.units import sizes

if TYPE_CHECKING:
    from governor.messages import Pruned


@click.command("prune")
@click.option("--keep-runs", type=click.IntRange(min=0), metavar="N", help="The newest N ended runs stay.")
@click.option(
    "--keep-days", type=click.FloatRange(min=0), metavar="D", help="What ended within D days stays, too."
)
@click.option("--dry-run", is_flag=True, help="Say what would go, and let nothing go.")
@click.option(
    "--state-dir",
    type=click.Path(path_type=Path, exists=True, file_okay=False),
    metavar="FOLDER",
    help="Prune this state folder, whose daemon does not run: for want of room, say.",
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
    """Remove ended runs, their record and their files. Without --keep-runs and --keep-days, as the daemon's configuration
    says (keep_runs, keep_days). Their keys stay known: none starts a second run.
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
        said = f"{runs} would be pruned, {files}"
    elif found.removed:
        said = f"{runs} pruned, {files} removed"
    else:
        said = f"{runs} marked, the daemon is removing {files}"
    click.echo(f"governor: {said}", err=True)


async def _without_daemon(
    state_dir: Path, keep_runs: int | None, keep_days: float | None, *, dry_run: bool
) -> Pruned:
    from governor.daemon.state_lock import StateLock  # noqa: PLC0415  # as above
    from governor.journal import schema  # noqa: PLC0415  # not for --help
    from governor.journal.journal import Journal  # noqa: PLC0415  # as above
    from governor.journal.retention import Pruner, RetentionPolicy, requested_policy  # noqa: PLC0415  # as above

    keep = requested_policy(keep_runs, keep_days, otherwise=RetentionPolicy())
    path = state_dir / "governor.db"
    if not path.exists():
        raise UsageError(f"{state_dir} has no journal")
    with StateLock(state_dir):
        schema.examine(path)
        journal = Journal(path)
        try:
            pruner = Pruner(journal, state_dir / "runs")
            found = await pruner.prune(keep, dry_run=dry_run)
            if dry_run:
                return found
            await pruner.finish()
            if left := journal.marked():
                raise NotPermitted(
                    f"files of {', '.join(left)} below {state_dir / 'runs'} can't be removed: check their owners"
                )
            return msgspec.structs.replace(found, removed=True)
        finally:
            await journal.close()
