"""The failures of a run as people ask for them: by cause in its result, one by one in `results --failures`.

Nothing here reads more than the rows with failures: a run of ten million episodes answers at once if few of them have failed.
"""

from __future__ import annotations

from hashlib import blake2b
from typing import TYPE_CHECKING, Any, Final, NamedTuple

import msgspec

from governor.errors import UsageError
from governor.failures import kind_of
from governor.journal.failures import COUNTED, INHERITED, Deaths, failed
from governor.journal.tables import RECORD_OF
from governor.messages import Failure, FailureGroup, FailureList
from states.running import failure_line

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from governor.index_ranges import IndexRanges
    from governor.journal.failures import Cause
    from governor.journal.run_records import RunRecords
    from governor.messages import FailureKind
    from governor.runs.assignment import Assignment

GROUPS: Final = 20
"""Causes of a phase that are in the result of a run: the most frequent ones."""
TOLD: Final = 3
"""Causes that are in the reason of a run."""
LIST_LIMIT: Final = 1_000
"""Failures in one answer."""


def of_phase(causes: Sequence[Cause], events: Mapping[str, Mapping[str, Any]]) -> dict[str, Any]:
    """The fields of `PhaseResult` that tell of failures. `events` as of `result.phase_events`."""
    faults = [data for data in events.values() if data.get("fault")]
    groups = [
        FailureGroup(
            kind="part", number=1, outcome="failed", reason=data["fault"], first=data["part"], event=0
        )
        for data in faults
    ]
    groups += [
        FailureGroup(
            kind=cause.kind,
            number=cause.number,
            outcome=cause.first.get("outcome", ""),
            failure_kind=kind_of(cause.first.get("outcome", ""), _reason(cause.first)),
            reason=_reason(cause.first),
            first=_what(cause.kind, cause.first),
            event=cause.event,
            others=cause.others,
        )
        for cause in causes
    ]
    first = next((group for group in groups if group.kind != "attempt"), None)
    return {
        "failures": tuple(sorted(groups, key=lambda group: -group.number)[:GROUPS]),
        "failed": sum(group.number for group in groups if group.kind != "attempt"),
        "first_failure": f"{first.first}: {first.reason or first.outcome}" if first is not None else "",
    }


def deaths_of(journal: RunRecords, uid: str) -> tuple[FailureGroup, ...]:
    """The conductors that died or failed, the first of each cause first. Blocks. Raises JournalError."""
    found: dict[tuple[str, str], FailureGroup] = {}
    deaths = Deaths()
    for event in journal.standing_events_of(uid, ("conductor.failed", "conductor.exited")):
        if not deaths.is_one(event.kind, event.data):
            continue
        what, reason = _what(event.kind, event.data), _reason(event.data)
        first = FailureGroup(
            kind="conductor", number=0, outcome="failed", reason=reason, first=what, event=event.seq
        )
        known = found.get((what, reason), first)
        found[what, reason] = msgspec.structs.replace(known, number=known.number + 1)
    return tuple(found.values())


def attempts_of(
    journal: RunRecords, assignment: Assignment, phase: int, *, ended: IndexRanges
) -> dict[int, tuple[FailureKind, ...]]:
    """The kinds of the failed attempts at episodes of a phase that have not `ended`, as `failures.retry` counts them. Blocks; raises
    JournalError.
    """
    policy = assignment.run.phases[phase].policy
    found: dict[int, tuple[FailureKind, ...]] = {}
    if policy is None or not policy.retries:
        return found
    begun = journal.last_event(assignment.uid, "run.restarted")
    for event in journal.each_event_of(assignment.uid, ("episode.attempt_ended",)):
        data = event.data
        if event.seq <= begun or data["phase"] != phase or data["index"] in ended:
            continue
        if not data.get("lost", False):
            kind = kind_of(data["outcome"], data["reason"])
            found[data["index"]] = (*found.get(data["index"], ()), kind)
    return found


def summary(causes: Sequence[Cause]) -> str:
    """The first causes of a phase's failures, with how often each came: for the reason of a run."""
    told = [
        f"{_what(cause.kind, cause.first)}: {_reason(cause.first) or cause.first.get('outcome', '')}"
        + (f" ({cause.number:,} times)" if cause.number > 1 else "")
        for cause in causes[:TOLD]
    ]
    left = sum(cause.number for cause in causes[TOLD:])
    return "; ".join(told) + (f"; and {left:,} of other causes" if left else "")


def phases_with_failures(ends: Sequence[Mapping[str, Any]], *, before: int) -> tuple[int, str]:
    """How many of the phases before this one had failures, and the line of the first one. `ends`: data of the events of phases and of their parts' ends."""
    names = {each["index"]: each["phase"] for each in ends if "index" in each and "phase" in each}
    found: dict[int, tuple[int, str]] = {}
    for each in ends:
        if "part" in each and each.get("failures") and each["phase"] < before:
            number, first = found.get(each["phase"], (0, ""))
            found[each["phase"]] = number + each["failures"], first or each.get("first_failure", "")
    lines = [failure_line(names.get(phase, ""), *found[phase]) for phase in sorted(found)]
    return len(lines), lines[0] if lines else ""


class FailedEvent(NamedTuple):
    """A failure on record: the number of its `event`, when, the kind of event and its record or data, and the phase of that."""

    event: int
    at: float
    kind: str
    phase: int | None
    item: dict[str, Any]


def each_of(journal: RunRecords, uid: str, *, phase: int | None, after: int = 0) -> Iterator[FailedEvent]:
    """The failures that count, in their order. Blocks. Raises RecordDamaged, JournalError."""
    after = max(after, journal.last_event(uid, "run.restarted"))
    for event in journal.failed_events(uid, after=after, phase=phase):
        kind, at, data = event.kind, event.at, event.data
        item = data.get(RECORD_OF[kind], {}) if kind in RECORD_OF else data
        if kind == INHERITED:
            kind, at, item = data["kind"], data["at"], data["item"]
        if failed(kind, [item]) and phase in {None, data.get("phase")}:
            yield FailedEvent(event.seq, at, kind, data.get("phase"), item)


def page(journal: RunRecords, uid: str, *, phase: str | None, after: int, limit: int) -> FailureList:
    """Blocks. Raises UsageError for a phase that has not begun, RecordDamaged, JournalError."""
    names = {event.data["index"]: event.data["phase"] for event in journal.events_of(uid, ("phase.started",))}
    wanted = next((index for index, name in names.items() if name == phase), None)
    if phase is not None and wanted is None:
        known = ", ".join(map(repr, names.values())) or "none"
        raise UsageError(f"run {uid} has no phase {phase!r} that has begun: {known}")
    found: list[Failure] = []
    texts: dict[str, str] = {}
    for number, at, kind, index, item in each_of(journal, uid, phase=wanted, after=after):
        if len(found) == limit:
            return FailureList(uid=uid, failures=tuple(found), tracebacks=texts, more=True)
        key, text = _traceback(journal, uid, item.get("traceback", ""), of=kind)
        if text is not None:
            texts[key] = text
        found.append(
            Failure(
                event=number,
                at=at,
                what=_what(kind, item),
                outcome=item.get("outcome", "failed"),
                reason=_reason(item),
                failure_kind=_kind(kind, item),
                phase=names.get(index) if index is not None else None,
                traceback=key,
            )
        )
    return FailureList(uid=uid, failures=tuple(found), tracebacks=texts)


def _traceback(journal: RunRecords, uid: str, told: str, *, of: str) -> tuple[str, str | None]:
    """Its key, and its text if that was kept. Events that are no records have the text itself: there are few."""
    if told and of not in COUNTED:
        return blake2b(told.encode(), digest_size=8).hexdigest(), told
    return told, journal.traceback(uid, told) if told else None


def _reason(item: Mapping[str, Any]) -> str:
    """Of an episode, a task, a part, a conductor."""
    if "exit_code" in item:
        return str(item.get("reason") or f"its process ended with exit code {item['exit_code']}")
    return str(item.get("fault") or item.get("reason") or item.get("error") or "")


def _kind(kind: str, item: Mapping[str, Any]) -> FailureKind | None:
    """Of episodes, tasks and their attempts alone."""
    return kind_of(item["outcome"], _reason(item)) if kind in COUNTED else None


def _what(kind: str, item: Mapping[str, Any]) -> str:
    """What has failed. `kind`: of an event, or as of `Cause`."""
    match "attempt" if kind.endswith(".attempt_ended") else kind.partition(".")[0]:
        case "attempt" if "index" in item:
            return f"attempt {item['attempt']} at episode {item['index']}"
        case "episode":
            return f"episode {item.get('index')}"
        case "task":
            return f"task {item.get('task')}[{item.get('run')}]"
        case "attempt":
            return f"attempt {item.get('attempt')} of task {item.get('task')}[{item.get('run')}]"
        case "conductor":
            return f"conductor {item.get('conductor')}"
        case _:
            return str(item.get("part", ""))
