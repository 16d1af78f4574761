"""Read-only queries of the daemon's API: the runs, and the daemon itself."""

from __future__ import annotations

import os
import time
from types import MappingProxyType
from typing import TYPE_CHECKING, Final, Protocol

import msgspec

from governor import clock
from governor.errors import BadRequest, NoSuchRun, RecordDamaged
from governor.messages import Explanation, RunList, RunStatus, StatusReport
from governor.runs import explain
from governor.version import __version__

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from governor.daemon.run_queue import RunQueue
    from governor.journal.tables import RunRow
    from governor.messages import Prune, Pruned, Reloaded, RunResult
    from governor.runs.active_run import RunContext
    from governor.runs.run_governor import RunGovernor

LIST_LIMIT: Final = 10_000
"""Maximum number of runs in one answer."""
_NOT_ASKED: Final = MappingProxyType[int, "Sequence[int]"]({})


class DaemonState(Protocol):
    """The part of the daemon that its API needs."""

    governors: list[RunGovernor]
    queue: RunQueue
    held: Mapping[str, str]
    damaged: dict[str, str]

    @property
    def is_stopping(self) -> bool: ...
    def dispatch(self) -> None:
        """A slot or a queued run may be available."""

    def require_room(self) -> None:
        """Raises NoRoom when the disk has no room for another run."""

    async def prune(self, asked: Prune) -> Pruned: ...

    def reload(self) -> Reloaded:
        """Raises ConfigError with all faults, UsageError when there is no configuration to reload."""


class RunQueries:
    """Answers queries; its methods raise NoSuchRun and JournalError."""

    def __init__(self, *, daemon: DaemonState, context: RunContext) -> None:
        self._daemon = daemon
        self._context = context
        self._journal = context.journal
        self._started_at = time.monotonic()

    def status(self, uid: str | None, marked: Mapping[int, Sequence[int]]) -> StatusReport:
        """The daemon, and one run or all that have not ended. `marked`: pids by mark, from `kill_tree.marked`."""
        if uid is not None:
            runs = [self.describe(self.find(uid), marked)]
        else:
            runs = [self.describe(row, marked) for row in self._journal.unended()]
        return StatusReport(
            pid=os.getpid(),
            version=__version__,
            endpoint=self._context.client_endpoint,
            uptime=time.monotonic() - self._started_at,
            slots=len(self._daemon.governors),
            state="stopping" if self._daemon.is_stopping else "serving",
            runs=tuple(runs),
            ray=str(self._context.ray),
            quarantined=self._quarantined(),
        )

    def list(self, limit: int) -> RunList:
        if not 0 < limit <= LIST_LIMIT:
            raise BadRequest(f"limit counts runs, from 1 to {LIST_LIMIT}, and is not {limit}")
        return RunList(runs=tuple(self.describe(row) for row in self._journal.runs(limit=limit)))

    def explain(self, uid: str) -> Explanation:
        row = self.find(uid)
        governor, now = self._in_work(row), clock.wall()
        status = self.describe(row)
        run = governor.experiment_run if governor is not None else None
        in_work = governor is not None
        lines = explain.explain(
            status,
            events=self._journal.events_of(row.uid, explain.KINDS) if in_work else (),
            latest=self._journal.latest(row.uid) if in_work else None,
            deadlines={key: now + left for key, left in governor.deadlines.items()} if governor else {},
            phase=run.phases[status.phase_index] if run and status.phase_index is not None else None,
        )
        return Explanation(uid=row.uid, name=row.name, at=now, lines=lines)

    def find(self, uid: str) -> RunRow:
        """The run with this uid, or the only one whose uid begins with it."""
        candidates = self._journal.find(uid) if uid else []
        if uid in candidates:
            candidates = [uid]
        if len(candidates) > 1:
            raise NoSuchRun(uid, f"{uid!r} is the beginning of several runs: {', '.join(candidates)}")
        row = self._journal.run(candidates[0]) if candidates else None
        if row is None and uid and (gone := self._journal.pruned(uid)) is not None:
            on = time.strftime("%Y-%m-%d", time.localtime(gone.pruned_at))
            raise NoSuchRun(uid, f"run {gone.uid} was pruned on {on}: its record and its files are gone")
        if row is None:
            raise NoSuchRun(uid)
        return row

    def find_sound(self, uid: str) -> RunRow:
        """As `find`; raises RecordDamaged when part of its row can't be read."""
        row = self.find(uid)
        if row.damage:
            raise RecordDamaged(row.uid, "runs", row.damage)
        return row

    def governor_of(self, uid: str) -> RunGovernor | None:
        """The governor that has the run in work."""
        return next((g for g in self._daemon.governors if g.experiment_run_id == uid), None)

    def _in_work(self, row: RunRow) -> RunGovernor | None:
        """None for a run whose end is recorded, even if its governor is still cleaning up."""
        return self.governor_of(row.uid) if row.ended_at is None else None

    def _quarantined(self) -> dict[str, str]:
        return {slot.uid: slot.quarantine for slot in self._daemon.governors if slot.quarantine}

    def describe(self, row: RunRow, marked: Mapping[int, Sequence[int]] = _NOT_ASKED) -> RunStatus:
        status = RunStatus(
            uid=row.uid,
            name=row.name,
            state="interrupted",
            outcome=row.outcome,
            reason=row.reason,
            waits_for=self._daemon.held.get(row.uid, "the next start of the daemon"),
            submitted_at=row.submitted_at,
            started_at=row.started_at,
            ended_at=row.ended_at,
            phases=len(row.spec.get("phases", ())),
            parent=row.parent,
        )
        if (governor := self._in_work(row)) is not None:
            return governor.status(status, marked)
        result, damage = self._result(row)
        if damage:
            state, waits_for = "damaged", f"an abort, or a journal that this daemon can read: {damage}"
        elif row.ended_at is not None:
            state, waits_for = "ended", "nothing"
        elif row.uid in self._daemon.queue:
            before = self._daemon.queue.position(row.uid)
            state, waits_for = "queued", f"a free slot ({before} run{'' if before == 1 else 's'} before it)"
            waits_for += "".join(f"; {slot}: {waits}" for slot, waits in self._quarantined().items())
        else:
            state, waits_for = status.state, status.waits_for
        last = next((phase for phase in reversed(result.phases) if phase.metrics), None) if result else None
        return msgspec.structs.replace(
            status,
            state=state,
            reason=f"its record is damaged ({damage})" if damage else row.reason,
            waits_for=waits_for,
            metrics=last.metrics if last else {},
            seconds=result.seconds if result else None,
        )

    def damage_of(self, row: RunRow) -> str:
        """The part of a run's record that can't be read; "" if all can, or if it was not checked."""
        return row.damage or self._daemon.damaged.get(row.uid, "")

    def _result(self, row: RunRow) -> tuple[RunResult | None, str]:
        """The result of a run that has ended, and the part of its record that can't be read."""
        damage = self.damage_of(row)
        try:
            result = self._journal.result(row.uid) if row.ended_at is not None else None
        except RecordDamaged as error:
            return None, damage or f"{error.place}: {error.what}"
        return result, damage
