"""The end of a run as Python code sees it: what `governor.run`, `governor.wait` and `Executor.wait` return."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Self

from governor.errors import NotEnded, RunEndedBadly

if TYPE_CHECKING:
    from collections.abc import Mapping

    import pyarrow as pa

    from governor.messages import PhaseResult, RunOutcome, RunResult
    from governor.rows import Rows


@dataclass(frozen=True, slots=True, kw_only=True, repr=False)
class Result:
    """The end of a run, and what it has recorded.

    Attributes:
        uid: the id of the run.
        name: its name, from the run file.
        outcome: ``finished``, ``failed`` or ``aborted``.
        reason: why it failed or was aborted, in one line; empty for a run that finished.
        phases: the phases that began, by name, in their order. Each has `mode`, `end` (why it ended), `episodes` (outcome to
            number), `metrics` (name to number, as ``return_mean``), `task_outcomes` (outcome to number) and `tasks` (one record for
            each run of a task; empty if there are more than 10,000: `Result.tasks()` has all).
        seconds: how long it was in work; None for a run of an older daemon.
        run_folder: the folder with its files.
        parent: the id of the run that it resumed; None for any other run.
    """

    uid: str
    name: str
    outcome: RunOutcome
    reason: str
    phases: Mapping[str, PhaseResult]
    seconds: float | None
    run_folder: Path
    parent: str | None = None

    @classmethod
    def of(cls, found: RunResult) -> Self:
        """Of the message that a daemon sends. Raises NotEnded for a run in work."""
        if found.outcome == "in work":
            raise NotEnded(found.uid, found.reason)
        return cls(
            uid=found.uid,
            name=found.name,
            outcome=found.outcome,
            reason=found.reason,
            phases={phase.name: phase for phase in found.phases},
            seconds=found.seconds,
            run_folder=Path(found.folder),
            parent=found.parent,
        )

    def __repr__(self) -> str:
        reason = f", reason={self.reason!r}" if self.reason else ""
        return f"Result({self.name!r}, uid={self.uid!r}, outcome={self.outcome!r}{reason})"

    def episodes(self, phase: str | None = None) -> pa.Table:
        """The episodes of one `phase`, or of all, as a `pyarrow.Table`; ``.to_pandas()`` makes a data frame of it.

        One row for each episode, in the order in which they ended: ``phase``, ``mode``, ``index`` (from 0), ``worker``,
        ``seed``, ``outcome``, ``value`` (the undiscounted return), ``steps``, ``seconds``, ``reason``, ``values`` (returns of several
        players, as JSON), ``evaluation`` (the number of its evaluation, 0 for none), ``traceback`` (the key of its traceback in
        `Executor.failures`).

        Raises UsageError for a phase that the run does not have, or if its folder is not on this machine; OSError.
        """
        return self._table("episodes", phase)

    def steps(self, phase: str | None = None) -> pa.Table:
        """The steps of the episodes of one `phase`, or of all, as a `pyarrow.Table` in memory.

        One row for each step, in the order of episodes and steps: ``phase``, ``worker``, ``episode``, ``attempt``, ``seed``, ``step``,
        ``observation`` and ``action`` (int64 for Discrete, a flat list of a fixed size for arrays, nested columns for others), ``reward``, ``terminated``,
        ``truncated``, ``weight_version``, ``outcome`` (of its episode). Without any recorded step it has no columns.

        Raises UsageError for a phase that the run does not have, for phases that differ in their columns, or if the run's folder
        is not on this machine; OSError.
        """
        return self._table("steps", phase)

    def tasks(self, phase: str | None = None) -> pa.Table:
        """The tasks of one `phase`, or of all, as a `pyarrow.Table`.

        One row for each run of a task: ``phase``, ``task``, ``run`` (from 0), ``outcome``, ``attempts``, ``seconds`` (of the last attempt),
        ``value`` and ``metrics`` (as JSON), ``value_file``, ``error``, ``cause``, ``traceback`` (as of an episode).

        Raises UsageError for a phase that the run does not have.
        """
        return self._table("tasks", phase)

    def raise_for_outcome(self) -> Self:
        """Returns this result if the run finished. Raises RunEndedBadly, with outcome and reason, if it failed or was aborted."""
        if self.outcome != "finished":
            raise RunEndedBadly(self.uid, self.outcome, self.reason)
        return self

    def _table(self, rows: Rows, phase: str | None) -> pa.Table:
        import pyarrow as pa  # noqa: PLC0415  # 0.1 s, where rows are read alone

        from governor.rows import rows_of  # noqa: PLC0415  # as above

        schema, groups = rows_of(self.uid, self.run_folder, [*self.phases.values()], rows, phase=phase)
        return pa.concat_tables([schema.empty_table(), *groups])
