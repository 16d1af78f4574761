"""How long the event loop is held, told by the loop itself."""

from __future__ import annotations

import asyncio
import gc
import time


class Turns:
    """The longest turn of the loop, in processor time of this thread: others may have the machine. What tests before
    have left on the heap is kept out of it.
    """

    async def __aenter__(self):
        gc.collect()
        gc.freeze()
        self.longest = 0.0
        self._task = asyncio.create_task(self._turn())
        await asyncio.sleep(0)
        return self

    async def _turn(self):
        while True:
            before = time.thread_time()
            await asyncio.sleep(0)
            self.longest = max(self.longest, time.thread_time() - before)

    async def __aexit__(self, *_):
        self._task.cancel()
        gc.unfreeze()
