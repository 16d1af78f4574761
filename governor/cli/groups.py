"""The verbs about runs, for a group: its id begins with ``g-``, which that of no run does."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

import click
import msgspec

from governor.cli import ask
from governor.cli.rendering import display
from governor.cli.rendering.lines import clean, counted, say
from governor.errors import UsageError
from governor.messages import GROUP_PREFIX, GroupProgress, SubmittedGroup, WatchEnd

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Sequence
    from pathlib import Path

    from governor.cli.rendering.exports import Format
    from governor.executor import Executor
    from governor.group_results import GroupResult
    from governor.messages import CellStatus, GroupChanged


def is_group(uid: str) -> bool:
    return uid.startswith(GROUP_PREFIX)


# -- following -------------------------------------------------------------------------------------------------


async def follow(executor: Executor, uid: str, *, as_json: bool) -> WatchEnd | None:
    """Shows each run of the group that ends, until all have."""
    end: WatchEnd | None = None
    told = set[str]()
    async for message in executor.watch_group(uid):
        if isinstance(message, GroupProgress):
            new = [cell for cell in message.ended if cell.uid not in told]
            told.update(cell.uid for cell in new)
            _show_progress(msgspec.structs.replace(message, ended=tuple(new)), as_json=as_json)
        else:
            end = message
    return end


def _show_progress(message: GroupProgress, *, as_json: bool) -> None:
    if as_json:
        display.print_json(message)
        return
    for cell in message.ended:
        say(clean(_ended(cell)))
    counts = ", ".join(f"{number} {state}" for state, number in sorted(message.counts.items()))
    say(f"{message.uid}: {counts}", err=True)


def _ended(cell: CellStatus) -> str:
    from governor.units import durations  # noqa: PLC0415  # for this alone
    from governor.units.paths import titled  # noqa: PLC0415  # as above

    took = "" if cell.seconds is None else f" in {durations.text(cell.seconds)}"
    return f"run {cell.uid} ({titled(cell.params)}) {cell.state}{took}{f': {cell.reason}' if cell.reason else ''}"


def watch(ctx: click.Context, uid: str, *, as_json: bool) -> None:
    """Exits as `governor watch` of a run does: 1 if one of its runs ended badly."""
    try:
        end = ask.ask(ctx.obj, lambda executor: follow(executor, uid, as_json=as_json))
    except KeyboardInterrupt:
        ask.detach(ctx, uid, what="group")
        return
    if as_json and end is not None:
        display.print_json(end)
    elif end is not None and end.outcome != "interrupted":
        say(f"group {uid} has ended; `governor results {uid}` shows its results")
    ask.finish(ctx, uid, end, what="group")


def submit(
    ctx: click.Context,
    begin: Callable[[Executor], Awaitable[SubmittedGroup]],
    *,
    watch: bool,
    wait: bool,
    as_json: bool,
) -> None:
    """`begin` returns what was submitted."""
    submitted: list[str] = []

    async def asked(executor: Executor) -> WatchEnd | None:
        group = await begin(executor)
        submitted.append(group.uid)
        if as_json:
            display.print_json(group)
        elif watch or wait:
            say(f"group {group.uid}: {counted(len(group.runs), 'run')}")
        else:
            say(group.uid)
        if watch:
            end = await follow(executor, group.uid, as_json=as_json)
        elif wait:
            end = await _until_end(executor, group.uid)
        else:
            return None
        if end is not None and end.outcome != "interrupted":
            found = await executor.results_group(group.uid)
            _show_results(found, (), lowest=False, form="json" if as_json else "table")
        return end

    ask.follow_submitted(ctx, asked, submitted, follows=watch or wait, what="group")


def resume(ctx: click.Context, uid: str, *, key: str | None, watch: bool, wait: bool, as_json: bool) -> None:
    """Of each cell whose last run has failed or was aborted."""
    if key is not None:
        raise UsageError("--key is for one run: what is resumed of a group already, is not resumed again")
    if not (watch or wait):
        found = ask.ask(ctx.obj, lambda executor: executor.resume_group(uid))
        if as_json:
            display.print_json(found)
        elif found.changed:
            say("\n".join(found.runs))
        else:
            say(f"nothing of group {found.uid} is missing")
        return

    async def begin(executor: Executor) -> SubmittedGroup:
        found = await executor.resume_group(uid)
        return SubmittedGroup(uid=found.uid, runs=found.runs)

    submit(ctx, begin, watch=watch, wait=wait, as_json=as_json)


async def _until_end(executor: Executor, uid: str) -> WatchEnd | None:
    end: WatchEnd | None = None
    async for message in executor.watch_group(uid):
        end = message if isinstance(message, WatchEnd) else end
    return end


# -- steering --------------------------------------------------------------------------------------------------


def say_changed(found: GroupChanged, done: str, *, as_json: bool) -> None:
    """``3 runs of group g-... are paused``; `done` is for several."""
    if as_json:
        display.print_json(found)
    elif found.dry_run:
        say(f"{counted(found.changed, 'run')} of group {found.uid} would change")
    elif not found.changed:
        say(f"no run of group {found.uid} has changed: all were so already, or have ended")
    else:
        is_one = found.changed == 1
        text = done.replace("are ", "is ", 1).replace("go on", "goes on") if is_one else done
        say(f"{counted(found.changed, 'run')} of group {found.uid} {text}")


# -- results ---------------------------------------------------------------------------------------------------


def results(
    broker: str | None,
    uid: str,
    *,
    metrics: Sequence[str],
    lowest: bool,
    form: Format,
    phase: str | None,
    output: Path | None,
    rows: str | None,
) -> None:
    """Its lines, or with `rows` its runs."""
    if rows not in (None, "runs"):
        raise UsageError(
            f"a group has no {rows}: `governor list --group {uid}` has its runs, --of runs their metrics"
        )
    found = ask.ask(broker, lambda executor: executor.results_group(uid, phase=phase))
    if rows is None and output is None and form in ("table", "json"):
        _show_results(found, metrics, lowest=lowest, form=form)
        return
    from governor.cli.rendering import exports  # noqa: PLC0415  # Arrow: for tables alone

    table = found.table(metrics or None) if rows is None else found.runs(metrics or None)
    exports.export_table(table, form=form, output=output)


def _show_results(found: GroupResult, metrics: Sequence[str], *, lowest: bool, form: Format) -> None:
    best = found.all_best(metrics[0], lowest=lowest) if metrics else []
    if form == "json":
        document = msgspec.to_builtins(found)
        document["best"] = msgspec.to_builtins(best[0]) if best else None
        click.echo(json.dumps(document))
        return
    from governor.cli.rendering import groups, tables  # noqa: PLC0415  # rich: not for --json

    tables.show(groups.lines_of(found, metrics, best=best))
