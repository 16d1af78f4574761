"""`RunnerWrapper`: one runner of a scheduler, by its number, under the names of Trinity-RFT."""

from __future__ import annotations

import asyncio
import time
from dataclasses import replace
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from governor.tasks.api import Status, Task
    from governor.tasks.trinity.scheduler import Scheduler
    from governor.tasks.trinity.views import TaskWrapper


class RunnerWrapper:
    """A view on one slot of a running scheduler. `state` is that of the last `update_state`.

    Raises KeyError for a number for which the scheduler has no runner.
    """

    def __init__(self, runner_id: int, scheduler: Scheduler) -> None:
        if not 0 <= runner_id < scheduler.runner_num:
            raise KeyError(runner_id)
        self.runner_id = runner_id
        self.state: dict[str, Any] = {}
        self._scheduler = scheduler

    async def prepare(self) -> None:
        """Returns when there is a runner; one that has exited while no task waited is replaced now. Raises RuntimeError
        when the scheduler does not run, or is stopped meanwhile.
        """
        await self._scheduler.engine.wait_for_runner(self.runner_id)

    async def update_state(self) -> None:
        """Updates `state` from reports that were received; never waits for the runner."""
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

        `timeout` (seconds) bounds each attempt, as `max_timeout` does; only missing runs are tried again.

        Returns:
            The status; the payloads of the completed runs, none without `collect_partial_runs` when runs are missing; the
            number of the runner; the seconds that it took, queue and retries included.

        Raises:
            ValueError: `repeat_times` is below 1, `run_id_base` or `timeout` below 0.
            TypeError: the callable or an argument cannot be sent to a runner. QueueFull: as `Scheduler.schedule`.
            RuntimeError: the scheduler does not run, or was stopped meanwhile.
        """
        began = time.monotonic()
        if repeat_times < 1 or run_id_base < 0:
            raise ValueError(
                f"repeat_times must be 1 or more, and run_id_base 0 or more, not {repeat_times} and {run_id_base}"
            )
        wrapper = await self._execute(
            replace(task, repeat_times=repeat_times, timeout=timeout, depends_on=()), run_id_base
        )
        complete = wrapper.completed_runs == wrapper.total_runs
        payloads = wrapper.experience_payloads if complete or collect_partial_runs else []
        status = await asyncio.to_thread(wrapper.status)
        return status, payloads, self.runner_id, time.monotonic() - began

    async def _execute(self, task: Task, first_run: int) -> TaskWrapper:
        """Returns when all of its runs have their outcome; a cancelled call cancels the task."""
        scheduler = self._scheduler
        with scheduler.private_view(f"runner-{self.runner_id}") as view:
            (wrapper,) = scheduler.submissions.submit(
                [task], view, scheduler.config, pin=self.runner_id, first_run=first_run
            )
            try:
                while view.submissions:
                    await view.changed.wait()
            finally:
                if scheduler.running:
                    view.cancel(scheduler.engine, reason="its caller was cancelled")
        if wrapper.ended_runs < wrapper.total_runs:
            raise RuntimeError("the scheduler was stopped")
        return wrapper

    async def restart_runner(self) -> None:
        """Replaces the runner: the new one is ready before the old one is killed. The attempt that the old one executes
        then counts as crashed. Raises RuntimeError as `prepare`, and KeyError if the runner exits in between.
        """
        await self.prepare()
        await self._scheduler.engine.restart(self.runner_id)
