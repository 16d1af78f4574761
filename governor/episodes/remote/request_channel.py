"""A direct channel to one environment or to the agent: one request, one answer.

Rules:
1. `ask` returns the answer or raises one of three errors: `Overdue` (the deadline passed), `PeerLost` (the process at the
   other end is gone; the kernel reports it at once), `Interrupted` (this part is being stopped).
2. After `Overdue` or `Interrupted` the peer may still work on the request: `wait_late` waits a little longer for its answer,
   `wait` waits as `ask` does. The caller closes a channel whose peer did not answer.
3. Bytes that cannot be decoded count as an answer: a `FaultFrame` of the current request.
4. A channel belongs to one thread.
"""

from __future__ import annotations

import select
from math import ceil
from time import monotonic
from typing import TYPE_CHECKING

from governor.episodes.arrays import WireError
from governor.episodes.remote import wire
from governor.episodes.remote.shared_arrays import Region
from governor.message_stream import MessageStream, StreamClosed

if TYPE_CHECKING:
    from governor.episodes.remote.wire import AgentRequest, Answer, EnvironmentRequest


class ChannelError(Exception):
    """Root: a request got no answer. `channel` is the channel that carried it."""

    def __init__(self, channel: RequestChannel) -> None:
        self.channel = channel
        super().__init__(f"{channel.name} did not answer")


class Overdue(ChannelError):
    """The deadline passed."""


class PeerLost(ChannelError):
    """The process at the other end is gone, or no socket listens at the endpoint."""


class Interrupted(ChannelError):
    """The part is being stopped."""


class RequestChannel:
    """Connects at once; the first request reports a failed connection. `identity` is the lease or the session; `stop` is an
    eventfd that becomes and stays readable when the part is to stop.
    """

    def __init__(self, *, name: str, endpoint: str, identity: str, stop: int) -> None:
        self.name = name
        self.identity = identity
        self.number = 0
        self._stop = stop
        self._stream: MessageStream | None = None
        self._region = Region()
        self._poller = select.poll()
        self._backlogged = False
        try:
            self._stream = MessageStream.connect(endpoint)
            self._stream.send(identity.encode())
        except OSError:
            return
        self._poller.register(self._stream, select.POLLIN)
        self._poller.register(stop, select.POLLIN)

    def next_number(self) -> int:
        """The number for the next request."""
        self.number += 1
        return self.number

    def ask(self, request: EnvironmentRequest | AgentRequest, *, deadline: float | None) -> Answer:
        """`deadline` is in seconds on the monotonic clock. Raises ChannelError."""
        data = self._region.encode(request)
        if self._stream is None:
            raise PeerLost(self)
        try:
            self._stream.send(data)
        except StreamClosed:
            raise PeerLost(self) from None
        return self.wait(deadline=deadline)

    def wait(self, *, deadline: float | None) -> Answer:
        """The answer to the last request. Raises ChannelError."""
        if self._stream is None:
            raise PeerLost(self)
        try:
            return self._receive(self._stream, deadline)
        except StreamClosed:
            raise PeerLost(self) from None

    def wait_late(self, *, seconds: float) -> Answer | None:
        """The answer to the last request, if it comes within `seconds`. Raises PeerLost."""
        if self._stream is None:
            raise PeerLost(self)
        self._poller.unregister(self._stop)
        try:
            return self.wait(deadline=monotonic() + seconds)
        except Overdue:
            return None
        finally:
            self._poller.register(self._stop, select.POLLIN)

    def close(self) -> None:
        self._region.close()
        if self._stream is not None:
            self._stream.close()

    def _receive(self, stream: MessageStream, deadline: float | None) -> Answer:
        while True:
            if stream.unsent or self._backlogged:
                self._flush(stream)
            timeout = None if deadline is None else max(0, ceil((deadline - monotonic()) * 1000))
            ready = self._poller.poll(timeout)
            if not ready:
                raise Overdue(self)
            stream.receive()
            while (data := stream.next_message(bytes)) is not None:
                try:
                    answer = wire.decode_answer(data)
                except WireError as error:
                    return wire.FaultFrame(self.number, "wire", str(error))
                if answer.number == self.number:
                    return answer
            if any(fd == self._stop for fd, _ in ready):
                raise Interrupted(self)

    def _flush(self, stream: MessageStream) -> None:
        """Sends a message that is larger than the kernel's buffer in pieces, as the peer reads."""
        stream.flush()
        self._backlogged = bool(stream.unsent)
        self._poller.modify(stream, select.POLLIN | (select.POLLOUT if self._backlogged else 0))
