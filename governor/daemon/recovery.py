"""Cleans up what an earlier invocation of the daemon left unfinished (processes, records, files), and resumes its
runs.

In this order: runs that were in work when the daemon crashed get a recorded interruption; processes left alive are
killed and confirmed dead; then the run file decides. A run continues in its first unfinished phase, without the
episodes and tasks that have ended; or starts from the beginning; or fails. No run is resumed while a process is alive
that may still work on it.
"""

from __future__ import annotations

import asyncio
import os
import shutil
from contextlib import suppress
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Final, TypeAlias

import msgspec

from governor import logs
from governor.daemon.heartbeat import DaemonHeartbeat
from governor.errors import RecordDamaged, RunFileError
from governor.journal.tables import RECORD_OF
from governor.processes import leftovers
from governor.processes.identity import ProcessIdentity
from governor.processes.readiness import readable
from governor.runs import history, resume
from governor.runs.assignment import Assignment
from governor.runs.result import record_result
from governor.tasks.cluster import head

if TYPE_CHECKING:
    from pathlib import Path

    from governor.journal.journal import Journal
    from governor.journal.runs_table import RunRow
    from governor.journal.tables import Transaction
    from governor.messages import RunOutcome
    from governor.run_file.model import Run
    from governor.runs.history import History

DEATHS: Final = 5
"""Consecutive crashes of the daemon, without a new record of an episode or task, after which a run fails: it must not
keep the daemon from running.
"""
LARGEST_PID: Final = 2**22
"""The largest pid on Linux."""
UNREADABLE: Final = (LookupError, TypeError, ValueError, AttributeError, msgspec.MsgspecError)
"""Errors from reading values that were not written by the daemon."""
NOT_ON_RECORD: Final = "the daemon shut down in order, but could not record it"

log = logs.get_logger()


_End: TypeAlias = "tuple[RunOutcome, str]"
"""Outcome and reason."""


class Recovery:
    """Steps of a start: `clean_up`, then `assignments`; if there are `survivors`, `held_assignments` in the
    background.

    `held` are the runs that wait for survivors to exit, and what they wait for. `damaged` are those whose record is
    unreliable or whose run file this version does not accept, and why: they stay as they are, until an abort.
    """

    def __init__(self, *, journal: Journal, state_dir: Path) -> None:
        self.heartbeat = DaemonHeartbeat(state_dir)
        self.survivors: list[leftovers.Leftover] = []
        self.held: dict[str, str] = {}
        self.damaged: dict[str, str] = {}
        self._journal = journal
        self._instance = leftovers.instance_of(state_dir)

    async def clean_up(self) -> None:
        """Records the interruptions, kills processes left alive, and removes Ray's folders."""
        journal = self._journal
        rows = journal.unended()
        self.damaged |= await asyncio.to_thread(self._find_damage, rows)
        unended = [row.uid for row in rows if row.uid not in self.damaged]
        await self._record_deaths([uid for uid in unended if self._history(uid).at_work])
        identities: list[ProcessIdentity] = []
        marks: list[int] = []
        for data in (each for row in rows for each in journal.readable(row, "conductor.started")):
            with suppress(*UNREADABLE):  # a damaged run: as much as can be read
                identity, mark = _identity(data)
                identities += [identity] if identity is not None else []
                marks += [mark] if mark is not None else []
        dead, self.survivors = await asyncio.to_thread(
            leftovers.kill_leftovers, self._instance, identities, marks
        )
        if dead:
            log.warning("process.left_over", killed=[str(process) for process in dead])
        for process in self.survivors:
            log.error("process.survives", pid=process.pid, command=process.command)
        await asyncio.to_thread(head.remove_left_over, self._instance)

    async def assignments(self, runs_folder: Path) -> list[Assignment]:
        """The runs to queue, in the order of submission; runs that were in work only if there are no survivors."""
        await asyncio.to_thread(resume.finish_interrupted, self._journal, runs_folder)
        rows = [row for row in self._journal.unended() if row.uid not in self.damaged]
        if self.survivors:
            pids = ", ".join(map(str, self.survivors))
            self.held |= {row.uid: f"the exit of pid {pids}" for row in rows if row.started_at is not None}
        return await self._assignments_of([row for row in rows if row.uid not in self.held], runs_folder)

    async def held_assignments(self, runs_folder: Path) -> list[Assignment]:
        """The runs that were held; returns when every survivor is dead."""
        try:
            for process in self.survivors:
                await readable(process.handle)
        finally:
            for process in self.survivors:
                os.close(process.handle)
        log.info("process.left_over", killed=[str(process) for process in self.survivors])
        rows = [row for row in self._journal.unended() if row.uid in self.held]
        taken = await self._assignments_of(rows, runs_folder)
        self.held.clear()
        return taken

    def _find_damage(self, rows: list[RunRow]) -> dict[str, str]:
        """The damage of each damaged run. Blocks."""
        damaged = {row.uid: found for row in rows if (found := self._damage_of(row))}
        for uid, found in damaged.items():
            log.error("run.damaged", run=uid, reason=found)
        return damaged

    def _damage_of(self, row: RunRow) -> str:
        """Reads everything of the run that recovery needs; returns the damage, or ""."""
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
            Assignment.of(row)
        except RunFileError as error:
            faults = "; ".join(f"{fault.path}: {fault.message}" for fault in error.faults)
            return f"its run file is of another version: {faults}"
        except RecordDamaged as error:
            return f"{error.place}: {error.what}"
        except UNREADABLE as error:
            return f"its record makes no sense: {type(error).__name__}: {error}"
        return ""

    async def _record_deaths(self, uids: list[str]) -> None:
        """Records `run.interrupted` for runs that were in work when the daemon ended without recording it."""
        data: dict[str, Any] = {"by": "recovery", "reason": NOT_ON_RECORD, "died": False}
        if (last := self.heartbeat.last) is not None:
            data |= {"reason": last.exit_reason, "died": True, "at": last.at}

        def change(transaction: Transaction) -> None:
            for uid in uids:
                transaction.event(uid, "run.interrupted", data)

        if uids:
            await self._journal.write(change)
        for uid in uids:
            log.warning("run.interrupted", run=uid, reason=data["reason"])

    async def _assignments_of(self, rows: list[RunRow], runs_folder: Path) -> list[Assignment]:
        """A run that was being finalized gets the end that was decided."""
        journal = self._journal
        found: list[Assignment] = []
        for row in rows:
            assignment = Assignment.of(row)
            run, folder = assignment.run, runs_folder / row.uid
            # With `restart` all work is repeated, so its new records are not progress.
            last_record = 0 if run.resume == "restart" else journal.last_event(row.uid, *RECORD_OF)
            past = self._history(row.uid, last_record=last_record)
            await asyncio.to_thread(_remove_half_written, folder)
            end = _decided(journal, row) or _verdict(run, past)
            if end is not None:
                outcome, reason = end
                await record_result(
                    journal, assignment, outcome=outcome, reason=reason, folder=folder, ended_by="recovery"
                )
                log.info("run.closed", run=row.uid, outcome=outcome, reason=reason)
                continue
            if run.resume == "restart" and row.started_at is not None:
                await _begin_anew(journal, row.uid, past, folder=folder)
            phase = _first_unfinished_phase(journal, row.uid, phases=len(run.phases))
            if row.started_at is not None:
                log.info("run.continued", run=row.uid, phase=phase, worked=past.worked)
            found.append(
                replace(
                    assignment,
                    first_phase=phase,
                    worked=past.worked,
                    restarts_used=past.restarts,
                    incarnations=_last_incarnations(journal, row.uid),
                )
            )
        return found

    def _history(self, uid: str, *, last_record: int = 0) -> History:
        return history.read(self._journal.events_of(uid, history.KINDS), last_record=last_record)


def _identity(started: dict[str, Any]) -> tuple[ProcessIdentity | None, int | None]:
    """Identity and mark of a conductor; None if not on record. Raises one of `UNREADABLE`."""
    identity = msgspec.convert(started, ProcessIdentity) if "ticks" in started else None
    if identity is not None and not 0 < identity.pid <= LARGEST_PID:
        raise ValueError(f"pid {identity.pid}")
    return identity, int(started["mark"], 16) if "mark" in started else None


def _verdict(run: Run, past: History) -> _End | None:
    """The end of a run that must not continue."""
    if past.deaths >= DEATHS:
        reason = f"the daemon crashed {past.deaths} times in a row with it, without a new record in between"
        return "failed", reason
    if past.begun and run.resume == "never":
        reason = "the daemon ended while it was in work, and its run file says resume: never"
        return "failed", reason
    return None


def _decided(journal: Journal, row: RunRow) -> _End | None:
    """The end of a run that was being finalized when the daemon ended."""
    if row.outcome is not None:
        return row.outcome, row.reason
    transitions = journal.events_of(row.uid, ("run.transition",))
    last = next((event.data for event in reversed(transitions) if event.data["to"] == "finalizing"), None)
    return None if last is None else (last["outcome"], last["reason"])


async def _begin_anew(journal: Journal, uid: str, past: History, *, folder: Path) -> None:
    """Discards the work done so far, in the journal first: if the daemon crashes in between, the next start removes
    the files.
    """
    if past.begun:
        await journal.write(lambda transaction: transaction.restarted(uid))
    await asyncio.to_thread(shutil.rmtree, folder, ignore_errors=True)


def _first_unfinished_phase(journal: Journal, uid: str, *, phases: int) -> int:
    """The phase to continue with. If all have ended, the last one, whose end is on record."""
    ended = {event.data["index"] for event in journal.standing_events_of(uid, ("phase.ended",))}
    return next((index for index in range(phases) if index not in ended), phases - 1)


def _last_incarnations(journal: Journal, uid: str) -> tuple[tuple[str, int], ...]:
    """The last incarnation of each conductor: numbers are not used twice in a run."""
    last: dict[str, int] = {}
    for event in journal.events_of(uid, ("conductor.started",)):
        conductor, incarnation = event.data["conductor"], event.data["incarnation"]
        last[conductor] = max(incarnation, last.get(conductor, 0))
    return tuple(sorted(last.items()))


def _remove_half_written(folder: Path) -> None:
    """Removes our files that never got their final name. Files that user code put into the folder stay. Blocks."""
    (folder / "result.json.part").unlink(missing_ok=True)
    for name in resume.WRITTEN_WHOLE:
        for path in (folder / name).rglob("*.part"):
            path.unlink(missing_ok=True)
