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
import time
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import partial
from typing import TYPE_CHECKING, Any, Final, TypeAlias

import msgspec

from governor import logs
from governor.backup import restoring
from governor.daemon.damage import UNREADABLE, damage_in
from governor.daemon.heartbeat import DaemonHeartbeat
from governor.errors import RecordDamaged
from governor.files import temporary
from governor.journal import removal
from governor.journal.tables import RECORD_OF
from governor.processes import leftovers
from governor.processes.identity import ProcessIdentity
from governor.processes.readiness import readable
from governor.runs.assignment import Assignment, Waiting, owner_of
from governor.runs.record import failures, history, resume, snapshot, staging
from governor.runs.record.result import record_result
from governor.runs.run_log import run_ended
from governor.tasks.cluster import head
from states.events import ContinueRequested, PauseRequested

if TYPE_CHECKING:
    from pathlib import Path

    from governor.journal.journal import Journal
    from governor.journal.runs_table import RunRow
    from governor.journal.tables import Transaction
    from governor.messages import RunEvent, RunOutcome
    from governor.runs.record.history import History

DEATHS: Final = 5
"""Consecutive crashes of the daemon, without a new record of an episode or task, after which a run fails: it must not
keep the daemon from running.
"""
LARGEST_PID: Final = 2**22
"""The largest pid on Linux."""
KINDS: Final = (*history.KINDS, "run.accepted", "run.transition", "part.ended", "phase.ended")
"""The events that are read of each run."""
LEAVING: Final = "its processes to be gone"
"""What a run waits for that leaves its slot and goes back into the queue."""
NOT_ON_RECORD: Final = "the daemon shut down in order, but could not record it"

log = logs.get_logger()


_End: TypeAlias = "tuple[RunOutcome, str]"
"""Outcome and reason."""


@dataclass(frozen=True, slots=True, kw_only=True)
class _Record:
    """What is on record about a run that has not ended. It is read once, whole: a start takes its time from each of them.

    `is_begun`: it was in work once; `started`: identity and mark of each conductor; `end`: of a run that was being
    finalized. The run file itself is not kept: there may be many.
    """

    run: Waiting
    resume: str
    is_begun: bool
    past: History
    started: tuple[tuple[ProcessIdentity | None, int | None], ...]
    end: _End | None


class Recovery:
    """Steps of a start: `clean_up`, then `assignments`; if there are `survivors`, `held_assignments` in the
    background.

    `held` are the runs that wait for survivors to exit, and what they wait for. `damaged` are those whose record is
    unreliable or whose run file this version does not accept, and why: they stay as they are, until an abort.
    """

    def __init__(self, *, journal: Journal, state_dir: Path) -> None:
        self.heartbeat = DaemonHeartbeat(state_dir)
        self._state_dir = state_dir
        self._restored = restoring.restored_from(state_dir)
        self.survivors: list[leftovers.Leftover] = []
        self.held: dict[str, str] = {}
        self.damaged: dict[str, str] = {}
        self._journal = journal
        self._instance = leftovers.instance_of(state_dir)
        self._records: dict[str, _Record] = {}

    async def clean_up(self) -> None:
        """Records the interruptions, kills processes left alive, and removes Ray's folders."""
        began = time.monotonic()
        identities, marks = await asyncio.to_thread(self._read_all)
        runs = len(self._records) + len(self.damaged)
        log.info("runs.checked", runs=runs, seconds=round(time.monotonic() - began, 3))
        await self._record_deaths([uid for uid, record in self._records.items() if record.past.at_work])
        if self._restored:
            log.info("state_dir.restored", reason=self._restored)
            identities, marks = [], []  # of processes of the folder that was copied
        dead, self.survivors = await asyncio.to_thread(
            leftovers.kill_leftovers, self._instance, identities, marks
        )
        if dead:
            log.warning("process.left_over", killed=[str(process) for process in dead])
        for process in self.survivors:
            log.error("process.survives", pid=process.pid, command=process.command)
        await asyncio.to_thread(head.remove_left_over, self._instance)
        if self._restored:
            await asyncio.to_thread(restoring.forget, self._state_dir)

    async def assignments(self, runs_folder: Path) -> list[Waiting]:
        """The runs to queue, in the order of submission; runs that were in work only if there are no survivors."""
        await asyncio.to_thread(staging.finish_interrupted, self._journal, runs_folder)
        if self.survivors:
            pids = ", ".join(map(str, self.survivors))
            begun = [uid for uid, record in self._records.items() if record.is_begun]
            self.held |= dict.fromkeys(begun, f"the exit of pid {pids}")
        return await self._to_queue([uid for uid in self._records if uid not in self.held], runs_folder)

    async def held_assignments(self, runs_folder: Path) -> list[Waiting]:
        """The runs that were held; returns when every survivor is dead."""
        try:
            for process in self.survivors:
                await readable(process.handle)
        finally:
            for process in self.survivors:
                os.close(process.handle)
        log.info("process.left_over", killed=[str(process) for process in self.survivors])
        held = list(self.held)
        lines = await self._journal.read(lambda: self._journal.lines(held))
        unended = {line.uid for line in lines if line.ended_at is None}
        taken = await self._to_queue([uid for uid in self._records if uid in unended], runs_folder)
        for uid in held:
            self.held.pop(uid, None)
        return taken

    async def again(self, uid: str, runs_folder: Path, *, after: asyncio.Event) -> list[Waiting]:
        """A run that was interrupted by itself, if it has not ended; read `after` it has left its slot."""
        self.held[uid] = LEAVING
        try:
            await after.wait()
            row = await self._journal.read(partial(self._journal.run, uid))
            if row is None or row.ended_at is not None:
                return []
            self._records[uid] = await self._journal.read(partial(self._read, row))
        except UNREADABLE as error:
            self.damaged[uid] = damage_in(error)
            log.error("run.damaged", run=uid, reason=self.damaged[uid])  # noqa: TRY400  # the reason is complete
            return []
        else:
            return await self._to_queue([uid], runs_folder)
        finally:
            self.held.pop(uid, None)

    def _read_all(self) -> tuple[list[ProcessIdentity], list[int]]:
        """Reads the records, and finds the damaged ones; returns the identities and marks of all conductors. Blocks."""
        started: list[tuple[ProcessIdentity | None, int | None]] = []
        for row in self._journal.unended():
            try:
                self._records[row.uid] = record = self._read(row)
                started += record.started
            except UNREADABLE as error:
                self.damaged[row.uid] = damage_in(error)
                log.error("run.damaged", run=row.uid, reason=self.damaged[row.uid])  # noqa: TRY400  # the reason is complete
                for data in self._journal.readable(row, "conductor.started"):
                    with suppress(*UNREADABLE):  # as much as can be read
                        started.append(_identity(data))
        identities = [identity for identity, _ in started if identity is not None]
        return identities, [mark for _, mark in started if mark is not None]

    def _read(self, row: RunRow) -> _Record:
        """Raises one of `UNREADABLE`. Blocks."""
        if row.damage:
            raise RecordDamaged(row.uid, *row.damage.split(": ", 1))
        phases = len(row.spec.get("phases", ()))
        self._journal.require_sound(row.uid, phases=phases)
        events = self._journal.events_of(row.uid, KINDS)
        started = [event.data for event in events if event.kind == "conductor.started"]
        first_phase = _first_unfinished_phase(events, phases=phases)
        failed, failure = _failed_phases(events, before=first_phase)
        waiting = Waiting(
            uid=row.uid,
            first_phase=first_phase,
            incarnations=_last_incarnations(started),
            failed=failed,
            failure=failure,
            pause=_paused(events),
            group=row.group_uid,
        )
        run = Assignment.of(row, waiting).run
        how = run.resume
        by: dict[str, Any] = next(
            (event.data.get("by", {}) for event in events if event.kind == "run.accepted"), {}
        )
        return _Record(
            run=replace(waiting, owner=owner_of(by), priority=run.priority, requires=run.requires),
            resume=how,
            is_begun=row.started_at is not None,
            past=self._past(row.uid, events, resume=how),
            started=tuple(map(_identity, started)),
            end=_decided(row, events),
        )

    def _past(self, uid: str, events: list[RunEvent], *, resume: str) -> History:
        # With `restart` all work is repeated, so its new records are not progress.
        has_died = any(event.kind == "run.interrupted" and event.data.get("died") for event in events)
        last_record = self._journal.last_event(uid, *RECORD_OF) if has_died and resume != "restart" else 0
        return history.read((each for each in events if each.kind in history.KINDS), last_record=last_record)

    async def _record_deaths(self, uids: list[str]) -> None:
        """Records `run.interrupted` for runs that were in work when the daemon ended without recording it."""
        data: dict[str, Any] = {"by": "recovery", "reason": NOT_ON_RECORD, "died": False}
        if self._restored:
            data |= {"reason": self._restored}
        elif (last := self.heartbeat.last) is not None:
            data |= {"reason": last.exit_reason, "died": True, "at": last.at}

        def change(transaction: Transaction) -> None:
            for uid in uids:
                transaction.event(uid, "run.interrupted", data)

        if uids:
            await self._journal.write(change)
        for uid in uids:
            log.warning("run.interrupted", run=uid, reason=data["reason"])
            self._records[uid] = await self._journal.read(partial(self._interrupted, self._records[uid]))

    def _interrupted(self, record: _Record) -> _Record:
        events = self._journal.events_of(record.run.uid, KINDS)
        return replace(record, past=self._past(record.run.uid, events, resume=record.resume))

    async def _to_queue(self, uids: list[str], runs_folder: Path) -> list[Waiting]:
        """A run that was being finalized gets the end that was decided."""
        found: list[Waiting] = []
        await asyncio.to_thread(_remove_half_written, [runs_folder / uid for uid in uids])
        for uid in uids:
            record = self._records.pop(uid)
            past, folder, phase = record.past, runs_folder / uid, record.run.first_phase
            if (end := record.end or _verdict(record.resume, past)) is not None:
                await self._close(record, end, folder)
                continue
            anew: dict[str, Any] = {}
            if record.resume == "restart" and record.is_begun:
                await _begin_anew(self._journal, uid, past, folder=folder)
                phase = 0 if past.begun else phase
                anew = {"failed": 0, "failure": ""} if past.begun else {}
            if record.is_begun:
                log.info("run.continued", run=uid, phase=phase, worked=past.worked)
            found.append(
                replace(
                    record.run, first_phase=phase, worked=past.worked, restarts_used=past.restarts, **anew
                )
            )
        return found

    async def _close(self, record: _Record, end: _End, folder: Path) -> None:
        outcome, reason = end
        row = await self._journal.read(partial(self._journal.run, record.run.uid))
        if row is None:
            raise LookupError(f"run {record.run.uid} is not in the journal")
        assignment = Assignment.of(row, record.run)
        result = await record_result(
            self._journal, assignment, outcome=outcome, reason=reason, folder=folder, ended_by="recovery"
        )
        run_ended(result, ended_by="recovery", submitted_by=result.submitted_by or None)


def _identity(started: dict[str, Any]) -> tuple[ProcessIdentity | None, int | None]:
    """Identity and mark of a conductor; None if not on record. Raises one of `UNREADABLE`."""
    identity = msgspec.convert(started, ProcessIdentity) if "ticks" in started else None
    if identity is not None and not 0 < identity.pid <= LARGEST_PID:
        raise ValueError(f"pid {identity.pid}")
    return identity, int(started["mark"], 16) if "mark" in started else None


def _verdict(resume: str, past: History) -> _End | None:
    """The end of a run that must not continue."""
    if past.deaths >= DEATHS:
        reason = f"the daemon crashed {past.deaths} times in a row with it, without a new record in between"
        return "failed", reason
    if past.begun and resume == "never":
        reason = "the daemon ended while it was in work, and its run file says resume: never"
        return "failed", reason
    return None


def _decided(row: RunRow, events: list[RunEvent]) -> _End | None:
    """The end of a run that was being finalized when the daemon ended."""
    if row.outcome is not None:
        return row.outcome, row.reason
    transitions = (event.data for event in reversed(events) if event.kind == "run.transition")
    last = next((data for data in transitions if data["to"] == "finalizing"), None)
    return None if last is None else (last["outcome"], last["reason"])


async def _begin_anew(journal: Journal, uid: str, past: History, *, folder: Path) -> None:
    """Discards the work done so far, in the journal first: if the daemon crashes in between, the next start removes
    the files. The copy of its code stays.
    """
    if past.begun:
        await journal.write(lambda transaction: transaction.restarted(uid))
    await asyncio.to_thread(_remove_work, folder)


def _remove_work(folder: Path) -> None:
    if not (folder / snapshot.FOLDER).is_dir():
        removal.remove(folder)
        return
    for path in [*folder.iterdir()]:
        if path.is_dir() and not path.is_symlink():
            if path.name != snapshot.FOLDER:
                removal.remove(path)
        else:
            with suppress(OSError):
                path.unlink()


def _first_unfinished_phase(events: list[RunEvent], *, phases: int) -> int:
    """The phase to continue with. If all have ended, the last one, whose end is on record."""
    restarted = max((event.seq for event in events if event.kind == "run.restarted"), default=0)
    standing = (event for event in events if event.kind == "phase.ended" and event.seq > restarted)
    ended = {event.data["index"] for event in standing}
    return next((index for index in range(phases) if index not in ended), phases - 1)


def _failed_phases(events: list[RunEvent], *, before: int) -> tuple[int, str]:
    """How many of the phases before this one had failures, and the line of the first one."""
    restarted = max((event.seq for event in events if event.kind == "run.restarted"), default=0)
    standing = [event.data for event in events if event.seq > restarted]
    return failures.phases_with_failures(standing, before=before)


def _paused(events: list[RunEvent]) -> str | None:
    """The reason of a pause that has not ended."""
    kinds = (PauseRequested.kind, ContinueRequested.kind)
    last = next((event for event in reversed(events) if event.kind in kinds), None)
    return None if last is None or last.kind != PauseRequested.kind else last.data.get("reason", "")


def _last_incarnations(started: list[dict[str, Any]]) -> tuple[tuple[str, int], ...]:
    """The last incarnation of each conductor: numbers are not used twice in a run."""
    last: dict[str, int] = {}
    for data in started:
        conductor, incarnation = data["conductor"], data["incarnation"]
        last[conductor] = max(incarnation, last.get(conductor, 0))
    return tuple(sorted(last.items()))


def _remove_half_written(folders: list[Path]) -> None:
    """Removes our files that never got their final name. Files that user code put into the folders stay. Blocks."""
    for folder in folders:
        if not folder.exists():  # it was never in work
            continue
        temporary(folder / "result.json").unlink(missing_ok=True)
        for name in resume.WRITTEN_WHOLE:
            for path in (folder / name).rglob(".*.part"):
                with suppress(OSError):  # it is a folder of user code, or in one that is read-only
                    path.unlink()
