"""`governor results RUN`: the result of a run, also so far; its rows; its failures."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Literal

import click
import msgspec

from governor.cli import ask, groups
from governor.cli.rendering import display, lines
from governor.errors import UsageError

if TYPE_CHECKING:
    from governor.cli.curves import Axis
    from governor.cli.rendering.exports import Format
    from governor.messages import RunResult
    from governor.rows import Rows


@click.command("results", short_help="Show results, failures, curves, episodes.")
@ask.run_argument
@ask.json_option
@click.option(
    "--format",
    "form",
    type=click.Choice(["table", "json", "csv", "parquet"]),
    help="The format of the output; json is the same as --json.  [default: table]",
)
@click.option(
    "--of",
    "rows",
    type=click.Choice(["episodes", "tasks", "steps", "runs"]),
    help="One row for each of these, instead of the whole result; csv and parquet take episodes by default. Runs are of a group.",
)
@click.option(
    "--metric",
    "metrics",
    metavar="NAME",
    multiple=True,
    help="Of a group: show this metric, as return_mean; the best values are those of the first one.",
)
@click.option("--lowest", is_flag=True, help="With --metric: the lowest mean is the best.")
@click.option(
    "--curve",
    metavar="METRIC",
    help="How this metric went: return, steps, a metric of yours; also while RUN is at work.",
)
@click.option(
    "--by",
    type=click.Choice(["episode", "step", "time"]),
    help="The axis of the plot of --curve.  [default: episode]",
)
@click.option(
    "--failures",
    is_flag=True,
    help="List what has failed, with tracebacks, in the order in which it happened.",
)
@click.option("--phase", metavar="NAME", help="Of this phase alone.")
@click.option(
    "--limit",
    type=click.IntRange(1, 1000),
    help="With --failures: so many at most.  [default: 20]",
)
@click.option("--after", metavar="N", type=ask.NUMBER, help="With --failures: those after number N.")
@click.option(
    "--output",
    type=click.Path(path_type=Path),
    metavar="FILE",
    help="Write there instead of to standard output.",
)
@click.pass_obj
def command(
    broker: str | None,
    *,
    uid: str,
    as_json: bool,
    form: Format | None,
    rows: Rows | Literal["runs"] | None,
    metrics: tuple[str, ...],
    lowest: bool,
    curve: str | None,
    by: Axis | None,
    failures: bool,
    phase: str | None,
    limit: int | None,
    after: int | None,
    output: Path | None,
) -> None:
    """Show the result of RUN: its outcome, phases, metrics, tasks and causes of failures; or its episodes, tasks or steps, row by
    row; or its failures, one by one.

    Of a run in work it is what has ended so far. Episodes and steps are read in the run's folder; of a daemon on another machine they are
    copied first. Of a group of runs it is one line for its runs that differ in their seeds alone, with the mean of each metric and its confidence interval.
    """
    if as_json and form not in (None, "json"):
        raise UsageError(f"--json and --format {form} contradict each other")
    form = "json" if as_json else form or "table"
    _require_fitting(
        (curve is not None and any((rows, output)), "--curve goes without --of and --output"),
        (curve is None and by is not None, "--by goes with --curve METRIC"),
        (
            failures and (any((rows, output, curve)) or form not in ("table", "json")),
            "--failures lists failures alone: without --of, --curve, --output, and as table or json",
        ),
        (not failures and (limit, after) != (None, None), "--limit and --after go with --failures"),
    )
    _require_fitting(
        (lowest and not metrics, "--lowest goes with --metric NAME"),
        (
            groups.is_group(uid) and any((curve, failures)),
            "--curve and --failures are of one run: `governor list --group` has the runs of a group",
        ),
        (
            not groups.is_group(uid) and (rows == "runs" or bool(metrics)),
            "--of runs and --metric are of a group of runs",
        ),
    )
    if groups.is_group(uid):
        groups.results(
            broker, uid, metrics=metrics, lowest=lowest, form=form, phase=phase, output=output, rows=rows
        )
        return
    if curve is not None:
        from governor.cli import curves  # noqa: PLC0415  # not for the result

        curves.show(broker, uid, curve, phase=phase, by=by, form=form)
        return
    if failures:
        _list_failures(broker, uid, phase=phase, limit=limit, after=after or 0, as_json=form == "json")
        return
    if rows is None and form in ("csv", "parquet"):
        rows = "episodes"
    _require_fitting(
        (
            rows is None and any((phase, output)),
            "--phase goes with rows, --curve or --failures, and --output with rows: say of what with --of",
        )
    )
    found = ask.ask(broker, lambda executor: executor.result(uid, so_far=True))
    if rows is not None and rows != "runs":
        from governor.cli.rendering import exports  # noqa: PLC0415  # Arrow: not for the result alone

        exports.export(_with_files(broker, found, rows), rows, form=form, phase=phase, output=output)
    else:
        display.show_result(found, as_json=form == "json")
        if form != "json":
            from governor.cli.rendering import failures as listing  # noqa: PLC0415  # not for --json

            if listing.has_any(found):
                listing.show_hint(found.uid, err=False)
        if form != "json" and (page := Path(found.folder) / "report.html").exists():
            lines.say(f"Report: {page}")


def _with_files(broker: str | None, found: RunResult, rows: Rows) -> RunResult:
    """Its `folder` is on this machine: of a daemon elsewhere a copy."""
    if not ask.is_elsewhere(broker):
        return found
    folder = ask.ask(broker, lambda executor: executor.files(found.uid, steps=rows == "steps"))
    return msgspec.structs.replace(found, folder=str(folder))


def _require_fitting(*faults: tuple[bool, str]) -> None:
    """Raises UsageError for the first fault that is there."""
    for is_there, fault in faults:
        if is_there:
            raise UsageError(fault)


def _list_failures(
    broker: str | None, uid: str, *, phase: str | None, limit: int | None, after: int, as_json: bool
) -> None:
    from governor.cli.rendering import failures  # noqa: PLC0415  # not for the result alone

    most = limit or failures.LIMIT
    found = ask.ask(broker, lambda executor: executor.failures(uid, phase=phase, after=after, limit=most))
    if as_json:
        display.print_json(found)
    else:
        failures.show(found, phase=phase, limit=most)
