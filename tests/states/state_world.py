"""A model of the world around the state machine: processes, timers, a disk and a network that obey laws.

Laws:
1. A process starts at most once for each requested start, is ready at most once and only while alive, and exits once.
2. A requested effect may happen in any order and at any later time; a stop before the start prevents the start.
3. Observations of the daemon itself (starts, exits, timers, the disk) reach the machine in the order in which they
   happened. Reports of conductors come over the network: in any order, late, and also twice.
4. A timer fires at or after its time, unless a later one of its name has replaced it or the run has ended.
5. The exit of a forkserver kills all processes; there is a new forkserver at once.
6. The disk may fail, then succeed; the first outcome that it stored is the one that stands.
7. Processes that survive the end of a run exit at some later time, one by one.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field, replace
from typing import get_args

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
    stuck: bool = False
    silent: bool = False
    works_on: set[tuple[int, str]] = field(default_factory=set)

    @property
    def is_alive(self) -> bool:
        return self.stage == "alive"


class World:
    """`options()` lists what may happen next; `do()` makes one of them happen; `deliver()` passes an event to the
    machine.
    """

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
        self.stop_taken = self.abort_taken = self.stalled = False
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

    # -- what may happen ---------------------------------------------------------------------------------------

    def options(self):
        """All that the world could do now, as (verb, *what)."""
        found = []
        for key, process in self.processes.items():
            if process.stage == "wanted":
                found += [("starts", key), ("does not start", key)]
            elif process.is_alive:
                found += [("exits", key), ("reports failure", key)]
                found += [] if process.reported_ready else [("is ready", key)]
                found += [("falls silent", key)] if process.reported_ready and not process.silent else []
                found += (
                    [("ladder", key), ("sticks", key)] if process.terminating and not process.stuck else []
                )
                found += [("part ends", key, work) for work in sorted(process.works_on)]
        found += [("forkserver exits",)] if any(p.is_alive for p in self.processes.values()) else []
        found += [("part begins", index) for index in range(len(self.to_begin))]
        found += [("part refused", index) for index in range(len(self.to_begin))]
        found += [("part stops", index) for index in range(len(self.to_end))]
        found += [("fires", key) for key in self.timers]
        found += [(verb, index) for index in range(len(self.writes)) for verb in ("writes", "does not write")]
        found += [("removes",)] if self.removals else []
        found += [("goes at last", pid) for pid in self.stuck_processes]
        for process in self.processes.values():
            if process.is_alive and process.conductor == "simulation" and process.works_on and self.asks < 4:
                found += [("asks", process, flow) for flow in get_args(e.Flow)]
        if self.state.name == "running" and self.plan.stall_timeout is not None:
            found += [("resumes progress",)] if self.stalled else [("stalls",)]
        return found

    def do(self, option):
        verb, *what = option
        {
            "starts": self._starts,
            "does not start": lambda key: self._exits(key, None, "no memory"),
            "exits": self._exits,
            "forkserver exits": self._forkserver_exits,
            "reports failure": self._reports_failure,
            "is ready": self._is_ready,
            "ladder": self._exits,
            "sticks": self._sticks,
            "falls silent": self._falls_silent,
            "stalls": self._stalls,
            "resumes progress": self._resumes_progress,
            "part ends": self._part_ends,
            "part begins": self._part_begins,
            "part refused": self._part_refused,
            "part stops": self._part_stops,
            "fires": self._fires,
            "writes": self._writes,
            "does not write": self._does_not_write,
            "removes": self._removes,
            "goes at last": self._goes_at_last,
            "asks": self._asks,
        }[verb](*what)

    def _event(self, kind, **data):
        return kind(run=self.plan.uid, at=self.now, **data)

    def _of(self, process, kind, **data):
        return self._event(kind, conductor=process.conductor, incarnation=process.incarnation, **data)

    def _starts(self, key):
        process = self.processes[key]
        self.now = max(self.now, process.not_before)
        others = [p for p in self.processes.values() if p.conductor == process.conductor and p.is_alive]
        assert not others, f"{key} would meet its predecessor"
        self.pids += 1
        process.stage, process.pid = "alive", self.pids
        self.inbox.append(self._of(process, e.ConductorStarted, pid=process.pid, ticks=1, boot="b"))

    def _exits(self, key, code=-9, reason="", forkserver=None):
        process = self.processes[key]
        process.stage = "dead"
        process.works_on.clear()
        how = {"exit_code": code, "reason": reason, "forkserver": forkserver}
        self.inbox.append(self._of(process, e.ConductorExited, **how))

    def _forkserver_exits(self):
        alive = [key for key, process in self.processes.items() if process.is_alive]
        for key in alive:
            self._exits(key, reason="its forkserver died", forkserver=self.forkserver)
        self.forkserver += 1
        self.taken_along += len(alive) - 1

    def _reports_failure(self, key):
        self.mail.append(self._of(self.processes[key], e.ConductorFailed, reason="boom"))

    def _is_ready(self, key):
        self.processes[key].reported_ready = True
        self.mail.append(self._of(self.processes[key], e.ConductorReady))

    def _falls_silent(self, key):
        process = self.processes[key]
        process.silent = True
        self.inbox.append(self._of(process, e.ConductorSilent, seconds=12.0))

    def _asks(self, process, flow):
        self.asks += 1
        ((phase, _),) = process.works_on
        asked = {
            "phase": phase,
            "flow": flow,
            "reason": "mine",
            "conductors": ("environment.lake", "simulation"),
        }
        self.mail.append(self._of(process, e.FlowRequested, **asked))

    def _stalls(self):
        self.stalled = True
        self.inbox.append(self._event(e.RunStalled, since=self.now))

    def _resumes_progress(self):
        self.stalled = False
        self.inbox.append(self._event(e.RunProgressResumed))

    def _sticks(self, key):
        process = self.processes[key]
        process.stuck = True
        self.inbox.append(self._of(process, e.ConductorStuck, pid=process.pid))

    def _part_begins(self, index):
        effect = self.to_begin.pop(index)
        process = self.processes[effect.conductor, effect.incarnation]
        if process.is_alive:
            process.works_on.add((effect.phase, effect.part))
        else:
            self._refuse(effect)

    def _part_refused(self, index):
        self._refuse(self.to_begin.pop(index))

    def _refuse(self, effect):
        self.inbox.append(
            self._event(
                e.PartFailed,
                conductor=effect.conductor,
                incarnation=effect.incarnation,
                phase=effect.phase,
                part=effect.part,
                reason="not now",
            )
        )

    def _part_ends(self, key, work, end="done", failures=None):
        self.processes[key].works_on.discard(work)
        phase, part = work
        failures = self.pids % 2 if failures is None else failures
        self.mail.append(
            self._event(
                e.PartEnded, phase=phase, part=part, end=end, failures=failures, first_failure="x" * failures
            )
        )

    def _part_stops(self, index):
        effect = self.to_end.pop(index)
        for key, process in self.processes.items():
            if process.is_alive and (effect.phase, effect.part) in process.works_on:
                self._part_ends(key, (effect.phase, effect.part), "stopped", 0)

    def _fires(self, key):
        wake = self.timers.pop(key)
        self.now = max(self.now, wake.at)
        self.inbox.append(
            self._event(
                e.DeadlinePassed, name=wake.name, conductor=wake.conductor, incarnation=wake.incarnation
            )
        )

    def _writes(self, index):
        effect = self.writes.pop(index)
        self.durable = self.durable or effect.outcome
        self.inbox.append(self._event(e.ResultWritten, outcome=self.durable))

    def _does_not_write(self, index):
        self.writes.pop(index)
        self.inbox.append(self._event(e.ResultFailed, reason="disk full"))

    def _removes(self):
        self.removals -= 1
        self.durable_at_removal = self.durable
        self.inbox.append(self._event(e.TracesRemoved))

    def _goes_at_last(self, pid):
        self.stuck_processes.remove(pid)
        self.inbox.append(e.ProcessesGone(run=f"r{self.runs}", at=self.now, pids=(pid,)))

    # -- what users do -----------------------------------------------------------------------------------------

    def assign(self, plan):
        self.runs += 1
        plan = replace(plan, uid=f"r{self.runs}")
        self.send(e.RunAssigned(run=plan.uid, at=self.now, plan=plan))

    def abort(self):
        self.inbox.append(
            self._event(e.AbortRequested, reason="enough") if self.plan else self._stray_abort()
        )

    def _stray_abort(self):
        return e.AbortRequested(run=f"r{self.runs}", at=self.now, reason="enough")

    def stop(self, *, urgent):
        uid = self.plan.uid if self.plan else ""
        self.inbox.append(e.StopRequested(run=uid, at=self.now, reason="going down", urgent=urgent))

    # -- what the machine receives and requests -------------------------------------------------------------------

    def deliver(self):
        self.send(self.inbox.popleft())

    def deliver_mail(self, index):
        self.sent.append(self.mail.pop(index))
        self.send(self.sent[-1])

    def send_again(self, index):
        self.send(self.sent[index])

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
            effects.StartPart: self._start_part,
            effects.StopPart: self.to_end.append,
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

    def _start_part(self, effect):
        assert (effect.phase, effect.part) not in self.parts_ended, "done twice"
        assert self.processes[effect.conductor, effect.incarnation].reported_ready
        assert self.phase == effect.phase
        self.to_begin.append(effect)

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
            assert self.stop_taken or self.overdue == 2, "a run without an outcome"
        alive = {process.pid for process in self.processes.values() if process.is_alive}
        assert alive <= set(effect.stuck), f"left alive and not named: {alive - set(effect.stuck)}"
        assert set(effect.stuck) <= {process.pid for process in self.processes.values()}
        assert self.state == Pristine(shutdown=self.stop_taken, stuck=effect.stuck)
        self.stuck_processes = list(effect.stuck)
        assert self.phase is None or self.stop_taken or self.phase in self.phases_ended
        self.sent = [*self.sent[-20:], *self.mail]
        self.mail.clear()
        self._forget()
