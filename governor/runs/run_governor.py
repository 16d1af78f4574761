"""`RunGovernor`: one slot of the daemon. Takes events from its inbox, passes them to the state, has the effects
performed.

Rules:
1. State changes here and nowhere else, one event at a time.
2. An event and the transition that it caused are in the journal before their effects are performed.
3. A refused command changes nothing, and its error names the last transitions.
4. A crash inside a state is logged with the state and raised: the daemon shuts down, and its next invocation
   continues where the journal ends. A machine in an unknown state must not act.
"""

from __future__ import annotations

import asyncio
import time
import uuid
from collections import deque
from contextlib import AsyncExitStack
from typing import TYPE_CHECKING, Any, Final

from governor import logs
from governor.errors import JournalError, TryAgain
from governor.runs.active_run import ActiveRun
from governor.runs.progress import status_of
from governor.runs.quarantine import Quarantine
from governor.runs.record.event_log import entries
from states import Dropped, Pristine, Rejected, Running, State, Step, advance
from states.at_work import AtWork
from states.effects import EndRun
from states.events import (
    AbortRequested,
    ConductorExited,
    Event,
    PlanChangeRequested,
    ProcessesGone,
    RunAssigned,
    StopRequested,
)
from states.finalizing import Finalizing
from states.stopping import Stopping

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from governor.journal.tables import Transaction
    from governor.messages import FlowControl, RunStatus, Until
    from governor.processes.process import ChildProcess
    from governor.run_file.model import Run
    from governor.runs.active_run import RunContext
    from governor.runs.assignment import Assignment
    from governor.runs.run_changes import AcceptedChange

SHOWN_TRANSITIONS: Final = 12
"""Transitions that a refusal names."""

log = logs.get_logger()


class RunGovernor:
    """Governs one run at a time, from its assignment until its last process is gone: `attach`, then `handle_events`.

    Args:
        broker_uri: where its services register (the broker's endpoint for workers).
        uid: its name in logs, by default a new one.
    """

    _context: RunContext
    _on_change: Callable[[RunGovernor], None]
    _on_journal_failure: Callable[[JournalError], None]

    def __init__(self, broker_uri: str, uid: str | None = None) -> None:
        self.broker_uri = broker_uri
        self.uid = uid or f"RunGovernor-{uuid.uuid4()}"
        self.state: State = Pristine()
        self.errors: list[tuple[Exception, str]] = []
        self.dropped = 0
        self._inbox: asyncio.Queue[tuple[Event, dict[str, Any], asyncio.Future[None]]] = asyncio.Queue()
        self._transitions: deque[str] = deque(maxlen=SHOWN_TRANSITIONS)
        self._active: ActiveRun | None = None
        self.holding: Assignment | None = None  # the run of which a process may be alive
        self._in_work = AsyncExitStack()
        self._assigning = asyncio.Lock()
        self._released = asyncio.Event()
        self._quarantine = Quarantine(self.uid, self.post)

    def __repr__(self) -> str:
        run = f", run={self._active.uid}" if self._active else ""
        return f"RunGovernor({self.uid}, {self.state.name}{run})"

    def attach(
        self,
        context: RunContext,
        *,
        on_change: Callable[[RunGovernor], None] = lambda _: None,
        on_journal_failure: Callable[[JournalError], None] = lambda _: None,
    ) -> None:
        """Gives it what the daemon provides to runs.

        `on_change` is called after each transition, with this governor; `on_journal_failure` when an event could not be recorded: the
        daemon has to shut down in order.
        """
        self._context = context
        self._on_change = on_change
        self._on_journal_failure = on_journal_failure

    # -- its public state ----------------------------------------------------------------------------------------

    @property
    def experiment_run(self) -> Run | None:
        return self._active.assignment.run if self._active else None

    @property
    def experiment_run_id(self) -> str | None:
        return self._active.uid if self._active else None

    def in_work(self, uid: str) -> ActiveRun:
        """The run in work. Raises TryAgain when it is another one."""
        if self._active is None or self._active.uid != uid:
            raise TryAgain(f"run {uid} is not in work any more")
        return self._active

    @property
    def group(self) -> str | None:
        """The group of the run in work."""
        return self._active.assignment.group if self._active else None

    @property
    def current_phase(self) -> int:
        """The index of the phase at work; 0 before the first one, and without a run."""
        return (self._active.progress.phase_index or 0) if self._active else 0

    @property
    def termination_condition(self) -> tuple[Until, ...]:
        """What ends the current phase: its `until`, empty where it has none."""
        return self._active.assignment.run.phases[self.current_phase].until if self._active else ()

    @property
    def current_episode(self) -> int:
        """Episodes of the current phase that have ended."""
        return self._active.progress.episodes_ended if self._active else 0

    @property
    def dead_children(self) -> list[str]:
        """Conductors that exited unexpectedly, with repetitions."""
        return self._active.dead_children if self._active else []

    @property
    def agent_conductors(self) -> dict[str, ChildProcess]:
        return self._processes("agent")

    @property
    def env_conductors(self) -> dict[str, ChildProcess]:
        return self._processes("environment")

    @property
    def sim_controllers(self) -> dict[str, ChildProcess]:
        return self._processes("simulation")

    @property
    def stopping(self) -> bool:
        return isinstance(self.state, Finalizing | Stopping)

    @property
    def shutdown(self) -> bool:
        """It accepts no further run, and `handle_events` returns."""
        return self._is_shut_down

    @property
    def _is_shut_down(self) -> bool:
        return isinstance(self.state, Pristine) and self.state.shutdown

    @property
    def is_free(self) -> bool:
        taking = isinstance(self.state, Pristine) and not self.state.shutdown and not self.state.stuck
        return taking and self._active is None  # set until the last run is cleaned up

    @property
    def quarantine(self) -> str:
        """The processes whose exit it awaits before it accepts a run; empty if none."""
        held = isinstance(self.state, Pristine) and self.state.stuck and not self.state.shutdown
        return self.state.waits_for if held else ""

    @property
    def flow(self) -> FlowControl:
        """The flow control that the governor sends at the end of an episode; after SHUTDOWN, unfinished episodes are
        not recorded.
        """
        if isinstance(self.state, Running):
            return "CONTINUE"
        return "STOP_PHASE" if isinstance(self.state, Finalizing) else "SHUTDOWN"

    def journal_failed(self, error: JournalError) -> None:
        """Reports that an event of this run could not be recorded."""
        log.error("journal.failed", run=self.experiment_run_id, reason=str(error))
        self._on_journal_failure(error)

    def status(self, known: RunStatus, marked: Mapping[int, Sequence[int]]) -> RunStatus:
        """The status of the run in work; see `status_of`."""
        if self._active is None:
            raise LookupError("no run is in work")
        return status_of(self._active, known, marked)

    async def measure(self, marked: Mapping[int, Sequence[int]]) -> None:
        """Measures what the conductors of the run in work use, for its next status. `marked`: from `kill_tree.marked`."""
        if (active := self._active) is not None:
            processes = active.effects.processes
            await active.usage.measure(
                {name: {child.pid, *marked.get(child.mark, ())} for name, child in processes.items()}
            )

    @property
    def deadlines(self) -> dict[tuple[str, str], float]:
        """See `EffectRunner.deadlines`."""
        return self._active.effects.deadlines if self._active else {}

    # -- commands ----------------------------------------------------------------------------------------------

    async def assign(self, assignment: Assignment) -> None:
        """Assigns a run. Raises TryAgain when another one is in work, OSError when the run's folders can't be made."""
        async with self._assigning:
            taken = self.is_free
            try:
                if taken:
                    self.holding = assignment
                    self._active = ActiveRun(assignment, context=self._context, governor=self)
                    await self._in_work.enter_async_context(self._active)
                await self.handle(RunAssigned(assignment.uid, time.monotonic(), plan=assignment.plan))
            except (OSError, TryAgain):
                if taken:
                    await self._release()
                raise

    async def abort(self, uid: str, reason: str, *, by: Mapping[str, Any] | None = None) -> None:
        """Ends the run as `aborted`; `by` is recorded. Raises TryAgain when it is ending already."""
        event = AbortRequested(uid, time.monotonic(), reason=reason or "aborted by request")
        await self.command(event, by)

    async def settled(self) -> State:
        """The state; of a run that is being assigned now, that in which it is in work."""
        async with self._assigning:
            return self.state

    async def command(
        self, event: Event, by: Mapping[str, Any] | None, detail: Mapping[str, Any] | None = None
    ) -> None:
        """Sends a command; `by` and `detail` are recorded. Raises TryAgain when it is refused."""
        async with self._assigning:  # a run that is being assigned now is in work then
            asked = self.post(event, {**(detail or {}), **({"by": dict(by)} if by else {})})
        await asked

    async def change_plan(self, change: AcceptedChange, by: Mapping[str, Any], reason: str) -> None:
        """Gives the run in work the changed run file, on record together with its event. Raises TryAgain when it is refused."""
        if (active := self._active) is None:
            raise TryAgain(f"run {change.assignment.uid} is not in work any more")
        active.change = change
        plan = change.assignment.plan
        event = PlanChangeRequested(*active.stamp, plan=plan, renews=change.renews, tasks=change.tasks)
        await self.command(event, by, {"changes": change.told, "reason": reason})

    def post_stop(self, reason: str, *, urgent: bool = False) -> None:
        """Interrupts the run; `handle_events` returns when its last process is gone. `urgent`: without any grace."""
        uid = self.experiment_run_id or ""
        self.post(StopRequested(uid, time.monotonic(), reason=reason, urgent=urgent))

    async def handle(self, event: Event, *, detail: dict[str, Any] | None = None) -> None:
        """Puts an event into the inbox; returns when it has been answered and recorded.

        `detail` is recorded with it. Raises TryAgain for a refused command.
        """
        await self.post(event, detail)

    def post(self, event: Event, detail: dict[str, Any] | None = None) -> asyncio.Future[None]:
        """Puts an event into the inbox without waiting for its answer, which the future gets."""
        answered: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._inbox.put_nowait((event, detail or {}, answered))
        return answered

    # -- the loop ----------------------------------------------------------------------------------------------

    async def handle_events(self) -> None:
        """Handles events until a stop was requested and nothing is left of the last run."""
        try:
            while not self._is_shut_down:
                await self._answer(*await self._inbox.get())
        finally:
            await self._quarantine.aclose()

    async def _answer(self, event: Event, detail: dict[str, Any], answered: asyncio.Future[None]) -> None:
        try:
            await self._step(event, detail, answered)
        except Exception as error:
            self.errors.append((error, self.state.name))
            log.exception("governor.crashed", slot=self.uid, state=self.state.name, event_kind=event.kind)
            raise

    async def _step(self, event: Event, detail: dict[str, Any], answered: asyncio.Future[None]) -> None:
        before = self.state
        match advance(before, event):
            case Rejected(why=why):
                transitions = "; ".join(self._transitions) or "none"
                answered.set_exception(
                    TryAgain(f"{event.kind} refused: {why}. Last steps of this slot: {transitions}")
                )
                return
            case Dropped(why=why):
                self.dropped += 1
                log.debug("event.dropped", slot=self.uid, event_kind=event.kind, why=why)
            case Step() as step:
                await self._record(before, event, step, detail)
                self.state = step.state
                if self._active is not None:
                    self._active.stepped(before, event, step)
                    for effect in step.effects:
                        self._active.effects.perform(effect)
                await self._after_step(before, event, step)
        if not answered.done():
            answered.set_result(None)

    async def _record(self, before: State, event: Event, step: Step, detail: dict[str, Any]) -> None:
        """Records event and transition. If the journal fails, the run still stops in order, recorded or not."""
        if (active := self._active) is None:
            return
        uid = active.uid
        rows = entries(before, event, step, detail=detail, assignment=active.assignment)

        def change(transaction: Transaction) -> None:
            if isinstance(event, RunAssigned):
                transaction.started(uid)
            if isinstance(event, PlanChangeRequested) and (changed := active.change) is not None:
                changed.record(transaction)
            for kind, data in rows:
                transaction.event(uid, kind, data)
            if any(isinstance(effect, EndRun) and effect.outcome for effect in step.effects):
                transaction.ended(uid)

        try:
            await self._context.journal.write(change, run=uid)
        except JournalError as error:
            self.journal_failed(error)

    async def _after_step(self, before: State, event: Event, step: Step) -> None:
        if isinstance(event, ConductorExited) and isinstance(before, AtWork) and not self.stopping:
            asked = before.conductors[event.conductor].replacing
            self.dead_children.extend([] if asked else [event.conductor])
        if isinstance(event, ProcessesGone) and self.is_free:
            log.info("slot.released", slot=self.uid, pids=event.pids)
            self._release_slot()
            self._on_change(self)
        if type(before) is type(step.state):
            return
        line = f"{before.name} -> {step.state.name} ({step.cause or event.kind})"
        self._transitions.append(line)
        log.info(
            "run.transition",
            run=self.experiment_run_id,
            slot=self.uid,
            source=before.name,
            target=step.state.name,
            cause=step.cause or event.kind,
        )
        if isinstance(step.state, Pristine):
            await self._end_run(step)
        self._on_change(self)

    async def _end_run(self, step: Step) -> None:
        for effect in step.effects:
            if isinstance(effect, EndRun) and self._active is not None:
                self._active.log.ended(
                    effect.outcome,
                    effect.reason,
                    peak_memory=self._active.limits.peak_memory,
                    stuck=effect.stuck or None,
                    dead_conductors=len(self.dead_children),
                    events_dropped=self.dropped,
                )
                if effect.stuck:
                    left = self._active.effects.take_stuck_processes()
                    self._quarantine.begin(self._active.uid, effect.stuck, left)
        await self._release()

    async def _release(self) -> None:
        await self._in_work.aclose()
        self._active = None
        if not (isinstance(self.state, Pristine) and self.state.stuck):
            self._release_slot()

    def _release_slot(self) -> None:
        self.holding = None
        self._released.set()
        self._released = asyncio.Event()

    @property
    def released(self) -> asyncio.Event:
        """Set when the run in work has left the slot, and all of its processes are gone."""
        return self._released

    def _processes(self, kind: str) -> dict[str, ChildProcess]:
        processes = self._active.effects.processes if self._active else {}
        return {name: child for name, child in processes.items() if name.partition(".")[0] == kind}
