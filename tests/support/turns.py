"""How long callbacks block the event loop, measured in the loop itself."""

from __future__ import annotations

import asyncio
import gc
import time


class Turns:
    """The longest turn of the loop, in processor time of this thread, because the machine may be busy. Objects of earlier
    tests are excluded from garbage collection.
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
