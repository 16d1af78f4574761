"""`RunnerWrapper`: one runner of a scheduler, by its number, under the names of Trinity-RFT."""

from __future__ import annotations

import time
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import msgspec

from governor.messages import TaskRecord
from governor.tasks.statistics import summarise_tasks
from governor.tasks.trinity.views import BatchView, TaskWrapper

if TYPE_CHECKING:
    from governor.tasks.api import Status, Task
    from governor.tasks.scheduler import Scheduler


class RunnerWrapper:
    """A view on one place of a running scheduler. `state` is what `update_state` saw last.

    Raises KeyError for a number that the scheduler has no runner for.
    """

    def __init__(self, runner_id: int, scheduler: Scheduler) -> None:
        if not 0 <= runner_id < scheduler.runner_num:
            raise KeyError(runner_id)
        self.runner_id = runner_id
        self.state: dict[str, Any] = {}
        self._scheduler = scheduler

    async def prepare(self) -> None:
        """Returns when there is a runner; one that has died without work to follow is replaced now."""
        await self._scheduler.engine.seated(self.runner_id)

    async def update_state(self) -> None:
        """Never waits for the runner: what it does is known without asking it."""
        self.state = self._scheduler.get_runner_state(self.runner_id)

    async def run_with_retry(
        self,
        task: Task,
        repeat_times: int,
        run_id_base: int,
        timeout: float,
        collect_partial_runs: bool = False,  # noqa: FBT001, FBT002  # the signature that users know
    ) -> tuple[Status, list[bytes], int, float]:
        """Executes runs ``run_id_base`` to ``run_id_base + repeat_times - 1`` of a task on this runner.

        `timeout` (seconds) bounds each attempt; only missing runs are tried again.

        Returns:
            The status; the payloads of the completed runs, none without `collect_partial_runs` when runs are missing; the
            number of the runner; the seconds that it took, queue and retries included.
        """
        scheduler, began = self._scheduler, time.monotonic()
        spec = scheduler.spec_of(replace(task, timeout=timeout, depends_on=()), 0)
        spec = msgspec.structs.replace(spec, repeat=run_id_base + repeat_times)
        earlier = tuple(
            TaskRecord(task=spec.id, run=run, outcome="succeeded", attempts=0, seconds=0.0)
            for run in range(run_id_base)
        )
        batch = scheduler.portion([spec], name=f"runner-{self.runner_id}", done=earlier, pin=self.runner_id)
        number = int(batch.id)
        view = BatchView(number, split=None, portion_ended=scheduler.clean)
        wrapper = TaskWrapper(
            task,
            number,
            task_id=spec.id,
            total_runs=repeat_times,
            first_run=run_id_base,
            keep_partial=True,
        )
        view.begin(number, [wrapper])
        engine = scheduler.engine
        engine.submit(batch, view)
        try:
            while view.portions and scheduler.running:
                await view.bell.heard()
        finally:
            if view.portions and scheduler.running:
                engine.cancel(number, reason="its caller was cancelled")
        if view.portions:
            raise RuntimeError("the scheduler was stopped")
        complete = wrapper.completed_runs == wrapper.total_runs
        payloads = wrapper.experience_payloads if complete or collect_partial_runs else []
        (metrics,) = await summarise_tasks([wrapper.metrics], is_eval=task.is_eval)
        return wrapper.status(metrics), payloads, self.runner_id, time.monotonic() - began

    async def restart_runner(self) -> None:
        """Replaces the runner: the new one is ready before the old one is killed. What the old one does then counts as
        a crashed attempt.
        """
        await self.prepare()
        await self._scheduler.engine.restart(self.runner_id)
