"""A direct line to one environment or to the agent: one request, one answer, and the truth about silence.

Rules:
1. `ask` ends in the answer, or in one of three: `Overdue` (the deadline passed), `PeerLost` (the process behind it is
   gone; the kernel tells, at once), `Interrupted` (this part is being stopped).
2. After `Overdue` or `Interrupted` the peer may still be at it: `settle` waits a little longer and says whether it came
   back, `wait` goes on as `ask`. A line whose peer did not come back is closed.
3. What arrives and is no message of ours is a `Fault`: the peer has answered, though nobody can tell what.
4. A line belongs to one thread.
"""

from __future__ import annotations

import select
from math import ceil
from time import monotonic
from typing import TYPE_CHECKING

from governor.episodes.arrays import WireError
from governor.episodes.remote import wire
from governor.episodes.remote.pipe import Hung, MessageStream

if TYPE_CHECKING:
    from governor.episodes.remote.wire import AgentRequest, Answer, EnvironmentRequest


class ChannelError(Exception):
    """Root: a request without an answer. `line` is the one it went over."""

    def __init__(self, line: RequestChannel) -> None:
        self.line = line
        super().__init__(f"{line.name} did not answer")


class Overdue(ChannelError):
    """The deadline passed."""


class PeerLost(ChannelError):
    """The process at the other end is gone, or nobody listens there."""


class Interrupted(ChannelError):
    """The part is being stopped."""


class RequestChannel:
    """Connects at once. `identity` is the lease or the seat; `stop` is an eventfd that becomes readable for good when
    the part is to stop.
    """

    def __init__(self, *, name: str, endpoint: str, identity: str, stop: int) -> None:
        self.name = name
        self.identity = identity
        self.number = 0
        self._stop = stop
        self._pipe: MessageStream | None = None
        self._poller = select.poll()
        self._pressed = False
        try:
            self._pipe = MessageStream.connect(endpoint)
            self._pipe.send(identity.encode())
        except (OSError, Hung):
            return  # the first request tells
        self._poller.register(self._pipe, select.POLLIN)
        self._poller.register(stop, select.POLLIN)

    def next(self) -> int:
        """The number for the next request."""
        self.number += 1
        return self.number

    def ask(self, request: EnvironmentRequest | AgentRequest, *, deadline: float | None) -> Answer:
        """`deadline` is on the monotonic clock."""
        data = wire.encode(request)
        if self._pipe is None:
            raise PeerLost(self)
        try:
            self._pipe.send(data)
        except Hung:
            raise PeerLost(self) from None
        return self.wait(deadline=deadline)

    def wait(self, *, deadline: float | None) -> Answer:
        """The answer to the last request."""
        if self._pipe is None:
            raise PeerLost(self)
        try:
            return self._receive(self._pipe, deadline)
        except Hung:
            raise PeerLost(self) from None

    def settle(self, *, seconds: float) -> Answer | None:
        """The answer to the last request, if it comes within `seconds`. Raises PeerLost."""
        if self._pipe is None:
            raise PeerLost(self)
        self._poller.unregister(self._stop)
        try:
            return self.wait(deadline=monotonic() + seconds)
        except Overdue:
            return None
        finally:
            self._poller.register(self._stop, select.POLLIN)

    def close(self) -> None:
        if self._pipe is not None:
            self._pipe.close()

    def _receive(self, pipe: MessageStream, deadline: float | None) -> Answer:
        while True:
            if pipe.unsent or self._pressed:
                self._flush(pipe)
            timeout = None if deadline is None else max(0, ceil((deadline - monotonic()) * 1000))
            ready = self._poller.poll(timeout)
            if not ready:
                raise Overdue(self)
            pipe.fill()
            while (data := pipe.next()) is not None:
                try:
                    answer = wire.decode_answer(data)
                except WireError as error:
                    return wire.FaultFrame(self.number, "wire", str(error))
                if answer.number == self.number:
                    return answer
            if any(fd == self._stop for fd, _ in ready):
                raise Interrupted(self)

    def _flush(self, pipe: MessageStream) -> None:
        """A message that is larger than the kernel's buffer goes piece by piece, as the peer reads."""
        pipe.flush()
        self._pressed = bool(pipe.unsent)
        self._poller.modify(pipe, select.POLLIN | (select.POLLOUT if self._pressed else 0))
