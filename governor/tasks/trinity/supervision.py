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
    from governor.tasks.ports import SlotState
    from governor.tasks.scheduling.events import Waiting
    from governor.tasks.trinity.submissions import Submissions
    from governor.tasks.trinity.views import BatchView


class Supervision:
    """The read-only part of `Scheduler`. No method waits."""

    _batches: dict[BatchId, BatchView]
    _submissions: Submissions | None

    def explain(self, batch_id: BatchId) -> list[Waiting]:
        """What a batch waits for: which runs, on which runner, since when, until when (`events.Waiting`). Empty when
        nothing of it is left to do.
        """
        view = self._batches.get(batch_id)
        if view is None or self._submissions is None:
            return []
        engine = self._submissions.driver.engine
        return [row for submission in sorted(view.submissions) for row in engine.explain(submission)]

    def running_tasks(self, batch_id: BatchId) -> list[RunningTaskState]:
        """The tasks of a batch that a runner executes now."""
        view = self._batches.get(batch_id)
        return [
            RunningTaskState(view.tasks[state.task], slot_index)
            for slot_index, state in self._slot_states().items()
            if view is not None
            and state.ended is None
            and state.batch in view.submissions
            and state.task in view.tasks
        ]

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
        found = {runner: describe(state) for runner, state in sorted(self._slot_states().items())}
        return {runner: state for runner, state in found.items() if state}

    def print_all_state(self) -> None:
        """Prints `get_all_state` as a table."""
        sys.stdout.write(table(self.get_all_state()) + "\n")

    def _slot_states(self) -> dict[int, SlotState]:
        return {} if self._submissions is None else self._submissions.driver.engine.slot_states()


def describe(state: SlotState) -> dict[str, Any]:
    """``workflow_id`` ("batch/task/run"), ``model_version``, ``begin_time`` and ``terminate_time`` (seconds since the
    epoch, None while it runs), ``running_time`` (seconds), and what tasks have set on this runner.
    """
    if state.batch is None or state.began is None:
        return dict(state.user_state)
    now_wall, now = time.time(), time.monotonic()
    ended = state.ended
    return {
        "workflow_id": f"{state.name}/{state.task}/{state.run}",
        "model_version": None,
        "begin_time": now_wall - (now - state.began),
        "terminate_time": None if ended is None else now_wall - (now - ended),
        "running_time": (now if ended is None else ended) - state.began,
        **state.user_state,
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
