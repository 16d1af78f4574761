"""The broker's data: limits, counters, requests, workers, services, and the operations that keep them consistent.

Rules:
1. Everything that a peer can make grow has a limit here; any excess is refused or dropped, and counted.
2. A request is queued at a service, in flight at a worker, or gone.
3. Clients take turns in a queue: who has many requests there does not keep others waiting.
4. The least loaded worker with spare credit is found by a heap with stale entries: an entry is valid only if its
   stamp is the worker's newest.
"""

from __future__ import annotations

from collections import OrderedDict
from dataclasses import dataclass, field
from enum import Enum
from heapq import heapify, heappop, heappush
from typing import TYPE_CHECKING

import msgspec

from transport.frames import BODY_LIMIT

if TYPE_CHECKING:
    from transport.dialects import Dialect
    from transport.envelope import RequestEnvelope
    from transport.frames import ClientFinal, Frames
    from transport.shares import Shares


class Side(Enum):
    """The ROUTER for clients, that for clients on other machines, the private one for clients, or the one for workers."""

    CLIENTS = "clients"
    NETWORK = "network"
    PRIVATE = "private"
    WORKERS = "workers"

    __hash__ = object.__hash__  # that of Enum is Python; there are 30 lookups for each request


class BrokerLimits(msgspec.Struct, frozen=True, kw_only=True):
    """Bounds and times of a broker. Times in seconds, sizes in bytes.

    `heartbeat`: interval of both sides. `liveness`: missed heartbeats after which a peer is gone (3 to 5).
    `service_wait`: how long a request waits for a service without any worker.
    `plain_wait`: how long a request without envelope waits in the queue at all.
    `attempts`: how many lost workers may have started a request before it fails.
    `services`: names that have a worker, or had one and still have requests. Names without a worker, for which clients
        wait, share the rest of it, and never keep the name of a worker out.
    `connections`: of each socket; fewer with a low limit of open files (`connections.py`).
    `credit_total`: sum of the credit of all workers, hence the maximum of requests in flight.
    `held_bytes`: bodies that the broker may hold for its queues and for idempotent requests in flight.
    `finals`, `finals_bytes`: answers that are kept for requests that come again.
    """

    heartbeat: float = 1.0
    liveness: int = 4
    service_wait: float = 10.0
    plain_wait: float = 60.0
    queue: int = 10_000
    queue_total: int = 50_000
    services: int = 10_000
    workers: int = 5_000
    credit_total: int = 100_000
    body_bytes: int = BODY_LIMIT + 4096
    held_bytes: int = 512 * 2**20
    attempts: int = 2
    connections: int = 10_000
    disconnected: int = 4_096
    finals: int = 4_096
    finals_bytes: int = 16 * 2**20


@dataclass(slots=True, kw_only=True)
class Counters:
    """Counts since the start, as data for logs."""

    requests: int = 0
    request_bytes: int = 0
    reply_bytes: int = 0
    dispatched: int = 0
    partials: int = 0
    finals: int = 0
    requeued: int = 0
    given_up: int = 0
    reattached: int = 0
    replayed: int = 0
    cancelled: int = 0
    mmi: int = 0
    errors_sent: int = 0
    malformed: int = 0
    unexpected: int = 0
    not_permitted: int = 0
    registrations_refused: int = 0
    after_disconnect: int = 0
    late_replies: int = 0
    dropped_plain: int = 0
    undeliverable: int = 0
    workers_registered: int = 0
    workers_lost: int = 0
    disconnects_sent: int = 0


class Sender(msgspec.Struct, gc=False):
    """A client: the socket through which it came, its routing id there, and its dialect."""

    side: Side
    client: bytes
    dialect: Dialect | None

    @property
    def reader(self) -> tuple[Side, bytes]:
        return self.side, self.client


class QueuedRequest(msgspec.Struct, eq=False, kw_only=True):
    """One request in the broker. Its room is charged to `payer`, the client that sent it first, also when another repeats it: by its
    connection, or by the name of its key.
    """

    sender: Sender
    payer: tuple[Side, bytes]
    service: bytes
    body: Frames
    envelope: RequestEnvelope | None
    key: bytes
    """Empty without an envelope."""
    deadline: float
    size: int
    queued_at: float
    seq: int = 0
    cancelled: bool = False
    attempts: int = 0
    worker: RegisteredWorker | None = None
    address: bytes = b""
    peer: bytes = b""
    """Who sent it, for a worker that is told (`Access.stamped`)."""
    repeatable: bool = False
    """Whether it may be started again. A plain one may: RFC 18 assumes idempotent workers."""


class RegisteredWorker(msgspec.Struct, eq=False, kw_only=True):
    """A registered worker and its requests in flight, by the address that the broker gave to each request."""

    id: bytes
    service: Service
    credit: int
    extended: bool
    last_seen: float
    last_sent: float
    dialect: Dialect | None = None
    in_flight: dict[bytes, QueuedRequest] = msgspec.field(default_factory=dict)
    stamp: int = 0


class FairQueue:
    """Requests by the client that pays for them: clients take turns, and of each the oldest request is next. In constant time."""

    __slots__ = ("_by_payer", "_size")

    def __init__(self) -> None:
        self._by_payer: OrderedDict[tuple[Side, bytes], OrderedDict[int, QueuedRequest]] = OrderedDict()
        """In the order of their turns; requests by seq."""
        self._size = 0

    def __len__(self) -> int:
        return self._size

    def __contains__(self, request: QueuedRequest) -> bool:
        own = self._by_payer.get(request.payer)
        return own is not None and own.get(request.seq) is request

    @property
    def next(self) -> QueuedRequest:
        """It stays in the queue. Raises StopIteration without any."""
        return next(iter(next(iter(self._by_payer.values())).values()))

    def add(self, request: QueuedRequest, *, first: bool = False) -> None:
        """`first`: it is next."""
        own = self._by_payer.setdefault(request.payer, OrderedDict())
        own[request.seq] = request
        self._size += 1
        if first:
            own.move_to_end(request.seq, last=False)
            self._by_payer.move_to_end(request.payer, last=False)

    def remove(self, request: QueuedRequest, *, served: bool = False) -> None:
        """`served`: its client has had its turn. Raises KeyError if it is not here."""
        own = self._by_payer[request.payer]
        del own[request.seq]
        self._size -= 1
        if not own:
            del self._by_payer[request.payer]
        elif served:
            self._by_payer.move_to_end(request.payer)


class KnownRequests:
    """Those with an envelope that are queued or in flight, by their key, and the streams among them by their reader."""

    __slots__ = ("by_key", "streams")

    def __init__(self) -> None:
        self.by_key: dict[bytes, QueuedRequest] = {}
        self.streams: dict[tuple[Side, bytes], dict[bytes, QueuedRequest]] = {}

    def add(self, request: QueuedRequest) -> None:
        if request.envelope is None:
            return
        self.by_key[request.key] = request
        if request.envelope.stream:
            self.streams.setdefault(request.sender.reader, {})[request.key] = request

    def remove(self, request: QueuedRequest) -> None:
        if request.key and self.by_key.get(request.key) is request:
            del self.by_key[request.key]
            self.leave_stream(request)

    def leave_stream(self, request: QueuedRequest) -> None:
        """Its reader is not that any more."""
        streams = self.streams.get(request.sender.reader)
        if streams is not None and request.key in streams:
            del streams[request.key]
            if not streams:
                del self.streams[request.sender.reader]

    def streams_of(self, side: Side) -> list[QueuedRequest]:
        """Those whose readers came through this socket."""
        return [one for (place, _), of in self.streams.items() if place is side for one in of.values()]


class KeptFinals:
    """The newest answers, by the key of their request: one whose answer was lost with its connection is not started again.

    In two generations, each with half of the room: when the newer one is full, the older one is dropped at once, in a tenth of the
    time of dropping one by one.
    """

    def __init__(self, *, most: int, most_bytes: int) -> None:
        self._most = most // 2
        self._most_bytes = most_bytes // 2
        self._newer: dict[bytes, ClientFinal] = {}
        self._older: dict[bytes, ClientFinal] = {}
        self._newer_bytes = 0

    def __len__(self) -> int:
        return len(self._newer) + len(self._older)

    def keep(self, key: bytes, final: ClientFinal, size: int) -> None:
        """`size` is that of its body. One that needs more than half of the room is not kept."""
        if size > self._most_bytes:
            return
        self._newer_bytes += size
        if self._newer_bytes > self._most_bytes or len(self._newer) >= self._most:
            self._older, self._newer, self._newer_bytes = self._newer, {}, size
        self._newer[key] = final

    def get(self, key: bytes) -> ClientFinal | None:
        return self._newer.get(key) or self._older.get(key)


@dataclass(slots=True)
class Service:
    """A name with its queue and its workers. `opener`: the client that asked before it had a worker."""

    name: bytes
    unserved_since: float
    room: Shares
    opener: tuple[Side, bytes] | None = None
    queue: FairQueue = field(default_factory=FairQueue)
    workers: dict[bytes, RegisteredWorker] = field(default_factory=dict)
    _spare: list[tuple[int, int, bytes]] = field(default_factory=list)
    _stamp: int = 0

    def offer(self, worker: RegisteredWorker) -> None:
        """Update the worker's entry after its load has changed."""
        load = len(worker.in_flight)
        if load >= worker.credit:
            worker.stamp = 0
            return
        self._stamp += 1
        worker.stamp = self._stamp
        heappush(self._spare, (load, self._stamp, worker.id))
        if len(self._spare) > 4 * len(self.workers) + 16:
            self._spare = [entry for entry in self._spare if self._is_current(entry)]
            heapify(self._spare)

    def take(self) -> RegisteredWorker | None:
        """Return the least loaded worker with spare credit, the longest waiting among equals."""
        while self._spare:
            entry = heappop(self._spare)
            if self._is_current(entry):
                return self.workers[entry[2]]
        return None

    def _is_current(self, entry: tuple[int, int, bytes]) -> bool:
        worker = self.workers.get(entry[2])
        return worker is not None and worker.stamp == entry[1]
