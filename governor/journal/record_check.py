"""Checks the record of an unended run for damage before the run is continued.

Rules:
1. A damaged value affects one run: `RecordDamaged` names the run, the place, and the fault.
2. Each row is decoded, and the numbers must be consistent: events without a gap, records with the keys of what is done.
3. A wrong value that decodes and has the right type is not detected.
4. Episodes in the running figures of their phase are not decoded: nobody reads their records again to continue.
"""

from __future__ import annotations

from contextlib import suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final, Protocol
from zlib import crc32

import msgspec

from governor.errors import RecordDamaged
from governor.index_ranges import IndexRanges
from governor.journal.failures import INHERITED
from governor.journal.tables import RECORD_OF, decoded, plain_events
from governor.messages import EpisodeRecord, TaskRecord
from governor.messages.figures import PhaseFigures
from states.events import EVENTS

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

KINDS: Final = frozenset(
    {event.kind for event in EVENTS}
    | {"phase.started", "phase.ended", "run.transition", "run.interrupted", "run.ended", "run.accepted"}
    | {
        "run.inherited",
        "run.code_changed",
        "run.restarted",
        "part.finalizing",
        "task.started",
        "agent.restored",
        "episode.attempt_ended",
        "task.attempt_ended",
        "task.reported",
        INHERITED,
        *RECORD_OF,
    }
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
    " AND figures.phase IN ({})"
    " WHERE uid = ? AND records.position > coalesce(figures.records, 0)"
)
_FIGURES: Final = "SELECT phase, records, figures.data, inherited FROM runs JOIN figures ON figures.run = runs.position WHERE uid = ?"
_RECORD_TYPES: Final[dict[str, Any]] = {"episode": list[EpisodeRecord], "task": list[TaskRecord]}
_DISCARDED: Final = "discarded "
"""A prefix for each restart of the run."""
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
    figures = _Keys()
    summarized = _add_figures(rows, uid, figures, phases=phases)
    records = _Keys()
    _add_records(rows, uid, records, summarized, phases=phases)
    [episodes] = rows(_EPISODES, (uid,))
    expected = tuple(one + other for one, other in zip(figures.episodes, records.episodes, strict=True))
    if episodes != expected:
        raise RecordDamaged(uid, "ended_episodes", f"{episodes[0]:g} keys do not fit {expected[0]} records")
    keys = _Keys()
    for key in rows(_TASKS, (uid,)):
        keys.add_task(key)
    if keys.tasks != records.tasks:
        raise RecordDamaged(uid, "ended_tasks", f"{keys.tasks[0]} keys do not fit {records.tasks[0]} records")


@dataclass(slots=True)
class _Keys:
    """The number of episodes, and the sums of their keys; the number of task runs, and the sum of checksums of theirs: there may
    be millions.
    """

    episodes: tuple[int, int, int] = (0, 0, 0)
    tasks: tuple[int, int] = (0, 0)

    def add_episodes(self, phase: int, number: int, indices: int) -> None:
        before, phases, total = self.episodes
        self.episodes = (before + number, phases + phase * number, total + indices)

    def add_task(self, key: tuple[Any, ...]) -> None:
        number, total = self.tasks
        self.tasks = (number + 1, total + crc32(repr(key).encode()))


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


def _add_figures(rows: Rows, uid: str, keys: _Keys, *, phases: int) -> list[int]:
    """Adds the episodes that are summarized, and returns the phases where they are. Figures of another version count as none."""
    found = []
    for phase, records, packed, inherited_packed in rows(_FIGURES, (uid,)):
        if not (type(phase) is type(records) is int and 0 <= phase < phases and records >= 0):
            raise RecordDamaged(uid, "figures", f"they are of phase {phase!r}, and up to row {records!r}")
        where = f"figures of phase {phase}"
        inherited = IndexRanges()
        if inherited_packed is not None:
            inherited = decoded(uid, where, inherited_packed, PhaseFigures).ended
        try:
            ended = msgspec.msgpack.decode(packed, type=PhaseFigures).ended
        except (msgspec.MsgspecError, TypeError):
            continue
        if not (ended.is_sound and inherited.is_sound):
            raise RecordDamaged(uid, where, "its episodes are no ranges")
        found.append(phase)
        keys.add_episodes(phase, len(ended) - len(inherited), ended.total - inherited.total)
    return found


def _add_records(rows: Rows, uid: str, keys: _Keys, summarized: Sequence[int], *, phases: int) -> None:
    """Adds what is on record, without the episodes that are `summarized`."""
    for position, kind, phase, packed in rows(_RECORDS.format(", ".join(map(str, summarized))), (uid,)):
        where = f"records, row {position}"
        plain = kind.replace(_DISCARDED, "") if isinstance(kind, str) else kind
        if plain not in _RECORD_TYPES:
            raise RecordDamaged(uid, where, f"the kind {kind!r} is none that this governor knows")
        if not (isinstance(phase, int) and 0 <= phase < phases):
            raise RecordDamaged(uid, where, f"it has no phase {phase!r}")
        found = decoded(uid, where, packed, _RECORD_TYPES[plain])
        if kind == "episode":
            keys.add_episodes(phase, len(found), sum(each.index for each in found))
        elif kind == "task":
            for each in found:
                keys.add_task((phase, each.task, each.run))
