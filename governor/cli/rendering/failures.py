"""Failures for people: by cause under a result, and one by one with their tracebacks.

Rule: what user code wrote is cleaned line by line before it is printed.
"""

from __future__ import annotations

import shlex
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, Final

import click

from governor.cli.rendering.lines import clean, clean_lines, say
from governor.locations import CLIENT_SOCKET

if TYPE_CHECKING:
    from rich.console import RenderableType

    from governor.executor import Executor
    from governor.messages import Failure, FailureList, PhaseResult, RunResult

LIMIT: Final = 20
LOOKED_AT: Final = 20
"""The first failures of a run, among which the one with a traceback is looked for that is shown at its end."""


def groups(phase: PhaseResult) -> list[RenderableType]:
    """The causes of a phase's failures, the most frequent ones first."""
    from rich.text import Text  # noqa: PLC0415  # for a table alone

    from governor.cli.rendering.columns import TableColumns  # noqa: PLC0415  # as above

    if not phase.failures:
        return []
    table = TableColumns(f"{clean(phase.name)}: failures", "outcome", "kind", "first", "reason")
    for group in phase.failures:
        reason = "of other causes" if group.others else group.reason
        cells = (f"{group.number}", group.outcome, group.failure_kind or "-", group.first, reason)
        table.add(*(Text(clean(cell)) for cell in cells))
    shown = sum(group.number for group in phase.failures if group.kind != "attempt")
    left = phase.failed - shown
    return ["", table, *([Text(f"and {left} more, of other causes", style="dim")] if left > 0 else [])]


def deaths(result: RunResult) -> list[RenderableType]:
    """The conductors that died, also if others took their places."""
    from rich.text import Text  # noqa: PLC0415  # for a table alone

    from governor.cli.rendering.columns import TableColumns  # noqa: PLC0415  # as above

    if not result.deaths:
        return []
    table = TableColumns("died", "process", "reason")
    for group in result.deaths:
        table.add(*(Text(clean(cell)) for cell in (f"{group.number}", group.first, group.reason)))
    return ["", table]


def has_any(result: RunResult) -> bool:
    """Whether `--failures` has something to list."""
    return bool(result.deaths) or any(phase.failures for phase in result.phases)


def show(found: FailureList, *, phase: str | None, limit: int) -> None:
    """Prints a page, each traceback once."""
    if not found.failures:
        say(f"run {found.uid} has no failures on record" + (f" of phase {phase!r}" if phase else ""))
    told: dict[str, int] = {}
    for failure in found.failures:
        click.echo(_line(failure))
        key = failure.traceback
        if key in told:
            click.echo(f"    (the traceback of #{told[key]})\n")
        elif key in found.tracebacks:
            told[key] = failure.event
            click.echo(indented(found.tracebacks[key]) + "\n")
        elif key:
            click.echo("    (its traceback was not kept: the run has too many different ones)\n")
    if found.more:
        options = f" --phase {clean(phase)!r}" if phase else ""
        options += f" --limit {limit}" if limit != LIMIT else ""
        say(f"more: governor results {found.uid} --failures{options} --after {found.failures[-1].event}")


async def show_end(executor: Executor, result: RunResult, *, state_dir: Path | None = None) -> None:
    """At the end of a run that failed, the traceback of its first failure that has one; of any run, how to see all failures. On
    standard error. `state_dir` is that of a run without a daemon.
    """
    first = None
    if result.outcome == "failed":
        found = await executor.failures(result.uid, limit=LOOKED_AT)
        first = next((failure for failure in found.failures if failure.traceback in found.tracebacks), None)
        if first is not None:
            click.echo(f"\nThe first failure, {_line(first)}", err=True)
            click.echo(indented(found.tracebacks[first.traceback]), err=True)
    if first is not None or has_any(result):
        show_hint(result.uid, state_dir=state_dir)


def show_hint(uid: str, *, state_dir: Path | None = None, err: bool = True) -> None:
    """How to see all failures of a run that has some; of one without a daemon beside another daemon, too."""
    if state_dir is None:
        say(f"All failures, with their tracebacks: governor results {uid} --failures", err=err)
        return
    # Below the state folder the paths of sockets may be too long.
    sockets = Path(tempfile.gettempdir()) / f"governor-{uid}"
    serve = shlex.join(["governor", "serve", "--state-dir", str(state_dir), "--runtime-dir", str(sockets)])
    ask = shlex.join(["governor", "--broker", str(sockets / CLIENT_SOCKET), "results", uid, "--failures"])
    say(f"The report has each cause with its traceback. All failures: {serve}, and then {ask}", err=err)


def _line(failure: Failure) -> str:
    where = f"{failure.phase} " if failure.phase else ""
    reason = f": {failure.reason}" if failure.reason else ""
    kind = f" ({failure.failure_kind})" if failure.failure_kind else ""
    return clean(f"#{failure.event} {where}{failure.what}, {failure.outcome}{kind}{reason}")


def indented(traceback: str) -> str:
    """For a terminal, below the line of its failure."""
    return "\n".join(f"    {one}" for one in clean_lines(traceback).split("\n"))
