"""What an earlier invocation of the daemon left unfinished, and how it goes on.

A run that had not ended goes on in its first unfinished phase; ended episodes and tasks of that phase are on record and
are not done again. Before that its old processes are proven dead: by pid and creation time, so that a number that has
a new owner is left alone.
"""

from __future__ import annotations

import asyncio
import shutil
from typing import TYPE_CHECKING, Final

import psutil

from governor import inheritance, logs
from governor.assignment import Assignment
from governor.errors import RunFileError
from governor.result import build_result, save_result

if TYPE_CHECKING:
    from pathlib import Path

    from governor.journal import Journal
    from governor.journal_tables import RunRow, Transaction
    from governor.messages import RunOutcome

SAME_BIRTH_SECONDS: Final = 0.01
"""Creation times of one process, read twice, differ by less."""
DEATH_SECONDS: Final = 5.0

log = logs.get_logger()


def kill_left_over(journal: Journal, row: RunRow) -> list[int]:
    """Kills what is still alive of the run's recorded processes, and gives their pids. Blocks until they are dead."""
    alive: list[psutil.Process] = []
    for event in journal.events_of(row.uid, ("conductor.started",)):
        try:
            candidate = psutil.Process(event.data["pid"])
            if abs(candidate.create_time() - event.data["created_at"]) < SAME_BIRTH_SECONDS:
                alive += [*candidate.children(recursive=True), candidate]
        except psutil.NoSuchProcess:
            continue
    for process in alive:
        try:
            process.kill()
        except psutil.NoSuchProcess:
            continue
    psutil.wait_procs(alive, timeout=DEATH_SECONDS)
    return [process.pid for process in alive]


def first_unfinished_phase(journal: Journal, uid: str, *, phases: int) -> int:
    """The phase to go on with. The last one when all have ended: its end comes at once, from the record."""
    ended = {event.data["index"] for event in journal.events_of(uid, ("phase.ended",))}
    return next((index for index in range(phases) if index not in ended), phases - 1)


def decided(journal: Journal, uid: str) -> tuple[RunOutcome, str] | None:
    """Outcome and reason of a run that was being finalized when the daemon went down."""
    transitions = journal.events_of(uid, ("run.transition",))
    last = next((event.data for event in reversed(transitions) if event.data["to"] == "finalizing"), None)
    return None if last is None else (last["outcome"], last["reason"])


async def unfinished(journal: Journal, *, runs_folder: Path, runtime_folder: Path) -> list[Assignment]:
    """Every run without an end, ready to be queued in the order of submission.

    One that was being finalized is brought to the end that had been decided. One whose run file this governor can't
    read any more stays as it is, and is named in the log.
    """
    await asyncio.to_thread(inheritance.settle, journal, runs_folder)
    found: list[Assignment] = []
    for row in journal.unended():
        killed = kill_left_over(journal, row)
        shutil.rmtree(runtime_folder / row.uid, ignore_errors=True)
        try:
            assignment = Assignment.of(row)
        except RunFileError as error:
            log.error("run.unreadable", run=row.uid, reason=str(error))  # noqa: TRY400  # the reason says it all
            continue
        end = (row.outcome, row.reason) if row.outcome is not None else decided(journal, row.uid)
        if end is not None:
            await _close(journal, assignment, *end, folder=runs_folder / row.uid)
            log.info("run.closed", run=row.uid, outcome=end[0], reason=end[1], killed=killed)
            continue
        phase = first_unfinished_phase(journal, row.uid, phases=len(assignment.run.phases))
        if row.started_at is not None:
            log.info("run.goes_on", run=row.uid, phase=phase, killed=killed)
        found.append(Assignment.of(row, first_phase=phase))
    return found


async def _close(
    journal: Journal, assignment: Assignment, outcome: RunOutcome, reason: str, *, folder: Path
) -> None:
    """Its outcome had been decided, and the daemon went down before it was durable, or the last process gone."""
    uid = assignment.uid
    result = build_result(
        journal=journal, assignment=assignment, outcome=outcome, reason=reason, folder=folder
    )
    await asyncio.to_thread(save_result, result, folder)

    def change(transaction: Transaction) -> None:
        kept = transaction.outcome(result)
        transaction.event(uid, "run.ended", {"outcome": kept, "reason": reason, "by": "recovery"})
        transaction.ended(uid)

    await journal.write(change)
