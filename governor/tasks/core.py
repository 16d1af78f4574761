"""The scheduler of one task graph, without sockets, clocks or Ray: events in, effects out.

Rules:
1. Every run of every task ends in exactly one outcome, whatever order events come in; then the graph ends, once.
2. A runner has one attempt at a time; it is free again when its attempt has ended, or it is dead.
3. Running time counts from `Started`. Queue, cold start and the import of user code are not running time; an import
   has a limit of its own.
4. A decision stands: once a runner is to be killed for its deadline, what it still says is not heard.
5. News of a runner or ticket that is over changes nothing.
6. A spare runner is warmed shortly before a deadline, so that the place of a killed one is taken at once.

Which runners there are is the concern of `crew.py`, which runs of tasks are ready that of `ledger.py`.
"""

from __future__ import annotations

import heapq
from itertools import count
from typing import TYPE_CHECKING, Final, Literal, TypeAlias

from governor.messages import TaskRecord
from governor.tasks.crew import Crew, Doom, Seat
from governor.tasks.ledger import Ledger, Ready
from governor.tasks.story import (
    Attempt,
    AttemptEnded,
    AttemptStarted,
    Dispatch,
    Effect,
    Ended,
    Event,
    GraphEnded,
    Importing,
    KillRunner,
    RunEnded,
    RunnerGone,
    RunnerReady,
    Shape,
    Started,
    StartRunner,
    Stop,
    Tick,
    shape_of,
)

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from governor.messages import TaskSpec

IMPORT_LIMIT: Final = 120.0
"""Seconds from dispatch to the start of the callable: more means that the import of its module hangs."""
SPARE_LEAD: Final = 2.0
"""Seconds before a deadline at which a spare runner is warmed: a new one takes 0.4 to 1 s."""
SILENCE: Final = 1.0
"""Seconds after a dispatch to an idle runner after which its silence counts as running, from the dispatch on."""
MISFIRES: Final = 3
"""How often an attempt may be sent to a runner that turns out to be dead before it took it."""

Alarm: TypeAlias = Literal["deadline", "import", "silence", "spare"]


class Core:
    """One graph, which must be free of faults (`graph.faults`).

    Args:
        tasks: the graph. `done`: records of runs that ended earlier: they count and are not run again.
        slots: how many runners of each shape may work at once.
        unschedulable: why runners of a shape can never start; tasks of that shape fail with this reason.
        runner_ids: numbers for new runners, shared by all cores that use the same runners.
    """

    def __init__(
        self,
        *,
        tasks: Sequence[TaskSpec],
        slots: Mapping[Shape, int],
        done: Sequence[TaskRecord] = (),
        unschedulable: Mapping[Shape, str] | None = None,
        runner_ids: Iterator[int] | None = None,
    ) -> None:
        self.ledger = Ledger(tasks=tasks, done=done)
        self.crew = Crew(slots=slots, runner_ids=runner_ids or count())
        for task in tasks:
            self.crew.open(shape_of(task))
        self._unschedulable = dict(unschedulable or {})
        self._tickets = count(1)
        self._alarms: list[tuple[float, int, int, Alarm]] = []
        self._misfires: dict[tuple[str, int], int] = {}
        self._now = 0.0
        self._stopping = False
        self._ended = False

    def adopt(self, *, runner: int, shape: Shape, ready: bool) -> None:
        """A runner that was started before this graph: warm, or still on its way. Call before `begin`."""
        self.crew.seat(runner, shape, idle=ready)

    def begin(self, now: float) -> list[Effect]:
        """The first effects; call once, before any event."""
        self._now = now
        effects: list[Effect] = [RunEnded(record) for record in self.ledger.begin()]
        return self._settle(effects)

    def next_alarm(self) -> float | None:
        """When the next `Tick` is due."""
        while self._alarms and not self._is_due_for(*self._alarms[0][1:3]):
            heapq.heappop(self._alarms)
        return self._alarms[0][0] if self._alarms else None

    def on(self, event: Event) -> list[Effect]:
        """What is to be done about the event. News that comes too late has no effects."""
        effects: list[Effect] = []
        self._now = max(self._now, event.now)
        match event:
            case Started():
                self._started(event, effects)
            case Ended():
                self._attempt_ended(event, effects)
            case Importing():
                self._importing(event)
            case RunnerReady():
                self.crew.ready(event.runner)
            case RunnerGone():
                self._gone(event, effects)
            case Tick():
                self._tick(event.now, effects)
            case Stop():
                self._stop(event, effects)
        return self._settle(effects)

    # -- one attempt ----------------------------------------------------------------------------------------

    def _importing(self, event: Importing) -> None:
        seat = self.crew.working(event.runner, event.ticket)
        if seat is not None and not seat.taken:
            seat.taken = True
            self._alarm(event.now + IMPORT_LIMIT, seat, "import")

    def _started(self, event: Started, effects: list[Effect]) -> None:
        seat = self.crew.working(event.runner, event.ticket)
        if seat is None or seat.attempt is None or seat.started_at is not None:
            return
        seat.taken = True
        seat.started_at = event.now
        effects.append(AttemptStarted(seat.attempt, event.pid, event.node))
        limit = seat.attempt.task.timeout
        if limit is not None:
            self._alarm(event.now + limit, seat, "deadline")
            self._alarm(event.now + max(0.0, limit - SPARE_LEAD), seat, "spare")

    def _attempt_ended(self, event: Ended, effects: list[Effect]) -> None:
        seat = self.crew.working(event.runner, event.ticket)
        if seat is None:
            self._last_words(event)
            return
        attempt = self.crew.release(seat)
        if event.result is not None:
            effects += self._succeed(attempt, event)
        else:
            effects += self._fail(attempt, Doom("failed", event.error), event.seconds)

    def _last_words(self, event: Ended) -> None:
        """A cancelled attempt that finished before the kill reached it keeps its result."""
        seat = self.crew.doomed(event.runner, event.ticket)
        if seat is not None and seat.doom and seat.doom.outcome == "cancelled" and event.result is not None:
            seat.doom = Doom("succeeded", "", ended=event)

    def _gone(self, event: RunnerGone, effects: list[Effect]) -> None:
        seat = self.crew.remove(event.runner)
        if seat is None:
            return
        if seat.state == "starting" and seat.attempt is None:
            if self.crew.start_failed(seat.shape):
                self._give_up(seat.shape, f"no runner can be started: {event.reason}", effects)
            return
        attempt, doom = seat.attempt, seat.doom
        if attempt is None:
            return
        seconds = 0.0 if seat.started_at is None else event.now - seat.started_at
        if doom is None and not seat.taken and self._misfired(attempt):
            self.ledger.again(Ready(attempt.task.id, attempt.run, attempt.number))
        elif doom is None:
            effects += self._fail(attempt, Doom("crashed", event.reason), seconds)
        elif doom.ended is not None:
            effects += self._succeed(attempt, doom.ended)
        else:
            effects += self._fail(attempt, doom, doom.seconds)

    def _misfired(self, attempt: Attempt) -> bool:
        """Whether a run whose work never arrived may simply be sent once more."""
        key = (attempt.task.id, attempt.run)
        self._misfires[key] = self._misfires.get(key, 0) + 1
        return self._misfires[key] <= MISFIRES and not self._stopping

    def _succeed(self, attempt: Attempt, event: Ended) -> list[Effect]:
        result = event.result
        assert result is not None  # noqa: S101  # both callers have just looked
        record = TaskRecord(
            task=attempt.task.id,
            run=attempt.run,
            outcome="succeeded",
            attempts=attempt.number,
            seconds=event.seconds,
            value=result.value,
            value_file=result.value_file,
            metrics=result.metrics,
        )
        return [RunEnded(ended) for ended in self.ledger.end(record)]

    def _fail(self, attempt: Attempt, doom: Doom, seconds: float) -> list[Effect]:
        task = attempt.task
        if not self._stopping and doom.retry and attempt.number <= task.retries:
            self.ledger.again(Ready(task.id, attempt.run, attempt.number + 1))
            return [AttemptEnded(attempt, doom.outcome, doom.error, seconds)]
        record = TaskRecord(
            task=task.id,
            run=attempt.run,
            outcome=doom.outcome,
            attempts=attempt.number,
            seconds=seconds,
            error=doom.error,
        )
        return [RunEnded(ended) for ended in self.ledger.end(record)]

    # -- time and stop --------------------------------------------------------------------------------------

    def _alarm(self, when: float, seat: Seat, kind: Alarm) -> None:
        if seat.attempt is not None:
            heapq.heappush(self._alarms, (when, seat.runner, seat.attempt.ticket, kind))

    def _is_due_for(self, runner: int, ticket: int) -> bool:
        return self.crew.working(runner, ticket) is not None

    def _tick(self, now: float, effects: list[Effect]) -> None:
        while self._alarms and self._alarms[0][0] <= now:
            _, runner, ticket, kind = heapq.heappop(self._alarms)
            seat = self.crew.working(runner, ticket)
            if seat is None or seat.attempt is None:
                continue
            if kind == "spare":
                more = self.ledger.left > 1 or seat.attempt.number <= seat.attempt.task.retries
                seat.spare_wanted = more
            elif kind == "silence":
                if not seat.taken:
                    self._started(Started(runner, ticket, seat.dispatched_at), effects)
            elif kind == "deadline":
                limit = seat.attempt.task.timeout
                reason = f"ran longer than its timeout of {limit:g} s"
                elapsed = 0.0 if seat.started_at is None else now - seat.started_at
                self._doom(seat, Doom("timed_out", reason, seconds=elapsed), effects)
            elif seat.started_at is None:
                reason = f'the import of "{seat.attempt.task.call}" took longer than {IMPORT_LIMIT:g} s'
                self._doom(seat, Doom("failed", reason), effects)

    def _doom(self, seat: Seat, doom: Doom, effects: list[Effect]) -> None:
        self.crew.doom(seat, doom)
        effects.append(KillRunner(seat.runner, doom.error))

    def _stop(self, event: Stop, effects: list[Effect]) -> None:
        if self._stopping:
            return
        self._stopping = True
        error = event.reason or "the phase was stopped"
        for seat in self.crew.at_work():
            elapsed = 0.0 if seat.started_at is None else event.now - seat.started_at
            self._doom(seat, Doom("cancelled", error, retry=False, seconds=elapsed), effects)
        kept = {(seat.attempt.task.id, seat.attempt.run) for seat in self.crew.all() if seat.attempt}
        effects += [RunEnded(record) for record in self.ledger.cancel(keep=kept, error=error)]

    def _give_up(self, shape: Shape, reason: str, effects: list[Effect]) -> None:
        """No runner of the shape will ever come: what waits for one fails, without a retry."""
        self._unschedulable[shape] = reason
        while (ready := self.ledger.take(shape)) is not None:
            record = TaskRecord(
                task=ready.task,
                run=ready.run,
                outcome="failed",
                attempts=ready.number - 1,
                seconds=0.0,
                error=reason,
            )
            effects += [RunEnded(ended) for ended in self.ledger.end(record)]

    # -- after every event ----------------------------------------------------------------------------------

    def _settle(self, effects: list[Effect]) -> list[Effect]:
        """Brings ready runs and runners together, starts and retires runners, ends the graph."""
        for shape in self.ledger.waiting_shapes():
            if shape in self._unschedulable:
                self._give_up(shape, self._unschedulable[shape], effects)
            else:
                self._assign(shape, effects)
        for shape in self.crew.shapes():
            waiting = self.ledger.waiting(shape)
            over = self.crew.superfluous(shape, waiting=waiting)
            effects += [KillRunner(runner, "not needed any more") for runner in over]
            new = self.crew.reinforce(shape, waiting=waiting)
            effects += [StartRunner(runner, shape) for runner in new]
        if self.ledger.left == 0 and not self._ended:
            self._ended = True
            effects.append(
                GraphEnded(
                    "stopped" if self._stopping else "tasks_done",
                    self.ledger.failures,
                    self.ledger.first_failure,
                )
            )
        return effects

    def _assign(self, shape: Shape, effects: list[Effect]) -> None:
        while (seat := self.crew.free(shape)) is not None and (ready := self.ledger.take(shape)) is not None:
            task = self.ledger.task(ready.task)
            attempt = Attempt(ticket=next(self._tickets), task=task, run=ready.run, number=ready.number)
            self.crew.occupy(seat, attempt, self._now)
            self._alarm(self._now + SILENCE, seat, "silence")
            effects.append(Dispatch(seat.runner, attempt, self.ledger.inputs(task)))
