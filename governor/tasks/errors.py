"""Errors of the task engine: faults of its users, and limits that are reached.

All can be pickled: a coordinator in an actor raises them at its callers.
"""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Any

from governor.errors import GovernorError, TryAgain

if TYPE_CHECKING:
    from collections.abc import Sequence

    from governor.messages import TaskRecord
    from governor.tasks.scheduling.graph import GraphFault

MOST_NAMED = 20


class GraphError(GovernorError, ValueError):
    """The tasks of a batch do not form a valid graph: duplicate or unknown ids, cycles. Nothing was run."""

    code = "graph"

    def __init__(self, faults: Sequence[GraphFault]) -> None:
        self.faults = tuple(faults)
        named = [fault.message for fault in self.faults[:MOST_NAMED]]
        more = len(self.faults) - len(named)
        super().__init__("; ".join(named) + (f"; and {more} more" if more else ""))

    def __reduce__(self) -> tuple[Any, ...]:
        return type(self), (self.faults,)


class QueueFull(TryAgain):
    """More runs would wait than `max_pending` allows. No task of the batch was accepted."""

    code = "queue_full"

    def __init__(self, *, pending: int, new: int, limit: int) -> None:
        self.pending, self.new, self.limit = pending, new, limit
        super().__init__(
            f"{pending} runs are pending and {new} more would exceed max_pending={limit}: schedule again when some "
            "have ended"
        )

    def __reduce__(self) -> tuple[Any, ...]:
        return partial(type(self), pending=self.pending, new=self.new, limit=self.limit), ()


class TaskFailed(GovernorError):
    """A task has no result. `outcome` and `record` are those of the task; `cause` is the root task of an
    `upstream_failed`.
    """

    code = "task_failed"

    def __init__(self, record: TaskRecord) -> None:
        self.record = record
        self.outcome = record.outcome
        self.cause = record.cause
        super().__init__(f'task "{record.task}" {record.outcome}: {record.error}'.rstrip(": "))

    def __reduce__(self) -> tuple[Any, ...]:
        return type(self), (self.record,)
