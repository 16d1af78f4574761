"""The result of a run, computed from its record: for each phase its end, episodes, metrics and tasks.

It is stored in the journal, and as `result.json` in the run's folder for use without a daemon.
"""

from __future__ import annotations

import asyncio
import json
from collections import Counter, defaultdict, deque
from contextlib import suppress
from dataclasses import replace
from itertools import chain, islice
from typing import TYPE_CHECKING, Any, Final, Literal, get_args

import msgspec

from governor import clock
from governor.episodes.rules.statistics import PhaseStatistics, summarize
from governor.errors import RecordDamaged, UsageError
from governor.files import name_of, write_lines, write_whole
from governor.messages import COMPLETE, PhaseCurve, PhaseResult, RunCurves, RunOutcome, RunResult
from governor.messages.conductor import ReportedSums
from governor.messages.curves import CURVES, Curve
from governor.messages.figures import PhaseFigures
from governor.runs.assignment import Assignment, Waiting
from governor.runs.record import code, failures, history

INLINE_BYTES: Final = 64 * 1024
"""Maximum size of a result in the journal; a larger one is in a file, and in the journal without its tasks."""
MOST_TASKS: Final = 10_000
"""Task runs of a phase that are in its result; if there are more they have a file of their own."""
REPORTS_AT_ONCE: Final = 4096
"""Reports of tasks that are put into a curve together."""
FILES: Final = {outcome: f"result.{outcome}.msgpack" for outcome in get_args(RunOutcome)}

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping
    from pathlib import Path

    from governor.journal.journal import Journal
    from governor.journal.outbox import Delivery
    from governor.journal.run_records import RunRecords
    from governor.journal.runs_table import RunRow
    from governor.journal.tables import Transaction
    from governor.messages import TaskRecord


async def record_result(
    journal: Journal,
    assignment: Assignment,
    *,
    outcome: RunOutcome,
    reason: str,
    folder: Path,
    ended_by: str = "",
    submitted_by: Mapping[str, Any] | None = None,
) -> RunResult:
    """Makes outcome and result durable; returns the result with the outcome on record: the first one counts. `ended_by`: the
    author of the end of a run that is not in work; `submitted_by` is as in the journal, which is asked without it. Raises
    LookupError, JournalError, OSError.
    """

    def build_and_save() -> tuple[RunResult, str | None]:
        result = build_result(
            journal=journal, assignment=assignment, outcome=outcome, reason=reason, folder=folder
        )
        by = journal.submitters([result.uid]).get(result.uid, {}) if submitted_by is None else submitted_by
        result = msgspec.structs.replace(result, submitted_by=dict(by))
        return result, save_result(result, folder)

    result, file = await asyncio.to_thread(build_and_save)

    def change(transaction: Transaction) -> RunOutcome:
        kept = transaction.outcome(result, file=file)
        if ended_by:
            transaction.event(result.uid, "run.ended", {"outcome": kept, "reason": reason, "by": ended_by})
            transaction.ended(result.uid)
        return kept

    kept = await journal.write(change, run=None if ended_by else assignment.uid)
    return msgspec.structs.replace(result, outcome=kept)


def build_result(
    *,
    journal: RunRecords,
    assignment: Assignment,
    outcome: RunOutcome | Literal["in work"],
    reason: str,
    folder: Path,
    seconds: float | None = None,
) -> RunResult:
    """Phases that never began are left out. `seconds`: in work until now, if the run still is; nothing is written then. Raises
    LookupError, JournalError.
    """
    row = journal.run(assignment.uid)
    if row is None:
        raise LookupError(f"run {assignment.uid} is not in the journal")
    phases = tuple(
        _phase(journal, assignment, index, events, outcome=outcome, folder=folder)
        for index, events in phase_events(journal, row.uid).items()
        if "phase.started" in events
    )
    if seconds is None:
        seconds = history.read(journal.events_of(row.uid, history.KINDS)).worked
    seconds = round(seconds, 3)
    result = _result(row, outcome=outcome, reason=reason, phases=phases, folder=folder, seconds=seconds)
    changes = (code.sentence(event.data) for event in journal.events_of(row.uid, (code.CHANGED,)))
    return msgspec.structs.replace(
        result, deaths=failures.deaths_of(journal, row.uid), code_changed=tuple(dict.fromkeys(changes))
    )


def phase_events(journal: RunRecords, uid: str) -> dict[int, dict[str, dict[str, Any]]]:
    """For each phase the last event of each kind; events of its parts have names of their own."""
    found: dict[int, dict[str, dict[str, Any]]] = {}
    for event in journal.standing_events_of(uid, ("phase.started", "part.ended", "phase.ended")):
        data = event.data
        name = f"part.ended {data['part']}" if event.kind == "part.ended" else event.kind
        index = data["phase"] if event.kind == "part.ended" else data["index"]
        found.setdefault(index, {})[name] = data
    return found


def result_of_damaged(
    journal: RunRecords, row: RunRow, *, reason: str, folder: Path
) -> tuple[RunResult, str | None]:
    """The result for a run whose record is damaged, and the name of its file. Blocks.

    A recorded outcome stays, with its result if that can be read; otherwise the outcome is `aborted`, without phases.
    """
    known = None
    if row.outcome is not None:
        reason = f"{row.reason}; {reason}" if row.reason else reason
        with suppress(RecordDamaged):
            known = journal.result(row.uid)
    if known is not None:
        return msgspec.structs.replace(known, reason=reason), journal.result_file(row.uid)
    seconds = None
    with suppress(RecordDamaged, LookupError, TypeError, ValueError, AttributeError):
        events = journal.events_of(row.uid, history.KINDS)
        if events or row.started_at is None:
            seconds = round(history.read(events).worked, 3)
    outcome = row.outcome or "aborted"
    return _result(row, outcome=outcome, reason=reason, phases=(), folder=folder, seconds=seconds), None


def _result(
    row: RunRow,
    *,
    outcome: RunOutcome | Literal["in work"],
    reason: str,
    phases: tuple[PhaseResult, ...],
    folder: Path,
    seconds: float | None,
) -> RunResult:
    return RunResult(
        uid=row.uid,
        name=row.name,
        outcome=outcome,
        reason=reason,
        submitted_at=row.submitted_at,
        started_at=row.started_at,
        ended_at=clock.wall(),
        phases=phases,
        folder=str(folder),
        parent=row.parent,
        seconds=seconds,
    )


def save_result(result: RunResult, folder: Path) -> str | None:
    """Writes `result.json` and, for a result too large for the journal, a second file; returns its name. Raises
    OSError.

    The name contains the outcome: the first outcome in the journal is the one that counts.
    """
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    write_whole(folder / "result.json", msgspec.json.format(msgspec.json.encode(result), indent=2))
    packed = msgspec.msgpack.encode(result)
    if len(packed) <= INLINE_BYTES:
        return None
    name = FILES[result.outcome]
    write_whole(folder / name, packed)
    return name


def whole_result(journal: RunRecords, uid: str, folder: Path) -> RunResult | None:
    """The result of a run that has ended, with its hooks that have failed until now. Blocks. Raises UsageError when its file is gone."""
    result, name = journal.result(uid), journal.result_file(uid)
    if name is not None:
        try:
            result = msgspec.msgpack.decode((folder / name).read_bytes(), type=RunResult)
        except (OSError, msgspec.MsgspecError) as error:
            raise UsageError(
                f"the result of run {uid} can't be read from {folder / name}: {error}"
            ) from error
    failed = tuple(map(_told, journal.undelivered(uid)))
    return result if result is None or not failed else msgspec.structs.replace(result, hooks_failed=failed)


def _told(delivery: Delivery) -> str:
    tries = f"{delivery.tries} {'try' if delivery.tries == 1 else 'tries'}"
    how = f"given up after {tries}" if delivery.due_at is None else f"tried again, after {tries}"
    return f"{delivery.document.get('hook')} {how}: {delivery.error}"


def _phase(
    journal: RunRecords,
    assignment: Assignment,
    index: int,
    events: dict[str, dict[str, Any]],
    *,
    outcome: str,
    folder: Path,
) -> PhaseResult:
    phase = assignment.run.phases[index]
    metrics = {name: value for data in events.values() for name, value in data.get("metrics", {}).items()}
    figures = figures_of(journal, assignment, index)
    return PhaseResult(
        name=phase.name,
        mode=phase.mode,
        end=events.get("phase.ended", {}).get("end", outcome),
        ended_by=next((data["ended_by"] for data in events.values() if data.get("ended_by")), ""),
        episodes=figures.outcomes,
        metrics=metrics or (summarize(figures) if figures.trained else {}),
        **_tasks(journal.tasks(assignment.uid, index), folder, phase.name, writes=outcome != "in work"),
        **_exactness(journal, assignment.uid, index),
        **failures.of_phase(journal.causes(assignment.uid, index), events),
    )


def _exactness(journal: RunRecords, uid: str, phase: int) -> dict[str, Any]:
    """The fields of `PhaseResult` that tell whether the agents were brought back exactly."""
    found = [
        event.data
        for event in journal.standing_events_of(uid, ("agent.restored",))
        if event.data["phase"] == phase
    ]
    reasons = [f"agent {data['agent']}: {data['reason']}" for data in found if data["reason"]]
    return {"exact": not reasons, "not_exact": next(iter(reasons), "")} if found else {}


def _tasks(records: Iterator[TaskRecord], folder: Path, phase: str, *, writes: bool) -> dict[str, Any]:
    """The fields of `PhaseResult` that tell of its tasks; many are in a file, if it `writes` one. Raises OSError."""
    outcomes = Counter[str]()

    def counted() -> Iterator[TaskRecord]:
        for record in records:
            outcomes[record.outcome] += 1
            yield record

    every = counted()
    first = [*islice(every, MOST_TASKS + 1)]
    if len(first) <= MOST_TASKS:
        ordered = sorted(first, key=lambda record: (record.task, record.run))
        return {"tasks": tuple(ordered), "task_outcomes": dict(outcomes)}
    if not writes:
        deque(every, maxlen=0)
        return {"task_outcomes": dict(outcomes)}
    path = folder / "results" / f"{name_of(phase)}.tasks.jsonl"
    lines = (
        json.dumps(msgspec.to_builtins(record)) for record in chain(first, every)
    )  # with NaN, which msgspec has not
    write_lines(path, (f"{line}\n".encode() for line in lines))
    return {"tasks_file": str(path.relative_to(folder)), "task_outcomes": dict(outcomes)}


def figures_of(journal: RunRecords, assignment: Assignment, phase: int) -> PhaseFigures:
    """The running figures of the episodes of a phase: as kept last, with what ended after that. Blocks. Raises JournalError."""
    if assignment.run.phases[phase].simulate is None:
        return PhaseFigures()
    known, after = journal.figures(assignment.uid, phase)
    statistics = PhaseStatistics(assignment.simulation(phase), known)
    for record in journal.episodes(assignment.uid, phase, after=after):
        statistics.add(record)
    return statistics.figures


def curves_of(journal: RunRecords, row: RunRow, *, metric: str, phase: str | None = None) -> RunCurves:
    """The curves of a metric in the phases that began, or in the one of this name: of its episodes, else of what its tasks have
    reported; ``TASK.METRIC`` is that of one task. Blocks. Raises JournalError, RunFileError, and UsageError for an unknown phase.
    """
    assignment = Assignment.of(row, Waiting(uid=row.uid))
    phases = assignment.run.phases
    if phase is not None and phase not in {each.name for each in phases}:
        known = ", ".join(each.name for each in phases)
        raise UsageError(f"run {row.uid} has no phase {phase!r}; its phases: {known}")
    found, of_tasks = [], _task_curves(journal, row.uid, metric)
    for index, events in phase_events(journal, row.uid).items():
        if "phase.started" in events and phase in (None, phases[index].name):
            curves = figures_of(journal, assignment, index).curves
            found.append(
                PhaseCurve(
                    phase=phases[index].name,
                    mode=phases[index].mode,
                    metrics=tuple(sorted({*curves, *of_tasks[index].names})),
                    curve=curves.get(metric) or of_tasks[index].curve,
                )
            )
    return RunCurves(
        uid=row.uid, name=row.name, metric=metric, ended=row.ended_at is not None, phases=tuple(found)
    )


def _task_curves(journal: RunRecords, uid: str, metric: str) -> defaultdict[int, _TaskCurve]:
    """By phase."""
    begun = journal.last_event(uid, "run.restarted")
    found: defaultdict[int, _TaskCurve] = defaultdict(_TaskCurve)
    for event in journal.each_event_of(uid, ("task.reported",)):
        if event.seq > begun:
            found[event.data["phase"]].add(event.data, metric)
    return found


class _TaskCurve:
    """Of a phase: the `names` of its tasks' first metrics, and the curve of one."""

    def __init__(self) -> None:
        self.names: dict[str, None] = {}
        self._curve: Curve | None = None
        self._pending: list[ReportedSums] = []

    def add(self, report: Mapping[str, Any], metric: str) -> None:
        for name, sums in report["values"].items():
            if len(self.names) < CURVES:
                self.names[name] = None
            if metric in (name, f"{report['task']}.{name}"):
                self._pending.append(msgspec.convert(sums, ReportedSums))
        if len(self._pending) >= REPORTS_AT_ONCE:
            self._fold()

    @property
    def curve(self) -> Curve | None:
        if self._pending:
            self._fold()
        return self._curve

    def _fold(self) -> None:
        self._curve = self._curve or Curve()
        self._curve.add_sums(self._pending)
        self._pending.clear()


def complete_figures_of(journal: RunRecords, assignment: Assignment, phase: int) -> PhaseFigures:
    """Those of the episodes that ended by themselves. Reads all records, also those of the run that this one resumed if there are
    others among what it has inherited. Blocks. Raises JournalError.
    """
    inherited = journal.inherited_figures(assignment.uid, phase)
    if inherited.complete < len(inherited.ended):
        row = journal.run(assignment.uid)
        if row is not None and row.parent is not None and journal.run(row.parent) is not None:
            inherited = complete_figures_of(journal, replace(assignment, uid=row.parent), phase)
    statistics = PhaseStatistics(assignment.simulation(phase), inherited)
    for record in journal.episodes(assignment.uid, phase):
        if record.outcome in COMPLETE:
            statistics.add(record)
    return statistics.figures
