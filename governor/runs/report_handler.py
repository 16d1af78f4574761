"""Receives the reports of a run's conductors, makes them durable, and acknowledges them.

Rules:
1. Each event of (conductor, incarnation) is applied once, by its number, however often it is sent. If an event cannot
   be applied, those before it stay applied.
2. Records (episodes, tasks) go into the journal as they arrive; events that change the run's state go through the
   state machine.
3. A report is acknowledged when all of it is in the journal.
4. Fencing: reports are accepted only from the incarnation that was started last and is not known to be dead. When
   `close` returns, none of its reports is being applied or will be, so the list of finished work that its successor
   gets is complete.
5. A report without the run's secret is refused unread.
6. A failure is not recorded while the disk is full or files of the daemon or the run have been removed (`missing`
   says which), because that may have caused it. The run is interrupted, or fails for that reason.
"""

from __future__ import annotations

import asyncio
from collections import defaultdict
from itertools import groupby
from typing import TYPE_CHECKING, Any, Final, Protocol

import msgspec

from governor import logs, messages
from governor.conductors.verifier import Verifier
from governor.errors import ExitCode, JournalError, NoRoom
from governor.messages import (
    Acknowledged,
    EpisodeEnded,
    FlowControl,
    Log,
    Refused,
    Report,
    TaskAttemptEnded,
    TaskEnded,
    TaskStarted,
    decode_report,
    encode,
)
from governor.run_file.model import TASKS
from governor.runs.limits import Recorded
from states import events

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from governor.errors import FilesRemoved, TryAgain
    from governor.journal.journal import Journal
    from governor.journal.tables import Transaction
    from governor.runs.limits import RunLimits
    from governor.runs.progress import Progress
    from states.events import Event
    from transport.access import Secret
    from transport.worker import Request

log = logs.get_logger()
_KINDS: Final = {TaskStarted: "task.started", TaskAttemptEnded: "task.attempt_ended"}


class ReportingRun(Protocol):
    """The part of the run governor that the handler needs."""

    @property
    def flow(self) -> FlowControl: ...
    async def handle(self, event: Event, *, detail: dict[str, Any]) -> None:
        """Returns when the event has been answered and recorded."""

    def now(self) -> float: ...
    def journal_failed(self, error: JournalError) -> None: ...


class ReportHandler:
    def __init__(
        self,
        *,
        uid: str,
        journal: Journal,
        progress: Progress,
        governor: ReportingRun,
        secret: Secret,
        limits: RunLimits | None = None,
        missing: Callable[[], FilesRemoved | None] = lambda: None,
    ) -> None:
        self._uid = uid
        self._verifier = Verifier(secret, run=uid)
        self._limits = limits
        self._missing = missing
        self._journal = journal
        self._progress = progress
        self._governor = governor
        self._applied: defaultdict[tuple[str, int], int] = defaultdict(int)
        self._locks: defaultdict[str, asyncio.Lock] = defaultdict(asyncio.Lock)
        self._open: dict[str, int] = {}

    def open(self, conductor: str, incarnation: int) -> None:
        """Admits this incarnation; call it before its process is started."""
        self._open[conductor] = incarnation

    async def close(self, conductor: str, incarnation: int) -> None:
        """Call it when the process is dead. Waits for a report that is being applied; the governor's loop must not
        wait here.
        """
        async with self._locks[conductor]:
            if self._open.get(conductor) == incarnation:
                del self._open[conductor]

    async def answer(self, request: Request) -> Sequence[bytes]:
        """Handles one request to `run.<uid>`."""
        if (refusal := self._verifier.refusal(request.body)) is not None:
            return [encode(refusal)]
        try:
            report = decode_report(request.body[0])
        except (IndexError, msgspec.MsgspecError) as error:
            log.warning("run.bad_report", run=self._uid, reason=str(error))
            refusal = Refused(
                code="bad_request", message=f"no report of a conductor: {error}", exit_code=ExitCode.USAGE
            )
            return [encode(refusal)]
        async with self._locks[report.conductor]:
            if self._open.get(report.conductor) != report.incarnation:
                return [encode(self._fenced(report))]
            await self._apply(report)
        return [encode(Acknowledged(flow=self._governor.flow))]

    def _fenced(self, report: Report) -> Refused:
        conductor, incarnation = report.conductor, report.incarnation
        log.warning(
            "report.fenced",
            run=self._uid,
            conductor=conductor,
            incarnation=incarnation,
            seq=report.seq,
            events=len(report.events),
        )
        reason = f"incarnation {incarnation} of conductor {conductor} is dead, or was never started"
        return Refused(code="fenced", message=reason, exit_code=ExitCode.TRY_AGAIN)

    async def _apply(self, report: Report) -> None:
        sender = (report.conductor, report.incarnation)
        pending: list[Recorded] = []
        outside_cause = await self._outside_cause() if any(map(_is_bad, report.events)) else None
        for seq, event in enumerate(report.events, start=report.seq):
            if seq <= self._applied[sender]:
                continue
            if outside_cause is not None and _is_bad(event):
                if pending:
                    await self._record(pending)
                    self._applied[sender] = seq - 1
                raise outside_cause
            if isinstance(event, Recorded):
                pending.append(event)
                continue
            if pending:
                await self._record(pending)
                self._applied[sender] = seq - 1
                pending = []
            if isinstance(event, Log):
                getattr(log, event.level)(
                    event.event, run=self._uid, conductor=report.conductor, **event.data
                )
            else:
                await self._forward(report, event)
            self._applied[sender] = seq
        if pending:
            await self._record(pending)
            self._applied[sender] = report.seq + len(report.events) - 1

    async def _outside_cause(self) -> TryAgain | None:
        """The error to raise if something outside the run may have caused a failure, which is then not recorded; else
        None.
        """
        if await asyncio.to_thread(
            lambda: self._journal.is_out_of_room
        ):  # writes a file, which takes some milliseconds
            return NoRoom(
                f"the disk is full: failed work of run {self._uid} is repeated after the next start"
            )
        return self._missing()

    async def _forward(
        self,
        report: Report,
        event: messages.ReadyReport | messages.FailedReport | messages.PartEndedReport,
    ) -> None:
        at = self._governor.now()
        match event:
            case messages.ReadyReport(detail=detail):
                forwarded: Event = events.ConductorReady(
                    run=self._uid, at=at, conductor=report.conductor, incarnation=report.incarnation
                )
                if self._limits is not None and report.conductor == TASKS:
                    self._limits.task_conductor_ready()
                await self._governor.handle(forwarded, detail={"detail": detail})
            case messages.FailedReport(reason=reason, traceback=traceback):
                forwarded = events.ConductorFailed(
                    run=self._uid,
                    at=at,
                    conductor=report.conductor,
                    incarnation=report.incarnation,
                    reason=reason,
                )
                await self._governor.handle(forwarded, detail={"traceback": traceback})
            case messages.PartEndedReport():
                forwarded = events.PartEnded(
                    run=self._uid,
                    at=at,
                    phase=event.phase,
                    part=event.part,
                    end=event.end,
                    failures=event.failures,
                    first_failure=event.first_failure,
                )
                await self._governor.handle(forwarded, detail={"metrics": event.metrics})

    async def _record(self, pending: list[Recorded]) -> None:
        """Raises JournalError: the conductor receives no acknowledgement and sends its report again."""

        def change(transaction: Transaction) -> list[Recorded]:
            return record_all(transaction, self._uid, pending)

        try:
            new = await self._journal.write(change, run=self._uid)
        except JournalError as error:
            self._governor.journal_failed(error)
            raise
        for event in new:
            match event:
                case EpisodeEnded(episode=episode):
                    self._progress.episode(episode)
                case TaskStarted(task=task, run=run):
                    self._progress.task_started(task, run)
                case TaskAttemptEnded(task=task, run=run):
                    self._progress.attempt_ended(task, run)
                case TaskEnded(record=record):
                    self._progress.task_ended(record.task, record.run)
        await self._check_limits(new)

    async def _check_limits(self, new: list[Recorded]) -> None:
        """Returns after the governor has answered: the flow control of the reply then prevents further episodes."""
        exceeded = self._limits.count(new) if self._limits is not None else None
        if exceeded is None:
            return
        limit, value, reached = exceeded
        forwarded = events.LimitExceeded(
            run=self._uid, at=self._governor.now(), limit=limit, value=value, reached=reached
        )
        await self._governor.handle(forwarded, detail={})


def record_all(transaction: Transaction, uid: str, pending: Sequence[Recorded]) -> list[Recorded]:
    """Records events and their records in order; returns those that were not on record before."""
    new: list[Recorded] = []
    for (kind, phase), group in groupby(pending, key=lambda event: (type(event), event.phase)):
        together = list(group)
        if kind is TaskEnded:
            records = [event.record for event in together if isinstance(event, TaskEnded)]
            new += [TaskEnded(phase=phase, record=each) for each in transaction.tasks(uid, phase, records)]
        elif kind is EpisodeEnded:
            episodes = [event.episode for event in together if isinstance(event, EpisodeEnded)]
            new += [
                EpisodeEnded(phase=phase, episode=each) for each in transaction.episodes(uid, phase, episodes)
            ]
        else:
            transaction.events(uid, _KINDS[kind], [msgspec.structs.asdict(event) for event in together])
            new += together
    return new


def _is_bad(event: messages.ConductorEvent) -> bool:
    match event:
        case EpisodeEnded(episode=episode):
            return episode.outcome in messages.BAD
        case TaskEnded(record=record):
            return record.outcome not in ("succeeded", "cancelled")
        case messages.PartEndedReport(failures=failures):
            return failures > 0
        case _:
            return isinstance(event, messages.FailedReport)
