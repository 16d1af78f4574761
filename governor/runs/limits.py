"""The limits of a run on amounts, over all of its phases: what it has used of each, and the first that is exceeded.

`limits.steps`, `limits.episodes` and `limits.tasks` are counted. They are checked after a record is durable and before
its report is acknowledged: the reply then carries the flow control of a run that is ending (`RunGovernor.flow`), so no
further episode begins. Memory and disk are measured (`resource_usage`).
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, TypeAlias

from governor.messages import EpisodeEnded, TaskAttemptEnded, TaskEnded, TaskStarted
from states.amounts import Limit

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from governor.journal.journal import Journal
    from governor.messages import EpisodeRecord, RunEvent
    from governor.run_file.model import LimitsSection
    from governor.runs.assignment import Assignment

Exceeded: TypeAlias = tuple[Limit, int, int]
"""The limit, its value, and the amount reached."""
Recorded: TypeAlias = EpisodeEnded | TaskStarted | TaskAttemptEnded | TaskEnded
OF_ATTEMPTS: Final = ("conductor.ready", "task.started", "task.attempt_ended", "task.ended")
"""The events that count attempts."""


class AttemptCount:
    """Counts attempts of task runs. A start that arrives with its end is not reported; the end is counted instead."""

    def __init__(self) -> None:
        self.started_count = 0
        self._last: dict[tuple[int, str, int], int] = {}
        """For each unfinished run of a task, the attempt that was counted last."""

    def reset(self) -> None:
        """A new task conductor has started; it numbers the attempts of unfinished runs from 1."""
        self._last.clear()

    def started(self, run: tuple[int, str, int], attempt: int) -> None:
        self.started_count += 1
        self._last[run] = attempt

    def ended(self, run: tuple[int, str, int], attempt: int) -> None:
        if self._last.get(run, 0) != attempt:
            self.started(run, attempt)

    def finished(self, run: tuple[int, str, int], attempts: int) -> None:
        self.ended(run, attempts)
        self._last.pop(run, None)


class RunLimits:
    """Takes each event once; episodes of an evaluation count. `measured` is the use of memory and disk, where these have
    limits.
    """

    def __init__(
        self, limits: LimitsSection, *, done: Iterable[EpisodeRecord] = (), recorded: Iterable[RunEvent] = ()
    ) -> None:
        """`done` and `recorded` (of kinds `OF_ATTEMPTS`) are from earlier invocations of the daemon."""
        self._limits = limits
        self._steps = self._episodes = 0
        self._attempts = AttemptCount()
        self.measured: Mapping[str, int] = {}
        self._reported = False
        for record in done:
            self._count(record)
        for event in recorded:
            self._count_recorded(event)

    @property
    def used(self) -> dict[str, int]:
        counted = {"episodes": self._episodes, "steps": self._steps, "tasks": self._attempts.started_count}
        return {**counted, **self.measured}

    def task_conductor_ready(self) -> None:
        self._attempts.reset()

    def count(self, new: Iterable[Recorded]) -> None:
        for event in new:
            match event:
                case EpisodeEnded(episode=episode):
                    self._count(episode)
                case TaskStarted(phase=phase, task=task, run=run, attempt=attempt):
                    self._attempts.started((phase, task, run), attempt)
                case TaskAttemptEnded(phase=phase, task=task, run=run, attempt=attempt):
                    self._attempts.ended((phase, task, run), attempt)
                case TaskEnded(phase=phase, record=record):
                    self._attempts.finished((phase, record.task, record.run), record.attempts)

    def exceeded(self) -> Exceeded | None:
        """The first limit that is exceeded, its value, and the amount reached; reported once."""
        if self._reported:
            return None
        used = self.used
        exceeded = (
            (name, allowed, used[name])
            for name, allowed in self._limits.amounts
            if used.get(name, 0) > allowed
        )
        first = next(exceeded, None)
        self._reported = first is not None
        return first

    def _count(self, record: EpisodeRecord) -> None:
        self._episodes += 1
        self._steps += record.steps

    def _count_recorded(self, event: RunEvent) -> None:
        data = event.data
        record = data.get("record", data)
        run = (data.get("phase", 0), record.get("task", ""), record.get("run", 0))
        match event.kind:
            case "conductor.ready" if data["conductor"] == "tasks":
                self._attempts.reset()
            case "task.started":
                self._attempts.started(run, data["attempt"])
            case "task.attempt_ended":
                self._attempts.ended(run, data["attempt"])
            case "task.ended":
                self._attempts.finished(run, record["attempts"])


def limits_of(assignment: Assignment, journal: Journal) -> RunLimits:
    """The limits, with what earlier invocations of the daemon have counted for this run; inherited work is not
    counted. Without a limit that counts, the journal is not read.
    """
    limits, uid = assignment.run.limits, assignment.uid
    if limits.steps is None and limits.episodes is None and limits.tasks is None:
        return RunLimits(limits)
    inherited = journal.standing_events_of(uid, ("run.inherited",))
    kept = {each["phase"]: each["episodes"] for event in inherited for each in event.data["kept"]}
    phases = range(len(assignment.run.phases))
    return RunLimits(
        limits,
        done=(each for phase in phases for each in journal.episodes(uid, phase)[kept.get(phase, 0) :]),
        recorded=() if limits.tasks is None else journal.events_of(uid, OF_ATTEMPTS),
    )
