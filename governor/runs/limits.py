"""The limits of a run that are counted: `limits.steps`, `limits.episodes` and `limits.tasks`, over all of its phases.

They are looked at when what counts is on record, before the report is acknowledged: the answer to it carries the flow
control of a run that is on its way out (`RunGovernor.flow`), so no further episode begins.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, TypeAlias

from governor.messages import EpisodeEnded, TaskAttemptEnded, TaskEnded, TaskStarted
from states.amounts import Limit

if TYPE_CHECKING:
    from collections.abc import Iterable

    from governor.journal.journal import Journal
    from governor.messages import EpisodeRecord, RunEvent
    from governor.run_file.model import LimitsSection
    from governor.runs.assignment import Assignment

Exceeded: TypeAlias = tuple[Limit, int, int]
"""What it allows, and what was reached."""
Recorded: TypeAlias = EpisodeEnded | TaskStarted | TaskAttemptEnded | TaskEnded
OF_ATTEMPTS: Final = ("conductor.ready", "task.started", "task.attempt_ended", "task.ended")
"""The events that tell of attempts."""


class AttemptCount:
    """The attempts of runs of tasks that have begun. A start that came together with its end is not told: the end counts."""

    def __init__(self) -> None:
        self.begun = 0
        self._last: dict[tuple[int, str, int], int] = {}
        """Of each run of a task that is not over, the attempt that was counted last."""

    def anew(self) -> None:
        """Another task conductor begins; it numbers the attempts of what is not over from 1."""
        self._last.clear()

    def begins(self, run: tuple[int, str, int], attempt: int) -> None:
        self.begun += 1
        self._last[run] = attempt

    def ends(self, run: tuple[int, str, int], attempt: int) -> None:
        if self._last.get(run, 0) != attempt:
            self.begins(run, attempt)

    def over(self, run: tuple[int, str, int], attempts: int) -> None:
        self.ends(run, attempts)
        self._last.pop(run, None)


class RunLimits:
    """Fed with each event once; episodes of an evaluation count."""

    def __init__(
        self, limits: LimitsSection, *, done: Iterable[EpisodeRecord] = (), told: Iterable[RunEvent] = ()
    ) -> None:
        """`done` and `told` (of `OF_ATTEMPTS`): in earlier invocations of the daemon."""
        self._limits = limits
        self._steps = self._episodes = 0
        self._attempts = AttemptCount()
        self._told = False
        for record in done:
            self._count(record)
        for event in told:
            self._tell(event)

    @property
    def spent(self) -> dict[str, int]:
        return {"episodes": self._episodes, "steps": self._steps, "tasks": self._attempts.begun}

    def task_conductor_ready(self) -> None:
        self._attempts.anew()

    def spend(self, new: Iterable[Recorded]) -> Exceeded | None:
        """The limit that is exceeded with them, what it allows, and what was reached; said once."""
        for event in new:
            match event:
                case EpisodeEnded(episode=episode):
                    self._count(episode)
                case TaskStarted(phase=phase, task=task, run=run, attempt=attempt):
                    self._attempts.begins((phase, task, run), attempt)
                case TaskAttemptEnded(phase=phase, task=task, run=run, attempt=attempt):
                    self._attempts.ends((phase, task, run), attempt)
                case TaskEnded(phase=phase, record=record):
                    self._attempts.over((phase, record.task, record.run), record.attempts)
        if self._told:
            return None
        spent = self.spent
        exceeded = (
            (name, allowed, spent[name])
            for name, allowed in self._limits.amounts
            if spent.get(name, 0) > allowed
        )
        first = next(exceeded, None)
        self._told = first is not None
        return first

    def _count(self, record: EpisodeRecord) -> None:
        self._episodes += 1
        self._steps += record.steps

    def _tell(self, event: RunEvent) -> None:
        data = event.data
        record = data.get("record", data)
        run = (data.get("phase", 0), record.get("task", ""), record.get("run", 0))
        match event.kind:
            case "conductor.ready" if data["conductor"] == "tasks":
                self._attempts.anew()
            case "task.started":
                self._attempts.begins(run, data["attempt"])
            case "task.attempt_ended":
                self._attempts.ends(run, data["attempt"])
            case "task.ended":
                self._attempts.over(run, record["attempts"])


def budget_of(assignment: Assignment, journal: Journal) -> RunLimits | None:
    """With what earlier invocations have played of this run; what it has inherited was another run's to pay. None where
    nothing that is counted has a limit.
    """
    limits, uid = assignment.run.limits, assignment.uid
    if limits.steps is None and limits.episodes is None and limits.tasks is None:
        return None
    inherited = journal.standing_events_of(uid, ("run.inherited",))
    kept = {each["phase"]: each["episodes"] for event in inherited for each in event.data["kept"]}
    phases = range(len(assignment.run.phases))
    return RunLimits(
        limits,
        done=(each for phase in phases for each in journal.episodes(uid, phase)[kept.get(phase, 0) :]),
        told=() if limits.tasks is None else journal.events_of(uid, OF_ATTEMPTS),
    )
