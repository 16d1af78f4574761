"""What is owed to clients that read slowly: messages that their full connection did not take, in order.

Rules:
1. Bounded in messages and bytes, and shared: one slow reader can't use up what others may need. What goes beyond is
   dropped and counted; a client sees the gap by its sequence numbers.
2. A client that has gone is paid no more: all that it was owed is dropped at once.
3. Nobody tells which client has room again, so all are tried, and then there is a pause for each that took nothing: however many
   there are, and whatever others send meanwhile, they cost a tenth of the time.
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

OWED_MESSAGES: Final = 50_000
OWED_BYTES: Final = 8 * BODY_LIMIT
"""One client gets half of it (`shares.py`): answers of the greatest size fit beside that."""
PAUSE_SECONDS: Final = 25e-6
"""For each client that took nothing; such a try takes 2.5 us."""


class SlowReaders:
    """`send` sends one message now, or says why not."""

    def __init__(self, send: Callable[[Frames], Sent]) -> None:
        self.dropped = 0
        self.pause = 0.0
        """Seconds after the last `pay` in which there shall be no other."""
        self._send = send
        self._owed: dict[bytes, deque[Frames]] = {}
        self._messages = Shares(OWED_MESSAGES)
        self._bytes = Shares(OWED_BYTES)

    def __len__(self) -> int:
        """How many messages are owed."""
        return self._messages.taken

    def send(self, client: bytes, frames: Frames) -> Sent:
        """Send, or owe it (OK too): only UNREACHABLE says that it will never arrive."""
        if client not in self._owed:
            sent = self._send(frames)
            if sent is not Sent.FULL:
                return sent
        size = sum(map(len, frames))
        if self._messages.fits(client) and self._bytes.fits(client, size):
            self._messages.take(client)
            self._bytes.take(client, size)
            self._owed.setdefault(client, deque()).append(frames)
        else:
            self.dropped += 1
        return Sent.OK

    def pay(self) -> list[Frames]:
        """Send what is owed, as far as there is room; returns one message for each client that has gone."""
        gone: list[Frames] = []
        in_vain = 0
        for client, owed in list(self._owed.items()):
            before = len(owed)
            while owed:
                sent = self._send(owed[0])
                if sent is Sent.FULL:
                    in_vain += len(owed) == before
                    break
                if sent is Sent.UNREACHABLE:
                    gone.append(owed[0])
                    self._forget(client)
                    break
                frames = owed.popleft()
                self._messages.give_back(client)
                self._bytes.give_back(client, sum(map(len, frames)))
            if not owed:
                self._owed.pop(client, None)
        self.pause = in_vain * PAUSE_SECONDS
        return gone

    def _forget(self, client: bytes) -> None:
        del self._owed[client]
        self._messages.forget(client)
        self._bytes.forget(client)
