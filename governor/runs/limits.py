"""The limits of a run on amounts, over all of its phases: what it has used of each, and the first that is exceeded.

`limits.steps`, `limits.episodes` and `limits.tasks` are counted. They are checked after a record is durable and before
its report is acknowledged: the reply then carries the flow control of a run that is ending (`RunGovernor.flow`), so no
further episode begins. Memory and disk are measured (`resource_usage`).
"""

from __future__ import annotations

from itertools import islice
from typing import TYPE_CHECKING, Final, TypeAlias

from governor.messages import (
    AgentRestored,
    EpisodeAttemptEnded,
    EpisodeEnded,
    PartFinalizing,
    TaskAttemptEnded,
    TaskEnded,
    TaskReported,
    TaskStarted,
)
from governor.run_file.model import TASKS
from governor.runs.record.result import figures_of
from states.events import LimitExceeded

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from governor.journal.journal import Journal
    from governor.messages import RunEvent
    from governor.run_file.model import LimitsSection
    from governor.runs.assignment import Assignment

Recorded: TypeAlias = (
    EpisodeEnded
    | EpisodeAttemptEnded
    | AgentRestored
    | PartFinalizing
    | TaskStarted
    | TaskReported
    | TaskAttemptEnded
    | TaskEnded
)
OF_ATTEMPTS: Final = ("conductor.ready", "task.started", "task.attempt_ended", "task.ended")
"""The events that count attempts."""


class RunLimits:
    """What a run has `used`, by limit; of memory and disk what was measured, where these have limits.

    Each event counts once; episodes of an evaluation count too, and so does each attempt of a task run. An attempt whose
    start arrives with its end has no event of its start, and its end counts instead.
    """

    def __init__(self, limits: LimitsSection) -> None:
        self.used = {"episodes": 0, "steps": 0, "tasks": 0}
        self.knows_tasks = True
        """Whether attempts of earlier invocations of the daemon are counted, too."""
        self._limits = limits
        self._attempts: dict[tuple[int, str, int], int] = {}
        """For each unfinished run of a task, the attempt that was counted last."""
        self._reported = False
        self.peak_memory: int | None = None
        """Bytes; None where memory is not measured."""

    def set(self, limits: LimitsSection) -> None:
        """Other limits, for what is used already, too."""
        self._limits, self._reported = limits, False

    def measured(self, found: Mapping[str, int]) -> None:
        """Takes what was measured of memory and disk, in bytes."""
        self.used |= found
        if "memory" in found:
            self.peak_memory = max(self.peak_memory or 0, found["memory"])

    def task_conductor_ready(self) -> None:
        """A new task conductor has started; it numbers the attempts of unfinished runs from 1."""
        self._attempts.clear()

    def count(self, new: Iterable[Recorded]) -> None:
        for event in new:
            match event:
                case EpisodeEnded(episode=episode):
                    self.used["episodes"] += 1
                    self.used["steps"] += episode.steps
                case TaskStarted(phase=phase, task=task, run=run, attempt=attempt):
                    self._count_attempt((phase, task, run), attempt, began=True)
                case TaskAttemptEnded(phase=phase, task=task, run=run, attempt=attempt):
                    self._count_attempt((phase, task, run), attempt)
                case TaskEnded(phase=phase, record=record):
                    self._count_attempt((phase, record.task, record.run), record.attempts, over=True)

    def count_recorded(self, events: Iterable[RunEvent]) -> None:
        """Counts attempts of earlier invocations of the daemon, by events of the kinds `OF_ATTEMPTS`."""
        for event in events:
            data, over = event.data, event.kind == "task.ended"
            if event.kind != "conductor.ready":
                record = data["record"] if over else data
                attempt = record["attempts" if over else "attempt"]
                run = (data["phase"], record["task"], record["run"])
                self._count_attempt(run, attempt, began=event.kind == "task.started", over=over)
            elif data["conductor"] == TASKS:
                self.task_conductor_ready()

    def exceeded(self, run: str, at: float) -> LimitExceeded | None:
        """The event of `run` that reports the first limit that is exceeded; None later on."""
        for name, allowed in self._limits.amounts:
            if not self._reported and (reached := self.used.get(name, 0)) > allowed:
                self._reported = True
                return LimitExceeded(run, at, limit=name, value=allowed, reached=reached)
        return None

    def _count_attempt(
        self, run: tuple[int, str, int], attempt: int, *, began: bool = False, over: bool = False
    ) -> None:
        if began or self._attempts.get(run, 0) != attempt:
            self.used["tasks"] += 1
            self._attempts[run] = attempt
        if over:
            self._attempts.pop(run, None)


def limits_of(assignment: Assignment, journal: Journal) -> RunLimits:
    """The limits, with what earlier invocations of the daemon have counted for this run; inherited work is not
    counted. Attempts of tasks are read only where they have a limit: they may be many. Blocks. Raises JournalError.
    """
    section, uid = assignment.run.limits, assignment.uid
    limits = RunLimits(section)
    for phase in range(len(assignment.run.phases)):
        figures = figures_of(journal, assignment, phase)
        limits.used["episodes"] += figures.trained + figures.evaluated
        limits.used["steps"] += figures.steps + figures.evaluation_steps
    inherited = journal.standing_events_of(uid, ("run.inherited",))
    for kept in (each for event in inherited for each in event.data["kept"]):
        limits.used["episodes"] -= kept["episodes"]
        limits.used["steps"] -= kept["steps"] if "steps" in kept else _steps_of(journal, uid, kept)
    if section.tasks is not None:
        limits.count_recorded(journal.each_event_of(uid, OF_ATTEMPTS))
    else:
        limits.knows_tasks = not journal.last_event(uid, *OF_ATTEMPTS[1:])
    return limits


def _steps_of(journal: Journal, uid: str, kept: dict[str, int]) -> int:
    """Steps of the inherited episodes of a phase: records of older versions do not say them."""
    return sum(each.steps for each in islice(journal.episodes(uid, kept["phase"]), kept["episodes"]))
