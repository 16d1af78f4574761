"""The broker's shell: ROUTERs on asyncio around `BrokerCore`. Clients and workers have separate sockets, so that file
permissions decide which processes may register a service; without a `worker_endpoint` they share that of the clients. With
`private_endpoint` there is a second socket for clients: services that `access` does not make public are reached through
that alone. With `network` there is one for clients on other machines, who need a key (`network/gatekeeper.py`).

Rules:
1. ROUTER_MANDATORY is on, so a failed delivery is known. To a worker: the worker is lost, as soon as all that it has sent
   has been read, because its last replies may be there (on a socket that is never empty, after a heartbeat's time). To a
   client that is gone: the message is dropped and counted, its
   streams are cancelled. To a slow client: the message is queued (`slow_readers.py`).
2. ipc sockets are 0600 in a 0700 folder; tcp without keys is bound to loopback only. Only the public socket can be opened to a group.
3. When a connection of a worker breaks, the broker probes all workers: a dead one is known in milliseconds, not after its
   missed heartbeats.
4. Refusals by access control are counted, and logged in one line for each heartbeat at most.
5. All sockets but that of the network have a ZAP domain and no handler: that refuses peers of ZMTP 1.0 and 2.0, for which any bytes are
   messages, at no cost for those of 3.x.
6. Workers are read before clients in each turn; connections are bounded (`connections.py`). The sends that a few messages of a socket
   cause are made together: that wakes libzmq and the peers less often.
"""

from __future__ import annotations

import asyncio
import os
import shutil
import signal
from dataclasses import asdict
from functools import partial
from typing import TYPE_CHECKING, Final, Self

import msgspec
import zmq

from transport import endpoints
from transport.access import Access, Peer
from transport.broker_core import BrokerCore, BrokerLimits, Send, Side
from transport.broker_events import RefusalLog, to_logging
from transport.connection import keep_alive
from transport.connections import BoundedConnections, bound_of_each, files_needed
from transport.errors import CannotBind, EndpointInUse
from transport.file_limits import file_limits, raise_file_limit
from transport.network.curve import NetworkSettings  # noqa: TC001  # msgspec reads it at run time
from transport.network.gatekeeper import Gatekeeper
from transport.slow_readers import SlowReaders
from transport.sockets import Sent, SocketLoop, last_endpoint

if TYPE_CHECKING:
    from collections.abc import Callable

    from transport.broker_events import OnEvent
    from transport.frames import Frames
    from transport.sockets import DrainedSocket

_WORKER_HIGH_WATER: Final = 4_000
_PROBE_AGAIN: Final = 0.05
_LINGER_MS: Final = 500
_ZAP_DOMAIN: Final = b"majordomo"
_SOCKET_NAMES: Final = {
    Side.CLIENTS: "clients",
    Side.PRIVATE: "private clients",
    Side.WORKERS: "workers",
    Side.NETWORK: "network",
}


class BrokerSettings(msgspec.Struct, frozen=True, kw_only=True):
    """Settings of a broker. `client_group` may connect to the clients' ipc socket too. Without a `worker_endpoint` workers come to that
    of the clients.
    """

    client_endpoint: str
    worker_endpoint: str | None
    private_endpoint: str | None = None
    client_group: str | None = None
    access: Access = Access()
    limits: BrokerLimits = BrokerLimits()
    network: NetworkSettings | None = None

    def encode(self) -> bytes:
        """Return the payload for `main`."""
        return msgspec.msgpack.encode(self)


class Broker:
    """A Majordomo broker.

    `start` binds the sockets (raises BadEndpoint, CannotBind); `client_endpoint`, `worker_endpoint`, `private_endpoint` and
    `network_endpoint` are then the real ones (two of them are one if it is shared), also where a free tcp port was asked for. `serve` runs until
    `stop`. `aclose` sends DISCONNECT to the workers, closes the sockets and removes their files; it may be called twice, and
    also without a start.
    """

    def __init__(self, settings: BrokerSettings, *, on_event: OnEvent | None = None) -> None:
        self.settings = settings
        self.client_endpoint = settings.client_endpoint
        self.worker_endpoint = settings.worker_endpoint or settings.client_endpoint
        self.private_endpoint = settings.private_endpoint
        self.network_endpoint = None if settings.network is None else settings.network.endpoint
        self._on_event = on_event or to_logging
        self._gatekeeper: Gatekeeper | None = None
        self._stopping = asyncio.Event()
        self._context: zmq.Context[zmq.Socket[bytes]] | None = None
        self._bound: dict[endpoints.Endpoint, tuple[int, int] | None] = {}
        self._connections: list[BoundedConnections] = []
        self._drained: dict[Side, DrainedSocket] = {}
        self._slow: dict[Side, SlowReaders] = {}
        self._peers: dict[Side, Callable[[], Peer]] = {}
        """Who sent the message that is being read."""
        self._timer: asyncio.TimerHandle | None = None
        self._timer_at = 0.0
        self._probe_timer: asyncio.TimerHandle | None = None
        self._refusals_due = 0.0
        self._sends: list[Send] = []
        self._undelivered: list[Frames] = []
        """Messages to workers that are gone, while there may be messages from them to read."""
        self._undelivered_since = 0.0
        self._pauses: dict[Side, bool] = {}
        """The sides whose slow readers pause: whether there may be room since."""

    @property
    def counters(self) -> dict[str, int]:
        """All counters and gauges, as data for logs."""
        return {
            **asdict(self._core.counters),
            **self._core.gauges,
            "pending": sum(map(len, self._slow.values())),
            "slow_client_drops": sum(slow.dropped for slow in self._slow.values()),
            "oversized": sum(each.oversized for each in self._drained.values()),
            "connections": sum(map(len, self._connections)),
            "connections_refused": sum(each.refused for each in self._connections),
            "peers_refused": 0 if self._gatekeeper is None else self._gatekeeper.refused,
        }

    @property
    def _side_of_workers(self) -> Side:
        """The socket to which they come."""
        return Side.CLIENTS if self.settings.worker_endpoint is None else Side.WORKERS

    async def serve(self) -> None:
        """Start, run until `stop` is called, close."""
        async with self:
            await self.stopped()

    async def stopped(self) -> None:
        """Return when `stop` is called."""
        await self._stopping.wait()

    def stop(self) -> None:
        """Let `serve` end. May be called at any time, also twice."""
        self._stopping.set()

    async def __aenter__(self) -> Self:
        try:
            await self.start()
        except BaseException:
            await self.aclose()
            raise
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.aclose()

    async def start(self) -> None:
        """Bind the sockets and serve from the next turn of the event loop on. Raises TooFewFiles, BadEndpoint, CannotBind."""
        settings, limits = self.settings, self.settings.limits
        asked = {
            Side.WORKERS: settings.worker_endpoint,
            Side.PRIVATE: settings.private_endpoint,
            Side.CLIENTS: settings.client_endpoint,
            Side.NETWORK: self.network_endpoint,
        }
        wanted = {side: endpoint for side, endpoint in asked.items() if endpoint is not None}
        files, _ = file_limits()
        most = bound_of_each(files=files, sockets=len(wanted), most=limits.connections)
        self._loop = asyncio.get_running_loop()
        self._now = self._loop.time
        self._core = BrokerCore(
            limits=limits, access=settings.access, shared=settings.worker_endpoint is None, now=self._now()
        )
        self._core.report = lambda: self.counters
        self._refusals = RefusalLog(self._on_event, self._core.counters)
        self._context = zmq.Context()
        self._context.set(zmq.MAX_SOCKETS, 1023)
        if settings.network is not None:
            self._gatekeeper = Gatekeeper(settings.network, on_event=self._on_event)
            self._gatekeeper.start()
            self._core.admit = self._gatekeeper.admit_encoded
        sockets = {side: self._socket(side, most) for side in wanted}
        bound = {side: self._bind(side, sockets[side], endpoint) for side, endpoint in wanted.items()}
        self.client_endpoint = bound[Side.CLIENTS]
        self.worker_endpoint = bound.get(Side.WORKERS, self.client_endpoint)
        self.private_endpoint = bound.get(Side.PRIVATE)
        self.network_endpoint = bound.get(Side.NETWORK)
        self._sockets = SocketLoop()
        for side, socket in sockets.items():
            self._drain(side, socket)
        self._arm()
        self._on_event(
            "broker.started",
            client_endpoint=self.client_endpoint,
            worker_endpoint=self.worker_endpoint,
            private_endpoint=self.private_endpoint,
            network_endpoint=self.network_endpoint,
            pid=os.getpid(),
            connections=most,
        )
        if files < (needed := files_needed(sockets=len(wanted))):
            self._on_event("broker.few_connections", most=most, open_files=files, needed=needed)

    def _socket(self, side: Side, most: int) -> zmq.Socket[bytes]:
        def on_full(full: bool) -> None:  # noqa: FBT001 - a callback
            event = "broker.connections_refused" if full else "broker.connections_taken_again"
            self._on_event(event, socket=_SOCKET_NAMES[side], most=most)

        guard = self._gatekeeper if side is Side.NETWORK else None
        context = self._context if guard is None else guard.context
        socket = context.socket(zmq.ROUTER)  # type: ignore[union-attr]  # there is one
        socket.set(zmq.ROUTER_MANDATORY, 1)
        socket.set(zmq.LINGER, _LINGER_MS)
        # Below it the core can answer TOO_LARGE.
        socket.set(zmq.MAXMSGSIZE, 2 * self.settings.limits.body_bytes)
        if guard is None:
            socket.set(zmq.ZAP_DOMAIN, _ZAP_DOMAIN)
        else:
            guard.guard(socket)
        keep_alive(socket)
        on_disconnected = None
        if side is self._side_of_workers:
            socket.set(zmq.SNDHWM, _WORKER_HIGH_WATER)
            on_disconnected = self._on_worker_disconnected
        connections = BoundedConnections(
            socket,
            most=most,
            on_full=on_full,
            on_disconnected=on_disconnected,
            on_stranger=None if guard is None else guard.stranger,
        )
        self._connections.append(connections)
        if guard is not None:
            guard.on_message = connections.known
        return socket

    def _bind(self, side: Side, socket: zmq.Socket[bytes], endpoint: str) -> str:
        parsed = endpoints.parse_bind(endpoint, keyed=side is Side.NETWORK)
        endpoints.prepare_ipc(parsed)
        socket.set(zmq.IPV6, ":" in (parsed.host or ""))
        before = os.umask(0o177)
        try:
            socket.bind(str(parsed))
        except zmq.ZMQError as error:
            kind = EndpointInUse if error.errno == zmq.EADDRINUSE else CannotBind
            raise kind(str(parsed), zmq.strerror(error.errno or 0)) from error
        finally:
            os.umask(before)
        self._bound[parsed] = endpoints.file_of(parsed)
        group = self.settings.client_group
        if side is Side.CLIENTS and parsed.path is not None and group is not None:
            shutil.chown(parsed.path, group=group)
            parsed.path.chmod(0o660)
        return last_endpoint(socket)

    def _peer(self, side: Side, local: bool) -> Peer:  # noqa: FBT001 - for `partial`
        return Peer.told(self._drained[side].peer_address, local=local)

    def _drain(self, side: Side, socket: zmq.Socket[bytes]) -> None:
        on_message = partial(self._on_message, side)
        self._peers[side] = partial(self._peer, side, last_endpoint(socket).startswith("ipc:"))
        if side is Side.WORKERS:
            drained = self._sockets.add(socket, on_message=on_message, on_batch=self._on_batch)
        else:
            on_writable = partial(self._flush, side)
            drained = self._sockets.add(
                socket, on_message=on_message, on_batch=self._on_batch, on_writable=on_writable
            )
            self._slow[side] = SlowReaders(drained.send)
        self._drained[side] = drained
        if side is Side.NETWORK and self._gatekeeper is not None:
            self._peers[side] = partial(self._gatekeeper.peer, drained)
        if side is self._side_of_workers:
            self._workers = drained

    async def aclose(self) -> None:
        """Send DISCONNECT to the workers, close, remove the socket files."""
        context, self._context = self._context, None
        if context is None:
            return
        for timer in (self._timer, self._probe_timer):
            if timer is not None:
                timer.cancel()
        if self._drained:
            self._deliver(self._core.close())
            for drained in self._drained.values():
                self._sockets.remove(drained)
            self._log_refusals()
            self._on_event("broker.stopped", **self.counters)
        for connections in self._connections:
            connections.close()
        if self._gatekeeper is not None:
            await self._gatekeeper.aclose(_LINGER_MS)
        await asyncio.to_thread(context.destroy, _LINGER_MS)
        for endpoint, file in self._bound.items():
            endpoints.remove_ipc(endpoint, file)

    # -- the core's events ----------------------------------------------------------------------------------

    def _on_message(self, side: Side, frames: Frames) -> None:
        self._sends += self._core.feed(side, frames, self._now(), self._peers[side])

    def _on_batch(self) -> None:
        sends, self._sends = self._sends, []
        self._deliver(sends)
        if self._core.next_deadline() < self._timer_at:
            self._arm()

    def _tick(self) -> None:
        self._deliver(self._core.tick(self._now()))
        for side, slow in self._slow.items():
            if slow:  # a send to one client may have consumed the edge that announced room for another
                self._drained[side].touch_writable()
        if self._now() >= self._refusals_due:
            self._refusals_due = self._now() + self.settings.limits.heartbeat
            self._log_refusals()
        self._arm()

    def _log_refusals(self) -> None:
        if self._gatekeeper is not None:
            self._gatekeeper.log_refusals()
        self._refusals.tell()

    def _arm(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
        self._timer_at = self._core.next_deadline()
        self._timer = self._loop.call_at(self._timer_at, self._tick)

    def _on_worker_disconnected(self) -> None:
        if self._probe_timer is None:
            self._deliver(self._core.probe())
            # The monitor may be ahead of the ROUTER, which then still accepts messages for the dead worker.
            self._probe_timer = self._loop.call_later(_PROBE_AGAIN, self._probe_again)

    def _probe_again(self) -> None:
        self._probe_timer = None
        self._deliver(self._core.probe())

    # -- delivery -------------------------------------------------------------------------------------------

    def _deliver(self, sends: list[Send]) -> None:
        """Send, report failed deliveries to the core, and deliver the messages that follow from them."""
        while sends:
            failed = [send for send in sends if not self._delivered(*send)]
            sends = []
            for side, frames in failed:
                if side is not Side.WORKERS:
                    sends += self._core.undelivered(side, frames, self._now())
                    continue
                if not self._undelivered:
                    self._undelivered_since = self._now()
                    self._loop.call_soon(self._lose_workers)
                self._undelivered.append(frames)

    def _lose_workers(self) -> None:
        """Report the failed deliveries to workers, once there is nothing more to read from workers."""
        if self._context is None:
            return
        patience = self.settings.limits.heartbeat  # clients who share the socket may never leave it empty
        if self._workers.readable and self._now() < self._undelivered_since + patience:
            self._loop.call_soon(self._lose_workers)
            return
        undelivered, self._undelivered = self._undelivered, []
        for frames in undelivered:
            self._deliver(self._core.undelivered(Side.WORKERS, frames, self._now()))

    def _delivered(self, side: Side, frames: Frames) -> bool:
        if side is Side.WORKERS:
            return self._workers.send(frames) is Sent.OK
        return self._slow[side].send(frames[0], frames) is not Sent.UNREACHABLE  # type: ignore[arg-type]  # a routing id is bytes

    def _flush(self, side: Side) -> None:
        """Send pending messages, now or when the pause is over; called when a full socket may have room again."""
        if side in self._pauses:
            self._pauses[side] = True
            return
        for frames in self._slow[side].flush():
            self._deliver(self._core.undelivered(side, frames, self._now()))
        if pause := self._slow[side].pause:
            self._pauses[side] = False
            self._loop.call_later(pause, self._pause_over, side)

    def _pause_over(self, side: Side) -> None:
        if self._pauses.pop(side) and self._context is not None:
            self._drained[side].touch_writable()


async def main(payload: bytes, *, on_event: OnEvent | None = None) -> None:
    """Run a broker as a process of its own until SIGTERM; `payload` comes from `BrokerSettings.encode`."""
    broker = Broker(msgspec.msgpack.decode(payload, type=BrokerSettings), on_event=on_event)
    raise_file_limit()
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, broker.stop)
    await broker.serve()
