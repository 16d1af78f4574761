"""The lines of one run in the daemon's log, for operators, and its counts.

Rules:
1. A bad end is a warning or an error; beginnings and good ends are for information. Ends of tasks and episodes that are good
   have no line.
2. Bounded: of each kind the first lines, then one a minute that counts (`logs.Repeated`), the rest at the end of the phase.
3. ``run.ended`` has everything on it.
"""

from __future__ import annotations

import time
from collections import Counter
from itertools import islice
from typing import TYPE_CHECKING, Any, Final

from governor import logs
from governor.messages import BAD, EpisodeAttemptEnded, EpisodeEnded, TaskAttemptEnded, TaskEnded, TaskStarted
from states.base import RunInWork
from states.conductors import exit_reason
from states.effects import BeginPhase, EndPhase, StartConductor
from states.events import ConductorExited, FlowRequested, PartEnded

if TYPE_CHECKING:
    from collections.abc import Iterable

    from governor.messages import RunResult
    from governor.metrics import Metrics
    from governor.runs.assignment import Assignment
    from governor.runs.limits import Recorded
    from states import State, Step
    from states.events import Event

LEVELS: Final = {"finished": "info", "aborted": "warning", "failed": "error"}
EVENTS: Final = frozenset(
    {
        *("run.ended", "run.interrupted", "phase.started", "phase.ended", "phase.failed", "lines.left_out"),
        *("task.ended", "task.attempt_ended", "episode.ended", "episode.attempt_ended"),
        *("conductor.exited", "conductor.restarting", "process.killed", "flow.requested"),
    }
)
"""Where a run is shown to who started it (`governor run`), these lines would say it again."""
PHASES: Final = 20
"""Phases that the line of a run's end names."""
GOOD_TASKS: Final = frozenset({"succeeded", "cancelled"})

log = logs.get_logger()


class RunLog:
    """One run in work. `submitted_by`: who submitted it, as the journal has it; `result`: once it is durable."""

    def __init__(self, assignment: Assignment, metrics: Metrics) -> None:
        self.submitted_by: dict[str, Any] = {}
        self.result: RunResult | None = None
        self._assignment = assignment
        self._metrics = metrics
        self._about = {"run": assignment.uid, "run_name": assignment.run.name}
        self._repeated = logs.Repeated()
        self._restarts = self._kills = 0
        self._running: dict[tuple[str, int], TaskStarted] = {}
        self._timeouts: dict[str, float | None] = {}
        self._phase = ""
        self._began = time.monotonic()
        self._episodes, self._tasks = Counter[str](), Counter[str]()
        self._failure = ""

    def adopt(self, assignment: Assignment) -> None:
        """The run file has changed."""
        self._assignment = assignment

    # -- what conductors report -----------------------------------------------------------------------------

    def line(self, level: str, event: str, **data: Any) -> None:
        """A line of a conductor."""
        self._repeated.log(level, event, **{**self._about, "phase": self._phase, **data})

    def recorded(self, new: Iterable[Recorded]) -> None:
        """What is on record now for the first time."""
        for event in new:
            match event:
                case EpisodeEnded(episode=episode):
                    self._episodes[episode.outcome] += 1
                    self._metrics.episode_ended(episode.outcome, episode.steps)
                    if episode.outcome in BAD:
                        self._bad_end(
                            "episode.ended",
                            episode=episode.index,
                            worker=episode.worker,
                            outcome=episode.outcome,
                            seconds=round(episode.seconds, 3),
                            steps=episode.steps,
                            reason=episode.reason,
                        )
                case EpisodeAttemptEnded():
                    self._bad_end(
                        "episode.attempt_ended",
                        episode=event.index,
                        attempt=event.attempt,
                        worker=event.worker,
                        outcome=event.outcome,
                        seconds=round(event.seconds, 3),
                        steps=event.steps,
                        reason=event.reason,
                    )
                case TaskStarted(task=task, run=run):
                    self._running[task, run] = event
                case TaskAttemptEnded(task=task, run=run):
                    self._bad_end(
                        "task.attempt_ended",
                        **self._place(task, run),
                        attempt=event.attempt,
                        outcome=event.outcome,
                        seconds=round(event.seconds, 3),
                        reason=event.error,
                    )
                case TaskEnded(record=record):
                    self._tasks[record.outcome] += 1
                    self._metrics.count("tasks", record.outcome)
                    place = self._place(record.task, record.run)
                    if record.outcome not in GOOD_TASKS:
                        self._bad_end(
                            "task.ended",
                            **place,
                            attempts=record.attempts,
                            outcome=record.outcome,
                            seconds=round(record.seconds, 3),
                            cause=record.cause,
                            reason=record.error,
                        )

    def _place(self, task: str, run: int) -> dict[str, Any]:
        """Where it ran; of an attempt whose start was reported with its end that is not known."""
        started = self._running.pop((task, run), None)
        where = {} if started is None else {"pid": started.pid, "node": started.node}
        return {"task": task, "task_run": run, "deadline": self._timeouts.get(task), **where}

    def _bad_end(self, event: str, *, outcome: str, **data: Any) -> None:
        shown = {key: value for key, value in data.items() if value is not None}
        self._repeated.log(
            "warning", event, kind=outcome, outcome=outcome, **self._about, phase=self._phase, **shown
        )

    # -- what the state machine does ------------------------------------------------------------------------

    def stepped(self, before: State, event: Event, step: Step) -> None:
        """After each step of the run."""
        if isinstance(event, PartEnded):
            beyond = f"beyond {event.exceeded}: " if event.exceeded else ""
            self._failure = self._failure or beyond + event.first_failure
        if isinstance(event, FlowRequested):
            self._restarts += event.flow == "RESTART"
            self.line("info", event.kind, flow=event.flow, reason=event.reason)
        for effect in step.effects:
            match effect:
                case BeginPhase(phase=index):
                    self._phase_began(index)
                case EndPhase(name=name, end=end):
                    self._phase_ended(name, end, failed=getattr(step.state, "outcome", None) == "failed")
                case StartConductor() if isinstance(event, ConductorExited) and isinstance(before, RunInWork):
                    asked = before.conductors[event.conductor].replacing
                    self._restarts += not asked
                    self._metrics.count("conductor_restarts", effect.kind)
                    self._repeated.log(
                        "info" if asked else "warning",
                        "conductor.restarting",
                        **self._about,
                        conductor=effect.conductor,
                        incarnation=effect.incarnation,
                        delay=effect.delay,
                        restarts_left=before.conductors.restarts_left - (not asked),
                        reason=exit_reason(before.conductors[event.conductor], event),
                    )

    def _phase_began(self, index: int) -> None:
        phase = self._assignment.run.phases[index]
        self._phase, self._began, self._failure = phase.name, time.monotonic(), ""
        self._episodes.clear()
        self._tasks.clear()
        self._running.clear()
        self._timeouts = {task.id: task.timeout for task in phase.tasks}
        log.info(
            "phase.started",
            **self._about,
            phase=phase.name,
            index=index,
            mode=phase.mode,
            episodes=self._assignment.episodes_of(index),
            tasks=self._assignment.tasks_of(index),
        )

    def _phase_ended(self, name: str, end: str, *, failed: bool) -> None:
        self._repeated.flush()
        bad = sum(self._episodes[each] for each in BAD) + sum(
            count for outcome, count in self._tasks.items() if outcome not in GOOD_TASKS
        )
        (log.warning if failed or bad else log.info)(
            "phase.failed" if failed else "phase.ended",
            **self._about,
            phase=name,
            end=end,
            seconds=round(time.monotonic() - self._began, 3),
            episodes=dict(self._episodes),
            tasks=dict(self._tasks),
            failures=bad,
            reason=self._failure,
        )
        self._phase = ""

    def exited(self, conductor: str, *, pid: int, exit_code: int, expected: bool, reason: str) -> None:
        (log.info if expected else log.warning)(
            "conductor.exited",
            **self._about,
            conductor=conductor,
            pid=pid,
            exit_code=exit_code,
            expected=expected,
            **({"reason": reason} if reason else {}),
        )

    def signalled(self, conductor: str, *, pid: int, signal: str, reason: str) -> None:
        """A conductor that was alive was sent a signal, to end it."""
        self._kills += signal == "SIGKILL"
        self._metrics.count("kills", signal)
        log.warning(
            "process.killed", **self._about, conductor=conductor, pid=pid, signal=signal, reason=reason
        )

    def ended(self, outcome: str | None, reason: str, **more: Any) -> None:
        """The run's last line."""
        self._repeated.flush()
        counts = {
            "restarts": self._assignment.restarts_used + self._restarts,
            "kills": self._kills,
            "submitted_by": self.submitted_by or None,
            **more,
        }
        if outcome is None:
            log.warning("run.interrupted", **self._about, **counts, reason=reason)
        elif self.result is not None:
            self._metrics.count("runs_ended", outcome)
            run_ended(self.result, **counts)


def run_ended(result: RunResult, **more: Any) -> None:
    """The canonical line of a run: everything on it. Null is what is not known."""
    episodes, tasks = Counter[str](), Counter[str]()
    for phase in result.phases:
        episodes.update(phase.episodes)
        tasks.update(phase.task_outcomes)
    queued = None if result.started_at is None else max(0.0, result.started_at - result.submitted_at)
    getattr(log, LEVELS.get(result.outcome, "info"))(
        "run.ended",
        run=result.uid,
        run_name=result.name,
        outcome=result.outcome,
        seconds=result.seconds,
        queue_seconds=None if queued is None else round(queued, 3),
        phases={phase.name: phase.end for phase in islice(result.phases, PHASES)},
        episodes=dict(episodes),
        steps=sum(int(phase.metrics.get("steps_total", 0)) for phase in result.phases),
        tasks=dict(tasks),
        parent=result.parent,
        reason=result.reason,
        **more,
    )
