"""The progress of a run, updated from the events that are journaled, and its status, which shows it without reading the disk."""

from __future__ import annotations

import time
from collections import deque
from itertools import islice
from typing import TYPE_CHECKING, Final

import msgspec

from governor import clock
from governor.episodes.rules.statistics import LAST_RETURNS
from governor.messages import (
    BAD,
    BAD_TASKS,
    ConductorStatus,
    EpisodeEnded,
    LimitUse,
    PartFinalizing,
    TaskAttemptEnded,
    TaskEnded,
    TaskStarted,
    finalizing,
)
from governor.runs.time_left import Mark, Pace
from governor.units import durations
from states import Running
from states.at_work import AtWork
from states.base import RunInWork

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from governor.messages import RunStatus, StartTasks, TimeLeft
    from governor.messages.figures import PhaseFigures
    from governor.runs.active_run import ActiveRun
    from governor.runs.assignment import Assignment
    from governor.runs.limits import Recorded

NAMED: Final = 3
"""Running tasks that `at_work` names."""


class Progress:
    """The progress of the current phase. The `..._total` values are from the run file; `changes` counts all events of
    progress.
    """

    def __init__(self, assignment: Assignment) -> None:
        self._assignment = assignment
        self._returns: deque[float] = deque(maxlen=LAST_RETURNS)
        self.phase_index: int | None = None
        self.phase: str | None = None
        self.episodes_ended = self.episodes_total = 0
        self.tasks_ended = self.tasks_total = 0
        self.episodes_failed = self.tasks_failed = 0
        self._running: dict[str, float] = {}
        self.finalizing = ""
        """How far the file of the steps is, once all episodes have ended."""
        self._began = time.monotonic()
        self._paused_at: float | None = None
        self._steps = 0
        self._pace = Pace()
        self._phase_began = self._began
        self.changes = 0

    def enter_phase(self, phase: int) -> None:
        self.changes += 1
        self.phase_index = phase
        self.phase = self._assignment.run.phases[phase].name
        self.episodes_total = self._assignment.episodes_of(phase)
        self.tasks_total = self._assignment.tasks_of(phase)
        self.episodes_ended = self.tasks_ended = self.episodes_failed = self.tasks_failed = 0
        self._running = {}
        self.finalizing = ""
        self._returns.clear()
        self._steps = 0
        self._begin_pace(0.0)

    def adopt(self, assignment: Assignment) -> None:
        """The run file has changed."""
        self._assignment = assignment
        if self.phase_index is not None:
            self.episodes_total = assignment.episodes_of(self.phase_index)

    def enter_simulation(self, done: PhaseFigures) -> None:
        """Episodes that ended in an earlier invocation count."""
        self.episodes_ended, self.episodes_failed = done.trained, done.bad
        self._returns = deque(done.last_returns, maxlen=LAST_RETURNS)
        self._steps = done.steps
        self._begin_pace(max(done.seconds.values(), default=0.0))

    def enter_tasks(self, command: StartTasks) -> None:
        """Likewise."""
        self.tasks_ended = sum(len(each.runs) for each in command.done.values())
        self.tasks_failed = command.failed

    def _begin_pace(self, worked: float) -> None:
        """`worked`: seconds that earlier invocations worked on the phase."""
        self._phase_began = time.monotonic() - worked
        self._pace.begin(self._mark)

    @property
    def _mark(self) -> Mark:
        return Mark(time.monotonic(), self.episodes_ended, self._steps, self.tasks_ended)

    @property
    def left(self) -> TimeLeft | None:
        """About how long the phase and the run still take."""
        if self.phase_index is None:
            return None
        phases = self._assignment.run.phases[self.phase_index :]
        return self._pace.left(self._mark, phases, worked=time.monotonic() - self._phase_began)

    @property
    def seconds(self) -> float:
        """Seconds in work, without pauses, over all invocations of the daemon."""
        until = time.monotonic() if self._paused_at is None else self._paused_at
        return self._assignment.worked + until - self._began

    def pause(self, at: float) -> None:
        """The time stands still from monotonic second `at` on."""
        self._paused_at = at if self._paused_at is None else self._paused_at

    def go_on(self, at: float) -> None:
        if self._paused_at is not None:
            self._began += at - self._paused_at
            self._paused_at = None

    def count(self, event: Recorded) -> None:
        """Episodes of an evaluation are not among the `episodes` of a phase; after an attempt another one may follow. How far a file
        is comes again and again, also if it stands still.
        """
        self.changes += not isinstance(event, PartFinalizing)
        match event:
            case EpisodeEnded(episode=record):
                self.episodes_failed += record.outcome in BAD
                if not record.evaluation:
                    self.episodes_ended += 1
                    self._steps += record.steps
                    self._pace.add(self._mark)
                    self._returns.append(record.value)
            case PartFinalizing(steps=steps, total=total):
                self.finalizing = f"the file of its steps: {finalizing(steps, total)}"
            case TaskStarted(task=task, run=run):
                self._running[f"{task}[{run}]"] = time.monotonic()
            case TaskAttemptEnded(task=task, run=run):
                self._running.pop(f"{task}[{run}]", None)
            case TaskEnded(record=ended):
                self._running.pop(f"{ended.task}[{ended.run}]", None)
                self.tasks_ended += 1
                self.tasks_failed += ended.outcome in BAD_TASKS
                self._pace.add(self._mark)

    @property
    def at_work(self) -> str:
        """The running tasks, the oldest ones by name and age, and how far a simulation is that is over; empty if none."""
        now = time.monotonic()
        oldest = [f"{name} for {now - since:.0f} s" for name, since in islice(self._running.items(), NAMED)]
        more = len(self._running) - len(oldest)
        tasks = ", ".join(oldest) + (f" and {more} more" if more else "")
        return "; ".join(filter(None, [self.finalizing, tasks]))

    @property
    def metrics(self) -> dict[str, float]:
        """`return_mean`: over the last 50 episodes of this phase."""
        return {"return_mean": sum(self._returns) / len(self._returns)} if self._returns else {}


def status_of(run: ActiveRun, known: RunStatus, marked: Mapping[int, Sequence[int]]) -> RunStatus:
    """The status of a run in work: what is `known` from the journal, and the progress. `marked`: from `kill_tree.marked`."""
    state, progress, section = run.state, run.progress, run.assignment.run
    used = run.limits.used
    started = {
        name: tuple(pid for pid in marked.get(child.mark, ()) if pid != child.pid)
        for name, child in run.effects.processes.items()
    }
    waits_for = state.waits_for + (f" ({progress.at_work})" if progress.at_work else "")
    stalled = None
    if isinstance(state, Running) and state.stalled is not None:
        stalled = time.monotonic() - state.stalled
        waits_for += f"; no progress for {durations.text(stalled)}"
    return msgspec.structs.replace(
        known,
        state=state.name,
        waits_for=waits_for,
        phase=progress.phase,
        phase_index=progress.phase_index,
        phases=len(section.phases),
        episodes_ended=progress.episodes_ended,
        episodes_total=progress.episodes_total,
        tasks_ended=progress.tasks_ended,
        tasks_total=progress.tasks_total,
        episodes_failed=progress.episodes_failed,
        tasks_failed=progress.tasks_failed,
        metrics=progress.metrics,
        conductors=tuple(
            ConductorStatus(
                name=m.name,
                kind=m.kind,
                state=m.standing,
                pid=m.pid,
                incarnation=m.incarnation,
                started=started.get(m.name, ()),
                **run.usage.of(m.name),
            )
            for m in (state.conductors.all if isinstance(state, RunInWork) else ())
        ),
        limits=tuple(
            LimitUse(limit=name, allowed=allowed, used=used.get(name))
            for name, allowed in section.limits.amounts
        ),
        seconds=progress.seconds,
        left=progress.left if isinstance(state, Running) and state.pause is None else None,
        paused=isinstance(state, AtWork) and state.pause is not None,
        stalled_since=None if stalled is None else clock.wall() - stalled,
    )
