"""What an earlier invocation of the daemon left unfinished, and how it goes on.

A run that had not ended goes on in its first unfinished phase; ended episodes and tasks of that phase are on record and
are not done again. Before that its old processes are proven dead: by pid and creation time, so that a number that has
a new owner is left alone.
"""

from __future__ import annotations

import shutil
from functools import partial
from typing import TYPE_CHECKING, Final

import psutil

from governor import logs
from governor.assignment import Assignment
from governor.errors import RunFileError

if TYPE_CHECKING:
    from pathlib import Path

    from governor.journal import Journal
    from governor.journal_tables import RunRow, Transaction

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


async def unfinished(journal: Journal, *, runtime_folder: Path) -> list[Assignment]:
    """Every run without an end, ready to be queued in the order of submission.

    One whose run file this governor can't read any more stays as it is, and is named in the log.
    """
    found: list[Assignment] = []
    for row in journal.unended():
        killed = kill_left_over(journal, row)
        shutil.rmtree(runtime_folder / row.uid, ignore_errors=True)
        if row.outcome is not None:
            await journal.write(partial(_close, row))
            log.info("run.closed", run=row.uid, outcome=row.outcome, killed=killed)
            continue
        try:
            assignment = Assignment.of(row)
        except RunFileError as error:
            log.error("run.unreadable", run=row.uid, reason=str(error))  # noqa: TRY400  # the reason says it all
            continue
        phase = first_unfinished_phase(journal, row.uid, phases=len(assignment.run.phases))
        if row.started_at is not None:
            log.info("run.goes_on", run=row.uid, phase=phase, killed=killed)
        found.append(Assignment.of(row, first_phase=phase))
    return found


def _close(row: RunRow, transaction: Transaction) -> None:
    """It had its outcome, and went down before its last process was seen gone."""
    transaction.event(row.uid, "run.ended", {"outcome": row.outcome, "reason": row.reason, "stuck": []})
    transaction.ended(row.uid)
