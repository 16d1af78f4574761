"""One batch of a coordinator, from its submission to its result.

Rules:
1. All callers that finalize it wait for the same work, each with its own time-out, and get equal results.
2. What was finished stays with the batch until it has its result: after a time-out, an error of the pipeline, or a
   caller that was cancelled, it can be finalized again. Payloads that the pipeline took are not given to it again: it
   goes on when its caller has left, and its result is that of the next call.
3. An abort wakes those that wait, and cancels the pipeline.
"""

from __future__ import annotations

import asyncio
import time
from typing import TYPE_CHECKING, Any, Final

from governor import logs
from governor.tasks.trinity.batch_state import BatchLifecycleState
from governor.tasks.trinity.statistics import summarise_batch

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from governor.tasks.scheduling.wait_policy import Verdict
    from governor.tasks.trinity.batch_state import BatchState
    from governor.tasks.trinity.scheduler import Scheduler
    from governor.tasks.trinity.views import CompletedTaskResult

CLOSING: Final = 1.0
"""Seconds, beside the grace of what is left, that a finalize whose time is up waits for its result."""

log = logs.get_logger()


class Finalization:
    """Made in the event loop, when its batch was submitted.

    Args:
        process: makes metrics of the payloads of a train batch.
        closed: called once, when the batch has its result and is active no more.
    """

    def __init__(
        self,
        state: BatchState,
        scheduler: Scheduler,
        *,
        process: Callable[[list[bytes]], Awaitable[dict[str, Any]]],
        closed: Callable[[], None],
        detailed_stats: bool = False,
    ) -> None:
        self.state = state
        self.result: asyncio.Future[dict[str, Any]] = asyncio.get_running_loop().create_future()
        self._scheduler = scheduler
        self._process = process
        self._closed: Callable[[], None] | None = closed
        self._detailed_stats = detailed_stats
        self._pipeline_metrics: dict[str, Any] | None = None
        """What the pipeline has made of the payloads, once it has."""
        self._abortion: asyncio.Task[None] | None = None
        self._finishing: asyncio.Task[None] | None = None
        """What makes the result, while it does."""

    async def train(self, timeout: float | None) -> dict[str, Any]:
        """The result of a train batch. Raises as `RolloutCoordinator.finalize_train_batch`."""
        until = time.monotonic() + (self._scheduler.default_timeout if timeout is None else timeout)
        verdict = await self._wait(timeout)
        if verdict == "timeout" and self._scheduler.running:
            raise TimeoutError(self._shortage())
        grace = self._scheduler.config.grace
        return await self._finalize(max(until - time.monotonic(), grace + CLOSING))

    async def evaluation(self, timeout: float | None) -> dict[str, Any]:
        """The result of an evaluation batch. Raises as `RolloutCoordinator.finalize_eval_batch`."""
        await self._wait(timeout)
        return await self._finalize(None)

    async def abort(self, *, reason: str, keep: bool) -> None:
        """As `RolloutCoordinator.abort_batch`. It goes on to its end, also when its caller is cancelled."""
        if self.result.done() and self._abortion is None:
            self._close(BatchLifecycleState.FINALIZED)
            return
        if self._abortion is None:
            log.warning("batch.aborted", batch=self.state.batch_id, reason=reason)
            self.state.state = BatchLifecycleState.ABORTED
            self._abortion = asyncio.create_task(
                self._abort(keep=keep), name=f"batch.{self.state.batch_id}.abort"
            )
        await asyncio.shield(self._abortion)

    def finish_within(self, seconds: float) -> asyncio.Task[None] | None:
        """What makes the result, if it is at work; it is cancelled after `seconds`."""
        if self._finishing is not None:
            asyncio.get_running_loop().call_later(seconds, self._finishing.cancel)
        return self._finishing

    # -- inside ---------------------------------------------------------------------------------------------

    async def _wait(self, timeout: float | None) -> Verdict | None:
        """Returns when enough has ended or the time is up; None when the batch has its result by other means."""
        min_num = None if self.state.min_wait_num is None else max(1, self.state.min_wait_num)
        batch = asyncio.create_task(
            self._scheduler.wait_for(self.state.batch_id, min_num, timeout, clear_timeout_tasks=False),
            name=f"batch.{self.state.batch_id}.wait",
        )
        try:
            waits: set[asyncio.Future[Any]] = {batch, self.result}
            await asyncio.wait(waits, return_when=asyncio.FIRST_COMPLETED)
            return batch.result() if not self.result.done() else None
        finally:
            batch.cancel()

    async def _finalize(self, seconds: float | None) -> dict[str, Any]:
        """Raises TimeoutError, RuntimeError when it was shut down, and what the work raises."""
        if self._finishing is None and not self.result.done() and self._abortion is None:
            self.state.state = BatchLifecycleState.FINALIZING
            self._finishing = asyncio.create_task(
                self._finish(), name=f"batch.{self.state.batch_id}.finalize"
            )
            self._finishing.add_done_callback(
                lambda task: task.cancelled() or task.exception()
            )  # it was logged
        waits: set[asyncio.Future[Any]] = {self.result}
        if self._finishing is not None:
            waits.add(self._finishing)
        done, _ = await asyncio.wait(waits, timeout=seconds, return_when=asyncio.FIRST_COMPLETED)
        if not self.result.done() and self._abortion is None:
            for finishing in done:
                if finishing.cancelled():
                    raise RuntimeError(
                        f"batch {self.state.batch_id!r}: the coordinator was shut down while its pipeline was at work"
                    )
                finishing.result()
            raise TimeoutError(
                f"Timeout waiting for batch {self.state.batch_id!r}: it is still being finished; its result is kept"
            )
        result = await asyncio.shield(self.result)
        if self._abortion is None:
            self._close(BatchLifecycleState.FINALIZED)
        return {**result, "metrics": dict(result["metrics"])}

    async def _finish(self) -> None:
        """From enough to the result; after a failure it can be done again."""
        try:
            partial = self._scheduler.config.over_rollout.return_partial_tasks
            train = self.state.batch_type == "train"
            await self._scheduler.abort_batch(self.state.batch_id, partial, restart_runners=not train)
            results = await self._collect()
            if train and self._pipeline_metrics is None:
                payloads = [payload for result in results for payload in result.experience_payloads]
                self._pipeline_metrics = await self._process(payloads)
            await self._set_result()
        except Exception as error:
            log.info("batch.unfinished", batch=self.state.batch_id, error=f"{type(error).__name__}: {error}")
            raise
        finally:
            self._finishing = None
            if self.state.state is BatchLifecycleState.FINALIZING and not self.result.done():
                self.state.state = BatchLifecycleState.RUNNING

    async def _abort(self, *, keep: bool) -> None:
        if self._finishing is not None:
            self._finishing.cancel()
        if not keep:
            self.state.statuses = {}
            await self._set_result()
        try:
            await self._scheduler.abort_batch(self.state.batch_id, return_partial_tasks=keep)
            if keep:
                await self._collect(complete=False)
        finally:
            await self._set_result()
            self._close(BatchLifecycleState.ABORTED)

    async def _collect(self, *, complete: bool = True) -> list[CompletedTaskResult]:
        """What has ended, without taking it from the scheduler. With `complete`, raises RuntimeError or TimeoutError
        when that is less than the batch was to wait for.
        """
        state = self.state
        results = await self._scheduler.peek_results(state.batch_id)
        state.statuses = {result.task_id: result.status for result in results}
        if not complete or state.completed_task_count == state.expected_task_count:
            return results
        if state.batch_type == "train" and state.min_wait_num is not None:
            ended = self._scheduler.config.min_num_counts == "ended"
            counted = state.completed_task_count if ended else state.succeeded_task_count
            if counted >= max(1, state.min_wait_num):
                return results
        if not self._scheduler.running:
            raise RuntimeError(
                f"batch {state.batch_id!r}: the scheduler was stopped before enough of its tasks had ended"
            )
        if state.batch_type == "train":
            raise TimeoutError(self._shortage())
        return results

    async def _set_result(self) -> None:
        """The batch has its result, and callers that wait for it return."""
        if not self.result.done():
            result = await self._summarise()
            if not self.result.done():
                self.state.final_result = result
                self.result.set_result(result)

    def _close(self, end: BatchLifecycleState) -> None:
        """The batch, which has its result, is active no more."""
        if self._closed is not None:
            self.state.state = end
            self._scheduler.discard_completed_results(self.state.batch_id)
            self._closed()
            self._closed = None

    async def _summarise(self) -> dict[str, Any]:
        state = self.state
        of_tasks = [metrics for status in state.statuses.values() for metrics in status.metrics]
        metrics = await asyncio.to_thread(
            summarise_batch,
            of_tasks,
            batch_id=state.batch_id,
            is_eval=state.batch_type == "eval",
            finished=state.completed_task_count,
            detailed_stats=self._detailed_stats,
        )
        return {
            "batch_id": state.batch_id,
            "batch_type": state.batch_type,
            "finished_task_count": state.completed_task_count,
            "metrics": {**(self._pipeline_metrics or {}), **metrics},
        }

    def _shortage(self) -> str:
        state = self.state
        needed = state.expected_task_count if state.min_wait_num is None else state.min_wait_num
        waiting = self._scheduler.explain(state.batch_id)
        names = ", ".join(dict.fromkeys(row.task for row in waiting[:5]))
        left = f"; among those left: {names}" if names else ""
        return f"Timeout waiting for batch {state.batch_id!r}: fewer than {needed} tasks have succeeded{left}"
