"""The checks after every fault. Each returns one line for each violation; no line means success."""

from __future__ import annotations

import sqlite3
from collections import Counter
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import msgspec

from governor.journal.tables import EVENTS_OF_RUN, read_events
from governor.runs.record.replay import Replay

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence
    from pathlib import Path

    from governor.messages import RunEvent, RunResult

FINE = frozenset({"finished"})
FORGERY = "forged-by-a-stranger"
FORGED_RETURN = 1_000_000_007.0
"""Values in forged messages; no record may contain them."""


@dataclass
class Seen:
    """What a client received during the run: events in order, and for each run of a task the size of `marks` in bytes when
    its end was received.
    """

    events: list[RunEvent] = field(default_factory=list)
    marks: dict[tuple[str, int], int] = field(default_factory=dict)


@dataclass
class Found:
    lost: list[str] = field(default_factory=list)
    doubled: list[str] = field(default_factory=list)
    other: list[str] = field(default_factory=list)

    @property
    def all(self) -> list[str]:
        return [*self.lost, *self.doubled, *self.other]


def on_record(journal: Path, uid: str) -> tuple[list[RunEvent], list[str]]:
    """The events of a run, read directly from the file, and the result of SQLite's check of the file."""
    connection = sqlite3.connect(f"file:{journal}?mode=ro", uri=True)
    try:
        rows = connection.execute(f"{EVENTS_OF_RUN} ORDER BY last", (uid,)).fetchall()
        problems = [line for (line,) in connection.execute("PRAGMA integrity_check")]
    finally:
        connection.close()
    return [event for row in rows for event in read_events(row)], [line for line in problems if line != "ok"]


def judge(
    *,
    uid: str,
    seen: Seen,
    recorded: Sequence[RunEvent],
    damage: Sequence[str],
    result: RunResult,
    run_folder: Path,
    whole: tuple[int, int],
    allowed: frozenset[str] = FINE,
    untouched: bool = False,
) -> Found:
    """`whole`: number of episodes and of tasks in a finished run. `untouched`: no conductor may have been replaced."""
    found = Found()
    found.other += [f"the journal: {line}" for line in damage]
    if result.outcome not in allowed:
        found.other.append(f"it ended as {result.outcome}: {result.reason}")
    if untouched:
        _none_replaced(recorded, found)
    _none_forged(recorded, result, found)
    _ended_once(recorded, found)
    _received_the_record(seen, recorded, found)
    _done_once(recorded, seen, run_folder, found)
    _in_the_result(recorded, result, run_folder, found)
    if result.outcome == "finished":
        _all_done(recorded, whole, found)
    _replays(uid, recorded, found)
    return found


def _none_replaced(recorded: Sequence[RunEvent], found: Found) -> None:
    found.other += [
        f"event {event.seq}: {event.data['conductor']} was replaced, and nothing was done to it"
        for event in recorded
        if event.kind == "conductor.started" and event.data["incarnation"] > 1
    ]


def _none_forged(recorded: Sequence[RunEvent], result: RunResult, found: Found) -> None:
    signs = (FORGERY.encode(), msgspec.json.encode(FORGED_RETURN))
    for what, of in [
        *((f"event {event.seq} {event.kind}", event.data) for event in recorded),
        ("the result", result),
    ]:
        text = msgspec.json.encode(of)
        if any(sign in text for sign in signs):
            found.other.append(f"{what} is a stranger's: {text[:200].decode(errors='replace')}")


def _all_done(recorded: Sequence[RunEvent], whole: tuple[int, int], found: Found) -> None:
    done = tuple(sum(event.kind == kind for event in recorded) for kind in ("episode.ended", "task.ended"))
    if done != whole:
        found.lost.append(
            f"it finished with {done[0]} episodes and {done[1]} tasks of {whole[0]} and {whole[1]}"
        )


def _ended_once(recorded: Sequence[RunEvent], found: Found) -> None:
    ends = [event.seq for event in recorded if event.kind == "run.ended"]
    if len(ends) != 1 or ends[0] != recorded[-1].seq:
        found.other.append(f"it ended {len(ends)} times, of {len(recorded)} events at {ends}")
    if [event.seq for event in recorded] != list(range(1, len(recorded) + 1)):
        found.other.append("its numbers have gaps")


def _received_the_record(seen: Seen, recorded: Sequence[RunEvent], found: Found) -> None:
    """A client received each event of the record exactly once."""
    numbers = [event.seq for event in seen.events]
    if numbers != list(range(1, len(numbers) + 1)):
        found.other.append(f"a watch had gaps or doubles: {_odd(numbers)}")
    there = {event.seq: event for event in recorded}
    for event in seen.events:
        if (other := there.get(event.seq)) != event:
            found.lost.append(
                f"event {event.seq} {event.kind} was received and is {'gone' if other is None else 'another'}"
            )


def _done_once(recorded: Sequence[RunEvent], seen: Seen, run_folder: Path, found: Found) -> None:
    episodes = Counter(
        (event.data["phase"], event.data["episode"]["index"])
        for event in recorded
        if event.kind == "episode.ended"
    )
    found.doubled += [
        f"episode {index} of phase {phase} is on record {n} times"
        for (phase, index), n in episodes.items()
        if n > 1
    ]
    over: set[tuple[str, int]] = set()
    for event in recorded:
        if event.kind == "task.started" and (event.data["task"], event.data["run"]) in over:
            found.doubled.append(f"event {event.seq}: {event.data['task']} was started after it had ended")
        if event.kind == "task.ended":
            which = (event.data["record"]["task"], event.data["record"]["run"])
            if which in over:
                found.doubled.append(f"event {event.seq}: {which} ended twice")
            over.add(which)
    marks = run_folder / "marks"
    if marks.exists():
        whole = marks.read_bytes()
        for (task, run), size in seen.marks.items():
            later = [line for line in whole[size:].decode().splitlines() if line.startswith(f"{task} {run} ")]
            found.doubled += [
                f"{task} run {run} was started after its end was received: {line}" for line in later
            ]


def _in_the_result(recorded: Sequence[RunEvent], result: RunResult, run_folder: Path, found: Found) -> None:
    """Each recorded end is in the result, with its value."""
    ended = {
        (event.data["record"]["task"], event.data["record"]["run"]): event.data["record"]
        for event in recorded
        if event.kind == "task.ended"
    }
    results = {(task.task, task.run): task for phase in result.phases for task in phase.tasks}
    for which, record in ended.items():
        task = results.get(which)
        if task is None or task.outcome != record["outcome"]:
            found.lost.append(f"task {which} ended as {record['outcome']}, and the result says {task}")
        elif task.value_file is not None and not (run_folder / task.value_file).is_file():
            found.lost.append(f"the value of task {which} is not there: {task.value_file}")
        elif task.outcome == "succeeded" and task.value is None and task.value_file is None:
            found.lost.append(f"task {which} succeeded without its value")
    episodes = Counter(
        event.data["episode"]["outcome"] for event in recorded if event.kind == "episode.ended"
    )
    counted = Counter({outcome: n for phase in result.phases for outcome, n in phase.episodes.items()})
    if episodes != counted:
        found.lost.append(f"episodes on record {dict(episodes)}, in the result {dict(counted)}")


def _replays(uid: str, recorded: Iterable[RunEvent], found: Found) -> None:
    replay = Replay(uid)
    for event in recorded:
        replay.take(event)
    if (odd := replay.end().difference) is not None:
        found.other.append(f"replay: {msgspec.structs.asdict(odd)}")


def left_files(runtime: Path, state: Path) -> list[str]:
    """Sockets of runs and temporary files that are left; call it when no run is active."""
    temporary = [path for path in (state / "runs").rglob("*") if path.suffix in (".part", ".new", ".tmp")]
    sockets = [path for run in (state / "runs").iterdir() for path in (runtime / run.name).rglob("*")]
    return [str(path) for path in (*temporary, *sockets)]


def _odd(numbers: list[int]) -> str:
    return next((f"{a} then {b}" for a, b in zip([0, *numbers], numbers, strict=False) if b != a + 1), "none")
