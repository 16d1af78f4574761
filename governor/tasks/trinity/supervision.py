"""The state of a scheduler's batches and runners while they work.

It is built from reports that were received, without a request to runners, so a hung runner blocks nothing. The keys of
a runner's state are those of Trinity-RFT.
"""

from __future__ import annotations

import sys
import time
from typing import TYPE_CHECKING, Any

from governor.tasks.trinity.views import RunningTaskState

if TYPE_CHECKING:
    from collections.abc import Mapping

    from governor.tasks.api import BatchId
    from governor.tasks.scheduling.events import Waiting
    from governor.tasks.scheduling.runner_slots import RunnerSlot
    from governor.tasks.trinity.batches import Batches
    from governor.tasks.trinity.runner_view import RunnerWrapper
    from governor.tasks.trinity.submissions import Submissions
    from governor.tasks.trinity.views import TaskWrapper


class Supervision:
    """The read-only part of `Scheduler`. No method waits."""

    _batches: Batches
    _submissions: Submissions | None
    runners: dict[int, RunnerWrapper]
    """All runners, by their numbers."""

    @property
    def total_completed_steps(self) -> int:
        """Train batches of which all tasks have ended."""
        return self._batches.totals.steps

    @property
    def total_completed_tasks(self) -> int:
        """Tasks of train batches that have ended."""
        return self._batches.totals.tasks

    @property
    def total_completed_sub_tasks(self) -> int:
        """Their sub-tasks."""
        return self._batches.totals.sub_tasks

    @property
    def total_running_time(self) -> float:
        """What those took, in seconds."""
        return self._batches.totals.running_time

    def explain(self, batch_id: BatchId) -> list[Waiting]:
        """What a batch waits for: which runs, on which runner, since when, until when (`events.Waiting`). Empty when
        nothing of it is left to do.
        """
        view = self._batches.get(batch_id)
        if view is None or self._submissions is None:
            return []
        engine = self._submissions.driver.engine
        return [row for submission in sorted(view.submissions) for row in engine.explain(submission)]

    @property
    def busy_runners(self) -> dict[int, RunningTaskState]:
        """The runners that execute a task now, and what they execute."""
        tasks: dict[BatchId, dict[str, TaskWrapper]] = {
            submission: view.tasks for view in self._batches.values() for submission in view.submissions
        }
        at_work = {
            slot_index: slot.last[0].attempt
            for slot_index, slot in self._plain_slots().items()
            if slot.last is not None and slot.last[-1] is None
        }
        return {
            slot_index: RunningTaskState(task, slot_index)
            for slot_index, attempt in sorted(at_work.items())
            if (task := tasks.get(attempt.batch, {}).get(attempt.task.id)) is not None
        }

    @property
    def idle_runners(self) -> set[int]:
        """The runners that are ready and have nothing to do."""
        return {slot_index for slot_index, slot in self._plain_slots().items() if slot.state == "idle"}

    def running_tasks(self, batch_id: BatchId) -> list[RunningTaskState]:
        """The tasks of a batch that a runner executes now."""
        return [state for state in self.busy_runners.values() if state.task.batch_id == batch_id]

    def get_runner_state(self, runner_id: int) -> dict[str, Any]:
        """What a runner does: ``workflow_id`` ("batch/task/run"), ``model_version``, ``begin_time`` and
        ``terminate_time`` (seconds since the epoch, None while it runs), ``running_time`` in seconds, and what its
        task has set with ``context.tell``. Never waits for the runner. Empty for an unknown one.
        """
        return self.get_all_state().get(runner_id, {})

    def get_key_state(self, key: str) -> dict[int, Any]:
        """One key of every runner that has it, by runner."""
        return {runner: state[key] for runner, state in self.get_all_state().items() if key in state}

    def get_all_state(self) -> dict[int, dict[str, Any]]:
        """The states of all runners that have one, in the order of their numbers."""
        found = {runner: describe(slot) for runner, slot in sorted(self._plain_slots().items())}
        return {runner: state for runner, state in found.items() if state}

    def print_all_state(self) -> None:
        """Prints `get_all_state` as a table."""
        sys.stdout.write(table(self.get_all_state()) + "\n")

    def _plain_slots(self) -> dict[int, RunnerSlot]:
        return {} if self._submissions is None else self._submissions.driver.engine.plain_slots()


def describe(slot: RunnerSlot) -> dict[str, Any]:
    """``workflow_id`` ("batch/task/run"), ``model_version``, ``begin_time`` and ``terminate_time`` (seconds since the
    epoch, None while it runs), ``running_time`` (seconds), and what tasks have set on this runner.
    """
    if slot.last is None:
        return dict(slot.user_state)
    job, run, began, ended = slot.last
    now_wall, now = time.time(), time.monotonic()
    return {
        "workflow_id": f"{job.subtask.node.batch.spec.shown_id}/{job.attempt.task.id}/{run}",
        "model_version": None,
        "begin_time": now_wall - (now - began),
        "terminate_time": None if ended is None else now_wall - (now - ended),
        "running_time": (now if ended is None else ended) - began,
        **slot.user_state,
    }


def table(found: Mapping[int, Mapping[str, Any]]) -> str:
    """The states of runners as an aligned table, one line each."""
    keys = sorted({key for state in found.values() for key in state})
    rows = [["runner_id", *keys]]
    rows += [[str(runner), *(str(state.get(key, "-")) for key in keys)] for runner, state in found.items()]
    widths = [max(len(row[column]) for row in rows) for column in range(len(rows[0]))]
    lines = [" | ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)) for row in rows]
    lines.insert(1, "-+-".join("-" * width for width in widths))
    return "\n".join(line.rstrip() for line in lines)
