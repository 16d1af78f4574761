"""Plans, short constructors of events, and `Slot`, which runs a machine step by step, so that a test reads like the
specification.
"""

from __future__ import annotations

from dataclasses import replace

from states import Dropped, Pristine, Rejected, Step, advance
from states import events as e
from states.effects import StartPart
from states.plan import ConductorPlan, Deadlines, PhasePlan, RunPlan

LAKE, SIMULATION, TASKS = "environment.lake", "simulation", "tasks"
NAMES = (LAKE, SIMULATION, TASKS)
MODEL, DATA = "service.model", "service.data"
TRAIN = PhasePlan(name="train", parts=frozenset({"simulation"}))
BOTH = PhasePlan(name="both", parts=frozenset({"simulation", "tasks"}))
ANALYSE = PhasePlan(name="analyse", parts=frozenset({"tasks"}), on_failure="continue")
PLAN = RunPlan(
    uid="r1",
    name="lake",
    conductors=(
        ConductorPlan(name=LAKE, kind="environment"),
        ConductorPlan(name=SIMULATION, kind="simulation"),
        ConductorPlan(name=TASKS, kind="task"),
    ),
    phases=(TRAIN, BOTH, ANALYSE),
    restarts=2,
    deadlines=Deadlines(start=60, finalize=40, stop=20),
)


def assigned(plan=PLAN, *, at=0.0):
    return e.RunAssigned(run=plan.uid, at=at, plan=plan)


def abort(reason="enough", *, at=0.0, run="r1"):
    return e.AbortRequested(run=run, at=at, reason=reason)


def pause(reason="a guest", *, hard=False, at=0.0, run="r1"):
    return e.PauseRequested(run=run, at=at, reason=reason, hard=hard)


def go_on(*, at=0.0, run="r1"):
    return e.ContinueRequested(run=run, at=at)


def change(what="cancel", *, phase=1, episode=None, task="", at=0.0, run="r1"):
    return e.WorkChangeRequested(
        run=run, at=at, change=what, phase=phase, episode=episode, task=task, reason="by hand"
    )


def change_plan(plan, *, renews=False, tasks=(), at=0.0, run="r1"):
    return e.PlanChangeRequested(run=run, at=at, plan=plan, renews=renews, tasks=tasks)


def stop(reason="going down", *, urgent=False, at=0.0, run="r1"):
    return e.StopRequested(run=run, at=at, reason=reason, urgent=urgent)


def passed(name, conductor="", incarnation=0, *, at=0.0, run="r1"):
    return e.DeadlinePassed(run=run, at=at, name=name, conductor=conductor, incarnation=incarnation)


def started(conductor, incarnation=1, *, pid=None, at=0.0, run="r1"):
    pid = pid or 100 * incarnation + (*NAMES, MODEL, DATA).index(conductor)
    return e.ConductorStarted(
        run=run, at=at, conductor=conductor, incarnation=incarnation, pid=pid, ticks=1, boot="b"
    )


def ready(conductor, incarnation=1, *, at=0.0, run="r1"):
    return e.ConductorReady(run=run, at=at, conductor=conductor, incarnation=incarnation)


def failed_report(conductor, reason, incarnation=1, *, at=0.0, run="r1"):
    return e.ConductorFailed(run=run, at=at, conductor=conductor, incarnation=incarnation, reason=reason)


def exited(conductor, incarnation=1, *, code=-9, reason="", at=0.0, run="r1"):
    return e.ConductorExited(
        run=run, at=at, conductor=conductor, incarnation=incarnation, exit_code=code, reason=reason
    )


def silent(conductor, incarnation=1, *, seconds=10.0, at=0.0, run="r1"):
    return e.ConductorSilent(run=run, at=at, conductor=conductor, incarnation=incarnation, seconds=seconds)


def asked(flow, *, phase=0, conductor=SIMULATION, incarnation=1, at=0.0, run="r1"):
    return e.FlowRequested(
        run=run, at=at, conductor=conductor, incarnation=incarnation, phase=phase, flow=flow,
        reason=f"until[0] (mine:Rule): {flow}", conductors=(LAKE, SIMULATION),
    )  # fmt: skip


def stalled(*, since=0.0, at=0.0, run="r1"):
    return e.RunStalled(run=run, at=at, since=since)


def moved(*, at=0.0, run="r1"):
    return e.RunProgressResumed(run=run, at=at)


def stuck(conductor, incarnation=1, *, pid=666, at=0.0, run="r1"):
    return e.ConductorStuck(run=run, at=at, conductor=conductor, incarnation=incarnation, pid=pid)


def ended(part, phase=0, *, end="done", failures=0, first="", at=0.0, run="r1"):
    return e.PartEnded(
        run=run, at=at, phase=phase, part=part, end=end, failures=failures, first_failure=first
    )


def exceeded(limit, value=5, reached=6, *, at=0.0, run="r1"):
    return e.LimitExceeded(run=run, at=at, limit=limit, value=value, reached=reached)


def folder_lost(path="/s/runs/r1", *, at=0.0, run="r1"):
    return e.FolderLost(run=run, at=at, path=path)


def not_taken(part, phase=0, incarnation=1, *, reason="busy", at=0.0, run="r1"):
    return e.PartFailed(
        run=run, at=at, conductor=part, incarnation=incarnation, phase=phase, part=part, reason=reason
    )


def written(outcome, *, at=0.0, run="r1"):
    return e.ResultWritten(run=run, at=at, outcome=outcome)


def not_written(reason="disk full", *, at=0.0, run="r1"):
    return e.ResultFailed(run=run, at=at, reason=reason)


def removed(*left, at=0.0, run="r1"):
    return e.TracesRemoved(run=run, at=at, left=left)


def gone_at_last(*pids, at=0.0, run="r0"):
    return e.ProcessesGone(run=run, at=at, pids=pids)


class Slot:
    """A state machine that takes events and returns the effects of each, as a list."""

    def __init__(self, state=None):
        self.state = state or Pristine()
        self.cause = ""

    def send(self, event):
        answer = advance(self.state, event)
        assert isinstance(answer, Step), answer
        self.state, self.cause = answer.state, answer.cause
        return list(answer.effects)

    def send_all(self, *events):
        """The effects of all of them together."""
        return [effect for event in events for effect in self.send(event)]

    def drops(self, event):
        return self._unmoved(event, Dropped)

    def refuses(self, event):
        return self._unmoved(event, Rejected)

    def _unmoved(self, event, kind):
        answer = advance(self.state, event)
        assert isinstance(answer, kind), answer
        assert answer.state is self.state
        return answer.why


def starting(plan=PLAN, *, at=0.0):
    slot = Slot()
    slot.send(assigned(plan, at=at))
    slot.send_all(*(started(conductor.name, at=at) for conductor in plan.conductors))
    return slot


def running(plan=PLAN, *, phase=0, at=0.0):
    slot = starting(replace(plan, first_phase=phase), at=at)
    slot.send_all(*(ready(conductor.name, at=at) for conductor in plan.conductors))
    return slot


def finalizing(plan=PLAN, *, at=0.0):
    """The last phase has ended; the result is being written."""
    slot = running(plan, phase=len(plan.phases) - 1, at=at)
    slot.send_all(*(ended(part, len(plan.phases) - 1, at=at) for part in sorted(plan.phases[-1].parts)))
    return slot


def closing(plan=PLAN, *, at=0.0):
    """Aborted in phase `both`: its two parts were asked to stop."""
    slot = running(plan, phase=1, at=at)
    slot.send(abort(at=at))
    return slot


def stopping(plan=PLAN, *, at=0.0):
    """Finished, the result durable, all conductors on their way down."""
    slot = finalizing(plan, at=at)
    slot.send(written("finished", at=at))
    return slot


def begin(part, phase, incarnation=1):
    """The effect that begins a part whose conductor has its name."""
    return StartPart(phase=phase, part=part, conductor=part, incarnation=incarnation)


def kinds(effects):
    return [type(effect) for effect in effects]
