"""`Scheduler`: batches of repeated tasks on a pool of runners, under the names of Trinity-RFT's scheduler.

A view on the engine. What differs from the model, on purpose:
1. Results stay until they are handed out; without `clear_timeout_tasks` a later call gets the rest.
2. `min_num` counts tasks that succeeded. Failures alone are never enough.
3. Statuses carry the id of their task.
4. A bounded queue: `schedule` raises QueueFull and has taken nothing.
5. Waits end with an event, not with the next look; `stop` is bounded.
"""

from __future__ import annotations

import sys
import time
from itertools import count
from typing import TYPE_CHECKING, Any, Self

from governor import logs
from governor.messages import TaskSpec
from governor.tasks.api import SchedulerConfig, Status, sort_batch_id
from governor.tasks.driver import Driver
from governor.tasks.durations import Durations
from governor.tasks.patience import Patience, Verdict
from governor.tasks.statistics import summarise_tasks
from governor.tasks.story import BatchSpec
from governor.tasks.views import BatchView, CompletedTaskResult, RunningTaskState, TaskWrapper, table

if TYPE_CHECKING:
    from collections.abc import Sequence
    from types import TracebackType

    from governor.tasks.api import BatchId, Task
    from governor.tasks.engine import Engine, PlaceState
    from governor.tasks.story import Waiting

log = logs.get_logger()


class Scheduler:
    """Runs batches of tasks until `stop`. Also an async context manager, which starts and stops it.

    Args:
        config: see `SchedulerConfig`.
        rollout_model: OpenAI-compatible endpoints, any plain data. There are ``runner_per_model`` runners for each;
            runner i works with model i mod the number of models (``context.model``).
        auxiliary_models: lists of further models; a runner gets one of each list, as
            ``context.model = {"rollout": ..., "auxiliary": [...]}``.
    """

    def __init__(
        self,
        config: SchedulerConfig | None = None,
        rollout_model: Sequence[Any] = (),
        auxiliary_models: Sequence[Sequence[Any]] | None = None,
    ) -> None:
        self.config = config or SchedulerConfig()
        self.rollout_model = list(rollout_model)
        self.auxiliary_models = [list(models) for models in auxiliary_models or ()]
        self.runner_num = self.config.runner_per_model * max(1, len(self.rollout_model))
        self.default_timeout = self.config.max_timeout * (self.config.max_retry_times + 1)
        self.running = False
        self._durations = Durations(self.config.dynamic_timeout, self.config.max_timeout)
        self._batches: dict[BatchId, BatchView] = {}
        self._portions = count(1)
        self._driver: Driver | None = None

    @property
    def engine(self) -> Engine:
        """What does the work. Raises RuntimeError while the scheduler does not run."""
        if self._driver is None:
            raise RuntimeError("the scheduler does not run: await start() first")
        return self._driver.engine

    def next_portion(self) -> int:
        """An id for a batch of the engine."""
        return next(self._portions)

    # -- life -----------------------------------------------------------------------------------------------

    async def start(self) -> None:
        """Connects to Ray and returns when every runner is ready. Raises GovernorError when that can't be."""
        if self.running:
            return
        driver = Driver(self.config, places=self.runner_num, models=self._models())
        await driver.open()
        self._driver = driver
        self.running = True
        log.info("scheduler.started", runners=self.runner_num, models=len(self.rollout_model))

    async def stop(self) -> None:
        """Cancels what is left, sees every runner dead and wakes who waits; within ``stop_timeout`` seconds. Results
        that were not handed out can still be drained.
        """
        if not self.running or self._driver is None:
            return
        self.running = False
        driver, self._driver = self._driver, None
        await driver.close(seconds=self.config.stop_timeout)
        for view in self._batches.values():
            view.wake()
        log.info("scheduler.stopped")

    async def __aenter__(self) -> Self:
        await self.start()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.stop()

    # -- batches --------------------------------------------------------------------------------------------

    def schedule(self, tasks: Sequence[Task], batch_id: BatchId) -> None:
        """Adds tasks to a batch, all or none.

        Raises:
            QueueFull: more than ``max_pending`` runs would wait.
            GraphError: duplicate or unknown ids, cycles.
            TypeError: a callable or an argument that cannot be sent to a runner.
            RuntimeError: the scheduler does not run.
        """
        if not tasks:
            return
        engine = self.engine
        view = self._batches.get(batch_id) or BatchView(
            batch_id, split=self.config.max_repeat_times_per_runner
        )
        specs = [self.spec_of(task, view.scheduled + index) for index, task in enumerate(tasks)]
        self._refuse_known(view, specs)
        portion = self.next_portion()
        batch = BatchSpec(
            id=portion,
            name=batch_id,
            tasks=tuple(specs),
            split=self.config.max_repeat_times_per_runner,
            rank=sort_batch_id(batch_id),
        )
        for task, spec in zip(tasks, specs, strict=True):
            view.add(TaskWrapper(task, batch_id, spec.id, total_runs=spec.repeat))
        view.portions.add(portion)
        view.keep_partial = False
        self._batches[batch_id] = view
        try:
            engine.submit(batch, view, limits=self._durations)
        except Exception:
            view.portions.discard(portion)
            view.forget([spec.id for spec in specs if spec.id in view.tasks])
            if not view.scheduled:
                del self._batches[batch_id]
            raise

    def has_step(self, batch_id: BatchId) -> bool:
        """Whether the batch has tasks at work, or results that were not handed out."""
        view = self._batches.get(batch_id)
        return view is not None and bool(view.tasks or view.completed)

    async def get_statuses(
        self,
        batch_id: BatchId,
        min_num: int | None = None,
        timeout: float | None = None,
        clear_timeout_tasks: bool = True,  # noqa: FBT001, FBT002  # the signature that users know
        return_partial_tasks: bool = False,  # noqa: FBT001, FBT002  # as above
    ) -> list[Status]:
        """Waits for a batch and hands out the statuses of its tasks; their payloads are dropped.

        The wait is over when all tasks have ended; or `min_num` have succeeded and ``over_rollout.wait_after_min``
        seconds have passed; or after `timeout` seconds (None: ``max_timeout * (max_retry_times + 1)``).

        Args:
            clear_timeout_tasks: cancel what is left then. Without it, it goes on, and a later call gets the rest.
            return_partial_tasks: of what is cancelled, tasks with some completed runs are handed out as well.

        Returns:
            Those that have ended, in the order in which they did; an empty list, at once, for an unknown batch.
        """
        statuses, _ = await self.get_payload_results(
            batch_id, min_num, timeout, clear_timeout_tasks, return_partial_tasks
        )
        return statuses

    async def get_payload_results(
        self,
        batch_id: BatchId,
        min_num: int | None = None,
        timeout: float | None = None,
        clear_timeout_tasks: bool = True,  # noqa: FBT001, FBT002  # the signature that users know
        return_partial_tasks: bool = False,  # noqa: FBT001, FBT002  # as above
    ) -> tuple[list[Status], list[bytes]]:
        """As `get_statuses`, with the payloads of the completed runs, as they were given, task by task."""
        await self.wait_for(batch_id, min_num, timeout, clear_timeout_tasks, return_partial_tasks)
        return await self.drain_batch_payload_results(batch_id)

    async def wait_for(
        self,
        batch_id: BatchId,
        min_num: int | None = None,
        timeout: float | None = None,
        clear_timeout_tasks: bool = True,  # noqa: FBT001, FBT002  # as its siblings
        return_partial_tasks: bool = False,  # noqa: FBT001, FBT002  # as its siblings
    ) -> Verdict:
        """The wait of `get_statuses` alone: nothing is handed out. ``"timeout"``: too few have succeeded."""
        view = self._batches.get(batch_id)
        if view is None:
            return "all"
        verdict = await self._wait(view, min_num, timeout or self.default_timeout)
        if verdict != "all" and clear_timeout_tasks:
            await self.abort_batch(batch_id, return_partial_tasks, restart_runners=verdict == "timeout")
        return verdict

    async def drain_batch_payload_results(self, batch_id: BatchId) -> tuple[list[Status], list[bytes]]:
        """Hands out what has ended so far, without waiting."""
        results = await self.peek_results(batch_id)
        self.acknowledge(batch_id, [result.task_id for result in results])
        payloads = [payload for result in results for payload in result.experience_payloads]
        return [result.status for result in results], payloads

    async def peek_results(self, batch_id: BatchId) -> list[CompletedTaskResult]:
        """What has ended and was not handed out; it stays until it is acknowledged. The event loop is not held."""
        view = self._batches.get(batch_id)
        tasks = [] if view is None else list(view.completed.values())
        metrics: dict[int, dict[str, float]] = {}
        for is_eval in (False, True):
            chosen = [task for task in tasks if task.task.is_eval is is_eval]
            found = await summarise_tasks([task.metrics for task in chosen], is_eval=is_eval)
            metrics |= {id(task): each for task, each in zip(chosen, found, strict=True)}
        return [
            CompletedTaskResult(
                batch_id, task.task_id, task.status(metrics[id(task)]), list(task.experience_payloads)
            )
            for task in tasks
        ]

    def acknowledge(self, batch_id: BatchId, task_ids: Sequence[str]) -> None:
        """These results have arrived where they belong: they are not kept any longer."""
        view = self._batches.get(batch_id)
        if view is None:
            return
        for task_id in task_ids:
            view.completed.pop(task_id, None)
        self._tidy(view)

    def discard_completed_results(self, batch_id: BatchId) -> None:
        """Drops the results of a batch that were not handed out."""
        view = self._batches.get(batch_id)
        if view is not None:
            view.completed.clear()
            self._tidy(view)

    async def abort_batch(
        self,
        batch_id: BatchId,
        return_partial_tasks: bool = False,  # noqa: FBT001, FBT002  # the signature that users know
        restart_runners: bool = True,  # noqa: FBT001, FBT002  # as above
    ) -> None:
        """Cancels what has not ended, and returns when it has; who waits for the batch wakes.

        With `restart_runners` the runners at work on it are killed, past their grace. Without, a task that ends
        within its grace leaves its runner as it is.
        """
        view = self._batches.get(batch_id)
        if view is None or self._driver is None:
            return
        view.keep_partial = view.keep_partial or return_partial_tasks
        for portion in list(view.portions):
            self.engine.cancel(portion, reason="the batch was cancelled", gentle=not restart_runners)
        while view.portions and self.running:
            await view.changed(None)
        self._tidy(view)

    async def wait_all(
        self,
        timeout: float | None = None,
        clear_timeout_tasks: bool = True,  # noqa: FBT001, FBT002  # the signature that users know
    ) -> None:
        """Waits until no task is left; hands out nothing.

        Raises:
            TimeoutError: for `timeout` seconds no run has ended. With `clear_timeout_tasks`, what is left is cancelled.
        """
        patience = timeout or self.default_timeout
        until = time.monotonic() + patience
        seen = self._progress()
        while unfinished := [view for view in self._batches.values() if view.tasks]:
            if not self.running:
                raise RuntimeError("the scheduler was stopped")
            await unfinished[0].changed(max(0.0, until - time.monotonic()))
            progress = self._progress()
            if progress != seen:
                seen, until = progress, time.monotonic() + patience
            elif time.monotonic() >= until:
                tasks = sum(view.unfinished for view in unfinished)
                if clear_timeout_tasks:
                    for view in unfinished:
                        await self.abort_batch(view.batch_id)
                raise TimeoutError(f"no run has ended for {patience:g} s; {tasks} tasks are left")

    def dynamic_timeout(self, timeout: float | None = None) -> float:
        """Seconds that an attempt of a train task gets now: ``min(T, ratio * mean)``, T being `timeout` (None:
        ``max_timeout * (max_retry_times + 1)``). See `DynamicTimeout`.
        """
        return self._durations.limit(timeout or self.default_timeout)

    def explain(self, batch_id: BatchId) -> list[Waiting]:
        """What a batch waits for: which runs, on which runner, since when, until when (`story.Waiting`). Empty when
        nothing of it is left to do.
        """
        view = self._batches.get(batch_id)
        rows: list[Waiting] = []
        for portion in sorted(view.portions) if view is not None and self._driver is not None else ():
            rows += self.engine.explain(portion)
        return rows

    def running_tasks(self, batch_id: BatchId) -> list[RunningTaskState]:
        """The tasks of a batch that a runner executes now."""
        view = self._batches.get(batch_id)
        places = {} if view is None or self._driver is None else self.engine.places()
        return [
            RunningTaskState(view.tasks[state.task], place)
            for place, state in places.items()
            if view is not None and state.batch in view.portions and state.task in view.tasks
        ]

    # -- states of runners ----------------------------------------------------------------------------------

    def get_runner_state(self, runner_id: int) -> dict[str, Any]:
        """What a runner does: ``workflow_id`` ("batch/task/run"), ``model_version``, ``begin_time`` and
        ``terminate_time`` (seconds since the epoch, None while it runs), ``running_time`` in seconds, and what its
        task has set with ``context.tell``. Never waits for the runner. Empty for an unknown one.
        """
        if self._driver is None:
            return {}
        state = self.engine.places().get(runner_id)
        return {} if state is None else self._describe(state)

    def get_key_state(self, key: str) -> dict[int, Any]:
        """One key of every runner that has it, by runner."""
        return {runner: state[key] for runner, state in self.get_all_state().items() if key in state}

    def get_all_state(self) -> dict[int, dict[str, Any]]:
        """The states of all runners that have one."""
        if self._driver is None:
            return {}
        found = {place: self._describe(state) for place, state in self.engine.places().items()}
        return {place: state for place, state in sorted(found.items()) if state}

    def print_all_state(self) -> None:
        """Prints `get_all_state` as a table."""
        sys.stdout.write(table(self.get_all_state()) + "\n")

    # -- inside ---------------------------------------------------------------------------------------------

    def _models(self) -> list[Any]:
        if not self.auxiliary_models:
            return self.rollout_model
        number = max(1, len(self.rollout_model))
        return [
            {
                "rollout": self.rollout_model[index] if self.rollout_model else None,
                "auxiliary": [models[index % len(models)] for models in self.auxiliary_models if models],
            }
            for index in range(number)
        ]

    def spec_of(self, task: Task, index: int) -> TaskSpec:
        """The task as the engine takes it. Raises TypeError and ValueError."""
        if self._driver is None:
            raise RuntimeError("the scheduler does not run: await start() first")
        if task.repeat_times < 1:
            raise ValueError(
                f"task {task.id or index}: repeat_times must be 1 or more, not {task.repeat_times}"
            )
        args, args_key = self._driver.functions.name_args(task.args)
        return TaskSpec(
            id=str(index) if task.id is None else task.id,
            call=self._driver.functions.name_call(task.call),
            args=args,
            args_key=args_key,
            depends_on=tuple(task.depends_on),
            repeat=task.repeat_times,
            timeout=self.config.max_timeout if task.timeout is None else task.timeout,
            retries=self.config.max_retry_times if task.retries is None else task.retries,
            resources=dict(task.resources),
            is_eval=task.is_eval,
            priority=task.priority,
        )

    @staticmethod
    def _refuse_known(view: BatchView, specs: list[TaskSpec]) -> None:
        known = [spec.id for spec in specs if spec.id in view.tasks or spec.id in view.completed]
        if known:
            raise ValueError(
                f"batch {view.batch_id!r} has tasks of these ids already: {', '.join(known[:10])}"
            )

    async def _wait(self, view: BatchView, min_num: int | None, timeout: float) -> Verdict:
        patience = Patience(
            total=len(view.tasks) + len(view.completed),
            min_num=min_num,
            wait_after_min=self.config.over_rollout.wait_after_min,
            deadline=time.monotonic() + timeout,
        )
        while True:
            if not view.tasks:
                return "all"
            now = time.monotonic()
            verdict = patience.look(ended=len(view.completed), succeeded=view.succeeded, now=now)
            if verdict is not None or not self.running:
                return verdict or "timeout"
            alarm = patience.next_alarm()
            await view.changed(None if alarm is None else max(0.0, alarm - now))

    def _tidy(self, view: BatchView) -> None:
        if not view.tasks and not view.completed and self._batches.get(view.batch_id) is view:
            del self._batches[view.batch_id]

    def _progress(self) -> int:
        return sum(view.progress for view in self._batches.values())

    def _describe(self, state: PlaceState) -> dict[str, Any]:
        if state.batch is None or state.began is None:
            return dict(state.told)
        now_wall, now = time.time(), time.monotonic()
        ended = state.ended
        return {
            "workflow_id": f"{state.name}/{state.task}/{state.run}",
            "model_version": None,
            "begin_time": now_wall - (now - state.began),
            "terminate_time": None if ended is None else now_wall - (now - ended),
            "running_time": (now if ended is None else ended) - state.began,
            **state.told,
        }
