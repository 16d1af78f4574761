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

from dataclasses import replace
from typing import get_args

from states import events as e
from tests.states.checked_machine import CheckedMachine
from tests.states.state_scenes import PLAN


class World(CheckedMachine):
    """`options()` lists what may happen next; `do()` makes one of them happen; `deliver()` passes an event to the
    machine.
    """

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
                found += [("retires", key)] if process.retiring else []
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
            "retires": lambda key: self._exits(key, 0),
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

    def _starts(self, key):
        process = self.processes[key]
        self.now = max(self.now, process.not_before)
        others = [p for p in self.processes.values() if p.conductor == process.conductor and p.is_alive]
        assert not others, f"{key} would meet its predecessor"
        self.pids += 1
        process.stage, process.pid = "alive", self.pids
        self.inbox.append(self._of(process, e.ConductorStarted, pid=process.pid, ticks=1, boot="b"))

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
        self._command(e.AbortRequested, reason="enough")

    def pause(self, *, hard=False):
        self._command(e.PauseRequested, reason="a guest", hard=hard)

    def go_on(self):
        self._command(e.ContinueRequested)

    def change(self, what, phase, **work):
        self._command(e.WorkChangeRequested, change=what, phase=phase, **work)

    def change_plan(self, *, renews, tasks=(), **changes):
        """More restarts, and what `changes` says."""
        plan = self.plan or PLAN
        plan = replace(plan, uid=f"r{self.runs}", restarts=plan.restarts + 1, **changes)
        self._command(e.PlanChangeRequested, plan=plan, renews=renews, tasks=tasks)

    @property
    def is_paused(self):
        return getattr(self.state, "pause", None) is not None

    def _command(self, kind, **data):
        """Of the last run, if none is in work."""
        self.inbox.append(kind(run=f"r{self.runs}", at=self.now, **data))

    def stop(self, *, urgent):
        uid = self.plan.uid if self.plan else ""
        self.inbox.append(e.StopRequested(run=uid, at=self.now, reason="going down", urgent=urgent))

    # -- what the machine receives -------------------------------------------------------------------------------

    def deliver(self):
        self.send(self.inbox.popleft())

    def deliver_mail(self, index):
        self.sent.append(self.mail.pop(index))
        self.send(self.sent[-1])

    def send_again(self, index):
        self.send(self.sent[index])
