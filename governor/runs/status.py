"""The status of a run in work: its slot's state and progress, as a `RunStatus`."""

from __future__ import annotations

from typing import TYPE_CHECKING

from governor import clock
from governor.messages import ConductorStatus, RunStatus
from governor.units import durations
from states import Running
from states.base import RunInWork

if TYPE_CHECKING:
    from collections.abc import Mapping

    from governor.journal.tables import RunRow
    from governor.messages import LimitUse
    from governor.runs.assignment import Assignment
    from governor.runs.progress import Progress
    from states import State


def in_work(
    row: RunRow,
    *,
    state: State,
    progress: Progress | None,
    assignment: Assignment | None,
    limits: tuple[LimitUse, ...],
    started: Mapping[str, tuple[int, ...]],
    now: float,
) -> RunStatus:
    """`row` is its entry in the journal, `started` the pids that each conductor has started, `now` monotonic seconds."""
    conductors = state.conductors.all if isinstance(state, RunInWork) else ()
    at_work = progress.at_work if progress else ""
    waits_for = state.waits_for + (f" ({at_work})" if at_work else "")
    stalled = now - state.stalled if isinstance(state, Running) and state.stalled is not None else None
    if stalled is not None:
        waits_for += f"; no progress for {durations.text(stalled)}"
    return RunStatus(
        uid=row.uid,
        name=row.name,
        state=state.name,
        outcome=row.outcome,
        reason=row.reason,
        waits_for=waits_for,
        submitted_at=row.submitted_at,
        started_at=row.started_at,
        ended_at=row.ended_at,
        phase=progress.phase if progress else None,
        phase_index=progress.phase_index if progress else None,
        phases=len(assignment.run.phases) if assignment else 0,
        episodes_ended=progress.episodes_ended if progress else 0,
        episodes_total=progress.episodes_total if progress else 0,
        tasks_ended=progress.tasks_ended if progress else 0,
        tasks_total=progress.tasks_total if progress else 0,
        metrics=progress.metrics if progress else {},
        parent=row.parent,
        conductors=tuple(
            ConductorStatus(
                name=m.name,
                kind=m.kind,
                state=m.standing,
                pid=m.pid,
                incarnation=m.incarnation,
                started=started.get(m.name, ()),
            )
            for m in conductors
        ),
        limits=limits,
        seconds=progress.seconds if progress else None,
        stalled_since=None if stalled is None else clock.wall() - stalled,
    )
