"""`RolloutCoordinator`: train and evaluation batches from submission to their final metrics.

Rules:
1. A batch is finalized once. Concurrent callers get equal results; a later call finds no such batch.
2. A train batch is finalized when all of its tasks have ended, or as many succeeded as it was to wait for. What was
   finished is not lost when that fails (`finalization`).
3. The pipeline is prepared before the scheduler starts, and closed after it was stopped.
"""

from __future__ import annotations

import asyncio
import inspect
from contextlib import AsyncExitStack, contextmanager
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any, Self

from governor import logs
from governor.tasks.api import sort_batch_id
from governor.tasks.scheduling.wait_policy import min_wait_num as min_wait_num_of
from governor.tasks.trinity import pipeline as pipelines
from governor.tasks.trinity.batch_state import BatchLifecycleState, BatchState
from governor.tasks.trinity.finalization import Finalization
from governor.tasks.trinity.scheduler import Scheduler

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence
    from pathlib import Path

    from governor.tasks.api import BatchId, SchedulerConfig, Task
    from governor.tasks.scheduling.events import Waiting
    from governor.tasks.trinity.batch_state import BatchType
    from governor.tasks.trinity.handover import TrinityConfig
    from governor.tasks.trinity.pipeline import Pipeline

log = logs.get_logger()


@contextmanager
def _signatures_kept(cls: type) -> Iterator[None]:
    """``ray.remote`` gives the class's own functions another parameter, which stays for whoever calls them without an actor."""
    functions = [inspect.unwrap(function) for _, function in inspect.getmembers(cls, inspect.isfunction)]
    before = [(function, vars(function).copy()) for function in functions]
    try:
        yield
    finally:
        for function, attributes in before:
            function.__dict__ = attributes


class RolloutCoordinator:
    """Owns a `Scheduler` and a pipeline, and finalizes batches.

    `experience_pipeline` is the pipeline; `running`: from the end of `prepare` to `shutdown`; `detailed_stats` is that of the
    config, and counts for batches that are submitted from then on.

    Args:
        config: as `Scheduler` has it.
        pipeline: an async function that takes the payloads of a train batch and returns metrics; or an object with async
            ``prepare()``, ``process_serialized_chunks(payloads)`` and ``close()``, which are called by `prepare`, by
            finalize and by `shutdown`.
        folder: where results are kept, as `Scheduler` has it.

    Raises:
        TypeError: no such pipeline, or as `Scheduler`.
    """

    def __init__(
        self,
        config: SchedulerConfig | TrinityConfig | None = None,
        rollout_model: Sequence[Any] = (),
        auxiliary_models: Sequence[Sequence[Any]] | None = None,
        pipeline: Pipeline | None = None,
        folder: Path | str | None = None,
    ) -> None:
        pipelines.check(pipeline)
        self.scheduler = Scheduler(config, rollout_model, auxiliary_models, folder)
        self.config = self.scheduler.config
        self.detailed_stats = self.config.detailed_stats
        self.experience_pipeline = pipeline
        self.running = False
        self._finalizations: dict[BatchId, Finalization] = {}
        self._preparing = asyncio.Lock()
        self._shutdowns = 0

    @property
    def pending_batches(self) -> dict[BatchId, BatchState]:
        """The batches that were submitted and are neither finalized nor aborted."""
        return {batch_id: each.state for batch_id, each in self._finalizations.items()}

    async def prepare(self) -> None:
        """Prepares the pipeline and starts the scheduler; again: nothing. Raises GovernorError without Ray, RuntimeError when
        `shutdown` came first, and what the pipeline raises; the pipeline is closed then, if it was prepared.
        """
        async with self._preparing:
            if self.running:
                return
            shutdowns = self._shutdowns
            await pipelines.prepare(self.experience_pipeline)
            async with AsyncExitStack() as stack:
                stack.push_async_callback(pipelines.close, self.experience_pipeline)
                if self._shutdowns != shutdowns:
                    raise RuntimeError("the coordinator was shut down before it was prepared")
                await self.scheduler.start()
                stack.pop_all()
            self.running = True

    async def shutdown(self) -> None:
        """Stops the scheduler, in its `stop_timeout`; waiting callers get an error. A pipeline at work has as long again and
        is cancelled then; last it is closed, which takes as long as it takes. Idempotent. Raises what the pipeline raises.
        """
        was_running, self.running = self.running, False
        self._shutdowns += 1
        await self.scheduler.stop()
        working = [
            finishing
            for each in self._finalizations.values()
            if (finishing := each.finish_within(self.config.stop_timeout)) is not None
        ]
        await asyncio.gather(*working, return_exceptions=True)
        if was_running:
            await pipelines.close(self.experience_pipeline)

    async def __aenter__(self) -> Self:
        await self.prepare()
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.shutdown()

    @classmethod
    def get_actor(
        cls,
        config: SchedulerConfig | TrinityConfig | None = None,
        rollout_model: Sequence[Any] = (),
        auxiliary_models: Sequence[Sequence[Any]] | None = None,
        pipeline: Pipeline | None = None,
        folder: Path | str | None = None,
    ) -> Any:
        """A coordinator in a Ray actor of its own: every method is called by ``.remote()``. Ray must be initialized;
        the actor works on that cluster.
        """
        import ray  # noqa: PLC0415  # the caller has it

        with _signatures_kept(cls):
            actor = ray.remote(cls).options(num_cpus=0, max_concurrency=1000)
        return actor.remote(config, rollout_model, auxiliary_models, pipeline, folder)

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
            RuntimeError: `prepare` was not called, or `shutdown` was.
            QueueFull, GraphError, TypeError: as `Scheduler.schedule`; nothing was registered.
        """
        if batch_type not in ("train", "eval"):
            raise ValueError(f'batch_type must be "train" or "eval", not {batch_type!r}')
        if min_wait_num is not None and min_wait_num < 0:
            raise ValueError(f"min_wait_num must be 0 or more, not {min_wait_num}")
        sort_batch_id(batch_id)  # raises TypeError
        tasks = list(tasks)
        if batch_id in self._finalizations:
            raise ValueError(f"batch {batch_id!r} is already active")
        if tasks and not self.scheduler.running:
            raise RuntimeError("RolloutCoordinator.prepare() must be called first")
        state = BatchState(batch_id, batch_type, len(tasks), min_wait_num=min_wait_num)
        if batch_type == "train" and min_wait_num is None and self.config.over_rollout.ratio:
            state.min_wait_num = min_wait_num_of(len(tasks), self.config.over_rollout.ratio)
        if batch_type == "eval":
            tasks = [task if task.is_eval else replace(task, is_eval=True) for task in tasks]
        self.scheduler.schedule(tasks, batch_id=batch_id)
        if tasks:
            state.state = BatchLifecycleState.RUNNING
        self._finalizations[batch_id] = Finalization(
            state,
            self.scheduler,
            process=self._process,
            closed=partial(self._forget, batch_id),
            detailed_stats=self.detailed_stats,
        )

    async def finalize_train_batch(
        self, batch_id: BatchId, *, timeout: float | None = None
    ) -> dict[str, Any]:
        """Waits for a train batch, runs its payloads through the pipeline and closes it. Payloads come task by task, run by
        run.

        Returns:
            ``{batch_id, batch_type, finished_task_count, metrics}``.

        Raises:
            KeyError: no such batch is active. ValueError: it is no train batch.
            TimeoutError: after `timeout` seconds (None: the scheduler's default) not all tasks have ended, or fewer than
                `min_wait_num` have succeeded; or the pipeline is still at work. Nothing is lost: the batch goes on, the
                pipeline too, and can be finalized later. To end what is left may take the grace and a second more.
            RuntimeError: the coordinator was shut down before enough had ended.
        """
        return await self._find(batch_id, "train").train(timeout)

    async def finalize_eval_batch(self, batch_id: BatchId, *, timeout: float | None = None) -> dict[str, Any]:
        """Waits for an evaluation batch and closes it, with what there is when the time is up: it raises nothing then.

        Raises:
            KeyError: no such batch is active. ValueError: it is no evaluation batch.
            RuntimeError: the coordinator was shut down before all had ended.
        """
        return await self._find(batch_id, "eval").evaluation(timeout)

    async def abort_batch(
        self, batch_id: BatchId, *, reason: str, keep_partial_results: bool = False
    ) -> None:
        """Cancels a batch, its pipeline too, and returns when its runners are free of it. A finalize that waits for it
        returns its result: at once, and counting no task; with `keep_partial_results`, when all that was kept is known. A
        batch that has its result already is finalized. An unknown one: nothing.
        """
        finalization = self._finalizations.get(batch_id)
        if finalization is not None:
            await finalization.abort(reason=reason, keep=keep_partial_results)

    async def explain(self, batch_id: BatchId) -> list[Waiting]:
        """What a batch waits for, as `Scheduler.explain`; times are those of this process's monotonic clock."""
        return self.scheduler.explain(batch_id)

    async def get_all_state(self) -> dict[int, dict[str, Any]]:
        """What runners do, as `Scheduler.get_all_state`."""
        return self.scheduler.get_all_state()

    async def process_experiences(self, payloads: Sequence[bytes]) -> dict[str, Any]:
        """Runs payloads through the pipeline. Raises RuntimeError for payloads without a pipeline, or with an object that is
        not prepared or was closed; TypeError for bytes in place of a list of them; and whatever the pipeline raises.
        """
        if isinstance(payloads, bytes | bytearray | memoryview | str):
            raise TypeError(f"payloads must be a list of bytes, not {type(payloads).__name__}")
        if not payloads:
            return {}
        pipeline = self.experience_pipeline
        if pipeline is None:
            raise RuntimeError(
                "Experience pipeline is not initialized: give the coordinator one (pipeline=...)"
            )
        if pipelines.is_object(pipeline) and not self.running:
            raise RuntimeError("Experience pipeline is not initialized: call prepare() first")
        return await pipelines.process(pipeline, list(payloads))

    # -- inside ---------------------------------------------------------------------------------------------

    async def _process(self, payloads: list[bytes]) -> dict[str, Any]:
        return {} if self.experience_pipeline is None else await self.process_experiences(payloads)

    def _forget(self, batch_id: BatchId) -> None:
        del self._finalizations[batch_id]

    def _find(self, batch_id: BatchId, batch_type: BatchType) -> Finalization:
        finalization = self._finalizations.get(batch_id)
        if finalization is None:
            raise KeyError(f"batch {batch_id!r} is not registered: never submitted, or finalized or aborted")
        if finalization.state.batch_type != batch_type:
            raise ValueError(
                f"batch {batch_id!r} is of type {finalization.state.batch_type}, expected {batch_type}"
            )
        return finalization
