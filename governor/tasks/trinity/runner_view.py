"""`RunnerWrapper`: one runner, of a scheduler or by itself, under the names of Trinity-RFT."""

from __future__ import annotations

import time
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Self

from governor.tasks.api import Status
from governor.tasks.trinity.handover import config_of, listed
from governor.tasks.trinity.views import TaskWrapper

if TYPE_CHECKING:
    from collections.abc import Sequence

    from governor.tasks.api import SchedulerConfig, Task
    from governor.tasks.trinity.handover import TrinityConfig
    from governor.tasks.trinity.scheduler import Scheduler

SUB_TASK_SECONDS = "time/task_execution"
"""Name of the metric of `RunnerWrapper.run_with_retry`: what the call took, in seconds."""


class RunnerWrapper:
    """One runner. `state` is that of the last `update_state`.

    ``RunnerWrapper(0, model, [judge], config)`` is a runner of its own, which `prepare` starts and `close` ends; also an
    async context manager, which does both. ``scheduler.runners[0]``, or ``RunnerWrapper(0, scheduler=scheduler)``, is one
    of a scheduler, which starts and ends it.

    Args:
        runner_id: its number, as results name it.
        rollout_model: its ``context.model``, plain data; None: there is none.
        auxiliary_models: with them, ``context.model = {"rollout": ..., "auxiliary": [...]}``.

    Raises:
        KeyError: the scheduler has no runner of this number.
        TypeError: as `Scheduler`.
    """

    def __init__(
        self,
        runner_id: int,
        rollout_model: Any = None,
        auxiliary_models: Sequence[Any] = (),
        config: SchedulerConfig | TrinityConfig | None = None,
        *,
        scheduler: Scheduler | None = None,
    ) -> None:
        self.runner_id = runner_id
        self.state: dict[str, Any] = {}
        self._is_own = scheduler is None
        self._slot_index = 0 if scheduler is None else runner_id
        if scheduler is None:
            scheduler = _scheduler_of_one(rollout_model, auxiliary_models, config)
        elif not 0 <= runner_id < scheduler.runner_num:
            raise KeyError(runner_id)
        self._scheduler = scheduler

    @property
    def config(self) -> SchedulerConfig:
        """That of its scheduler, if it has one."""
        return self._scheduler.config

    @property
    def rollout_model(self) -> Any:
        """The model that it works with; None without one."""
        models = self._scheduler.rollout_model
        return models[self._slot_index % len(models)] if models else None

    @property
    def auxiliary_models(self) -> list[Any]:
        """One of each list of them."""
        lists = self._scheduler.auxiliary_models
        return [models[self._slot_index % len(models)] for models in lists if models]

    async def prepare(self) -> None:
        """Returns when there is a runner; one that has exited while no task waited is replaced now. Raises RuntimeError
        when its scheduler does not run, or is stopped meanwhile, and GovernorError if it is to start and there is no Ray.
        """
        if self._is_own:
            await self._scheduler.start()
        await self._scheduler.engine.wait_for_runner(self._slot_index)

    async def close(self) -> None:
        """Ends a runner of its own, in ``stop_timeout``; callers that wait for it get a RuntimeError. Idempotent."""
        if self._is_own:
            await self._scheduler.stop()

    async def __aenter__(self) -> Self:
        await self.prepare()
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    async def update_state(self) -> None:
        """Updates `state` from reports that were received; never waits for the runner."""
        self.state = self._scheduler.get_runner_state(self._slot_index)

    async def run_with_retry(
        self,
        task: Task | TaskWrapper,
        repeat_times: int,
        run_id_base: int,
        timeout: float,
        collect_partial_runs: bool = False,  # noqa: FBT001, FBT002  # the signature that users know
    ) -> tuple[Status, bytes, int, float]:
        """Executes runs ``run_id_base`` to ``run_id_base + repeat_times - 1`` of a task on this runner.

        `timeout` (seconds) bounds each attempt, as `max_timeout` does; only missing runs are tried again. A `TaskWrapper` also
        names the batch, as the runner's state shows it; it is not changed. A runner of its own is started if it was not.

        Returns:
            The status, with the metrics of each completed run and then ``{"time/task_execution": seconds}``; the payloads of the
            completed runs, one behind the other, and nothing for evaluation, or without `collect_partial_runs` when runs are missing; the
            number of the runner; the seconds that it took, queue and retries included.

        Raises:
            ValueError: `repeat_times` is below 1, `run_id_base` or `timeout` below 0.
            TypeError: the callable or an argument cannot be sent to a runner. QueueFull: as `Scheduler.schedule`.
            RuntimeError: the scheduler does not run, or was stopped meanwhile.
        """
        if repeat_times < 1 or run_id_base < 0:
            raise ValueError(
                f"repeat_times must be 1 or more, and run_id_base 0 or more, not {repeat_times} and {run_id_base}"
            )
        if self._is_own and not self._scheduler.running:
            await self.prepare()
        began = time.monotonic()
        name: int | str = f"runner-{self.runner_id}"
        if isinstance(task, TaskWrapper):
            name, task = task.batch_id, task.task
        wrapper = await self._execute(
            replace(task, repeat_times=repeat_times, timeout=timeout, depends_on=()), run_id_base, name
        )
        complete = wrapper.completed_runs == wrapper.total_runs
        payload = b"".join(wrapper.experience_payloads) if complete or collect_partial_runs else b""
        seconds = time.monotonic() - began
        status = Status(
            wrapper.completed_runs,
            wrapper.total_runs,
            [*wrapper.metrics, {SUB_TASK_SECONDS: seconds}],
            wrapper.message,
            wrapper.task_id,
        )
        return status, payload, self.runner_id, seconds

    async def _execute(self, task: Task, first_run: int, name: int | str) -> TaskWrapper:
        """Returns when all of its runs have their outcome; a cancelled call cancels the task."""
        scheduler = self._scheduler
        with scheduler.private_view(name) as view:
            (wrapper,) = scheduler.submissions.submit(
                [task], view, scheduler.config, pin=self._slot_index, first_run=first_run
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
        await self._scheduler.engine.restart(self._slot_index)


def _scheduler_of_one(
    rollout_model: Any, auxiliary_models: Sequence[Any], config: SchedulerConfig | TrinityConfig | None
) -> Scheduler:
    """A scheduler with a single runner."""
    from governor.tasks.trinity.scheduler import Scheduler  # noqa: PLC0415  # which has runners itself

    return Scheduler(
        replace(config_of(config), runner_per_model=1),
        () if rollout_model is None else [rollout_model],
        [[model] for model in listed("auxiliary_models", auxiliary_models)],
    )
