"""Delivers what is in the outbox: each at least once, with the same key; after a failure again, a bounded number of times.

Rules:
1. A try is recorded when it has ended: one that the daemon's death cuts off is made again.
2. So many at once, those of one hook too; what is late does not hold up what follows.
3. Nothing here keeps a run, a slot or the daemon: what is not delivered when the daemon ends is delivered by the next one.
"""

from __future__ import annotations

import asyncio
from contextlib import suppress
from functools import partial
from typing import TYPE_CHECKING, Any, Final

from governor import clock, logs
from governor.daemon.hooks import targets
from governor.units.hooks import Hook

if TYPE_CHECKING:
    from governor.journal.journal import Journal
    from governor.journal.outbox import Delivery
    from governor.units.hooks import Hooks

AT_ONCE: Final = 8
LOOK_SECONDS: Final = 0.1
BACK_OFF: Final = (2.0, 10.0, 60.0, 300.0, 1800.0)
"""Seconds from a try to the next one; the last of them for all further ones."""

log = logs.get_logger()


class Sender:
    def __init__(self, journal: Journal, hooks: Hooks) -> None:
        self._journal = journal
        self._under_way: dict[int, asyncio.Task[None]] = {}
        self._ended = asyncio.Event()
        self._broken: set[int] = set()
        """Whose tries this daemon can't record: the next one makes them."""
        self.apply(hooks)

    def apply(self, hooks: Hooks) -> None:
        """Those of all runs, from now on."""
        given = hooks.model_dump(mode="json", exclude_none=True)
        self._journal.hooks = given

    async def serve(self) -> None:
        """Delivers until it is cancelled. Raises JournalError."""
        try:
            while True:
                self._journal.due.clear()
                self._ended.clear()
                wait = await self._begin()
                await self._until_due(wait)
        finally:
            for task in [*self._under_way.values()]:
                task.cancel()
            await asyncio.gather(*self._under_way.values(), return_exceptions=True)

    async def settle(self, seconds: float) -> int:
        """Waits until each was tried once, so long at most; how many are left."""
        end = asyncio.get_running_loop().time() + seconds
        while (left := await self._left()) and asyncio.get_running_loop().time() < end:
            with suppress(TimeoutError):
                async with asyncio.timeout(LOOK_SECONDS):
                    await self._ended.wait()
        return left

    async def _left(self) -> int:
        """Those that are tried now, or were not tried yet."""
        found = await self._journal.read(partial(self._journal.due_deliveries, AT_ONCE))
        return sum(not each.tries or each.position in self._under_way for each in found)

    async def _begin(self) -> float | None:
        """Begins what is due. Returns the seconds until the next one, None where none is known or no place is free."""
        room = AT_ONCE - len(self._under_way)
        if room <= 0:
            return None
        besides = [*self._under_way, *self._broken]
        due = partial(self._journal.due_deliveries, room + 1, besides=besides)
        for delivery in await self._journal.read(due):
            wait = (delivery.due_at or 0.0) - clock.wall()
            if wait > 0:
                return wait
            if room <= 0:
                return None
            room -= 1
            task = asyncio.create_task(self._deliver(delivery), name=f"hook.{delivery.document['key']}")
            self._under_way[delivery.position] = task
            task.add_done_callback(partial(self._done, delivery.position))
        return None

    def _done(self, position: int, task: asyncio.Task[None]) -> None:
        del self._under_way[position]
        self._ended.set()
        if not task.cancelled() and (error := task.exception()) is not None:
            self._broken.add(position)
            log.error("hook.not_recorded", exc_info=error)

    async def _until_due(self, seconds: float | None) -> None:
        waits = {
            asyncio.create_task(self._journal.due.wait(), name="hooks.due"),
            asyncio.create_task(self._ended.wait(), name="hooks.ended"),
        }
        try:
            await asyncio.wait(waits, timeout=seconds, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for task in waits:
                task.cancel()

    async def _deliver(self, delivery: Delivery) -> None:
        hook, document = Hook.model_validate(delivery.hook), delivery.document
        about: dict[str, Any] = {"run": delivery.uid, "hook": document["hook"], "key": document["key"]}
        error = await _tell(hook, delivery)
        if not error:
            await self._journal.write(lambda transaction: transaction.delivered(delivery.position))
            log.info("hook.delivered", **about, tries=delivery.tries + 1)
            return
        due_at = _next_try(hook, delivery)
        await self._journal.write(
            lambda transaction: transaction.not_delivered(delivery.position, error=error, due_at=due_at)
        )
        event = "hook.given_up" if due_at is None else "hook.failed"
        log.warning(event, **about, tries=delivery.tries + 1, reason=error)


async def _tell(hook: Hook, delivery: Delivery) -> str:
    """What went wrong; "" for nothing."""
    if hook.url is not None:
        return await targets.post(hook.url, delivery.document, timeout=hook.timeout)
    return await targets.run(
        hook.command or (), delivery.document, folder=delivery.folder, timeout=hook.timeout
    )


def _next_try(hook: Hook, delivery: Delivery) -> float | None:
    """The wall-clock second of the try after this one, None for no further one."""
    if delivery.tries >= hook.retries:
        return None
    return clock.wall() + BACK_OFF[min(delivery.tries, len(BACK_OFF) - 1)]
