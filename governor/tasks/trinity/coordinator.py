"""`RolloutCoordinator`: train and evaluation batches from submission to their final metrics.

Rules:
1. A batch is finalized once. Concurrent callers get equal results; a later call finds no such batch.
2. What was finished stays with the batch until it is finalized: after a time-out, an error of the pipeline, or a
   caller that was cancelled, finalize can be called again. Payloads that the pipeline took are not given to it again:
   it goes on when its caller has left, and its result is that of the next call.
3. A train batch is finalized when all of its tasks have ended, or as many succeeded as it was to wait for.
4. Abort wakes a finalize that waits, cancels the pipeline, and every caller's time-out is its own.
"""

from __future__ import annotations

import asyncio
import time
from dataclasses import dataclass, field, replace
from enum import StrEnum
from typing import TYPE_CHECKING, Any, Final, Literal, Protocol, Self, TypeAlias

from governor import logs
from governor.tasks.api import SchedulerConfig, Status
from governor.tasks.scheduling.wait_policy import min_wait_num as min_wait_num_of
from governor.tasks.trinity.scheduler import Scheduler
from governor.tasks.trinity.statistics import summarise_batch

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from governor.tasks.api import BatchId, Task
    from governor.tasks.scheduling.events import Waiting
    from governor.tasks.scheduling.wait_policy import Verdict
    from governor.tasks.trinity.views import CompletedTaskResult

BatchType: TypeAlias = Literal["train", "eval"]

CLOSING: Final = 1.0
"""Seconds, beside the grace of what is left, that a finalize whose time is up waits for its result."""

log = logs.get_logger()


class Pipeline(Protocol):
    """What makes metrics of payloads; it may store them on the way. An exception leaves the batch as it was. It is
    cancelled when its batch is aborted.
    """

    async def __call__(self, payloads: list[bytes]) -> dict[str, float]: ...


class BatchLifecycleState(StrEnum):
    """Where a batch stands."""

    PENDING = "pending"
    RUNNING = "running"
    FINALIZING = "finalizing"
    FINALIZED = "finalized"
    ABORTED = "aborted"


@dataclass(slots=True, eq=False)
class BatchState:
    """What the coordinator knows of a batch. `statuses` by task id, of the tasks that have ended."""

    batch_id: BatchId
    batch_type: BatchType
    expected_task_count: int
    statuses: dict[str, Status] = field(default_factory=dict)
    min_wait_num: int | None = None
    state: BatchLifecycleState = BatchLifecycleState.PENDING
    final_result: dict[str, Any] | None = None
    """What finalize returns, once it is known."""
    pipeline_metrics: dict[str, float] | None = None
    """What the pipeline has made of the payloads, once it has."""
    abortion: asyncio.Task[None] | None = None
    finishing: asyncio.Task[None] | None = None
    """What makes the result, while it does."""
    result: asyncio.Future[dict[str, Any]] = field(init=False)
    """Of `final_result`; the coordinator makes it."""

    @property
    def completed_task_count(self) -> int:
        """Tasks that have ended."""
        return len(self.statuses)

    @property
    def succeeded_task_count(self) -> int:
        """Tasks of which every run succeeded."""
        return sum(status.ok for status in self.statuses.values())


class RolloutCoordinator:
    """Owns a `Scheduler`, and finalizes its batches.

    Args:
        pipeline: an async callable that takes the payloads of a train batch and returns metrics.
        folder: where results are kept, as `Scheduler` has it.
    """

    def __init__(
        self,
        config: SchedulerConfig | None = None,
        rollout_model: Sequence[Any] = (),
        auxiliary_models: Sequence[Sequence[Any]] | None = None,
        pipeline: Pipeline | None = None,
        folder: Path | str | None = None,
    ) -> None:
        self.config = config or SchedulerConfig()
        self.scheduler = Scheduler(self.config, rollout_model, auxiliary_models, folder)
        self.pipeline = pipeline
        self.batches: dict[BatchId, BatchState] = {}

    async def prepare(self) -> None:
        """Starts the scheduler; again: nothing. Raises GovernorError without Ray."""
        await self.scheduler.start()

    async def shutdown(self) -> None:
        """Stops the scheduler, in its `stop_timeout`; waiting callers get an error."""
        await self.scheduler.stop()

    async def __aenter__(self) -> Self:
        await self.prepare()
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.shutdown()

    @classmethod
    def get_actor(cls, config: SchedulerConfig | None = None, **arguments: Any) -> Any:
        """A coordinator in a Ray actor of its own: every method is called by ``.remote()``. Ray must be initialized;
        the actor works on that cluster.
        """
        import ray  # noqa: PLC0415  # the caller has it

        return ray.remote(cls).options(num_cpus=0, max_concurrency=1000).remote(config, **arguments)

    # -- batches --------------------------------------------------------------------------------------------

    async def submit_batch(
        self,
        *,
        batch_id: BatchId,
        tasks: Sequence[Task],
        batch_type: BatchType,
        min_wait_num: int | None = None,
    ) -> None:
        """Schedules a batch. For train batches, `min_wait_num` defaults to what `over_rollout.ratio` leaves; tasks of
        evaluation batches count as evaluation, whatever their `is_eval` says.

        Raises:
            ValueError: the id is active, the type is neither ``"train"`` nor ``"eval"``, or `min_wait_num` is negative.
            QueueFull, GraphError, TypeError: as `Scheduler.schedule`; nothing was registered.
        """
        if batch_type not in ("train", "eval"):
            raise ValueError(f'batch_type must be "train" or "eval", not {batch_type!r}')
        if min_wait_num is not None and min_wait_num < 0:
            raise ValueError(f"min_wait_num must be 0 or more, not {min_wait_num}")
        if batch_id in self.batches:
            raise ValueError(f"batch {batch_id!r} is active already")
        state = BatchState(batch_id, batch_type, len(tasks), min_wait_num=min_wait_num)
        state.result = asyncio.get_running_loop().create_future()
        if batch_type == "train" and min_wait_num is None and self.config.over_rollout.ratio:
            state.min_wait_num = min_wait_num_of(len(tasks), self.config.over_rollout.ratio)
        if batch_type == "eval":
            tasks = [task if task.is_eval else replace(task, is_eval=True) for task in tasks]
        self.scheduler.schedule(tasks, batch_id=batch_id)
        self.batches[batch_id] = state
        if tasks:
            state.state = BatchLifecycleState.RUNNING

    async def finalize_train_batch(
        self, batch_id: BatchId, *, timeout: float | None = None
    ) -> dict[str, Any]:
        """Waits for a train batch, runs its payloads through the pipeline and closes it.

        Returns:
            ``{batch_id, batch_type, finished_task_count, metrics}``.

        Raises:
            KeyError: no such batch is active. ValueError: it is no train batch.
            TimeoutError: after `timeout` seconds (None: the scheduler's default) not all tasks have ended, or fewer than
                `min_wait_num` have succeeded; or the pipeline is still at work. Nothing is lost: the batch goes on, the
                pipeline too, and can be finalized later. To end what is left may take the grace and a second more.
            RuntimeError: the scheduler was stopped before enough had ended.
        """
        state = self._find(batch_id, "train")
        until = time.monotonic() + (self.scheduler.default_timeout if timeout is None else timeout)
        verdict = await self._wait(state, timeout)
        if verdict == "timeout" and self.scheduler.running:
            raise TimeoutError(f"batch {batch_id!r}: {self._shortage(state)}")
        return await self._finalize(state, max(until - time.monotonic(), self.config.grace + CLOSING))

    async def finalize_eval_batch(self, batch_id: BatchId, *, timeout: float | None = None) -> dict[str, Any]:
        """Waits for an evaluation batch and closes it, with what there is when the time is up: it raises nothing then.

        Raises:
            KeyError: no such batch is active. ValueError: it is no evaluation batch.
            RuntimeError: the scheduler was stopped before all had ended.
        """
        state = self._find(batch_id, "eval")
        await self._wait(state, timeout)
        return await self._finalize(state, None)

    async def abort_batch(
        self, batch_id: BatchId, *, reason: str, keep_partial_results: bool = False
    ) -> None:
        """Cancels a batch, its pipeline too, and returns when its runners are free of it. A finalize that waits for it
        returns its result: at once, and counting no task; with `keep_partial_results`, when all that was kept is known. A
        batch that has its result already is finalized. An unknown one: nothing.
        """
        state = self.batches.get(batch_id)
        if state is None:
            return
        if state.result.done() and state.abortion is None:
            self._close(state, BatchLifecycleState.FINALIZED)
            return
        if state.abortion is None:
            log.warning("batch.aborted", batch=batch_id, reason=reason)
            state.state = BatchLifecycleState.ABORTED
            state.abortion = asyncio.create_task(
                self._abort(state, keep=keep_partial_results), name=f"batch.{batch_id}.abort"
            )
        await asyncio.shield(state.abortion)  # to the end, also when its caller is cancelled

    async def explain(self, batch_id: BatchId) -> list[Waiting]:
        """What a batch waits for, as `Scheduler.explain`; times are those of this process's monotonic clock."""
        return self.scheduler.explain(batch_id)

    async def get_all_state(self) -> dict[int, dict[str, Any]]:
        """What runners do, as `Scheduler.get_all_state`."""
        return self.scheduler.get_all_state()

    async def process_experiences(self, payloads: Sequence[bytes]) -> dict[str, float]:
        """Runs payloads through the pipeline. Raises RuntimeError for payloads without a pipeline, and whatever the
        pipeline raises.
        """
        if not payloads:
            return {}
        if self.pipeline is None:
            raise RuntimeError(
                "there is no pipeline for these payloads: give the coordinator one (pipeline=...)"
            )
        return await self.pipeline(list(payloads))

    # -- inside ---------------------------------------------------------------------------------------------

    def _find(self, batch_id: BatchId, batch_type: BatchType) -> BatchState:
        state = self.batches.get(batch_id)
        if state is None:
            raise KeyError(f"no batch {batch_id!r} is active")
        if state.batch_type != batch_type:
            raise ValueError(f"batch {batch_id!r} is of type {state.batch_type}, not {batch_type}")
        return state

    async def _wait(self, state: BatchState, timeout: float | None) -> Verdict | None:
        """The wait of finalize; None when the batch has its result by other means."""
        min_num = None if state.min_wait_num is None else max(1, state.min_wait_num)
        batch = asyncio.create_task(
            self.scheduler.wait_for(state.batch_id, min_num, timeout, clear_timeout_tasks=False),
            name=f"batch.{state.batch_id}.wait",
        )
        try:
            waits: set[asyncio.Future[Any]] = {batch, state.result}
            await asyncio.wait(waits, return_when=asyncio.FIRST_COMPLETED)
            return batch.result() if not state.result.done() else None
        finally:
            batch.cancel()

    async def _finalize(self, state: BatchState, seconds: float | None) -> dict[str, Any]:
        """All callers that finalize a batch wait for the same work, each with its own time-out; later ones get its result.

        Raises TimeoutError, and what the work raises.
        """
        if state.finishing is None and not state.result.done() and state.abortion is None:
            state.state = BatchLifecycleState.FINALIZING
            state.finishing = asyncio.create_task(
                self._finish(state), name=f"batch.{state.batch_id}.finalize"
            )
            state.finishing.add_done_callback(
                lambda task: task.cancelled() or task.exception()
            )  # it was logged
        waits: set[asyncio.Future[Any]] = {state.result}
        if state.finishing is not None:
            waits.add(state.finishing)
        done, _ = await asyncio.wait(waits, timeout=seconds, return_when=asyncio.FIRST_COMPLETED)
        if not state.result.done() and state.abortion is None:
            for finishing in done:
                finishing.result()
            raise TimeoutError(
                f"batch {state.batch_id!r}: the time is up and it is still being finished; its result is kept"
            )
        result = await asyncio.shield(state.result)
        if state.abortion is None:
            self._close(state, BatchLifecycleState.FINALIZED)
        return {**result, "metrics": dict(result["metrics"])}

    async def _finish(self, state: BatchState) -> None:
        """From enough to the result; after a failure it can be done again."""
        try:
            partial = self.config.over_rollout.return_partial_tasks
            train = state.batch_type == "train"
            await self.scheduler.abort_batch(state.batch_id, partial, restart_runners=not train)
            results = await self._collect(state)
            if train and self.pipeline is not None and state.pipeline_metrics is None:
                payloads = [payload for result in results for payload in result.experience_payloads]
                state.pipeline_metrics = dict(await self.process_experiences(payloads) or {})
            await self._set_result(state)
        except Exception as error:
            log.info("batch.unfinished", batch=state.batch_id, error=f"{type(error).__name__}: {error}")
            raise
        finally:
            state.finishing = None
            if state.state is BatchLifecycleState.FINALIZING and not state.result.done():
                state.state = BatchLifecycleState.RUNNING

    async def _abort(self, state: BatchState, *, keep: bool) -> None:
        if state.finishing is not None:
            state.finishing.cancel()
        if not keep:
            state.statuses = {}
            await self._set_result(state)
        try:
            await self.scheduler.abort_batch(state.batch_id, return_partial_tasks=keep)
            if keep:
                await self._collect(state, complete=False)
        finally:
            await self._set_result(state)
            self._close(state, BatchLifecycleState.ABORTED)

    async def _collect(self, state: BatchState, *, complete: bool = True) -> list[CompletedTaskResult]:
        """What has ended, without taking it from the scheduler. With `complete`, raises RuntimeError or TimeoutError
        when that is less than the batch was to wait for.
        """
        results = await self.scheduler.peek_results(state.batch_id)
        state.statuses = {result.task_id: result.status for result in results}
        if not complete or state.completed_task_count == state.expected_task_count:
            return results
        if state.batch_type == "train" and state.min_wait_num is not None:
            ended = self.config.min_num_counts == "ended"
            counted = state.completed_task_count if ended else state.succeeded_task_count
            if counted >= max(1, state.min_wait_num):
                return results
        if not self.scheduler.running:
            raise RuntimeError(
                f"batch {state.batch_id!r}: the scheduler was stopped before enough of its tasks had ended"
            )
        if state.batch_type == "train":
            raise TimeoutError(f"batch {state.batch_id!r}: {self._shortage(state)}")
        return results

    async def _set_result(self, state: BatchState) -> None:
        """The batch has its result, and callers that wait for it return."""
        if not state.result.done():
            result = await self._summarise(state)
            if not state.result.done():
                state.final_result = result
                state.result.set_result(result)

    def _close(self, state: BatchState, end: BatchLifecycleState) -> None:
        """The batch, which has its result, is active no more."""
        if self.batches.get(state.batch_id) is state:
            state.state = end
            self.scheduler.discard_completed_results(state.batch_id)
            del self.batches[state.batch_id]

    async def _summarise(self, state: BatchState) -> dict[str, Any]:
        of_tasks = [metrics for status in state.statuses.values() for metrics in status.metrics]
        metrics = await asyncio.to_thread(
            summarise_batch,
            of_tasks,
            batch_id=state.batch_id,
            is_eval=state.batch_type == "eval",
            finished=state.completed_task_count,
            detailed_stats=self.config.detailed_stats,
        )
        return {
            "batch_id": state.batch_id,
            "batch_type": state.batch_type,
            "finished_task_count": state.completed_task_count,
            "metrics": {**(state.pipeline_metrics or {}), **metrics},
        }

    def _shortage(self, state: BatchState) -> str:
        needed = state.expected_task_count if state.min_wait_num is None else state.min_wait_num
        waiting = self.scheduler.explain(state.batch_id)
        names = ", ".join(dict.fromkeys(row.task for row in waiting[:5]))
        left = f"; among those left: {names}" if names else ""
        return f"the time is up and fewer than {needed} tasks have succeeded{left}"
