"""One DEALER connected to a broker, for both client and worker.

Rules:
1. A lost connection is not used again: libzmq would reconnect by itself and deliver messages that were queued before,
   long after the caller got an error. The owner closes it and opens a new one.
2. `on_connected` comes after the handshake, `on_lost` at most once, and neither after `close`.
3. With `keys` the handshake is that of CURVE: the broker must have the secret key of the public one that is given, and know ours.
   `on_unknown` is called each time that it does not.
"""

from __future__ import annotations

import asyncio
import threading
from contextlib import suppress
from time import monotonic
from typing import TYPE_CHECKING, Final

import zmq

from transport.sockets import Monitor, Sent, SocketLoop

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from transport.frames import Frame, Frames
    from transport.network.curve import ClientKeys

_RECONNECT_MS: Final = 20
_RECONNECT_LIMIT_MS: Final = 500
_KEEPALIVE_IDLE: Final = 4
_KEEPALIVE_INTERVAL: Final = 2
_KEEPALIVE_PROBES: Final = 3
_HANDSHAKE_LIMIT_MS: Final = 5_000
_REST_LIMIT: Final = 10_000
REFUSED_SECONDS: Final = 2 * _HANDSHAKE_LIMIT_MS / 1000
"""So long a failed handshake says that somebody listens."""


def keep_alive(socket: zmq.Socket[bytes]) -> None:
    """Have the kernel detect half-open connections, within ten seconds, and libzmq peers that never shake hands.

    A peer that is connected but silent is detected by MDP's heartbeats and by deadlines. ZMTP's own heartbeats are not
    used: libzmq 4.3.5 aborts the process (`!_io_error`, stream_engine_base.cpp:310) when one is due for a peer that has
    disconnected while the queue of its messages was full.
    """
    socket.set(zmq.TCP_KEEPALIVE, 1)
    socket.set(zmq.TCP_KEEPALIVE_IDLE, _KEEPALIVE_IDLE)
    socket.set(zmq.TCP_KEEPALIVE_INTVL, _KEEPALIVE_INTERVAL)
    socket.set(zmq.TCP_KEEPALIVE_CNT, _KEEPALIVE_PROBES)
    socket.set(zmq.HANDSHAKE_IVL, _HANDSHAKE_LIMIT_MS)


async def flush_closed(*, timeout: float) -> None:  # noqa: ASYNC109 - the caller's grace, in seconds
    """Wait until the pending messages of the closed connections of this process have been sent.

    For a process that ends by `os._exit`, as its last call; returns after `timeout` seconds at the latest, also when
    a connection was left open.
    """
    loop = asyncio.get_running_loop()
    done = asyncio.Event()

    def wait() -> None:
        zmq.Context.instance().term()
        with suppress(RuntimeError):  # the loop is closed
            loop.call_soon_threadsafe(done.set)

    threading.Thread(target=wait, name="transport.flush", daemon=True).start()
    with suppress(TimeoutError):
        async with asyncio.timeout(timeout):
            await done.wait()


UNKNOWN_KEY: Final = "it does not know our key"
NO_HANDSHAKE: Final = "it ends each handshake: it has another key than we expect, or it wants one and we have none, or it has no room, or has ended"


class Connection:
    """A DEALER with callbacks for connect and loss."""

    EVENTS: Final = Monitor.CONNECTIONS | int(zmq.EVENT_HANDSHAKE_FAILED_AUTH)

    def __init__(
        self,
        endpoint: str,
        *,
        context: zmq.Context[zmq.Socket[bytes]],
        on_message: Callable[[Frames], None],
        on_connected: Callable[[], None],
        on_lost: Callable[[], None],
        on_writable: Callable[[], None] | None = None,
        keys: ClientKeys | None = None,
        on_unknown: Callable[[], None] = lambda: None,
    ) -> None:
        self.connected = False
        self._refused = ""
        self._refused_at = 0.0
        self._on_unknown = on_unknown
        self._on_connected = on_connected
        self._on_lost = on_lost
        self._closed = False
        self._socket = context.socket(zmq.DEALER)
        self._socket.set(zmq.LINGER, 0)
        self._socket.set(zmq.RECONNECT_IVL, _RECONNECT_MS)
        self._socket.set(zmq.RECONNECT_IVL_MAX, _RECONNECT_LIMIT_MS)
        self._socket.set(zmq.IPV6, "[" in endpoint)
        keep_alive(self._socket)
        if keys is not None:
            self._socket.set(zmq.CURVE_SERVERKEY, keys.server.encode())
            self._socket.set(zmq.CURVE_PUBLICKEY, keys.pair.public.encode())
            self._socket.set(zmq.CURVE_SECRETKEY, keys.pair.secret.encode())
        self._monitor = Monitor(self._socket, on_event=self._on_event, events=self.EVENTS)
        self._loop = SocketLoop()
        self._drained = self._loop.add(self._socket, on_message=on_message, on_writable=on_writable)
        self._socket.connect(endpoint)

    @property
    def refused(self) -> str:
        """Why the last handshake has failed, or "". Another one follows soon, if anybody listens."""
        return self._refused if monotonic() < self._refused_at + REFUSED_SECONDS else ""

    @property
    def writable(self) -> bool:
        """Whether a message can be sent now."""
        return not self._closed and not self._drained.full

    def send(self, frames: Sequence[Frame]) -> Sent:
        """Send now, or return FULL: then `on_writable` will be called."""
        return Sent.UNREACHABLE if self._closed else self._drained.send(frames)

    def read_rest(self) -> None:
        """Read the messages that arrived before the connection broke."""
        if not self._closed:
            self._drained.drain(_REST_LIMIT)

    def close(self, *, linger: float = 0.0) -> None:
        """Close; pending messages may still be sent for `linger` seconds. May be called twice."""
        if self._closed:
            return
        self._closed = True
        self.connected = False
        self._loop.remove(self._drained)
        self._monitor.close()
        self._socket.close(linger=int(linger * 1000))

    def _on_event(self, event: int, _descriptor: int) -> None:
        if self._closed:
            return
        if event == zmq.EVENT_HANDSHAKE_SUCCEEDED:
            self.connected = True
            self._refused = ""
            self._on_connected()
        elif event == zmq.EVENT_HANDSHAKE_FAILED_AUTH:
            self._refused, self._refused_at = UNKNOWN_KEY, monotonic()
            self._on_unknown()
        elif not self.connected:
            self._refused, self._refused_at = self.refused or NO_HANDSHAKE, monotonic()
        else:
            self.connected = False
            self._on_lost()
