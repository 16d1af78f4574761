"""Checks the record of an unended run for damage before the run is continued.

Rules:
1. A damaged value affects one run: `RecordDamaged` names the run, the place, and the fault.
2. Each row is decoded, and the numbers must be consistent: events without a gap, records with the keys of what is done.
3. A wrong value that decodes and has the right type is not detected.
4. Episodes in the running figures of their phase are not decoded: nobody reads their records again to continue.
"""

from __future__ import annotations

from contextlib import suppress
from typing import TYPE_CHECKING, Any, Final, Protocol

from governor.errors import RecordDamaged
from governor.index_ranges import IndexRanges
from governor.journal.tables import RECORD_OF, decoded, plain_events
from governor.messages import EpisodeRecord, TaskRecord
from governor.messages.figures import PhaseFigures
from states.events import EVENTS

if TYPE_CHECKING:
    from collections.abc import Iterator

KINDS: Final = frozenset(
    {event.kind for event in EVENTS}
    | {"phase.started", "phase.ended", "run.transition", "run.interrupted", "run.ended", "run.accepted"}
    | {"run.inherited", "run.restarted", "task.started", "task.attempt_ended", *RECORD_OF}
)
"""All kinds of events that are recorded."""
_EVENTS: Final = (
    "SELECT last, number, at, events.kind, events.data, records.kind FROM runs JOIN events ON events.run = runs.position"
    " LEFT JOIN records ON records.position = events.records WHERE uid = ? ORDER BY last"
)
_OF_KIND: Final = "SELECT data FROM events WHERE run = ? AND kind = ? AND records IS NULL ORDER BY last"
_RECORDS: Final = (
    "SELECT records.position, kind, records.phase, records.data FROM runs JOIN records ON records.run = runs.position"
    " LEFT JOIN figures ON figures.run = runs.position AND figures.phase = records.phase AND kind = 'episode'"
    " WHERE uid = ? AND records.position > coalesce(figures.records, 0)"
)
_FIGURES: Final = "SELECT phase, figures.data, inherited FROM runs JOIN figures ON figures.run = runs.position WHERE uid = ?"
_RECORD_TYPES: Final[dict[str, Any]] = {"episode": list[EpisodeRecord], "task": list[TaskRecord]}
_DISCARDED: Final = "discarded "
"""A prefix for each restart of the run."""
SHOWN: Final = 200
"""Characters of a list of inconsistent keys in a message."""
_EPISODES: Final = (
    "SELECT total(typeof(phase) = 'integer' AND typeof(episode) = 'integer'), total(phase), total(episode)"
    " FROM runs JOIN ended_episodes ON run = position WHERE uid = ?"
)
_TASKS: Final = "SELECT phase, task, number FROM runs JOIN ended_tasks ON run = position WHERE uid = ?"


class Rows(Protocol):
    def __call__(self, question: str, parameters: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]: ...


def check(rows: Rows, uid: str, *, phases: int) -> None:
    """`phases`: the number of phases in its run file. Blocks while it reads all of the record. Raises RecordDamaged."""
    _check_events(rows, uid)
    episodes, tasks = _check_records(rows, uid, phases=phases)
    [keys] = rows(_EPISODES, (uid,))
    if keys != episodes:
        raise RecordDamaged(uid, "ended_episodes", f"{keys[0]:g} keys do not fit {episodes[0]} records")
    if wrong := tasks ^ set(rows(_TASKS, (uid,))):
        raise RecordDamaged(
            uid, "ended_tasks", f"keys do not fit records: {', '.join(map(str, wrong))[:SHOWN]}"
        )


def readable(rows: Rows, position: int, kind: str) -> list[dict[str, Any]]:
    """The data of the readable events of one kind, of the run at this `position`."""
    found: list[dict[str, Any]] = []
    for (packed,) in rows(_OF_KIND, (position, kind)):
        with suppress(RecordDamaged):
            found += plain_events("", "", packed)
    return found


def _check_events(rows: Rows, uid: str) -> None:
    before = 0
    for last, number, at, kind, packed, of_records in rows(_EVENTS, (uid,)):
        where = f"events, behind number {before}"
        if not (type(last) is type(number) is int and last - number == before and isinstance(at, float)):
            raise RecordDamaged(uid, where, f"number {last!r}, {number!r} of them, at {at!r}")
        if kind not in KINDS:
            raise RecordDamaged(uid, where, f"the kind {kind!r} is none that this governor knows")
        if packed is not None:
            events = plain_events(uid, where, packed)
            if len(events) != number:
                raise RecordDamaged(uid, where, f"{len(events)} events are not {number}")
        elif of_records is None or kind not in RECORD_OF:
            raise RecordDamaged(uid, where, "they have no data, and no records")
        before = last


def _check_records(
    rows: Rows, uid: str, *, phases: int
) -> tuple[tuple[int, int, int], set[tuple[int, str, int]]]:
    """The number of episodes that count and the sums of their keys, since there may be millions; the keys of tasks."""
    number = of_phases = of_indices = 0
    tasks = set()
    for phase, *both in rows(_FIGURES, (uid,)):
        where = f"figures of phase {phase}"
        ended, inherited = (
            decoded(uid, where, packed, PhaseFigures).ended if packed is not None else IndexRanges()
            for packed in both
        )
        own = len(ended) - len(inherited)
        number += own
        of_phases += phase * own
        of_indices += ended.total - inherited.total
    for position, kind, phase, packed in rows(_RECORDS, (uid,)):
        where = f"records, row {position}"
        plain = kind.replace(_DISCARDED, "") if isinstance(kind, str) else kind
        if plain not in _RECORD_TYPES:
            raise RecordDamaged(uid, where, f"the kind {kind!r} is none that this governor knows")
        if not (isinstance(phase, int) and 0 <= phase < phases):
            raise RecordDamaged(uid, where, f"it has no phase {phase!r}")
        found = decoded(uid, where, packed, _RECORD_TYPES[plain])
        if kind == "episode":
            number += len(found)
            of_phases += phase * len(found)
            of_indices += sum(each.index for each in found)
        elif kind == "task":
            tasks |= {(phase, each.task, each.run) for each in found}
    return (number, of_phases, of_indices), tasks
