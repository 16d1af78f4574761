"""The state machine and what it has asked for: each effect is checked against all that came before it, then carried out or kept.

What follows of an effect is up to the world (`state_world`).
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field

from states import Dropped, Pristine, Rejected, Step, advance, effects
from states import events as e


@dataclass
class Process:
    conductor: str
    incarnation: int
    not_before: float
    pid: int = 0
    stage: str = "wanted"  # then alive, then dead
    reported_ready: bool = False
    terminating: bool = False
    retiring: bool = False
    stuck: bool = False
    silent: bool = False
    works_on: set[tuple[int, str]] = field(default_factory=set)

    @property
    def is_alive(self) -> bool:
        return self.stage == "alive"


class CheckedMachine:
    """Takes events by `send`. What the machine wants is in `processes`, `timers`, `to_begin`, `to_end`, `writes` and `removals`."""

    def __init__(self):
        self.state = Pristine()
        self.now = 0.0
        self.pids = 100
        self.runs = 0
        self.inbox = deque()  # of law 3
        self.mail = []
        self.sent = []
        self.taken = 0
        self.stuck_processes: list[int] = []
        self._forget()

    def _forget(self):
        self.plan = None
        self.processes: dict[tuple[str, int], Process] = {}
        self.timers: dict[tuple[str, str], effects.Wake] = {}
        self.to_begin: list[effects.StartPart] = []
        self.to_end: list[effects.StopPart] = []
        self.writes: list[effects.WriteResult] = []
        self.removals = 0
        self.traces_gone = False
        self.durable = self.durable_at_removal = None
        self.stop_taken = self.abort_taken = self.hard_pause_taken = self.stalled = False
        self.phase = None  # (index, began, ended)
        self.phases_ended: list[int] = []
        self.parts_ended: set[tuple[int, str]] = set()
        self.starts: dict[str, int] = {}
        self.forkserver = 1
        self.taken_along = (
            0  # beside the first one of each forkserver, and of each restart that was asked for
        )
        self.asks = 0
        self.shutdown_asked = False
        self.overdue = 0

    def send(self, event):
        before = self.state
        answer = advance(before, event)
        if isinstance(answer, Dropped | Rejected):
            assert answer.state is before
            assert isinstance(event, e.COMMANDS) == isinstance(answer, Rejected)
            return
        assert isinstance(answer, Step)
        self.state = answer.state
        self.taken += 1
        self._note(before, event)
        if isinstance(event, e.FlowRequested):
            stops = sum(isinstance(effect, effects.StopConductor) for effect in answer.effects)
            self.taken_along += max(stops - 1, 0)
            self.shutdown_asked |= event.flow == "SHUTDOWN"
        for effect in answer.effects:
            self._perform(effect)
        assert self.state.waits_for
        if isinstance(self.state, Pristine) and before.run is not None:
            assert self.plan is None, "no EndRun"

    def _note(self, before, event):
        match event:
            case e.RunAssigned():
                assert self.plan is None, "the run before has not ended"
                self.plan = event.plan
            case e.StopRequested():
                self.stop_taken = True
            case e.AbortRequested():
                self.abort_taken = True
            case e.PlanChangeRequested():
                self.plan = event.plan
            case e.PauseRequested():
                self.hard_pause_taken |= event.hard
            case e.PartEnded() if before.name == "running":
                assert (event.phase, event.part) not in self.parts_ended, "a part ended twice"
                self.parts_ended.add((event.phase, event.part))
            case e.DeadlinePassed(name="finalize"):
                self.overdue += 1
            case _:
                pass

    def _perform(self, effect):
        {
            effects.StartConductor: self._start,
            effects.StopConductor: self._stop,
            effects.RetireConductor: self._retire,
            effects.StartPart: self._start_part,
            effects.StopPart: self.to_end.append,
            effects.PausePart: self._pause_part,
            effects.ChangeWork: self._change_work,
            effects.ChangeTasks: self._change_work,
            effects.Wake: self._wake,
            effects.BeginPhase: self._begin_phase,
            effects.EndPhase: self._end_phase,
            effects.WriteResult: self._write,
            effects.RemoveTraces: self._remove,
            effects.EndRun: self._end,
        }[type(effect)](effect)

    def _start(self, effect):
        key = effect.conductor, effect.incarnation
        assert key not in self.processes, "started twice"
        process = Process(effect.conductor, effect.incarnation, self.now + effect.delay)
        self.processes[key] = process
        self.starts[effect.conductor] = self.starts.get(effect.conductor, 0) + 1
        earlier = dict(self.plan.incarnations).get(effect.conductor, 0)
        assert effect.incarnation == earlier + self.starts[effect.conductor]
        restarts = sum(self.starts.values()) - len(self.starts)
        assert restarts <= self.plan.restarts + self.taken_along, "more restarts than the budget"

    def _stop(self, effect):
        key = effect.conductor, effect.incarnation
        self.processes[key].terminating = True
        if self.processes[key].stage == "wanted":
            self._exits(key, None)

    def _retire(self, effect):
        process = self.processes[effect.conductor, effect.incarnation]
        assert process.reported_ready
        assert not process.retiring, "asked twice"
        process.retiring = True
        self.taken_along += 1

    def _start_part(self, effect):
        assert (effect.phase, effect.part) not in self.parts_ended, "done twice"
        assert self.processes[effect.conductor, effect.incarnation].reported_ready
        assert self.phase == effect.phase
        assert self.state.pause is None, "begun while it is paused"
        self.to_begin.append(effect)

    def _pause_part(self, effect):
        assert (effect.phase, effect.part) not in self.parts_ended
        assert self.processes[effect.conductor, effect.incarnation].reported_ready
        assert effect.paused == (self.state.pause is not None)

    def _change_work(self, effect):
        assert (effect.phase, effect.part) not in self.parts_ended
        assert effect.phase == self.phase
        assert self.processes[effect.conductor, effect.incarnation].reported_ready

    def _wake(self, effect):
        self.timers[effect.name, effect.conductor] = effect

    def _begin_phase(self, effect):
        expected = self.plan.first_phase if self.phase is None else self.phase + 1
        assert effect.phase == expected
        assert self.phase is None or self.phases_ended[-1] == self.phase
        self.phase = effect.phase

    def _end_phase(self, effect):
        assert effect.phase == self.phase
        assert effect.phase not in self.phases_ended
        self.phases_ended.append(effect.phase)

    def _write(self, effect):
        if effect.outcome == "finished":
            last = self.phase if self.shutdown_asked else len(self.plan.phases) - 1
            assert self.phases_ended == list(range(self.plan.first_phase, last + 1))
        assert self.abort_taken or effect.outcome != "aborted"
        self.writes.append(effect)

    def _remove(self, _effect):
        assert not self.traces_gone, "traces removed twice"
        self.traces_gone = True
        self.removals += 1

    def _end(self, effect):
        assert self.plan is not None, "a run ended twice"
        assert effect.outcome == self.durable_at_removal, "what is durable counts"
        if effect.outcome is None:
            assert self.stop_taken or self.hard_pause_taken or self.overdue == 2, "a run without an outcome"
        alive = {process.pid for process in self.processes.values() if process.is_alive}
        assert alive <= set(effect.stuck), f"left alive and not named: {alive - set(effect.stuck)}"
        assert set(effect.stuck) <= {process.pid for process in self.processes.values()}
        assert self.state == Pristine(shutdown=self.stop_taken, stuck=effect.stuck)
        self.stuck_processes = list(effect.stuck)
        assert self.phase in (None, *self.phases_ended) or self.stop_taken or self.hard_pause_taken
        self.sent = [*self.sent[-20:], *self.mail]
        self.mail.clear()
        self._forget()

    # -- observations, in their order -----------------------------------------------------------------------------

    def _event(self, kind, **data):
        return kind(run=self.plan.uid, at=self.now, **data)

    def _of(self, process, kind, **data):
        return self._event(kind, conductor=process.conductor, incarnation=process.incarnation, **data)

    def _exits(self, key, code=-9, reason="", forkserver=None):
        process = self.processes[key]
        process.stage = "dead"
        process.works_on.clear()
        how = {"exit_code": code, "reason": reason, "forkserver": forkserver}
        self.inbox.append(self._of(process, e.ConductorExited, **how))
