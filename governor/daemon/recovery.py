"""What an earlier invocation of the daemon left unfinished: processes, records, files; and how its runs go on.

In this order: a run that was in work when the daemon died gets its interruption on record; what is left alive is killed
and seen dead; then the run file decides. A run goes on in its first unfinished phase, without the episodes and tasks
that have ended; or begins anew; or has failed. Nothing of it is taken up while a process lives that may still work on it.
"""

from __future__ import annotations

import asyncio
import os
import shutil
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Final

import msgspec

from governor import logs
from governor.daemon.heartbeat import DaemonHeartbeat
from governor.errors import RecordDamaged, RunFileError
from governor.processes import leftovers
from governor.processes.identity import ProcessIdentity
from governor.processes.readiness import readable
from governor.runs import history as run_history
from governor.runs import resume
from governor.runs.assignment import Assignment
from governor.runs.result import build_result, save_result
from governor.tasks.cluster import head

if TYPE_CHECKING:
    from pathlib import Path

    from governor.journal.journal import Journal
    from governor.journal.tables import RunRow, Transaction
    from governor.messages import RunOutcome
    from governor.run_file.model import Run
    from governor.runs.history import History

DEATHS: Final = 5
"""Deaths of the daemon in a row, without a new record of an episode or task, after which a run has failed: it must not
keep the house down."""
LARGEST_PID: Final = 2**22
"""That Linux gives."""
SENSELESS: Final = (LookupError, TypeError, ValueError, AttributeError, msgspec.MsgspecError)
"""What comes of reading values that are none of ours."""
NOT_ON_RECORD: Final = "the daemon went down in order, but could not record it"

log = logs.get_logger()


@dataclass(frozen=True, slots=True, kw_only=True)
class _End:
    outcome: RunOutcome
    reason: str


class Recovery:
    """What a start has to do: `clear_away`, then `take_up`; where there are `survivors`, `take_up_the_rest` beside the work.

    `held` are the runs that wait for the death of the survivors, and what they say of it. `damaged` are those whose record
    can't be relied on, with the damage: they stay as they are.
    """

    def __init__(self, *, journal: Journal, state_dir: Path) -> None:
        self.heartbeat = DaemonHeartbeat(state_dir)
        self.survivors: list[leftovers.LeftOver] = []
        self.held: dict[str, str] = {}
        self.damaged: dict[str, str] = {}
        self._journal = journal
        self._house = leftovers.house_of(state_dir)

    async def clear_away(self) -> None:
        """Records the deaths, kills what is left alive, and removes Ray's folders."""
        journal = self._journal
        rows = journal.unended()
        self.damaged |= await asyncio.to_thread(self._find_damage, rows)
        unended = [row.uid for row in rows if row.uid not in self.damaged]
        await self._record_deaths([uid for uid in unended if self._history(uid).at_work])
        births: list[ProcessIdentity] = []
        marks: list[int] = []
        for data in (each for row in rows for each in journal.readable(row, "conductor.started")):
            with suppress(*SENSELESS):  # of a damaged run what can be read
                birth, mark = _identity(data)
                births += [birth] if birth is not None else []
                marks += [mark] if mark is not None else []
        dead, self.survivors = await asyncio.to_thread(leftovers.kill_left_over, self._house, births, marks)
        if dead:
            log.warning("process.left_over", killed=[str(process) for process in dead])
        for process in self.survivors:
            log.error("process.survives", pid=process.pid, command=process.command)
        await asyncio.to_thread(head.remove_left_over, self._house)

    async def take_up(self, runs_folder: Path) -> list[Assignment]:
        """What is to be queued, in the order of submission; of runs that were in work only where nobody survives."""
        await asyncio.to_thread(resume.settle, self._journal, runs_folder)
        rows = [row for row in self._journal.unended() if row.uid not in self.damaged]
        if self.survivors:
            pids = ", ".join(map(str, self.survivors))
            self.held |= {row.uid: f"the death of pid {pids}" for row in rows if row.started_at is not None}
        return await self._take_up([row for row in rows if row.uid not in self.held], runs_folder)

    async def take_up_the_rest(self, runs_folder: Path) -> list[Assignment]:
        """Returns once every survivor is dead."""
        try:
            for process in self.survivors:
                await readable(process.handle)
        finally:
            for process in self.survivors:
                os.close(process.handle)
        log.info("process.left_over", killed=[str(process) for process in self.survivors])
        rows = [row for row in self._journal.unended() if row.uid in self.held]
        taken = await self._take_up(rows, runs_folder)
        self.held.clear()
        return taken

    def _find_damage(self, rows: list[RunRow]) -> dict[str, str]:
        """Of each run that has some. Blocks."""
        damaged = {row.uid: found for row in rows if (found := self._damage_of(row))}
        for uid, found in damaged.items():
            log.error("run.damaged", run=uid, reason=found)
        return damaged

    def _damage_of(self, row: RunRow) -> str:
        """Reads all that will be read of it."""
        if row.damage:
            return row.damage
        journal, uid = self._journal, row.uid
        try:
            phases = len(row.spec.get("phases", ()))
            journal.require_sound(uid, phases=phases)
            self._history(uid)
            for event in journal.events_of(uid, ("conductor.started",)):
                _identity(event.data)
            _decided(journal, row)
            _first_unfinished_phase(journal, uid, phases=phases)
            _last_incarnations(journal, uid)
        except RecordDamaged as error:
            return f"{error.place}: {error.what}"
        except SENSELESS as error:
            return f"its record makes no sense: {type(error).__name__}: {error}"
        return ""

    async def _record_deaths(self, uids: list[str]) -> None:
        """`run.interrupted` for runs that were in work when the daemon went down without a word."""
        data: dict[str, Any] = {"by": "recovery", "reason": NOT_ON_RECORD, "died": False}
        if (last := self.heartbeat.last) is not None:
            data |= {"reason": last.obituary, "died": True, "at": last.at}

        def change(transaction: Transaction) -> None:
            for uid in uids:
                transaction.event(uid, "run.interrupted", data)

        if uids:
            await self._journal.write(change)
        for uid in uids:
            log.warning("run.interrupted", run=uid, reason=data["reason"])

    async def _take_up(self, rows: list[RunRow], runs_folder: Path) -> list[Assignment]:
        """One that was being finalized is brought to the end that had been decided. One whose run file this governor can't
        read any more stays as it is, and is named in the log.
        """
        journal = self._journal
        found: list[Assignment] = []
        for row in rows:
            try:
                assignment = Assignment.of(row)
            except RunFileError as error:
                log.error("run.unreadable", run=row.uid, reason=str(error))  # noqa: TRY400  # the reason says it all
                continue
            run, folder = assignment.run, runs_folder / row.uid
            # Where all is done anew, what the next life records is nothing new.
            last_record = 0 if run.resume == "restart" else journal.last_record(row.uid)
            history = self._history(row.uid, last_record=last_record)
            await asyncio.to_thread(_remove_half_written, folder)
            end = _decided(journal, row) or _verdict(run, history)
            if end is not None:
                await _close(journal, assignment, end, folder=folder)
                log.info("run.closed", run=row.uid, outcome=end.outcome, reason=end.reason)
                continue
            if run.resume == "restart" and row.started_at is not None:
                await _begin_anew(journal, row.uid, history, folder=folder)
            phase = _first_unfinished_phase(journal, row.uid, phases=len(run.phases))
            if row.started_at is not None:
                log.info("run.goes_on", run=row.uid, phase=phase, worked=history.worked)
            found.append(
                replace(
                    assignment,
                    first_phase=phase,
                    worked=history.worked,
                    restarts_used=history.restarts,
                    incarnations=_last_incarnations(journal, row.uid),
                )
            )
        return found

    def _history(self, uid: str, *, last_record: int = 0) -> History:
        return run_history.read(self._journal.events_of(uid, run_history.KINDS), last_record=last_record)


def _identity(started: dict[str, Any]) -> tuple[ProcessIdentity | None, int | None]:
    """Of a conductor and of what bears its mark; None where it is not on record. Raises one of `SENSELESS`."""
    birth = msgspec.convert(started, ProcessIdentity) if "ticks" in started else None
    if birth is not None and not 0 < birth.pid <= LARGEST_PID:
        raise ValueError(f"pid {birth.pid}")
    return birth, int(started["mark"], 16) if "mark" in started else None


def _verdict(run: Run, history: History) -> _End | None:
    """The end of a run that is not to go on."""
    if history.deaths >= DEATHS:
        reason = f"the daemon died {history.deaths} times in a row with it, and nothing new was on record in between"
        return _End(outcome="failed", reason=reason)
    if history.begun and run.resume == "never":
        reason = "the daemon went down while it was in work, and its run file says resume: never"
        return _End(outcome="failed", reason=reason)
    return None


def _decided(journal: Journal, row: RunRow) -> _End | None:
    """Outcome and reason of a run that was being finalized when the daemon went down."""
    if row.outcome is not None:
        return _End(outcome=row.outcome, reason=row.reason)
    transitions = journal.events_of(row.uid, ("run.transition",))
    last = next((event.data for event in reversed(transitions) if event.data["to"] == "finalizing"), None)
    return None if last is None else _End(outcome=last["outcome"], reason=last["reason"])


async def _begin_anew(journal: Journal, uid: str, history: History, *, folder: Path) -> None:
    """Discards what is done, on record first: should the daemon die in between, the files go at the next start."""
    if history.begun:
        await journal.write(lambda transaction: transaction.restarted(uid))
    await asyncio.to_thread(shutil.rmtree, folder, ignore_errors=True)


def _first_unfinished_phase(journal: Journal, uid: str, *, phases: int) -> int:
    """The phase to go on with. The last one when all have ended: its end comes at once, from the record."""
    ended = {event.data["index"] for event in journal.standing_events_of(uid, ("phase.ended",))}
    return next((index for index in range(phases) if index not in ended), phases - 1)


def _last_incarnations(journal: Journal, uid: str) -> tuple[tuple[str, int], ...]:
    """The last one of each conductor that was started: numbers of incarnations are not used twice in a run."""
    last: dict[str, int] = {}
    for event in journal.events_of(uid, ("conductor.started",)):
        conductor, incarnation = event.data["conductor"], event.data["incarnation"]
        last[conductor] = max(incarnation, last.get(conductor, 0))
    return tuple(sorted(last.items()))


async def _close(journal: Journal, assignment: Assignment, end: _End, *, folder: Path) -> None:
    """It has no work left: its outcome is made durable, and its end recorded."""
    uid = assignment.uid
    result = build_result(
        journal=journal, assignment=assignment, outcome=end.outcome, reason=end.reason, folder=folder
    )
    file = await asyncio.to_thread(save_result, result, folder)

    def change(transaction: Transaction) -> None:
        kept = transaction.outcome(result, file=file)
        transaction.event(uid, "run.ended", {"outcome": kept, "reason": end.reason, "by": "recovery"})
        transaction.ended(uid)

    await journal.write(change)


def _remove_half_written(folder: Path) -> None:
    """Files of ours that have not got their name. What users' code has put into the folder is not ours. Blocks."""
    (folder / "result.json.part").unlink(missing_ok=True)
    for name in resume.WRITTEN_WHOLE:
        for path in (folder / name).rglob("*.part"):
            path.unlink(missing_ok=True)
