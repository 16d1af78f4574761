"""The Majordomo broker (RFC 18, RFC 8), sans-IO: frames and the time go in, messages to send come out.

Rules:
1. `feed`, `tick` and `undelivered` return (side, frames) to send in order; nothing here uses a socket or a clock.
2. No frames and no order of commands make it raise. Malformed: dropped and counted. Valid but unexpected from a
   worker: DISCONNECT, and nothing further to that peer until it sends READY in a new conversation.
3. A request with an envelope ends in the worker's FINAL, or in one FINAL of the broker with an error status.
4. A request that comes again, with the same (session, request id), is not started again: while it is queued or in flight its
   replies go to the client that sent it last; after its FINAL that is sent once more, as long as it is kept.
5. The address in a worker's request is the broker's own number for the request, never a routing id: a reply finds its
   request also when one client has many in flight, and no worker can answer a request that it was not given. Who sent the
   request is part of it for the services that are told: a client has no frame that becomes a part of it.
"""

from __future__ import annotations

from dataclasses import asdict
from typing import TYPE_CHECKING, Final

import msgspec

from transport import envelope as envelopes
from transport import frames as mdp
from transport.access import Access, Peer
from transport.broker_state import BrokerLimits, Counters, QueuedRequest, RegisteredWorker, Sender, Side
from transport.dialects import EMPTY, Dialect, dialect_of
from transport.dispatch import Dispatcher, Send
from transport.envelope import ReplyEnvelope, ReplyStatus, RequestEnvelope
from transport.errors import MalformedFrames

if TYPE_CHECKING:
    from collections.abc import Callable

    from transport.frames import Frames

__all__ = ["BrokerCore", "BrokerLimits", "Send", "Side"]

_MMI: Final = b"mmi."
_NOT_PERMITTED: Final = b"this service is not reached through the socket that is open to all clients"
_UNKNOWN_KEY: Final = b"the key of this connection is not known any more"
_HEARTBEAT: Final = mdp.Heartbeat().frames()
_DISCONNECT: Final = mdp.Disconnect().frames()


class BrokerCore:
    """The broker's whole state. `now` is any monotonic clock, in seconds. `shared`: workers come through the socket of clients."""

    def __init__(
        self,
        *,
        limits: BrokerLimits | None = None,
        access: Access | None = None,
        shared: bool = False,
        now: float = 0.0,
    ) -> None:
        self.limits = limits or BrokerLimits()
        self.access = access or Access()
        self._shared = shared
        self.counters = Counters()
        self._dispatcher = Dispatcher(limits=self.limits, counters=self.counters)
        self._workers: dict[bytes, RegisteredWorker] = {}
        self._credit_total = 0
        self._next_heartbeat = now + self.limits.heartbeat
        self._disconnected: dict[bytes, None] = {}
        self.report: Callable[[], dict[str, int]] = lambda: {**asdict(self.counters), **self.gauges}
        """What ``mmi.counters`` is answered with."""
        self.admit: Callable[[bytes], Callable[[Peer | None], bool]] = lambda _: lambda _: True
        """What ``mmi.members`` calls with the new ones; returns who is one. It may raise MsgspecError."""

    def __repr__(self) -> str:
        return f"<BrokerCore {' '.join(f'{name}={value}' for name, value in self.gauges.items())}>"

    @property
    def gauges(self) -> dict[str, int]:
        """The current sizes of all that is bounded."""
        dispatcher = self._dispatcher
        return {
            "services": len(dispatcher.services),
            "workers": len(self._workers),
            "queued": dispatcher.queued,
            "in_flight": dispatcher.in_flight,
            "held_bytes": dispatcher.held_bytes,
            "kept_finals": len(dispatcher.kept),
        }

    # -- input ----------------------------------------------------------------------------------------------

    def feed(self, side: Side, frames: Frames, now: float, peer: Callable[[], Peer] = Peer) -> list[Send]:
        """Take one message as the ROUTER of `side` received it, routing id first. `peer` returns who sent it."""
        out = self._dispatcher.out = []
        has_workers = side is Side.WORKERS or (self._shared and side is Side.CLIENTS)
        try:
            dialect = None
            if len(frames) > 1 and frames[1] == EMPTY:
                dialect = dialect_of(frames)
                frames = dialect.read(frames)
            if side is Side.WORKERS or (has_workers and mdp.is_of_worker(frames)):
                self._from_worker(frames, dialect, now)
            else:
                self._from_client(side, dialect, frames, now, peer)
        except MalformedFrames:
            self.counters.malformed += 1
            if has_workers:
                self._take_as_invalid(frames, now)
        return out

    def tick(self, now: float) -> list[Send]:
        """Handle what is due: heartbeats, dead workers, expired requests."""
        out = self._dispatcher.out = []
        if now >= self._next_heartbeat:
            self._send_heartbeats(now)
        self._dispatcher.expire(now)
        return out

    def next_deadline(self) -> float:
        """When `tick` is due at the latest."""
        return min(self._next_heartbeat, self._dispatcher.next_expiry)

    def undelivered(self, side: Side, frames: Frames, now: float) -> list[Send]:
        """Note that this message could not be delivered: the worker is lost, or the reader of streams is gone."""
        out = self._dispatcher.out = []
        self.counters.undeliverable += 1
        peer = frames[0]
        if type(peer) is not bytes:
            return out
        if side is Side.WORKERS:
            worker = self._workers.get(peer)
            if worker is not None:
                self._lose(worker, now)
        else:
            self._dispatcher.client_gone((side, peer))
        return out

    def probe(self) -> list[Send]:
        """Heartbeats for all workers: a connection broke, and only a send shows which one."""
        return self._tell_all(_HEARTBEAT)

    def close(self) -> list[Send]:
        """DISCONNECT for all workers, so that they reconnect to the next broker."""
        return self._tell_all(_DISCONNECT)

    def _tell_all(self, frames: Frames) -> list[Send]:
        out = self._dispatcher.out = []
        for worker in self._workers.values():
            self._dispatcher.tell(worker.id, worker.dialect, frames)
        return out

    # -- clients --------------------------------------------------------------------------------------------

    def _from_client(
        self, side: Side, dialect: Dialect | None, frames: Frames, now: float, peer: Callable[[], Peer]
    ) -> None:
        command = mdp.parse_client(frames, start=1)
        client = frames[0]
        if type(command) is not mdp.ClientRequest or type(client) is not bytes:
            self.counters.unexpected += 1
            return
        sender = Sender(side, client, dialect)
        body = command.body
        name = command.service
        first = body[0]
        envelope = envelopes.read_request(first)
        who = peer() if side is Side.NETWORK else None
        if side is not Side.PRIVATE and (refusal := self._refusal(name, who)):
            self._refuse(sender, name, envelope, refusal)
            return
        key = b""
        if envelope is not None and type(first) is bytes:
            key = envelopes.identity(first) + name
            if self._is_known(key, sender, envelope, now):
                return
        self.counters.requests += 1
        if name.startswith(_MMI):
            self._answer_mmi(sender, name, body, envelope)
            return
        wait = self.limits.plain_wait if envelope is None else envelope.budget_seconds
        request = QueuedRequest(
            sender=sender,
            payer=(side, client if who is None else who.name.encode()),
            service=name,
            body=body,
            envelope=envelope,
            key=key,
            deadline=now + wait,
            size=sum(map(len, body)),
            queued_at=now,
            peer=(who or peer()).stamp() if name in self.access.stamped else b"",
            repeatable=envelope is None or envelope.idempotent,
        )
        self._dispatcher.accept(request, now)

    def _is_known(self, key: bytes, sender: Sender, envelope: RequestEnvelope, now: float) -> bool:
        """Whether nothing new is to be started: for a request that is here, or was answered, and for a cancel."""
        dispatcher = self._dispatcher
        known = dispatcher.known.by_key.get(key)
        if envelope.cancel:
            if known is not None:
                dispatcher.cancel(known)
            return True
        if known is not None:
            dispatcher.reattach(known, sender, envelope, now)
            return True
        kept = dispatcher.kept.get(key)
        if kept is None:
            return False
        self.counters.replayed += 1
        dispatcher.answer(sender, kept)
        return True

    def _refusal(self, name: bytes, who: Peer | None) -> bytes:
        """Why a client, of this key where one is needed, may not ask for the service; empty if it may."""
        if who is not None and not who.name:
            return _UNKNOWN_KEY
        return b"" if self.access.may_ask(name) else _NOT_PERMITTED

    def _refuse(self, sender: Sender, name: bytes, envelope: RequestEnvelope | None, detail: bytes) -> None:
        self.counters.not_permitted += 1
        if envelope is None or envelope.cancel:
            return
        status = int(ReplyStatus.NOT_PERMITTED)
        reply: Frames = [ReplyEnvelope(envelope.request_id, envelope.session, status).frame(), detail]
        self._dispatcher.answer(sender, mdp.ClientFinal(name, reply))

    def _answer_mmi(
        self, sender: Sender, name: bytes, body: Frames, envelope: RequestEnvelope | None
    ) -> None:
        self.counters.mmi += 1
        code = b"501"
        if name == b"mmi.service":
            asked = body[0] if envelope is None else body[-1]
            service = self._dispatcher.services.get(asked) if type(asked) is bytes else None
            code = b"200" if service is not None and service.workers else b"404"
        reply: Frames = [code]
        if name == b"mmi.counters" and sender.side is Side.PRIVATE:
            reply = [b"200", msgspec.msgpack.encode(self.report())]
        elif name == b"mmi.members" and sender.side is Side.PRIVATE:
            reply = [self._admit(mdp.plain(body))]
        if envelope is not None:
            reply.insert(0, ReplyEnvelope(envelope.request_id, envelope.session).frame())
        self._dispatcher.answer(sender, mdp.ClientFinal(name, reply))

    def _admit(self, body: list[bytes]) -> bytes:
        """Other keys count from now on; what peers have asked for that are not known any more ends. Proven by the secret."""
        secret = self.access.secret
        if secret is None or len(body) != 3 or not secret.matches(body[1]):  # envelope, secret, members
            return b"403"
        try:
            knows = self.admit(body[2])
        except msgspec.MsgspecError:
            return b"400"
        for request in self._dispatcher.known.streams_of(Side.NETWORK):
            if not knows(Peer.read(request.peer)):
                self._dispatcher.cancel(request)
                self._refuse(request.sender, request.service, request.envelope, _UNKNOWN_KEY)
        return b"200"

    # -- workers --------------------------------------------------------------------------------------------

    def _from_worker(self, frames: Frames, dialect: Dialect | None, now: float) -> None:
        command = mdp.parse_worker(frames, start=1)
        routing_id = frames[0]
        if type(routing_id) is not bytes:
            raise MalformedFrames("routing id too large")
        worker = self._workers.get(routing_id)
        if worker is None:
            self._from_unregistered(routing_id, command, dialect, now)
            return
        worker.last_seen = now
        if type(command) is mdp.WorkerFinal:
            expected = self._dispatcher.final(worker, command.address, command.body, now)
        elif type(command) is mdp.WorkerPartial:
            expected = self._dispatcher.partial(worker, command.address, command.body)
        elif type(command) is mdp.Disconnect:
            self._lose(worker, now)
            return
        else:
            expected = type(command) is mdp.Heartbeat
        if not expected:
            self.counters.unexpected += 1
            self._disconnect(routing_id, dialect)
            self._lose(worker, now)

    def _take_as_invalid(self, frames: Frames, now: float) -> None:
        """Its sender is not to be relied on, if it is a worker."""
        worker = self._workers.get(frames[0]) if frames and type(frames[0]) is bytes else None
        if worker is not None:
            self._disconnect(worker.id, worker.dialect)
            self._lose(worker, now)

    def _from_unregistered(
        self, routing_id: bytes, command: mdp.ToOrFromWorker, dialect: Dialect | None, now: float
    ) -> None:
        if type(command) is mdp.Ready:
            self._disconnected.pop(routing_id, None)
            self._register(routing_id, command, dialect, now)
        elif routing_id in self._disconnected:
            self.counters.after_disconnect += 1
        elif type(command) is not mdp.Disconnect:
            self.counters.unexpected += 1
            self._disconnect(routing_id, dialect)

    def _register(self, routing_id: bytes, ready: mdp.Ready, dialect: Dialect | None, now: float) -> None:
        limits = self.limits
        if not self.access.may_register(ready.service, b"" if ready.secret is None else ready.secret.value):
            self.counters.registrations_refused += 1
            self._disconnect(routing_id, dialect)
            return
        if (
            ready.service.startswith(_MMI)
            or len(self._workers) >= limits.workers
            or self._credit_total + ready.credit > limits.credit_total
            or not self._dispatcher.takes_service(ready.service)
        ):
            self.counters.unexpected += 1
            self._disconnect(routing_id, dialect)
            return
        service = self._dispatcher.service_of_worker(ready.service, now)
        worker = RegisteredWorker(
            id=routing_id,
            service=service,
            credit=ready.credit,
            extended=ready.extended,
            last_seen=now,
            last_sent=now,
            dialect=dialect,
        )
        self._workers[routing_id] = worker
        self._credit_total += worker.credit
        self.counters.workers_registered += 1
        self._dispatcher.tell(routing_id, dialect, _HEARTBEAT)
        self._dispatcher.add(worker, now)

    def _disconnect(self, routing_id: bytes, dialect: Dialect | None) -> None:
        self.counters.disconnects_sent += 1
        self._dispatcher.tell(routing_id, dialect, _DISCONNECT)
        self._disconnected[routing_id] = None
        if len(self._disconnected) > self.limits.disconnected:
            del self._disconnected[next(iter(self._disconnected))]

    def _lose(self, worker: RegisteredWorker, now: float) -> None:
        self.counters.workers_lost += 1
        del self._workers[worker.id]
        self._credit_total -= worker.credit
        self._dispatcher.remove(worker, now)

    def _send_heartbeats(self, now: float) -> None:
        interval = self.limits.heartbeat
        # After a pause of this process, messages of the workers have not been read yet.
        was_paused = now > self._next_heartbeat + interval
        self._next_heartbeat = now + interval
        for worker in list(self._workers.values()):
            if was_paused:
                worker.last_seen = now
            if now - worker.last_seen > interval * self.limits.liveness:
                self._lose(worker, now)
            elif now - worker.last_sent > interval / 2:
                worker.last_sent = now
                self._dispatcher.tell(worker.id, worker.dialect, _HEARTBEAT)
