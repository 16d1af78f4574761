"""`Notifier`: wakes callers that wait for changes of a batch, or of any batch."""

from __future__ import annotations

import asyncio


class Notifier:
    """Wakes its waiters. `run_ended_at` is when a run last ended, in monotonic seconds."""

    def __init__(self) -> None:
        self.run_ended_at = float("-inf")
        self._waiting: set[asyncio.Future[None]] = set()

    def notify(self) -> None:
        """Wakes all waiters."""
        for future in self._waiting:
            if not future.done():
                future.set_result(None)

    async def wait(self, seconds: float | None = None) -> None:
        """Returns after the next `notify`, or after `seconds`."""
        future: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._waiting.add(future)
        try:
            await asyncio.wait({future}, timeout=seconds)
        finally:
            self._waiting.discard(future)
