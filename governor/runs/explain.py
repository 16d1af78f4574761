"""`governor explain RUN`: what a run is doing, what it waits for, since when, and until when at most. Pure.

Rules:
1. Every line is a fact from the record, the machine's state, or an armed deadline; nothing is guessed. A wait without
   a bound has no `until`.
2. Times are wall-clock seconds: those of the record, and deadlines as of now.
3. Few lines: at most `MOST_NAMED` conductors are named.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from governor.episodes.rules.evaluation import planned_episodes
from governor.episodes.rules.failures import allowed
from governor.messages import ExplainedLine, RunEvent
from governor.units import durations
from states.amounts import amount
from states.events import PauseRequested

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from governor.messages import LimitUse, RunStatus
    from governor.run_file.phase_model import Phase

KINDS: Final = (
    *("run.transition", "phase.started", "conductor.started", "conductor.ready", "conductor.exited"),
    PauseRequested.kind,
)
"""The kinds of events that `explain` needs."""
MOST_NAMED: Final = 5
_DEADLINES: Final = {
    "starting": ("start",),
    "running": ("wall_clock",),
    "finalizing": ("close", "finalize"),
    "stopping": ("stop",),
}
"""The deadlines of each state, the earliest first."""


def explain(
    status: RunStatus,
    *,
    events: Sequence[RunEvent],
    latest: RunEvent | None,
    deadlines: Mapping[tuple[str, str], float],
    phase: Phase | None,
) -> tuple[ExplainedLine, ...]:
    """`events` are those of `KINDS`, `deadlines` wall-clock seconds by name and conductor; `phase` is the current
    one.
    """
    if status.state not in _DEADLINES:
        queued = None if status.paused else status.submitted_at
        since = {"queued": queued, "ended": status.ended_at}.get(status.state)
        if status.state == "ended":
            text = f"it has ended: {status.outcome}{f', {status.reason}' if status.reason else ''}"
        else:
            text = f"{status.state}: waits for {status.waits_for}"
        return (ExplainedLine(what=text, since=since),)
    armed = (deadlines[name, ""] for name in _DEADLINES[status.state] if (name, "") in deadlines)
    lines = [
        ExplainedLine(
            what=f"{status.state}: waits for {status.waits_for}",
            since=_last(events, PauseRequested.kind if status.paused else "run.transition"),
            until=None if status.paused and status.state == "running" else next(armed, None),
        )
    ]
    if phase is not None and status.state == "running":
        lines += _work(status, phase, since=_last(events, "phase.started"))
    if status.limits:
        lines.append(ExplainedLine(what=f"limits: {used(status.limits)}"))
    lines += _conductors(status, events, deadlines)
    if latest is not None:
        lines.append(
            ExplainedLine(what=f"last on record: number {latest.seq}, {latest.kind}", since=latest.at)
        )
    return tuple(lines)


def used(limits: Sequence[LimitUse]) -> str:
    """``tasks 5 of 100, memory 1.25 GiB of 2 GiB``."""
    return ", ".join(
        f"{each.limit} {'?' if each.used is None else amount(each.limit, each.used)} of {amount(each.limit, each.allowed)}"
        for each in limits
    )


def _work(status: RunStatus, phase: Phase, *, since: float | None) -> list[ExplainedLine]:
    """The progress of the phase, and the time limit of each episode or attempt."""
    head = f"phase {phase.name}, {(status.phase_index or 0) + 1} of {status.phases}"
    lines = []
    if (simulate := phase.simulate) is not None:
        bound = _bound("each", simulate.episode_timeout)
        done = f"{status.episodes_ended} of {status.episodes_total} episodes have ended"
        planned = planned_episodes(simulate.episodes, phase.evaluate)
        done += _failed(status.episodes_failed, allowed(phase.policy, planned))
        lines.append(
            ExplainedLine(what=f"{head}: {done}, {simulate.workers} at a time, {bound}", since=since)
        )
    if phase.tasks:
        times = [task.timeout for task in phase.tasks]
        longest = None if None in times else max(time for time in times if time is not None)
        done = f"{status.tasks_ended} of {status.tasks_total} runs of tasks have ended"
        done += _failed(status.tasks_failed, allowed(phase.policy, status.tasks_total))
        lines.append(ExplainedLine(what=f"{head}: {done}, {_bound('an attempt', longest)}", since=since))
    return lines


def _failed(number: int, bearable: int | None) -> str:
    bound = "" if bearable is None else f" of {bearable} that may"
    return f", {number} have failed{bound}" if number else ""


def _bound(what: str, seconds: float | None) -> str:
    return f"{what} without a time-out" if seconds is None else f"{what} {durations.text(seconds)} at most"


def _conductors(
    status: RunStatus, events: Sequence[RunEvent], deadlines: Mapping[tuple[str, str], float]
) -> list[ExplainedLine]:
    """Conductors that are not ready or, when stopping, not gone."""
    wanted = "gone" if status.state == "stopping" else "ready"
    odd = [each for each in status.conductors if each.state != wanted]
    lines = []
    for each in odd[:MOST_NAMED]:
        pid = f", pid {each.pid}" if each.pid else ""
        lines.append(
            ExplainedLine(
                what=f"conductor {each.name} is {each.state} (start {each.incarnation}{pid})",
                since=_last(events, "conductor.", conductor=each.name),
                until=deadlines.get(("restart", each.name)),
            )
        )
    if len(odd) > MOST_NAMED:
        lines.append(ExplainedLine(what=f"and {len(odd) - MOST_NAMED} conductors more"))
    return lines


def _last(events: Sequence[RunEvent], kind: str, **data: str) -> float | None:
    """The time of the last event whose kind has this prefix."""
    wanted = data.items()
    return next(
        (each.at for each in reversed(events) if each.kind.startswith(kind) and wanted <= each.data.items()),
        None,
    )
