"""ZeroMQ sockets on asyncio without zmq.asyncio, which costs twice the CPU for each message.

Rules:
1. ZMQ_FD is edge-triggered: it signals once that something may have changed. So after every drain and after every send
   (which may consume the edge) EVENTS is read again; a socket that was touched is `dirty` until that has been done.
2. Each socket has a budget of its own in a turn of the event loop, in the order in which they were added: a flood on one
   delays the others by two or three budgets, until their edge is seen. The rest is read in the next turn, so that timers
   are on time.
3. Nothing here blocks: a send returns OK, FULL (high-water mark) or UNREACHABLE (a ROUTER that doesn't know the peer).
4. A message of too many frames is skipped in pieces, over as many turns as it takes. libzmq has received it whole by
   then (201 MB for 3,000,000 empty frames, in one piece, whatever is set), and reads other peers only afterwards.
5. Frames up to `COPY_LIMIT` bytes arrive as bytes, larger ones as `zmq.Frame` and can be sent on without a copy.
"""

from __future__ import annotations

import asyncio
import errno
from enum import IntEnum
from typing import TYPE_CHECKING, Final

import zmq
from zmq.backend import Socket as PlainSocket
from zmq.utils.monitor import parse_monitor_message

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from transport.frames import Frame, Frames

COPY_LIMIT: Final = 8192
FRAMES_LIMIT: Final = 1024
_BUDGET: Final = 128
_BATCH: Final = 4
"""More of them take less of our CPU (by 6 % with 32), and have workers that take one request at a time wait for the next one."""
_FRAMES_SHIFT: Final = 4
"""A message counts once against a budget, and once more for every 16 frames: a frame takes about 1 us."""
_SKIPPED_AT_ONCE: Final = _BUDGET << _FRAMES_SHIFT

# The unbound methods of the C class: pyzmq's own wrappers check every frame once more, and `recv_multipart` asks for
# RCVMORE through an enum (2.9 against 4.9 us to receive six frames, 0.9 against 5.3 us to send them).
_recv = PlainSocket.recv
_send = PlainSocket.send
_get = PlainSocket.get
_DONTWAIT: Final = int(zmq.DONTWAIT)
_MORE: Final = int(zmq.DONTWAIT | zmq.SNDMORE)
_EVENTS: Final = int(zmq.EVENTS)
_POLLIN: Final = int(zmq.POLLIN)


class Sent(IntEnum):
    OK = 0
    FULL = 1
    UNREACHABLE = 2


def last_endpoint(socket: zmq.Socket[bytes]) -> str:
    """Return the endpoint at which a socket is bound."""
    last: bytes = socket.get(zmq.LAST_ENDPOINT)  # type: ignore[assignment]  # the stub knows no types of options
    return last.rstrip(b"\0").decode()


class SocketLoop:
    """Drains a few sockets that belong together; a send to one while another is drained costs no extra turn."""

    def __init__(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._sockets: list[DrainedSocket] = []
        self._running = False
        self._scheduled = False

    def add(
        self,
        socket: zmq.Socket[bytes],
        *,
        on_message: Callable[[Frames], None],
        on_batch: Callable[[], None] | None = None,
        on_writable: Callable[[], None] | None = None,
    ) -> DrainedSocket:
        """Drain `socket` from now on. `on_batch` is called after each message or some more, `on_writable` after each drain while a
        send has returned FULL.
        """
        drained = DrainedSocket(self, socket, on_message, on_batch, on_writable)
        self._sockets.append(drained)
        self._loop.add_reader(drained.fd, self._woken, drained)
        self.touch(drained)
        return drained

    def remove(self, drained: DrainedSocket) -> None:
        """Stop draining it. The socket stays open."""
        if drained in self._sockets:
            self._sockets.remove(drained)
            drained.dirty = False
            self._loop.remove_reader(drained.fd)

    def touch(self, drained: DrainedSocket) -> None:
        """Note that the edge may have been consumed."""
        drained.dirty = True
        if not self._running and not self._scheduled:
            self._scheduled = True
            self._loop.call_soon(self._run)

    def _woken(self, drained: DrainedSocket) -> None:
        drained.dirty = True
        if not self._scheduled:
            self._run()

    def _run(self) -> None:
        self._scheduled = False
        self._running = True
        for drained in self._sockets:
            drained.budget = _BUDGET
        try:
            while due := [drained for drained in self._sockets if drained.dirty and drained.budget > 0]:
                for drained in due:
                    if drained.dirty:
                        drained.budget -= drained.drain(drained.budget)
        finally:
            self._running = False
            if not self._scheduled and any(drained.dirty for drained in self._sockets):
                self._scheduled = True
                self._loop.call_soon(self._run)


class DrainedSocket:
    """One socket of a `SocketLoop`."""

    def __init__(
        self,
        loop: SocketLoop,
        socket: zmq.Socket[bytes],
        on_message: Callable[[Frames], None],
        on_batch: Callable[[], None] | None,
        on_writable: Callable[[], None] | None,
    ) -> None:
        self.socket = socket
        self.fd = int(socket.get(zmq.FD))
        self.dirty = False
        self.budget = 0
        self.oversized = 0
        self._skipping = False
        self._first: zmq.Frame | None = None
        self._loop = loop
        self._on_message = on_message
        self._on_batch = on_batch
        self._on_writable = on_writable
        self.full = False

    @property
    def readable(self) -> bool:
        """Whether there are messages to read; some turn of the event loop will read them."""
        if not self.dirty:
            self._loop.touch(self)
        return not self.socket.closed and bool(int(_get(self.socket, _EVENTS)) & _POLLIN)

    def send(self, frames: Sequence[Frame]) -> Sent:
        """Send a message or return why not; never a part of one. Raises only on programming errors."""
        if not self.dirty:
            self._loop.touch(self)
        socket = self.socket
        last = len(frames) - 1
        try:
            for index in range(last):
                _send(socket, frames[index], _MORE)
            _send(socket, frames[last], _DONTWAIT)
        except zmq.ZMQError as error:
            if error.errno == zmq.EAGAIN:
                self.full = True
                return Sent.FULL
            if error.errno == errno.EHOSTUNREACH:
                return Sent.UNREACHABLE
            raise
        return Sent.OK

    @property
    def peer_address(self) -> str:
        """Where the message comes from that is being passed on, as the kernel told libzmq; "" where it is not known. What the
        peer itself said under that name in its handshake does not replace it.
        """
        try:
            return "" if self._first is None else str(self._first.get("Peer-Address"))
        except zmq.ZMQError:
            return ""

    @property
    def user_id(self) -> str:
        """As of `peer_address`: what the handshake has found out about who sends; "" where it asked for nothing."""
        try:
            return "" if self._first is None else str(self._first.get("User-Id"))
        except zmq.ZMQError:
            return ""

    @property
    def descriptor(self) -> int:
        """As of `peer_address`: that of the connection, in this process; -1 where it is not known."""
        return -1 if self._first is None else int(self._first.get(zmq.SRCFD))

    def touch_writable(self) -> None:
        """Call `on_writable` soon, without an edge that announces room."""
        self.full = True
        self._loop.touch(self)

    def drain(self, budget: int) -> int:
        """Pass on messages worth about `budget`; returns how much of it was used."""
        socket = self.socket
        used = 0
        burst = False
        self.dirty = True  # so that sends meanwhile need not touch it
        while not socket.closed and int(_get(socket, _EVENTS)) & _POLLIN:
            if used >= budget:
                return used
            used += self._take(socket)
            if burst:  # EVENTS costs 1.1 us, an exception 2: read it once for many messages
                most = min(budget, used + _BATCH - 1)
                try:
                    while used < most and not socket.closed:
                        used += self._take(socket)
                except zmq.Again:
                    pass
            burst = True
            if self._on_batch is not None:
                self._on_batch()
        self.dirty = False
        if self.full and self._on_writable is not None and not socket.closed:
            self.full = False
            self.dirty = True
            self._on_writable()
            # A send that is still FULL is no reason for another drain: the next edge announces room.
            self.dirty = self.readable
        return max(1, used)

    def _take(self, socket: zmq.Socket[bytes]) -> int:
        """Receive one message and pass it on; returns its cost. A message of more than `FRAMES_LIMIT` frames is passed on
        as an empty one, which is no command, and the rest of it is skipped.
        """
        if self._skipping:
            return self._skip(socket)
        frames: Frames = []
        frame = self._first = _recv(socket, _DONTWAIT, False)
        while True:
            if len(frames) == FRAMES_LIMIT:
                self.oversized += 1
                self._skipping = frame.more
                frames = []
                break
            frames.append(frame.bytes if len(frame) <= COPY_LIMIT else frame)
            if not frame.more:
                break
            frame = _recv(socket, _DONTWAIT, False)
        self._on_message(frames)
        return 1 + (len(frames) >> _FRAMES_SHIFT)

    def _skip(self, socket: zmq.Socket[bytes]) -> int:
        for _ in range(_SKIPPED_AT_ONCE):
            if not _recv(socket, _DONTWAIT, False).more:
                self._skipping = False
                break
        return _BUDGET


class Monitor:
    """Watches a socket's connections: calls `on_event(event, descriptor)` for each of `events` (zmq.EVENT_...).

    libzmq's I/O thread waits while about 1,000 events are unread (1,002 measured), and holds a lock meanwhile that a
    bind and the end of the monitor need: so neither is done while there is something to read.
    """

    CONNECTIONS: Final = int(zmq.EVENT_HANDSHAKE_SUCCEEDED | zmq.EVENT_DISCONNECTED)

    def __init__(
        self, socket: zmq.Socket[bytes], *, on_event: Callable[[int, int], None], events: int = CONNECTIONS
    ) -> None:
        self._monitored = socket
        self._on_event = on_event
        address = f"inproc://monitor.{int(socket.get(zmq.FD))}"
        socket.monitor(address, events)
        self._pair = socket.context.socket(zmq.PAIR)
        self._pair.set(zmq.RCVHWM, 1)
        self._pair.connect(address)
        self._loop = SocketLoop()
        self._drained = self._loop.add(self._pair, on_message=self._read)

    def close(self) -> None:
        """Stop. Call it once, before the monitored socket is closed."""
        self._loop.remove(self._drained)
        while int(_get(self._pair, _EVENTS)) & _POLLIN:
            self._pair.recv_multipart()
        self._monitored.disable_monitor()
        self._pair.close(linger=0)

    def _read(self, frames: Frames) -> None:
        message = parse_monitor_message([frame for frame in frames if type(frame) is bytes])
        self._on_event(int(message["event"]), int(message["value"]))
