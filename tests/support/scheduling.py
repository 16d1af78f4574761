"""A scheduler for many tests: two runners are started once, what differs is set for each test."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from pathlib import Path

import psutil

from governor.tasks import OverRollout, SchedulerConfig, Task

USER_CODE = str(Path(__file__).parents[1] / "governor" / "tasks" / "user_code")
BASE = SchedulerConfig(
    runner_per_model=2,
    max_timeout=20.0,
    max_retry_times=1,
    over_rollout=OverRollout(wait_after_min=0.0),
    grace=0.1,
    import_path=[USER_CODE],
)


def configured(scheduler, **fields):
    """The scheduler with other settings, of those that are no concern of its engine."""
    scheduler.config = replace(BASE, **fields)
    scheduler.default_timeout = scheduler.config.max_timeout * (scheduler.config.max_retry_times + 1)
    return scheduler


def configure(coordinator, **fields):
    """The same for a coordinator."""
    coordinator.config = configured(coordinator.scheduler, **fields).config


def is_alive(pid):
    """A zombie is dead: only its parent has not looked yet."""
    try:
        return psutil.Process(pid).status() not in (psutil.STATUS_ZOMBIE, psutil.STATUS_DEAD)
    except psutil.NoSuchProcess:
        return False


async def within(seconds, awaitable):
    async with asyncio.timeout(seconds):
        return await awaitable


def visitor(gate, **fields):
    """A task that reports to the gate and does as it is told."""
    args = {"gate": gate.path, **fields.pop("args", {})}
    return Task("batch_deeds:visit", args=args, **{"retries": 0} | fields)


async def turns(number=10):
    """Lets everything happen that waits for nothing but its turn."""
    for _ in range(number):
        await asyncio.sleep(0)


async def leave_nothing(scheduler):
    """After a test: nothing of it is left, so that the next one begins as it did; fails where something was."""
    left = list(scheduler._batches)
    for batch_id in left:
        await scheduler.abort_batch(batch_id)
        scheduler.discard_completed_results(batch_id)
    assert not left, "a batch was left behind"


class Pipeline:
    """Takes payloads; fails, or waits, when it is told so."""

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
