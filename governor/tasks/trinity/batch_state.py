"""What a `RolloutCoordinator` shows of its batches, under the names of Trinity-RFT."""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import StrEnum
from typing import TYPE_CHECKING, Any, Literal, TypeAlias

if TYPE_CHECKING:
    from governor.tasks.api import BatchId, Status

BatchType: TypeAlias = Literal["train", "eval"]


class BatchLifecycleState(StrEnum):
    """Where a batch stands."""

    PENDING = "pending"
    RUNNING = "running"
    FINALIZING = "finalizing"
    FINALIZED = "finalized"
    ABORTED = "aborted"


@dataclass(slots=True, eq=False)
class BatchState:
    """What the coordinator knows of a batch. `statuses` by task id, of the tasks that have ended, in the order of the
    tasks. `final_result` is what finalize returns, once it is known.
    """

    batch_id: BatchId
    batch_type: BatchType
    expected_task_count: int
    statuses: dict[str, Status] = field(default_factory=dict)
    min_wait_num: int | None = None
    state: BatchLifecycleState = BatchLifecycleState.PENDING
    final_result: dict[str, Any] | None = None

    @property
    def completed_task_count(self) -> int:
        """Tasks that have ended."""
        return len(self.statuses)

    @property
    def succeeded_task_count(self) -> int:
        """Tasks of which every run succeeded."""
        return sum(status.ok for status in self.statuses.values())
