"""Pending messages of clients that read slowly: those that their full connection did not accept, in order.

Rules:
1. Bounded in messages and bytes, and shared: one slow reader can't use up the room of others. What a PARTIAL has no room for are older
   PARTIALs of the same client: they are dropped and counted, and the client sees the gap by its sequence numbers.
2. A FINAL is dropped for nobody else's backlog: without room, what the client with the greatest one waits for is dropped, its PARTIALs
   before its FINALs, until that client is its own.
3. When a client is gone, all its pending messages are dropped at once.
4. No event tells which client has room again, so all are tried, followed by a pause for each that accepted nothing: however
   many there are, and whatever others send meanwhile, they cost a tenth of the time.
"""

from __future__ import annotations

from collections import OrderedDict, deque
from typing import TYPE_CHECKING, Final

from transport.dialects import is_partial
from transport.frames import BODY_LIMIT
from transport.shares import Shares
from transport.sockets import Sent

if TYPE_CHECKING:
    from collections.abc import Callable

    from transport.frames import Frames

PENDING_MESSAGES: Final = 50_000
PENDING_BYTES: Final = 8 * BODY_LIMIT
"""PARTIALs of one client get half of it (`shares.py`)."""
PAUSE_SECONDS: Final = 25e-6
"""For each client that accepted nothing; such a try takes 2.5 us."""


class _Backlog:
    """What one client waits for, by number, in order. `weight`: its part of the room for all, in bytes and in messages."""

    __slots__ = ("_next", "messages", "partials", "weight")

    def __init__(self) -> None:
        self.messages: OrderedDict[int, Frames] = OrderedDict()
        self.partials: deque[int] = deque()
        """The numbers of those that are PARTIALs."""
        self.weight = 0
        self._next = 0

    def add(self, frames: Frames, *, partial: bool) -> None:
        if partial:
            self.partials.append(self._next)
        self.messages[self._next] = frames
        self.weight += _weight(_size(frames))
        self._next += 1

    def first(self) -> Frames:
        return next(iter(self.messages.values()))

    def pop(self, *, partial: bool = False) -> int:
        """Remove the first one, or the first PARTIAL; returns its size."""
        number = self.partials[0] if partial else next(iter(self.messages))
        if self.partials and self.partials[0] == number:
            self.partials.popleft()
        size = _size(self.messages.pop(number))
        self.weight -= _weight(size)
        return size


class SlowReaders:
    """`send` sends one message now, or returns why not."""

    def __init__(self, send: Callable[[Frames], Sent]) -> None:
        self.dropped = 0
        self.pause = 0.0
        """Seconds to wait after the last `flush` before the next one."""
        self._send = send
        self._pending: dict[bytes, _Backlog] = {}
        self._top = b""
        """Who has the greatest backlog; nobody has this name where that is not known."""
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
        size, partial = _size(frames), is_partial(frames)
        if self._has_room(client, size, partial=partial):
            self._messages.take(client)
            self._bytes.take(client, size)
            backlog = self._pending.setdefault(client, _Backlog())
            backlog.add(frames, partial=partial)
            top = self._pending.get(self._top)
            if top is not None and backlog.weight > top.weight:
                self._top = client
        else:
            self.dropped += 1
        return Sent.OK

    def flush(self) -> list[Frames]:
        """Send pending messages, as far as there is room; returns one message for each client that is gone."""
        gone: list[Frames] = []
        in_vain = 0
        for client, pending in list(self._pending.items()):
            before = len(pending.messages)
            while pending.messages:
                sent = self._send(pending.first())
                if sent is Sent.FULL:
                    in_vain += len(pending.messages) == before
                    break
                if sent is Sent.UNREACHABLE:
                    gone.append(pending.first())
                    self._forget(client)
                    break
                self._remove(client, pending)
        self.pause = in_vain * PAUSE_SECONDS
        return gone

    def _has_room(self, client: bytes, size: int, *, partial: bool) -> bool:
        """After others were dropped for it, if need be."""
        while not (self._messages.fits(client) and self._bytes.fits(client, size)):
            victim = client if partial else self._greatest(client)
            backlog = self._pending.get(victim)
            if backlog is None or (victim == client and not backlog.partials):
                return False
            self.dropped += 1
            self._remove(victim, backlog, partial=bool(backlog.partials))
        return True

    def _greatest(self, client: bytes) -> bytes:
        """Who has the greatest backlog, this client rather than another one with a message more. All are looked at only if the
        greatest one has become smaller since: a flood of clients that do not read must not cost a look at all for each message.
        """
        if self._top not in self._pending:
            self._top = max(self._pending, key=lambda each: self._pending[each].weight, default=client)
        own, top = self._pending.get(client), self._pending.get(self._top)
        if top is None or (own is not None and own.weight + _weight(0) >= top.weight):
            return client
        return self._top

    def _remove(self, client: bytes, backlog: _Backlog, *, partial: bool = False) -> None:
        self._messages.give_back(client)
        self._bytes.give_back(client, backlog.pop(partial=partial))
        if client == self._top:
            self._top = b""
        if not backlog.messages:
            self._pending.pop(client, None)

    def _forget(self, client: bytes) -> None:
        del self._pending[client]
        self._messages.forget(client)
        self._bytes.forget(client)


def _size(frames: Frames) -> int:
    return sum(map(len, frames))


def _weight(size: int) -> int:
    return size + PENDING_BYTES // PENDING_MESSAGES
