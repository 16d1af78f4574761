"""`Scheduler`: batches of repeated tasks on a pool of runners, under the names of Trinity-RFT's scheduler.

A view on the engine. What differs from the model, on purpose:
1. Results stay until they are handed out; without `clear_timeout_tasks` a later call gets the rest.
2. `min_num` counts tasks that succeeded. Failures alone are never enough.
3. Statuses carry the id of their task, and come in the order of the tasks.
4. A result is handed out once, also to callers at the same time, and none is lost with a caller that is cancelled.
5. A bounded queue: `schedule` raises QueueFull and has taken nothing.
6. Waits end with an event, without polling; `stop` is bounded.
"""

from __future__ import annotations

import asyncio
import time
from typing import TYPE_CHECKING, Any, Self

from governor import logs
from governor.tasks.api import sort_batch_id
from governor.tasks.driver import Driver
from governor.tasks.scheduling.dynamic_timeout import TimeoutEstimator
from governor.tasks.scheduling.wait_policy import WaitPolicy
from governor.tasks.trinity.batches import Batches
from governor.tasks.trinity.driver_life import DriverLife
from governor.tasks.trinity.handover import check_models, config_of, engines_of, listed, models_of
from governor.tasks.trinity.result_store import ResultStore
from governor.tasks.trinity.runner_view import RunnerWrapper
from governor.tasks.trinity.submissions import Submissions
from governor.tasks.trinity.supervision import Supervision
from governor.tasks.trinity.views import check_order

if TYPE_CHECKING:
    from collections.abc import Sequence
    from contextlib import AbstractContextManager
    from pathlib import Path

    from governor.tasks.api import BatchId, SchedulerConfig, Status, Task
    from governor.tasks.engine import Engine
    from governor.tasks.scheduling.wait_policy import Verdict
    from governor.tasks.trinity.handover import TrinityConfig
    from governor.tasks.trinity.views import BatchView, CompletedTaskResult, Order

log = logs.get_logger()


class Scheduler(Supervision):
    """Runs batches of tasks until `stop`. Also an async context manager, which starts and stops it. `runners` are its
    `RunnerWrapper` objects by number.

    Args:
        config: see `SchedulerConfig`. Of Trinity-RFT's own Config its `explorer` and `monitor.detailed_stats` count, and without
            `rollout_model` the models are the numbers of its engines.
        rollout_model: OpenAI-compatible endpoints, any plain data. There are ``runner_per_model`` runners for each;
            runner i works with model i mod the number of models (``context.model``).
        auxiliary_models: lists of further models; a runner gets one of each list, as
            ``context.model = {"rollout": ..., "auxiliary": [...]}``.
        folder: where results are kept, beyond the end of this process: a batch that is scheduled again gets them, and
            runs what failed or is missing, until `forget`. None: nothing is kept.

    Raises:
        ValueError: a setting of ``config.dynamic_timeout`` makes no sense.
        TypeError: another kind of config, a single model in place of a list, or a model that is no plain data.
    """

    def __init__(
        self,
        config: SchedulerConfig | TrinityConfig | None = None,
        rollout_model: Sequence[Any] = (),
        auxiliary_models: Sequence[Sequence[Any]] | None = None,
        folder: Path | str | None = None,
    ) -> None:
        self.config = config_of(config)
        engines, auxiliary_engines = engines_of(config)
        self.rollout_model = listed("rollout_model", rollout_model) or engines
        auxiliary = listed("auxiliary_models", auxiliary_models or (), "a list of lists of models")
        self.auxiliary_models = [
            listed(f"auxiliary_models[{index}]", models) for index, models in enumerate(auxiliary)
        ] or auxiliary_engines
        check_models([*self.rollout_model, *self.auxiliary_models])
        self.runner_num = self.config.runner_per_model * max(1, len(self.rollout_model))
        self.default_timeout = self.config.max_timeout * (self.config.max_retry_times + 1)
        self.running = False
        self._timeout_estimator = TimeoutEstimator(self.config.dynamic_timeout, self.config.max_timeout)
        self._result_store = None if folder is None else ResultStore(folder)
        self._batches = Batches(self._result_store)
        self._submissions: Submissions | None = None
        """From the end of a start to the end of a stop."""
        self._life = DriverLife()
        self.runners = {index: RunnerWrapper(index, scheduler=self) for index in range(self.runner_num)}

    @property
    def submissions(self) -> Submissions:
        """The way of batches to the engine. Raises RuntimeError while the scheduler does not run."""
        if self._submissions is None or not self.running:
            raise RuntimeError("the scheduler does not run: await start() first")
        return self._submissions

    @property
    def engine(self) -> Engine:
        """What does the work. Raises RuntimeError as `submissions`."""
        return self.submissions.driver.engine

    def private_view(self, name: BatchId) -> AbstractContextManager[BatchView]:
        """Of a batch of the engine that no other caller sees; `stop` ends it like the others."""
        return self._batches.private(name, max_timeout=self.config.max_timeout)

    # -- life -----------------------------------------------------------------------------------------------

    async def start(self) -> None:
        """Connects to Ray and returns when every runner is ready; again: nothing.

        Raises:
            GovernorError: no Ray, no runner can be started, or `stop` came first. Nothing is left then.
        """
        async with self._life.turn:
            if self.running:
                return
            opening = Driver.open(
                self.config,
                capacity=self.runner_num,
                models=models_of(self.rollout_model, self.auxiliary_models),
                folder=None if self._result_store is None else self._result_store.folder,
            )
            driver = await self._life.open(opening, stop_timeout=self.config.stop_timeout)
            self._submissions = Submissions(driver)
            self.running = True
        log.info("scheduler.started", runners=self.runner_num)

    async def stop(self) -> None:
        """Cancels all tasks, a pending `start` too, waits for the exit of every runner and wakes waiting callers; within
        ``stop_timeout`` seconds. Results that were not handed out can still be drained. Idempotent.
        """
        until = time.monotonic() + self.config.stop_timeout
        if not await self._life.begin_stop(self.config.stop_timeout):
            log.error("scheduler.stop_timeout", seconds=self.config.stop_timeout)
            return
        try:
            if self._submissions is not None:
                await self._close(self._submissions, until)
        finally:
            self._life.turn.release()

    async def _close(self, submissions: Submissions, until: float) -> None:
        self.running = False
        try:
            await submissions.driver.close(seconds=max(0.0, until - time.monotonic()))
        finally:
            self._submissions = None
            submissions.close()
            self._batches.end()
            if self._result_store is not None:
                await self._result_store.close()
        log.info("scheduler.stopped")

    async def __aenter__(self) -> Self:
        await self.start()
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.stop()

    # -- batches --------------------------------------------------------------------------------------------

    def schedule(self, tasks: Sequence[Task], batch_id: BatchId) -> None:
        """Adds tasks to a batch, all or none.

        Raises:
            QueueFull: more than ``max_pending`` runs would wait.
            GraphError: duplicate or unknown ids, cycles.
            ValueError: the batch has tasks of these ids, or a task is to run less than once, has less than no time, or a negative amount
                of a resource.
            TypeError: a callable or an argument that cannot be sent to a runner; an id that is no text, or one of a batch
                that is neither int nor str; a value of a task of the wrong type.
            RuntimeError: the scheduler does not run, or this is not the thread of its event loop.
            OSError, TryAgain: the folder cannot be written, or another process works on this batch in it.
        """
        sort_batch_id(batch_id)  # raises TypeError
        tasks = list(tasks)
        if not tasks:
            return
        split = self.config.max_repeat_times_per_runner
        with self._batches.opened(batch_id, split=split, estimator=self._timeout_estimator) as view:
            self.submissions.submit(tasks, view, self.config)

    def forget(self, batch_id: BatchId) -> None:
        """Removes what was kept of a batch in the scheduler's folder. Raises ValueError while it is active."""
        if self._result_store is not None:
            self._result_store.forget(batch_id)

    def has_step(self, batch_id: BatchId) -> bool:
        """Whether the batch has tasks at work, or results that were not handed out."""
        view = self._batches.get(batch_id)
        return view is not None and not view.is_empty

    async def get_statuses(
        self,
        batch_id: BatchId,
        min_num: int | None = None,
        timeout: float | None = None,
        clear_timeout_tasks: bool = True,  # noqa: FBT001, FBT002  # the signature that users know
        return_partial_tasks: bool = False,  # noqa: FBT001, FBT002  # as above
        *,
        order: Order = "tasks",
    ) -> list[Status]:
        """Waits for a batch and hands out the statuses of its tasks; their payloads are dropped.

        The wait is over when all tasks have ended; or `min_num` have succeeded and ``over_rollout.wait_after_min``
        seconds have passed; or after `timeout` seconds (None: ``max_timeout * (max_retry_times + 1)``).

        Args:
            clear_timeout_tasks: cancel what is left then. Without it, it goes on, and a later call gets the rest.
            return_partial_tasks: of what is cancelled, tasks with some completed runs are handed out as well.
            order: ``"tasks"``: as they were scheduled; ``"ended"``: as they ended.

        Returns:
            Those that have ended; an empty list, at once, for an unknown batch. When the scheduler is stopped
            meanwhile: what has ended until then.

        Raises:
            ValueError: `min_num` is negative, `timeout` is NaN, or there is no such order.
        """
        statuses, _ = await self.get_payload_results(
            batch_id, min_num, timeout, clear_timeout_tasks, return_partial_tasks, order=order
        )
        return statuses

    async def get_payload_results(
        self,
        batch_id: BatchId,
        min_num: int | None = None,
        timeout: float | None = None,
        clear_timeout_tasks: bool = True,  # noqa: FBT001, FBT002  # the signature that users know
        return_partial_tasks: bool = False,  # noqa: FBT001, FBT002  # as above
        *,
        order: Order = "tasks",
    ) -> tuple[list[Status], list[bytes]]:
        """As `get_statuses`, with the payloads of the completed runs as they were given: task by task, run by run. Those of
        evaluation tasks are not handed out.
        """
        check_order(order)
        await self.wait_for(batch_id, min_num, timeout, clear_timeout_tasks, return_partial_tasks)
        return await self.drain_batch_payload_results(batch_id, order=order)

    async def wait_for(
        self,
        batch_id: BatchId,
        min_num: int | None = None,
        timeout: float | None = None,
        clear_timeout_tasks: bool = True,  # noqa: FBT001, FBT002  # as its siblings
        return_partial_tasks: bool = False,  # noqa: FBT001, FBT002  # as its siblings
    ) -> Verdict:
        """The wait of `get_statuses` alone: nothing is handed out. ``"timeout"``: too few have succeeded. Raises
        ValueError as `get_statuses`.
        """
        view = self._batches.get(batch_id)
        if view is None:
            return "all"
        policy = WaitPolicy(
            min_num=min_num,
            wait_after_min=self.config.over_rollout.wait_after_min,
            deadline=time.monotonic() + (self.default_timeout if timeout is None else timeout),
        )
        verdict: Verdict | None = None
        while verdict is None and view.tasks:
            now = time.monotonic()
            all_count = self.config.min_num_counts == "ended"
            verdict = policy.check(len(view.completed) if all_count else view.succeeded, now)
            if verdict is None and not self.running:
                verdict = "timeout"
            elif verdict is None:
                await view.changed.wait(max(0.0, policy.next_alarm() - now))
        verdict = verdict or "all"
        if verdict != "all" and clear_timeout_tasks:
            await self.abort_batch(batch_id, return_partial_tasks, restart_runners=verdict == "timeout")
        return verdict

    async def drain_batch_payload_results(
        self, batch_id: BatchId, *, order: Order = "tasks"
    ) -> tuple[list[Status], list[bytes]]:
        """Hands out what has ended so far, without waiting; `order` as in `get_statuses`."""
        check_order(order)
        results = await self._batches.hand_out(batch_id, order)
        payloads = [payload for result in results for payload in result.experience_payloads]
        return [result.status for result in results], payloads

    async def peek_results(self, batch_id: BatchId) -> list[CompletedTaskResult]:
        """What has ended and was not handed out, in the order of the tasks; it stays until it is. The event loop is not held."""
        return await self._batches.peek(batch_id)

    def discard_completed_results(self, batch_id: BatchId) -> None:
        """Drops the results of a batch that were not handed out."""
        self._batches.discard(batch_id)

    async def abort_batch(
        self,
        batch_id: BatchId,
        return_partial_tasks: bool = False,  # noqa: FBT001, FBT002  # the signature that users know
        restart_runners: bool = True,  # noqa: FBT001, FBT002  # as above
    ) -> None:
        """Cancels the tasks that have not ended, and returns when they have; callers that wait for the batch wake.

        With `restart_runners` the runners at work on it are replaced, past their grace. Without, a task that ends
        within its grace leaves its runner as it is. What had ended before can still be drained. Unknown: nothing.
        """
        view = self._batches.get(batch_id)
        if view is None or not self.running:
            return
        for task in view.tasks.values() if return_partial_tasks else ():
            task.keep_partial = True
        submissions = set(view.submissions)
        view.cancel(self.engine, reason="the batch was cancelled", gentle=not restart_runners)
        while self.running and not submissions.isdisjoint(view.submissions):
            await view.changed.wait()
        if self.running and restart_runners:
            self.engine.warm()
        self._batches.tidy(view)

    async def wait_all(
        self,
        timeout: float | None = None,
        clear_timeout_tasks: bool = True,  # noqa: FBT001, FBT002  # the signature that users know
    ) -> None:
        """Waits until no task is left; hands out nothing.

        Raises:
            TimeoutError: for `timeout` seconds no run has ended. With `clear_timeout_tasks`, what is left is cancelled.
            RuntimeError: the scheduler was stopped meanwhile.
        """
        seconds = self.default_timeout if timeout is None else timeout
        began = time.monotonic()
        while left := [view for view in self._batches.values() if view.tasks]:
            if self.running:
                remaining = max(began, self._batches.changed.run_ended_at) + seconds - time.monotonic()
                if remaining <= 0:
                    break
                await self._batches.changed.wait(remaining)
            if not self.running:
                raise RuntimeError("the scheduler was stopped, and had tasks left")
        if not left:
            return
        tasks = sum(len(view.tasks) for view in left)
        if clear_timeout_tasks:
            await asyncio.gather(*(self.abort_batch(view.batch_id) for view in left))
        raise TimeoutError(f"no run has ended for {seconds:g} s; {tasks} tasks were left")

    def dynamic_timeout(self, timeout: float | None = None) -> float:
        """What was learned so far: ``min(T, ratio * mean)`` seconds, T being `timeout` (None:
        ``max_timeout * (max_retry_times + 1)``). An attempt of a train task gets that, with its own time-out for T. See
        `DynamicTimeout`.
        """
        return self._timeout_estimator.limit(self.default_timeout if timeout is None else timeout)
