"""The status of a run in work: its slot's state and progress, as a `RunStatus`."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

from governor import clock
from governor.messages import ConductorStatus, LimitUse, RunStatus
from governor.units import durations
from states import Running
from states.base import RunInWork

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from governor.journal.tables import RunRow
    from governor.runs.active_run import ActiveRun


def status_of(run: ActiveRun, row: RunRow, marked: Mapping[int, Sequence[int]]) -> RunStatus:
    """`row` is its entry in the journal, `marked` the result of `kill_tree.marked`."""
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
        phase=progress.phase,
        phase_index=progress.phase_index,
        phases=len(section.phases),
        episodes_ended=progress.episodes_ended,
        episodes_total=progress.episodes_total,
        tasks_ended=progress.tasks_ended,
        tasks_total=progress.tasks_total,
        metrics=progress.metrics,
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
            for m in (state.conductors.all if isinstance(state, RunInWork) else ())
        ),
        limits=tuple(
            LimitUse(limit=name, allowed=allowed, used=used.get(name))
            for name, allowed in section.limits.amounts
        ),
        seconds=progress.seconds,
        stalled_since=None if stalled is None else clock.wall() - stalled,
    )
