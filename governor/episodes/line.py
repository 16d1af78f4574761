"""A direct line to one environment or to the agent: one request, one answer, and the truth about silence.

Rules:
1. `ask` ends in the answer, or in one of three: `Overdue` (the deadline passed), `PeerLost` (the process behind it is
   gone; the socket's own monitor tells, within a millisecond), `Interrupted` (this part is being stopped).
2. After `Overdue` or `Interrupted` the peer may still be at it: `settle` waits a little longer and says whether it came
   back. A line whose peer did not come back is closed.
3. A line belongs to one thread.
"""

from __future__ import annotations

from math import ceil
from time import monotonic
from typing import TYPE_CHECKING

import zmq

from governor.episodes import wire

if TYPE_CHECKING:
    from governor.episodes.wire import AgentRequest, Answer, EnvironmentRequest


class LineError(Exception):
    """Root: a request without an answer. `line` is the one it went over."""

    def __init__(self, line: Line) -> None:
        self.line = line
        super().__init__(f"{line.name} did not answer")


class Overdue(LineError):
    """The deadline passed."""


class PeerLost(LineError):
    """The process at the other end is gone, or nobody listens there."""


class Interrupted(LineError):
    """The part is being stopped."""


class Line:
    """Connects at once. `identity` is the lease or the seat; `stop` is an eventfd that becomes readable for good when
    the part is to stop.
    """

    def __init__(self, *, name: str, endpoint: str, identity: str, stop: int) -> None:
        self.name = name
        self.identity = identity
        self.number = 0
        self._socket: zmq.Socket[bytes] = zmq.Context.instance().socket(zmq.DEALER)
        self._socket.setsockopt(zmq.ROUTING_ID, identity.encode())
        self._socket.setsockopt(zmq.LINGER, 0)
        self._socket.setsockopt(zmq.RECONNECT_IVL, -1)
        self._monitor: zmq.Socket[bytes] = self._socket.get_monitor_socket(
            zmq.EVENT_DISCONNECTED | zmq.EVENT_CLOSED
        )
        self._patient = zmq.Poller()
        self._patient.register(self._socket, zmq.POLLIN)
        self._patient.register(self._monitor, zmq.POLLIN)
        self._poller = zmq.Poller()
        self._poller.register(self._socket, zmq.POLLIN)
        self._poller.register(self._monitor, zmq.POLLIN)
        self._poller.register(stop, zmq.POLLIN)
        self._socket.connect(endpoint)

    def next(self) -> int:
        """The number for the next request."""
        self.number += 1
        return self.number

    def ask(self, request: EnvironmentRequest | AgentRequest, *, deadline: float | None) -> Answer:
        """`deadline` is on the monotonic clock."""
        try:
            self._socket.send(wire.encode(request), zmq.NOBLOCK)
        except zmq.Again:
            raise PeerLost(self) from None
        return self._receive(self._poller, deadline)

    def settle(self, *, seconds: float) -> bool:
        """Whether the answer to the last request comes within `seconds`. Raises PeerLost."""
        try:
            self._receive(self._patient, monotonic() + seconds)
        except Overdue:
            return False
        return True

    def close(self) -> None:
        self._socket.disable_monitor()
        self._socket.close()

    def _receive(self, poller: zmq.Poller, deadline: float | None) -> Answer:
        while True:
            timeout = None if deadline is None else max(0, ceil((deadline - monotonic()) * 1000))
            ready = poller.poll(timeout)
            if not ready:
                raise Overdue(self)
            try:
                data = self._socket.recv(zmq.NOBLOCK)
            except zmq.Again:
                if any(socket is self._monitor for socket, _ in ready):
                    raise PeerLost(self) from None
                if any(not isinstance(socket, zmq.Socket) for socket, _ in ready):
                    raise Interrupted(self) from None
                continue
            answer = wire.decode_answer(data)
            if answer.number == self.number:
                return answer
