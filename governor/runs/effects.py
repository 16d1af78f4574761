"""Runs the effects of one run: effect -> work -> event.

Rules:
1. Each effect that takes time runs as a named task of its own.
2. Each effect, also one that fails, ends in the event that `states.effects` names for it.
"""

from __future__ import annotations

import asyncio
import shutil
import time
from collections import defaultdict
from typing import TYPE_CHECKING, Final, cast

from governor import logs
from governor.episodes.rules.failures import CountedTasks
from governor.errors import JournalError
from governor.failures import one_line
from governor.messages import (
    ChangeWorkCommand,
    EndedRuns,
    PausePartCommand,
    Refused,
    Retire,
    StartSimulation,
    StartTasks,
    StopPartCommand,
)
from governor.runs.conductor_process import ConductorProcess
from governor.runs.record.failures import attempts_of
from governor.runs.record.result import figures_of, record_result
from governor.runs.record.work_changes import cancellations
from states import events
from states.at_work import AtWork
from states.base import RunInWork
from states.effects import (
    BeginPhase,
    ChangeTasks,
    ChangeWork,
    ConductorEffect,
    Effect,
    EndPhase,
    EndRun,
    PausePart,
    RemoveTraces,
    RetireConductor,
    StartConductor,
    StartPart,
    StopConductor,
    StopPart,
    Wake,
    WriteResult,
)
from transport.errors import TransportError

if TYPE_CHECKING:
    from governor.messages import ConductorCommand, RunOutcome
    from governor.processes.process import ChildProcess
    from governor.runs.active_run import ActiveRun

COMMAND_SECONDS: Final = 10.0
"""Seconds a conductor has to accept a command. It answers at once; one that does not is replaced."""
TELL_AGAIN_SECONDS: Final = 1.0

log = logs.get_logger()


class EffectRunner:
    """Performs the effects of one run."""

    def __init__(self, run: ActiveRun) -> None:
        self._run = run
        self._conductors: dict[str, ConductorProcess] = {}
        self._timers: dict[tuple[str, str], asyncio.TimerHandle] = {}
        self._in_order: dict[tuple[str, int], asyncio.Lock] = defaultdict(asyncio.Lock)
        """Of each incarnation of a conductor: a pause waits for the command that begins what it pauses."""

    @property
    def processes(self) -> dict[str, ChildProcess]:
        """The conductors whose process is alive, by name."""
        return {
            name: conductor.child
            for name, conductor in self._conductors.items()
            if conductor.child is not None and conductor.child.exit_code is None
        }

    @property
    def deadlines(self) -> dict[tuple[str, str], float]:
        """Seconds until each armed deadline, by deadline name and, for ``restart``, conductor."""
        now = asyncio.get_running_loop().time()
        return {key: timer.when() - now for key, timer in self._timers.items() if timer.when() > now}

    def perform(self, effect: Effect) -> None:
        match effect:
            case Wake():
                self._wake(effect)
            case StartConductor(conductor=name):
                self._conductors[name] = ConductorProcess(effect, run=self._run)
            case StopConductor():
                self._stop_conductor(effect)
            case BeginPhase(phase=phase):
                self._run.progress.enter_phase(phase)
            case StartPart() | PausePart() | ChangeWork() | ChangeTasks() | StopPart():
                self._tell_part(effect)
            case RetireConductor(conductor=name):
                self._run.spawn(self._tell_until_told(effect, Retire()), f"retire.{name}")
            case WriteResult():
                self._run.spawn(self._write_result(effect), "result")
            case RemoveTraces():
                self._run.spawn(self._remove_traces(), "traces")
            case EndPhase() | EndRun():
                pass  # for the record alone
            case _:
                raise TypeError(f"no such effect: {effect!r}")

    def _stop_conductor(self, effect: StopConductor) -> None:
        conductor = self._conductors.get(effect.conductor)
        if conductor is not None and conductor.incarnation == effect.incarnation:
            state = self._run.state
            known = state.conductors.find(effect.conductor) if isinstance(state, RunInWork) else None
            conductor.stop(effect.first, known.last_error if known is not None else "")

    def take_stuck_processes(self) -> dict[asyncio.Task[None], frozenset[int]]:
        """The pids that could not be killed, by the task that ends when they are gone; these tasks outlive the run."""
        found = dict(filter(None, (each.left_running() for each in self._conductors.values())))
        for task in found:
            self._run.leave(task)
        return found

    # -- time --------------------------------------------------------------------------------------------------

    def _wake(self, effect: Wake) -> None:
        key = (effect.name, effect.conductor)
        if (earlier := self._timers.get(key)) is not None:
            earlier.cancel()

        def post_deadline() -> None:
            self._run.post(
                events.DeadlinePassed(
                    *self._run.stamp,
                    name=effect.name,
                    conductor=effect.conductor,
                    incarnation=effect.incarnation,
                )
            )

        loop = asyncio.get_running_loop()
        self._timers[key] = loop.call_later(max(0.0, effect.at - time.monotonic()), post_deadline)

    def cancel_deadlines(self) -> None:
        for timer in self._timers.values():
            timer.cancel()

    # -- phases ------------------------------------------------------------------------------------------------

    def _tell_part(self, effect: StartPart | PausePart | ChangeWork | ChangeTasks | StopPart) -> None:
        place = f"{effect.part}.{effect.phase}"
        match effect:
            case StartPart():
                self._run.spawn(self._start_part(effect), f"begin.{place}")
            case PausePart():
                pause = PausePartCommand(phase=effect.phase, paused=effect.paused, ends_flow=effect.ends_flow)
                self._run.spawn(self._tell_until_told(effect, pause), f"pause.{place}")
            case ChangeWork():
                change = ChangeWorkCommand(
                    phase=effect.phase,
                    change=effect.change,
                    episode=effect.episode,
                    task=effect.task,
                    reason=effect.reason,
                )
                self._run.spawn(self._tell_until_told(effect, change), f"{effect.change}.{place}")
            case ChangeTasks():
                limits = self._run.assignment.limits_of(effect.phase, effect.tasks)
                self._run.spawn(self._tell_until_told(effect, limits), f"limits.{place}")
            case StopPart():
                self._run.spawn(self._stop_part(effect), f"end.{place}")

    async def _start_part(self, effect: StartPart) -> None:
        run = self._run
        async with self._in_order[effect.conductor, effect.incarnation]:
            try:
                command = await asyncio.to_thread(self._command_of, effect)
            except JournalError as error:
                run.governor.journal_failed(error)
                return
            if isinstance(command, StartSimulation):
                run.progress.enter_simulation(command.done)
            else:
                run.progress.enter_tasks(command)
            try:
                reply = await run.command(
                    effect.conductor, effect.incarnation, command, seconds=COMMAND_SECONDS
                )
                reason = reply.message if isinstance(reply, Refused) else ""
            except TransportError as error:
                reason = str(error)
        if reason:
            run.post(
                events.PartFailed(
                    *run.stamp,
                    effect.conductor,
                    effect.incarnation,
                    phase=effect.phase,
                    part=effect.part,
                    reason=reason,
                )
            )

    async def _tell_until_told(
        self, effect: PausePart | ChangeWork | ChangeTasks | RetireConductor, command: ConductorCommand
    ) -> None:
        """User code may keep a conductor from answering for as long as an episode takes. One that is dead has other watchers."""
        async with self._in_order[effect.conductor, effect.incarnation]:
            while self._is_ready(effect):
                try:
                    await self._run.command(
                        effect.conductor, effect.incarnation, command, seconds=COMMAND_SECONDS
                    )
                except TransportError as error:
                    log.debug(
                        "conductor.not_told", run=self._run.uid, conductor=effect.conductor, reason=str(error)
                    )
                    await asyncio.sleep(TELL_AGAIN_SECONDS)
                else:
                    return

    def _is_ready(self, effect: ConductorEffect) -> bool:
        """Whether this incarnation of its conductor still works on the run."""
        state = self._run.state
        found = state.conductors.find(effect.conductor) if isinstance(state, AtWork) else None
        return found is not None and (found.incarnation, found.standing) == (effect.incarnation, "ready")

    def _command_of(self, effect: StartPart) -> StartSimulation | StartTasks:
        """The command that begins a part, with what has ended of it. Blocks; raises JournalError."""
        assignment, journal = self._run.assignment, self._run.context.journal
        if effect.part == "simulation":
            done = figures_of(journal, assignment, effect.phase)
            attempts = attempts_of(journal, assignment, effect.phase, ended=done.ended)
            cancelled = cancellations(journal, self._run.uid, effect.phase, "episode")
            return assignment.simulation(effect.phase, done=done, attempts=attempts, cancelled=cancelled)
        counted = CountedTasks(journal.tasks(self._run.uid, effect.phase))
        return assignment.tasks(
            effect.phase,
            done=EndedRuns.fold(counted),
            journal=str(journal.path),
            failed=counted.failed,
            in_a_row=counted.in_a_row,
            cancelled=cancellations(journal, self._run.uid, effect.phase, "task"),
        )

    async def _stop_part(self, effect: StopPart) -> None:
        command = StopPartCommand(phase=effect.phase, reason=effect.reason)
        try:
            await self._run.command(effect.conductor, effect.incarnation, command, seconds=COMMAND_SECONDS)
        except TransportError as error:  # the deadline `close` bounds the wait
            log.warning("part.not_stopped", run=self._run.uid, part=effect.part, reason=str(error))

    # -- the end -----------------------------------------------------------------------------------------------

    async def _write_result(self, effect: WriteResult) -> None:
        run, journal = self._run, self._run.context.journal
        await run.environment_recorded()
        try:
            result = await record_result(
                journal,
                run.assignment,
                outcome=effect.outcome,
                reason=effect.reason,
                folder=run.folder,
                submitted_by=run.log.submitted_by,
            )
        except (JournalError, OSError) as error:
            journal.make_room(error)
            log.warning("result.not_written", run=run.uid, reason=str(error))
            run.post(events.ResultFailed(*run.stamp, reason=str(error)))
            return
        except Exception as error:
            log.exception("result.not_written", run=run.uid)
            run.post(events.ResultFailed(*run.stamp, reason=one_line(error)))
            return
        run.log.result = result
        run.post(events.ResultWritten(*run.stamp, outcome=cast("RunOutcome", result.outcome)))  # it has ended

    async def _remove_traces(self) -> None:
        left: list[str] = []
        await asyncio.to_thread(
            shutil.rmtree,
            self._run.socket_folder,
            onerror=lambda _function, path, _error: left.append(str(path)),
        )
        self._run.post(events.TracesRemoved(*self._run.stamp, left=tuple(left)))
