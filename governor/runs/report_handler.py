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
5. A report without the run's secret is refused unread. Values of the run's `secrets` are masked in it.
6. A failure is not recorded while the disk is full or files of the daemon or the run have been removed (`missing`
   says which), because that may have caused it. The run is interrupted, or fails for that reason.
"""

from __future__ import annotations

import asyncio
from collections import defaultdict
from itertools import groupby, takewhile
from typing import TYPE_CHECKING, Final, TypeVar, cast

import msgspec

from governor import logs, messages
from governor.conductors.verifier import Verifier
from governor.errors import ExitCode, JournalError, NoRoom, RecordDamaged
from governor.messages import (
    Acknowledged,
    AgentRestored,
    EpisodeAttemptEnded,
    EpisodeEnded,
    Log,
    PartFinalizing,
    Refused,
    Report,
    TaskAttemptEnded,
    TaskEnded,
    TaskReported,
    TaskStarted,
    decode_report,
    encode,
)
from governor.run_file.model import TASKS
from governor.runs.limits import Recorded
from governor.runs.record.failures import summary
from states import events

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from governor.errors import TryAgain
    from governor.journal.tables import Transaction
    from governor.runs.active_run import ActiveRun
    from states.events import Flow
    from transport.worker import Request

T = TypeVar("T")

log = logs.get_logger()
_KINDS: Final = {
    PartFinalizing: "part.finalizing",
    TaskStarted: "task.started",
    EpisodeAttemptEnded: "episode.attempt_ended",
    AgentRestored: "agent.restored",
    TaskAttemptEnded: "task.attempt_ended",
    TaskReported: "task.reported",
}


class ReportHandler:
    def __init__(self, run: ActiveRun) -> None:
        self._run = run
        self._verifier = Verifier(run.secret, run=run.uid)
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
            report = decode_report(self._run.variables.mask.packed(request.body[0]))
        except (IndexError, msgspec.MsgspecError) as error:
            log.warning("run.bad_report", run=self._run.uid, reason=str(error))
            refusal = Refused(
                code="bad_request", message=f"no report of a conductor: {error}", exit_code=ExitCode.USAGE
            )
            return [encode(refusal)]
        async with self._locks[report.conductor]:
            if self._open.get(report.conductor) != report.incarnation:
                return [encode(self._fenced(report))]
            await self._apply(report)
        return [encode(Acknowledged(flow=self._run.governor.flow))]

    def _fenced(self, report: Report) -> Refused:
        conductor, incarnation = report.conductor, report.incarnation
        log.warning(
            "report.fenced",
            run=self._run.uid,
            conductor=conductor,
            incarnation=incarnation,
            seq=report.seq,
            events=len(report.events),
        )
        reason = f"incarnation {incarnation} of conductor {conductor} is dead, or was never started"
        return Refused(code="fenced", message=reason, exit_code=ExitCode.TRY_AGAIN)

    async def _apply(self, report: Report) -> None:
        sender = (report.conductor, report.incarnation)
        new = [each for each in enumerate(report.events, start=report.seq) if each[0] > self._applied[sender]]
        outside_cause = await self._outside_cause() if any(_is_bad(event) for _, event in new) else None
        sound = new if outside_cause is None else [*takewhile(lambda each: not _is_bad(each[1]), new)]
        for of_records, group in groupby(sound, key=lambda each: isinstance(each[1], Recorded)):
            if of_records:
                numbered = [*group]
                await self._record(cast("list[Recorded]", [event for _, event in numbered]))
                self._applied[sender] = numbered[-1][0]
                continue
            for seq, event in group:
                await self._forward(report, event)
                self._applied[sender] = seq
        if outside_cause is not None and len(sound) < len(new):
            raise outside_cause

    async def _outside_cause(self) -> TryAgain | None:
        """The error to raise if something outside the run may have caused a failure, which is then not recorded; else
        None.
        """
        if await self._run.is_out_of_room():
            return NoRoom(
                f"the disk is full: failed work of run {self._run.uid} is repeated after the next start"
            )
        return self._run.context.files.missing(self._run)

    async def _forward(self, report: Report, event: messages.ConductorEvent) -> None:
        handle = self._run.governor.handle
        stamp = (*self._run.stamp, report.conductor, report.incarnation)
        match event:
            case Log():
                about = {**event.data, "conductor": report.conductor}
                self._run.log.line(event.level, event.event, **about)
            case messages.FiguresUpdated(phase=phase, figures=figures):
                await self._write(lambda transaction: transaction.figures(self._run.uid, phase, figures))
            case messages.TracebackSeen(digest=digest, text=text, first=first):
                await self._write(
                    lambda transaction: transaction.traceback(self._run.uid, digest, text, first=first)
                )
            case messages.ReadyReport(detail=detail):
                if report.conductor == TASKS:
                    self._run.limits.task_conductor_ready()
                self._run.services.is_ready(report.conductor)
                await handle(events.ConductorReady(*stamp), detail={"detail": detail})
            case messages.FailedReport(reason=reason, traceback=traceback):
                await handle(events.ConductorFailed(*stamp, reason=reason), detail={"traceback": traceback})
            case messages.FlowReport(phase=phase, flow=flow, reason=reason):
                conductors = self._run.assignment.conductors_of(phase)
                asked = events.FlowRequested(
                    *stamp, phase=phase, flow=cast("Flow", flow), reason=reason, conductors=conductors
                )
                await handle(asked)
            case messages.PartEndedReport():
                self._run.progress.finalizing = ""
                for kind in ("prompt", "completion"):
                    tokens = event.metrics.get(f"tokens_{kind}", 0)
                    self._run.context.metrics.count("tokens", kind, tokens)
                ended = events.PartEnded(
                    *self._run.stamp,
                    phase=event.phase,
                    part=event.part,
                    end=event.end,
                    failures=event.failures,
                    first_failure=await self._first_failures(event),
                    tolerated=event.tolerated,
                    exceeded=event.exceeded,
                )
                fault = {"fault": event.fault, "traceback": event.traceback} if event.fault else {}
                by = {"ended_by": event.ended_by} if event.ended_by else {}
                await handle(ended, detail={"metrics": event.metrics, **by, **fault})

    async def _first_failures(self, ended: messages.PartEndedReport) -> str:
        """One line; of a part that passed a bound the first causes, with their numbers: all of its records are in the journal."""
        run, journal = self._run, self._run.context.journal
        if not ended.exceeded or ended.fault or ended.failures == 1:
            return ended.first_failure
        try:
            causes = await journal.read(lambda: journal.causes(run.uid, ended.phase))
        except (JournalError, RecordDamaged):
            causes = []
        kind = "episode" if ended.part == "simulation" else "task"
        own = [cause for cause in causes if cause.kind == kind]
        return summary(own) if sum(cause.number for cause in own) > 1 else ended.first_failure

    async def _write(self, change: Callable[[Transaction], T]) -> T:
        """Raises JournalError: the conductor receives no acknowledgement and sends its report again."""
        try:
            return await self._run.context.journal.write(change, run=self._run.uid)
        except JournalError as error:
            self._run.governor.journal_failed(error)
            raise

    async def _record(self, pending: list[Recorded]) -> None:
        """Raises JournalError."""
        run = self._run

        def change(transaction: Transaction) -> list[Recorded]:
            return record_all(transaction, run.uid, pending)

        new = await self._write(change)
        for event in new:
            run.progress.count(event)
        run.log.recorded(new)
        run.limits.count(new)
        if (exceeded := run.limits.exceeded(*run.stamp)) is not None:
            # The governor has answered before the reply: its flow control then prevents further episodes.
            await run.governor.handle(exceeded)


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
