"""The broker's dispatch, sans-IO: requests wait in the queue of their service until a worker has spare credit.

Rules:
1. An accepted request ends in one of four ways: its worker's FINAL, a failure with a status, a cancel of its client, or
   (only of plain clients, which can't read a status) dropped and counted.
2. Clients take turns, each with its oldest request, which goes to the least loaded worker.
3. When a worker is lost, its repeatable requests are next, the others fail with WORKER_LOST. So do those for which no other worker
   comes in time, and requests that have lost `BrokerLimits.attempts` workers: they may be the cause. That includes all requests of the worker:
   it starts as many as it has credit for at once, without a report, so the guilty one is unknown.
4. Room in queues, held bytes and names without a worker are shared among the clients (`shares.py`).
5. Messages to send are appended to `out`; nothing is ever sent from here.
"""

from __future__ import annotations

from heapq import heapify, heappop, heappush
from math import inf
from typing import TYPE_CHECKING, Final, TypeAlias, TypeVar

from transport import envelope as envelopes
from transport import frames as mdp
from transport.broker_state import (
    BrokerLimits,
    Counters,
    KeptFinals,
    KnownRequests,
    QueuedRequest,
    RegisteredWorker,
    Sender,
    Service,
    Side,
)
from transport.envelope import ReplyEnvelope, ReplyStatus, RequestEnvelope
from transport.shares import Shares

if TYPE_CHECKING:
    from transport.dialects import Dialect
    from transport.frames import Frames


R = TypeVar("R", mdp.ClientPartial, mdp.ClientFinal)
Send: TypeAlias = "tuple[Side, Frames]"

_NOBODY: Final = b"no worker is registered for this service"
_BUSY: Final = b"all workers of this service were busy until the deadline"
_LOST: Final = b"the worker was lost while it had this request"
_LEFT: Final = b"the worker was lost while it had this request, and no other one came"
_GIVEN_UP: Final = (
    b"%d workers were lost while they had this request, one after the other; it is not started again"
)
_FULL: Final = (
    b"%d requests wait for this service, %d in all, of %d bytes; a client may take half of the room"
)
_NAMES: Final = b"%d services without a worker are waited for; a client may take half of the room"


class Dispatcher:
    """Services, their queues and their workers. `out` are the messages to send, in order."""

    def __init__(self, *, limits: BrokerLimits, counters: Counters) -> None:
        self.limits = limits
        self.counters = counters
        self.out: list[Send] = []
        self.services: dict[bytes, Service] = {}
        self.in_flight = 0
        self.known = KnownRequests()
        self.kept = KeptFinals(most=limits.finals, most_bytes=limits.finals_bytes)
        self._waiting = Shares(limits.queue_total)
        self._held = Shares(limits.held_bytes)
        self._unserved = Shares(limits.services)
        self._expiries: list[tuple[float, int, QueuedRequest]] = []
        self._seq = 0

    @property
    def queued(self) -> int:
        """Requests in all queues."""
        return self._waiting.taken

    @property
    def held_bytes(self) -> int:
        """Bytes of the bodies that are held."""
        return self._held.taken

    @property
    def next_expiry(self) -> float:
        """When `expire` is due at the latest."""
        return self._expiries[0][0] if self._expiries else inf

    def tell(self, worker_id: bytes, dialect: Dialect | None, frames: Frames) -> None:
        """Send a command to a worker, if its dialect has it."""
        told = frames if dialect is None else dialect.for_worker(frames)
        if told is not None:
            self.out.append((Side.WORKERS, [worker_id, *told]))

    def answer(self, sender: Sender, reply: mdp.ClientCommand) -> None:
        """Send a reply to a client, if its dialect has it."""
        frames = reply.frames()
        told = frames if sender.dialect is None else sender.dialect.for_client(frames)
        if told is not None:
            self.out.append((sender.side, [sender.client, *told]))

    # -- clients --------------------------------------------------------------------------------------------

    def accept(self, request: QueuedRequest, now: float) -> None:
        """Accept a new request: it goes to a worker, into the queue, or fails at once."""
        limits = self.limits
        service = self.services.get(request.service)
        self.counters.request_bytes += request.size
        if request.size > limits.body_bytes:
            self._fail(
                request,
                ReplyStatus.TOO_LARGE,
                b"%d bytes, %d are allowed" % (request.size, limits.body_bytes),
            )
            return
        if service is None:
            if not self._unserved.fits(request.payer, reserved=self._served):
                self._fail(request, ReplyStatus.QUEUE_FULL, _NAMES % self._unserved.taken)
                return
            service = self._open(request.service, now)
            service.opener = request.payer
            self._unserved.take(request.payer)
        self._seq += 1
        request.seq = self._seq
        room = self._held.fits(request.payer, request.size)
        if room and not service.queue:
            worker = service.take()
            if worker is not None:
                self.known.add(request)
                if request.repeatable:
                    self._held.take(request.payer, request.size)
                self._dispatch(worker, request, now)
                return
        if not (room and service.room.fits(request.payer) and self._waiting.fits(request.payer)):
            self._fail(
                request, ReplyStatus.QUEUE_FULL, _FULL % (len(service.queue), self.queued, self.held_bytes)
            )
            self._drop_if_idle(service)
            return
        self.known.add(request)
        self._held.take(request.payer, request.size)
        self._enqueue(service, request, now)

    def reattach(self, request: QueuedRequest, sender: Sender, envelope: RequestEnvelope, now: float) -> None:
        """The client has sent the same request again, perhaps over another connection."""
        self.counters.reattached += 1
        self.known.leave_stream(request)
        request.sender = sender
        request.cancelled = False
        self.known.add(request)
        if envelope.budget_ms:
            request.deadline = now + envelope.budget_ms / 1000
            if self._is_queued(request):
                self._schedule_review(request, min(request.deadline, now + self.limits.service_wait))

    def cancel(self, request: QueuedRequest) -> None:
        """The client does not wait for this reply any more."""
        if request.cancelled:
            return
        self.counters.cancelled += 1
        worker = request.worker
        if worker is None:
            service = self.services[request.service]
            self._unqueue(service, request)
            self._held.give_back(request.payer, request.size)
            self.known.remove(request)
            self._drop_if_idle(service)
            return
        request.cancelled = True
        if worker.extended:
            self.tell(worker.id, worker.dialect, mdp.Cancel(request.address).frames())

    def client_gone(self, client: tuple[Side, bytes]) -> None:
        """`client` can't be reached: its streams have no reader. Plain requests run to their end."""
        for request in self.known.streams.pop(client, {}).values():
            self.cancel(request)

    # -- workers --------------------------------------------------------------------------------------------

    def takes_service(self, name: bytes) -> bool:
        """Whether there is room for a worker of this name, however many names clients wait for."""
        service = self.services.get(name)
        return self._served < self.limits.services or (service is not None and service.opener is None)

    def service_of_worker(self, name: bytes, now: float) -> Service:
        """Return the service that a worker registers for."""
        service = self.services.get(name) or self._open(name, now)
        self._release_name(service)
        return service

    def add(self, worker: RegisteredWorker, now: float) -> None:
        """Give requests to a new worker of `worker.service`."""
        worker.service.workers[worker.id] = worker
        worker.service.offer(worker)
        self._serve(worker.service, now)

    def remove(self, worker: RegisteredWorker, now: float) -> None:
        """Remove a lost worker; its requests fail or are queued again."""
        service = worker.service
        del service.workers[worker.id]
        if not service.workers:
            service.unserved_since = now
        self.in_flight -= len(worker.in_flight)
        for request in sorted(worker.in_flight.values(), key=lambda held: held.seq, reverse=True):
            if request.repeatable and not request.cancelled and request.attempts < self.limits.attempts:
                request.worker = None
                self.counters.requeued += 1
                self._enqueue(service, request, now, first=True)
                continue
            self._release(request)
            if request.cancelled:
                self.known.remove(request)
            elif not request.repeatable:
                self._fail(request, ReplyStatus.WORKER_LOST, _LOST)
            else:
                self.counters.given_up += 1
                self._fail(request, ReplyStatus.WORKER_LOST, _GIVEN_UP % request.attempts)
        worker.in_flight.clear()
        self._serve(service, now)
        self._drop_if_idle(service)

    def partial(self, worker: RegisteredWorker, address: bytes, body: Frames) -> bool:
        """Pass a part on. False when the worker has no such request."""
        request = worker.in_flight.get(address)
        if request is None:
            return False
        if request.cancelled:
            self.counters.late_replies += 1
        else:
            self.counters.partials += 1
            self._pass_on(worker, request, mdp.ClientPartial, body)
        return True

    def final(self, worker: RegisteredWorker, address: bytes, body: Frames, now: float) -> bool:
        """Pass the reply on and give the worker the next request. False when it has no such request."""
        request = worker.in_flight.pop(address, None)
        if request is None:
            return False
        self.in_flight -= 1
        self._release(request)
        self.known.remove(request)
        if request.cancelled:
            self.counters.late_replies += 1
        else:
            self.counters.finals += 1
            reply, size = self._pass_on(worker, request, mdp.ClientFinal, body)
            if request.envelope is not None and not request.envelope.stream:
                self.kept.keep(request.key, reply, size)
        service = worker.service
        service.offer(worker)
        if service.queue:
            self._serve(service, now)
        return True

    def _pass_on(
        self, worker: RegisteredWorker, request: QueuedRequest, kind: type[R], body: Frames
    ) -> tuple[R, int]:
        """Returns the reply, and its size."""
        size = sum(map(len, body))
        self.counters.reply_bytes += size
        if not worker.extended and request.envelope is not None:
            # A strict worker does not know envelopes: its parts are in order, but not numbered (sequence 0).
            envelope = ReplyEnvelope(request.envelope.request_id, request.envelope.session, sequence=0)
            body = [envelope.frame(), *body]
        reply = kind(request.service, body)
        self.answer(request.sender, reply)
        return reply, size

    # -- queue ----------------------------------------------------------------------------------------------

    def expire(self, now: float) -> None:
        """Review the queued requests that are due."""
        while self._expiries and self._expiries[0][0] <= now:
            _, _, request = heappop(self._expiries)
            if self._is_queued(request):
                self._review(request, now)

    def _enqueue(self, service: Service, request: QueuedRequest, now: float, *, first: bool = False) -> None:
        """Its body is held."""
        request.queued_at = now
        service.queue.add(request, first=first)
        service.room.take(request.payer)
        self._waiting.take(request.payer)
        self._schedule_review(request, min(request.deadline, now + self.limits.service_wait))

    def _unqueue(self, service: Service, request: QueuedRequest, *, served: bool = False) -> None:
        service.queue.remove(request, served=served)
        service.room.give_back(request.payer)
        self._waiting.give_back(request.payer)

    def _serve(self, service: Service, now: float) -> None:
        while service.queue:
            request = service.queue.next
            if request.deadline <= now:
                self._review(request, now)
                continue
            worker = service.take()
            if worker is None:
                return
            self._unqueue(service, request, served=True)
            if not request.repeatable:
                self._held.give_back(request.payer, request.size)
            self._dispatch(worker, request, now)

    def _dispatch(self, worker: RegisteredWorker, request: QueuedRequest, now: float) -> None:
        self.counters.dispatched += 1
        self._seq += 1
        address = self._seq.to_bytes(mdp.NUMBER_BYTES, "big") + request.peer
        worker.in_flight[address] = request
        worker.last_sent = now
        worker.service.offer(worker)
        request.worker = worker
        request.address = address
        request.attempts += 1
        self.in_flight += 1
        body = request.body
        if not request.repeatable:
            request.body = []
        if request.envelope is not None:
            if not worker.extended:
                body = body[1:] if len(body) > 1 else [b""]
            elif request.queued_at < now and request.envelope.budget_ms:
                budget = envelopes.milliseconds(request.deadline - now)
                body = [envelopes.with_budget(body[0], budget), *body[1:]]  # type: ignore[arg-type]
        self.tell(worker.id, worker.dialect, mdp.WorkerRequest(address, body).frames())

    def _release(self, request: QueuedRequest) -> None:
        request.worker = None
        if request.repeatable:
            self._held.give_back(request.payer, request.size)

    def _schedule_review(self, request: QueuedRequest, due: float) -> None:
        """Review a queued request at `due`. Entries of requests that left the queue are removed when they are the majority."""
        self._seq += 1
        heappush(self._expiries, (due, self._seq, request))
        if len(self._expiries) > 4 * self.queued + 64:
            entries = sorted((entry for entry in self._expiries if self._is_queued(entry[2])), reverse=True)
            self._expiries = list({entry[2].seq: entry for entry in entries}.values())
            heapify(self._expiries)

    def _review(self, request: QueuedRequest, now: float) -> None:
        """Check a queued request: it has expired, its service has no worker for too long, or it continues to wait."""
        service = self.services[request.service]
        patience = self.limits.service_wait
        missing_since = now if service.workers else max(request.queued_at, service.unserved_since)
        nobody = (
            (ReplyStatus.WORKER_LOST, _LEFT) if request.attempts else (ReplyStatus.SERVICE_NOT_FOUND, _NOBODY)
        )
        if missing_since + patience <= now:
            end, detail = nobody
        elif request.deadline <= now:
            end, detail = (ReplyStatus.EXPIRED, _BUSY) if service.workers else nobody
        else:
            self._schedule_review(request, min(request.deadline, missing_since + patience))
            return
        self._unqueue(service, request)
        self._held.give_back(request.payer, request.size)
        self._fail(request, end, detail)
        self._drop_if_idle(service)

    def _is_queued(self, request: QueuedRequest) -> bool:
        service = self.services.get(request.service)
        return service is not None and request in service.queue

    def _fail(self, request: QueuedRequest, status: ReplyStatus, detail: bytes) -> None:
        self.known.remove(request)
        if request.envelope is None:
            self.counters.dropped_plain += 1
            return
        self.counters.errors_sent += 1
        envelope = ReplyEnvelope(request.envelope.request_id, request.envelope.session, int(status))
        self.answer(request.sender, mdp.ClientFinal(request.service, [envelope.frame(), detail]))

    # -- services -------------------------------------------------------------------------------------------

    @property
    def _served(self) -> int:
        """Names that have a worker, or had one and still have requests."""
        return len(self.services) - self._unserved.taken

    def _open(self, name: bytes, now: float) -> Service:
        service = self.services[name] = Service(name, now, Shares(self.limits.queue))
        return service

    def _drop_if_idle(self, service: Service) -> None:
        if not service.queue and not service.workers and self.services.pop(service.name, None) is not None:
            self._release_name(service)

    def _release_name(self, service: Service) -> None:
        if service.opener is not None:
            self._unserved.give_back(service.opener)
            service.opener = None
