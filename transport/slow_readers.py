"""Pending messages of clients that read slowly: those that their full connection did not accept, in order.

Rules:
1. Bounded in messages and bytes, and shared: one slow reader can't use up the room of others. Any excess is dropped and
   counted; a client sees the gap by its sequence numbers.
2. When a client is gone, all its pending messages are dropped at once.
3. No event tells which client has room again, so all are tried, followed by a pause for each that accepted nothing: however
   many there are, and whatever others send meanwhile, they cost a tenth of the time.
"""

from __future__ import annotations

from collections import deque
from typing import TYPE_CHECKING, Final

from transport.frames import BODY_LIMIT
from transport.shares import Shares
from transport.sockets import Sent

if TYPE_CHECKING:
    from collections.abc import Callable

    from transport.frames import Frames

PENDING_MESSAGES: Final = 50_000
PENDING_BYTES: Final = 8 * BODY_LIMIT
"""One client gets half of it (`shares.py`): the other half has room for replies of the greatest size."""
PAUSE_SECONDS: Final = 25e-6
"""For each client that accepted nothing; such a try takes 2.5 us."""


class SlowReaders:
    """`send` sends one message now, or returns why not."""

    def __init__(self, send: Callable[[Frames], Sent]) -> None:
        self.dropped = 0
        self.pause = 0.0
        """Seconds to wait after the last `flush` before the next one."""
        self._send = send
        self._pending: dict[bytes, deque[Frames]] = {}
        self._messages = Shares(PENDING_MESSAGES)
        self._bytes = Shares(PENDING_BYTES)

    def __len__(self) -> int:
        """The number of pending messages."""
        return self._messages.taken

    def send(self, client: bytes, frames: Frames) -> Sent:
        """Send now or queue it, both OK; UNREACHABLE means that it will never arrive."""
        if client not in self._pending:
            sent = self._send(frames)
            if sent is not Sent.FULL:
                return sent
        size = sum(map(len, frames))
        if self._messages.fits(client) and self._bytes.fits(client, size):
            self._messages.take(client)
            self._bytes.take(client, size)
            self._pending.setdefault(client, deque()).append(frames)
        else:
            self.dropped += 1
        return Sent.OK

    def flush(self) -> list[Frames]:
        """Send pending messages, as far as there is room; returns one message for each client that is gone."""
        gone: list[Frames] = []
        in_vain = 0
        for client, pending in list(self._pending.items()):
            before = len(pending)
            while pending:
                sent = self._send(pending[0])
                if sent is Sent.FULL:
                    in_vain += len(pending) == before
                    break
                if sent is Sent.UNREACHABLE:
                    gone.append(pending[0])
                    self._forget(client)
                    break
                frames = pending.popleft()
                self._messages.give_back(client)
                self._bytes.give_back(client, sum(map(len, frames)))
            if not pending:
                self._pending.pop(client, None)
        self.pause = in_vain * PAUSE_SECONDS
        return gone

    def _forget(self, client: bytes) -> None:
        del self._pending[client]
        self._messages.forget(client)
        self._bytes.forget(client)
