"""Tables for people: the daemon, runs, one run, a result. Each function returns what rich prints; nothing is fetched here."""

from __future__ import annotations

import shlex
import time
from collections import Counter
from typing import TYPE_CHECKING, Any, Final

from rich.console import Console, Group, RenderableType
from rich.text import Text

from governor.cli.rendering import failures
from governor.cli.rendering.columns import TableColumns
from governor.cli.rendering.lines import clean, left, number
from governor.runs.explain import used
from governor.units import durations, sizes
from governor.units.paths import is_end, shortened

if TYPE_CHECKING:
    from collections.abc import Sequence

    from governor.messages import (
        PhaseResult,
        RunCounts,
        RunList,
        RunResult,
        RunStatus,
        StatusReport,
        TaskRecord,
    )

_PIPE_WIDTH = 200
_STYLES = {
    "finished": "green",
    "succeeded": "green",
    "aborted": "yellow",
    "cancelled": "yellow",
    "upstream_failed": "yellow",
}
MOST_METRICS: Final = 64
"""Of the user in the result for people; --json has all."""
MOST_ITEMS: Final = 64
"""Of an array in a row; of a longer one the first three."""
_VALUE_LENGTH = 60


def console() -> Console:
    """Standard output. In a pipe lines are wide and nothing is coloured."""
    out = Console(highlight=False, soft_wrap=False)
    return out if out.is_terminal else Console(highlight=False, width=_PIPE_WIDTH)


def show(renderable: RenderableType) -> None:
    """Prints to standard output."""
    console().print(renderable, crop=False)


def result(found: RunResult) -> Group:
    """The whole result of a run: a summary line, its phases, its tasks, the folder of its files."""
    took = _took(found.seconds, found.started_at or found.submitted_at, found.ended_at)
    head = Text.assemble(
        (clean(f"{found.name} {found.uid}"), "bold"),
        " ",
        _outcome(found.outcome) if found.outcome != "in work" else Text("in work, so far", style="yellow"),
        f" in {took}",
        f": {clean(found.reason)}" if found.reason else "",
    )
    parts: list[RenderableType] = [head]
    parts += [Text(clean(f"resumes {found.parent}"), style="dim")] if found.parent else []
    parts += [Text(clean(f"code: {sentence}"), style="yellow") for sentence in found.code_changed]
    parts += [Text(clean(f"hook {told}"), style="yellow") for told in found.hooks_failed]
    if found.phases:
        parts += ["", _phases(found.phases)]
        asked = [phase for phase in found.phases if ": " in phase.ended_by]  # by a condition of the user
        parts += [Text(clean(f"{phase.name} ended by {phase.ended_by}"), style="dim") for phase in asked]
        again = [phase for phase in found.phases if phase.exact is not None]
        parts += [Text(clean(f"{phase.name} went on {_exactly(phase)}"), style="dim") for phase in again]
    for phase in found.phases:
        if names := names_of_user(phase.metrics):
            parts += ["", _of_user(phase, names)]
    parts += [part for phase in found.phases if phase.tasks for part in ("", _tasks(phase))]
    parts += [part for phase in found.phases for part in failures.groups(phase)]
    parts += failures.deaths(found)
    for phase in found.phases:
        if phase.tasks_file is not None:
            all_of_them = f"governor results {found.uid} --of tasks --phase {shlex.quote(phase.name)}"
            parts += [
                "",
                _unbroken(f"{phase.name}: {sum(phase.task_outcomes.values())} runs of tasks: {all_of_them}"),
            ]
    parts += ["", _unbroken(f"Files of the run: {found.folder}")]
    return Group(*parts)


def of_rows(rows: Sequence[dict[str, Any]], *, more: str) -> Group:
    """A table of rows with the same keys; `more` is a note about further rows."""
    table = TableColumns(*(clean(name) for name in rows[0]))
    for row in rows:
        _row(table, *(_cell(name, value) for name, value in row.items()))
    return Group(table, *([Text(more, style="dim")] if more else []))


def _cell(name: str, value: Any) -> Text | str:
    if name == "outcome" and value:
        return _outcome(value)
    return "-" if value is None or value == "" else _short(_abridged(value))


def _abridged(value: Any) -> Any:
    """The value, with a note in place of each array of more than `MOST_ITEMS` items: a screen has 100,000."""
    if isinstance(value, dict):
        return {name: _abridged(each) for name, each in value.items()}
    if isinstance(value, list):
        return list(map(_abridged, value)) if len(value) <= MOST_ITEMS else _Beginning(value)
    return value


class _Beginning:
    def __init__(self, values: list[Any]) -> None:
        self._values = values

    def __repr__(self) -> str:
        begin = ", ".join(repr(_abridged(each)) for each in self._values[:3])
        return f"[{begin}, ... {len(self._values):,} in all]"


def rendered(renderable: RenderableType) -> str:
    """As `show` would print it."""
    out = console()
    with out.capture() as printed:
        out.print(renderable, crop=False)
    return printed.get()


def status(report: StatusReport, *, conductors: bool) -> Group:
    """The daemon and its runs; `conductors` adds the processes of each run."""
    head = (
        f"governor {report.version} {report.state}, pid {report.pid}, up {durations.text(report.uptime)}, "
        f"{report.slots} slot{'' if report.slots == 1 else 's'}, Ray {report.ray}"
    )
    parts: list[RenderableType] = [
        Text(clean(head), style="bold"),
        _unbroken(report.endpoint),
    ]
    for slot, waits_for in report.quarantined.items():
        parts.append(Text(clean(f"{slot} accepts no run, and waits for {waits_for}"), style="red"))
    if report.runs and report.counts is not None and not conductors:
        parts.append(Text(_counts(report.counts, shown=report.runs)))
    parts += ["", _runs(report.runs)] if report.runs else ["no runs in work or queued"]
    for run in report.runs if conductors else ():
        if run.parent:
            parts += ["", Text(clean(f"{run.uid} resumes {run.parent}"))]
        if run.left:
            parts += ["", Text(clean(left(run.left, run.phase, phases=run.phases)))]
        if run.limits:
            parts += ["", Text(clean(f"{run.uid} has used: {used(run.limits)}"))]
        if run.conductors:
            children = any(one.started for one in run.conductors)
            measured = any(one.memory for one in run.conductors)
            table = TableColumns(
                *("conductor", "kind", "state", "pid", "incarnation"),
                *(["CPU", "memory"] if measured else []),
                *(["has started"] if children else []),
            )
            for one in run.conductors:
                started = [", ".join(map(str, one.started)) or "-"] if children else []
                use = (
                    ["-" if one.cpu is None else f"{one.cpu:.0%}", sizes.text(one.memory or 0)]
                    if measured
                    else []
                )
                _row(table, one.name, one.kind, one.state, one.pid or "-", one.incarnation, *use, *started)
            parts += ["", table]
    return Group(*parts)


def _counts(counts: RunCounts, *, shown: Sequence[RunStatus]) -> str:
    """``1 run in work, 1500 queued (the first 100 are shown)``."""
    queued = sum(run.state == "queued" for run in shown)
    text = f"{counts.in_work} run{'' if counts.in_work == 1 else 's'} in work, {counts.queued} queued"
    text += f" (the first {queued} are shown)" if queued < counts.queued else ""
    named = {"held": counts.held, "damaged": counts.damaged}
    return text + "".join(f", {number} {name}" for name, number in named.items() if number)


def runs(
    found: RunList, *, params: Sequence[str] = (), metrics: Sequence[str] = (), of_group: bool = False
) -> RenderableType:
    """One row for each run, as the daemon orders them, with these values of their matrix (`of_group`: with all) and metrics."""
    if not found.runs:
        return Text("no runs")
    resumes = ["resumes"] if any(run.parent for run in found.runs) else []
    group = ["group"] if not of_group and any(run.group for run in found.runs) else []
    labels = ["labels"] if any(run.labels for run in found.runs) else []
    titles = {end: end for end in params}
    if of_group and not params:
        titles = shortened(dict.fromkeys(path for run in found.runs for path in run.params))
    table = TableColumns(
        *("run", "name", "outcome"),
        *map(clean, titles.values()),
        *map(clean, metrics),
        *("submitted", "took"),
        *(*group, *labels, *resumes, "reason"),
    )
    for run in found.runs:
        values = [_param(run, end) for end in titles]
        values += [number(run.metrics[name]) if name in run.metrics else "-" for name in metrics]
        more = [run.group or "-"] if group else []
        more += [", ".join(f"{key}={value}" for key, value in run.labels.items()) or "-"] if labels else []
        more += [run.parent or "-"] if resumes else []
        submitted = time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(run.submitted_at))
        state = _outcome(run.outcome) if run.outcome else Text(clean(_state(run)))
        took = _took(run.seconds, run.started_at, run.ended_at)
        _row(table, run.uid, run.name, state, *values, submitted, took, *more, run.reason)
    return table


def _param(run: RunStatus, end: str) -> str:
    return next((_short(value) for path, value in run.params.items() if is_end(end, path)), "-")


def _took(seconds: float | None, started_at: float | None, ended_at: float | None) -> str:
    """The time in work. Older records have wall-clock times alone."""
    if seconds is None and started_at and ended_at:
        seconds = ended_at - started_at
    return "-" if seconds is None else durations.text(max(seconds, 0))


def _state(run: RunStatus) -> str:
    return "paused" if run.paused else run.state


def _runs(found: Sequence[RunStatus]) -> TableColumns:
    table = TableColumns("run", "name", "state", "phase", "episodes", "tasks", "return", "waits for")
    for run in found:
        phase = f"{(run.phase_index or 0) + 1}/{run.phases} {run.phase}" if run.phase else "-"
        mean = run.metrics.get("return_mean")
        _row(
            table,
            run.uid,
            run.name,
            _outcome(run.outcome) if run.outcome else _state(run),
            phase,
            _of(run.episodes_ended, run.episodes_total),
            _of(run.tasks_ended, run.tasks_total),
            "-" if mean is None else number(mean),
            run.reason if run.outcome else run.waits_for,
        )
    return table


def _phases(found: Sequence[PhaseResult]) -> TableColumns:
    first = ["first failure"] if any(phase.first_failure for phase in found) else []
    table = TableColumns("phase", "mode", "end", "episodes", "return", "steps", "tasks", *first)
    for phase in found:
        ended = phase.task_outcomes or Counter(task.outcome for task in phase.tasks)  # of an older version
        tasks = f"{ended.get('succeeded', 0)} of {sum(ended.values())} succeeded" if ended else "-"
        episodes = ", ".join(f"{count} {outcome}" for outcome, count in phase.episodes.items()) or "-"
        # The mode of a phase without episodes has no meaning.
        mode = phase.mode if phase.episodes else "-"
        value, steps = (_mean(phase.metrics, name) for name in ("return", "steps"))
        value += _by_player(phase.metrics)
        cells = [phase.name, mode, phase.end, episodes, value, steps, tasks]
        _row(table, *cells, *([phase.first_failure or "-"] if first else []))
    return table


def _exactly(phase: PhaseResult) -> str:
    return "in another process: exact" if phase.exact else f"in another process: not exact, {phase.not_exact}"


def _mean(metrics: dict[str, float], name: str) -> str:
    """``0.845 ± 0.36 (0 to 1)``, as far as it was measured."""
    if f"{name}_mean" not in metrics:
        return "-"
    text = number(metrics[f"{name}_mean"])
    if f"{name}_std" in metrics:
        text += f" ± {number(metrics[f'{name}_std'])}"
    if f"{name}_min" in metrics and f"{name}_max" in metrics:
        text += f" ({number(metrics[f'{name}_min'])} to {number(metrics[f'{name}_max'])})"
    return text


def _by_player(metrics: dict[str, float]) -> str:
    """``; red 0.5, blue 0.3``, where there are several."""
    prefix = "return_mean."
    players = {name.removeprefix(prefix): metrics[name] for name in metrics if name.startswith(prefix)}
    return f"; {_metrics(players)}" if players else ""


def names_of_user(metrics: dict[str, float]) -> list[str]:
    """The metrics of the user's code, by name: those with a minimum, but `return`, and those without any finite value."""
    ends = ("_min", "_nonfinite")
    named = {name.removesuffix(end): None for name in metrics for end in ends if name.endswith(end)}
    return [name for name in named if name != "return"]


def _of_user(phase: PhaseResult, names: Sequence[str]) -> TableColumns:
    table = TableColumns(f"{clean(phase.name)}: metric", "mean", "min", "max", "not finite")
    for name in names[:MOST_METRICS]:
        found = [phase.metrics.get(f"{name}_{what}") for what in ("mean", "min", "max", "nonfinite")]
        _row(table, name, *("-" if value is None else number(value) for value in found))
    return table


def _tasks(phase: PhaseResult) -> TableColumns:
    table = TableColumns(f"{clean(phase.name)}: task", "outcome", "attempts", "took", "result")
    repeated = {task.task for task in phase.tasks if task.run > 0}
    for task in phase.tasks:
        name = f"{task.task}[{task.run}]" if task.task in repeated else task.task
        _row(table, name, _outcome(task.outcome), task.attempts, durations.text(task.seconds), _yield(task))
    return table


def _yield(task: TaskRecord) -> str:
    """The reason of a failure, else the metrics of the task, else its value when it is short."""
    if task.outcome != "succeeded":
        cause = f"because of {task.cause}" if task.cause and f'"{task.cause}"' not in task.error else ""
        return " ".join(part for part in (task.error, cause) if part)
    if task.metrics:
        return _metrics(task.metrics)
    if task.value_file is not None:
        return f"in {task.value_file}"
    value = "" if task.value is None else clean(_short(task.value))
    return value if len(value) <= _VALUE_LENGTH else f"{value[: _VALUE_LENGTH - 3]}..."


def _short(value: Any) -> str:
    return number(value) if isinstance(value, int | float) else str(value)


def _metrics(metrics: dict[str, float]) -> str:
    return ", ".join(f"{name} {number(value)}" for name, value in metrics.items()) or "-"


def _of(ended: int, total: int) -> str:
    return f"{ended} of {total}" if total else "-"


def _outcome(outcome: str) -> Text:
    return Text(outcome, style=_STYLES.get(outcome, "red"))


def _unbroken(text: str) -> Text:
    """A line with a path: the terminal itself breaks it, so that it can be copied."""
    return Text(clean(text), style="dim", no_wrap=True, overflow="ignore")


def _row(table: TableColumns, *cells: object) -> None:
    """Cells are text, never markup: names and reasons come from users."""
    table.add(*(cell if isinstance(cell, Text) else Text(clean(cell)) for cell in cells))
