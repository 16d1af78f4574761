"""The event loop while a large evaluation batch is finalized: 2,200 tasks of 16 runs."""

from __future__ import annotations

import asyncio
import time

from support.rows import Row

from governor.tasks import RolloutCoordinator, SchedulerConfig, Task

TASKS, RUNS = 2_200, 16
TICK = 0.001


async def longest_block() -> Row:
    """Runs the batch for real, on the Ray of this process, and looks at the longest gap between two ticks of the loop
    while it is finalized.
    """
    async with RolloutCoordinator(SchedulerConfig(runner_per_model=2)) as coordinator:
        tasks = [Task("tasks.code:score", repeat_times=RUNS, is_eval=True) for _ in range(TASKS)]
        await coordinator.submit_batch(batch_id="1/large", tasks=tasks, batch_type="eval")
        await coordinator.scheduler.wait_for("1/large", clear_timeout_tasks=False)
        gaps = [0.0]
        ticking = asyncio.create_task(_tick(gaps), name="ticker")
        began = time.perf_counter()
        result = await coordinator.finalize_eval_batch("1/large")
        seconds = time.perf_counter() - began
        ticking.cancel()
    if result["finished_task_count"] != TASKS:
        raise RuntimeError(f"{result['finished_task_count']} of {TASKS} tasks")
    return Row(
        what=f"longest block of the event loop, finalize of {TASKS:,} eval tasks x {RUNS} runs",
        figure=max(gaps) * 1000,
        unit="ms",
        at_most=20,
        note=f"{seconds:.1f} s in all, {len(result['metrics'])} metrics",
    )


async def _tick(gaps: list[float]) -> None:
    while True:
        before = time.perf_counter()
        await asyncio.sleep(TICK)
        gaps.append(time.perf_counter() - before - TICK)
