"""A scheduler for many tests: two runners are started once, each test sets its own configuration."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from pathlib import Path

from governor.tasks import OverRollout, SchedulerConfig, Task

USER_CODE = str(Path(__file__).parents[2] / "governor" / "tasks" / "user_code")
BASE = SchedulerConfig(
    runner_per_model=2,
    max_timeout=20.0,
    max_retry_times=1,
    over_rollout=OverRollout(wait_after_min=0.0),
    grace=0.1,
    import_path=[USER_CODE],
)


def configured(scheduler, **fields):
    """The scheduler with other settings, among those that its engine does not use."""
    scheduler.config = replace(BASE, **fields)
    scheduler.default_timeout = scheduler.config.max_timeout * (scheduler.config.max_retry_times + 1)
    return scheduler


def configure(coordinator, **fields):
    """As `configured`, for a coordinator."""
    coordinator.config = configured(coordinator.scheduler, **fields).config
    coordinator.detailed_stats = coordinator.config.detailed_stats


async def within(seconds, awaitable):
    async with asyncio.timeout(seconds):
        return await awaitable


async def collected(scheduler, batch_id, seconds=20, **more):
    """How many statuses, and how many payloads."""
    statuses, payloads = await within(seconds, scheduler.get_payload_results(batch_id, **more))
    return len(statuses), len(payloads)


def visitor(gate, **fields):
    """A task that connects to the gate and executes its orders."""
    args = {"gate": gate.path, **fields.pop("args", {})}
    return Task("batch_deeds:visit", args=args, **{"retries": 0} | fields)


async def turns(number=10):
    """Lets the event loop run all tasks that are ready."""
    for _ in range(number):
        await asyncio.sleep(0)


async def leave_nothing(scheduler):
    """Removes all batches after a test, so that the next one starts with none; fails if there were any. So does what is known of
    the time that its calls took: tasks that are known to be short are sent together.
    """
    scheduler.engine._core.attempts.bundles._means.clear()
    left = list(scheduler._batches)
    for batch_id in left:
        await scheduler.abort_batch(batch_id)
        scheduler.discard_completed_results(batch_id)
    assert not left, "a batch was left behind"


class Pipeline:
    """Receives payloads; fails or waits if the test sets that."""

    def __init__(self):
        self.taken = []
        self.error = None
        self.begun = asyncio.Event()
        self.open = asyncio.Event()
        self.open.set()

    async def __call__(self, payloads):
        self.begun.set()
        await self.open.wait()
        if self.error is not None:
            raise self.error
        self.taken.append(sorted(payloads))
        return {"pipeline/payloads": float(len(payloads))}


class ObjectPipeline:
    """Notes its calls; fails or waits if the test sets that."""

    def __init__(self):
        self.calls = []
        self.errors = {}
        self.hangs = None
        self.hanging = asyncio.Event()

    async def prepare(self):
        await self._note("prepare")

    async def process_serialized_chunks(self, exp_chunks):
        await self._note(("process", list(exp_chunks)))
        return {"experience_pipeline/experience_count": float(len(exp_chunks))}

    async def close(self):
        await self._note("close")

    async def _note(self, call):
        name = call if isinstance(call, str) else call[0]
        self.calls.append(call)
        if self.hangs == name:
            self.hanging.set()
            await asyncio.Event().wait()
        if name in self.errors:
            raise self.errors[name]
