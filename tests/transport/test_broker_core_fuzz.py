"""Anything may arrive, in any order: the broker does not raise, stays bounded, and answers each request once."""

from __future__ import annotations

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from transport import envelope as envelopes
from transport import frames as mdp
from transport.broker_core import BrokerCore, BrokerLimits, Side
from transport.dialects import MAJORTOMO, MDP_01
from transport.envelope import ReplyEnvelope, RequestEnvelope

LIMITS = BrokerLimits(
    queue=5,
    queue_total=8,
    workers=3,
    services=4,
    credit_total=6,
    held_bytes=3000,
    body_bytes=500,
    disconnected=4,
    finals=4,
    finals_bytes=200,
)
peers = st.sampled_from([b"a", b"b", b"c", b"d"])
names = st.sampled_from([b"echo", b"other", b"third", b"mmi.service", b"mmi.x"])
dialects = st.sampled_from([None, MDP_01, MAJORTOMO])
pieces = st.one_of(
    st.sampled_from(
        [b"", b"MDPC02", b"MDPW02", b"MDPC01", b"MDPW01", b"echo", *(bytes([n]) for n in range(1, 8))]
    ),
    st.binary(max_size=40),
    st.integers(0, 30).map(lambda number: RequestEnvelope(number, b"s" * 16).frame()),
    st.integers(0, 60).map(lambda number: number.to_bytes(8, "big")),
)


class AnyOrder(RuleBasedStateMachine):
    """Clients and workers that mostly keep to the protocol, in two dialects, among noise."""

    shared = False

    def __init__(self):
        super().__init__()
        self.core = BrokerCore(limits=LIMITS, shared=self.shared)
        self.side_of_workers = Side.CLIENTS if self.shared else Side.WORKERS
        self.now = 0.0
        self.number = 0
        self.asked: dict[int, bytes] = {}
        self.open: set[int] = set()
        self.streams: set[int] = set()
        self.cancelled: set[int] = set()
        self.attempts: dict[int, int] = {}
        self.at_worker: list[tuple[bytes, bytes, int]] = []

    def take(self, sends):
        for side, sent in sends:
            frames, dialect = sent, None
            if sent[1] == b"":
                dialect = MDP_01 if sent[2] in (MDP_01.client, MDP_01.worker) else MAJORTOMO
                if side is not Side.WORKERS:  # none of these asks with an envelope
                    continue
                frames = dialect.read(sent)
            if side is not Side.WORKERS:
                command = mdp.parse_client(frames, start=1)
                envelope = envelopes.read_reply(command.body[0])
                if (
                    type(command) is mdp.ClientFinal
                    and envelope is not None
                    and envelope.session == b"o" * 16
                ):
                    assert envelope.request_id in self.open, "answered twice, or never asked"
                    self.open.discard(envelope.request_id)
                    self.attempts.pop(envelope.request_id, None)
            else:
                command = mdp.parse_worker(frames, start=1)
                if type(command) is mdp.WorkerRequest:
                    envelope = envelopes.read_request(command.body[0])
                    self.at_worker.append((frames[0], command.address, envelope, dialect))
                    if envelope is not None and envelope.session == b"o" * 16:
                        tries = self.attempts[envelope.request_id] = (
                            self.attempts.get(envelope.request_id, 0) + 1
                        )
                        assert tries <= LIMITS.attempts or envelope.request_id in self.cancelled

    def of_worker(self, worker, command, dialect=None):
        frames = command.frames() if dialect is None else dialect.for_worker(command.frames())
        if frames is not None:
            self.feed(self.side_of_workers, worker, *frames)

    def feed(self, side, *frames):
        self.take(self.core.feed(side, list(frames), self.now))

    @rule(side=st.sampled_from(Side), frames=st.lists(pieces, max_size=7))
    def noise(self, side, frames):
        self.feed(side, *frames)

    @rule(
        client=peers,
        name=names,
        size=st.integers(0, 600),
        seconds=st.sampled_from([0, 1, 50]),
        idempotent=st.booleans(),
        stream=st.booleans(),
    )
    def ask(self, *, client, name, size, seconds, idempotent, stream):
        self.number += 1
        self.open.add(self.number)
        self.asked[self.number] = name
        if stream:
            self.streams.add(self.number)
        envelope = RequestEnvelope(self.number, b"o" * 16, seconds * 1000, idempotent, stream)
        self.feed(Side.CLIENTS, client, *mdp.ClientRequest(name, [envelope.frame(), b"x" * size]).frames())

    @rule(client=peers, data=st.data())
    def ask_again_or_cancel(self, client, data):
        if not self.number:
            return
        number = data.draw(st.integers(1, self.number))
        if number not in self.open:
            return
        cancel = data.draw(st.booleans())
        envelope = RequestEnvelope(number, b"o" * 16, 5000, idempotent=True, cancel=cancel)
        if cancel:
            self.cancelled.add(number)
        self.feed(Side.CLIENTS, client, *mdp.ClientRequest(self.asked[number], [envelope.frame()]).frames())

    @rule(client=peers, name=names)
    def ask_plainly(self, client, name):
        self.feed(Side.CLIENTS, client, *mdp.ClientRequest(name, [b"plain"]).frames())

    @rule(client=peers, name=names, side=st.sampled_from([Side.PRIVATE, Side.NETWORK]))
    def ask_elsewhere(self, client, name, side):
        envelope = RequestEnvelope(1, b"e" * 16, 5000)
        self.feed(side, client, *mdp.ClientRequest(name, [envelope.frame()]).frames())

    @rule(client=peers, name=names)
    def ask_in_mdp_01(self, client, name):
        self.feed(Side.CLIENTS, client, b"", b"MDPC01", name, b"plain")

    @rule(worker=peers, name=names, credit=st.integers(1, 4), extended=st.booleans())
    def ready(self, worker, name, credit, extended):
        self.of_worker(worker, mdp.Ready(name, credit if extended else 1, extended))

    @rule(worker=peers, name=names, dialect=dialects)
    def ready_in_a_dialect(self, worker, name, dialect):
        self.of_worker(worker, mdp.Ready(name), dialect)

    @rule(worker=peers, command=st.sampled_from([mdp.Heartbeat(), mdp.Disconnect()]), dialect=dialects)
    def live_or_leave(self, worker, command, dialect):
        self.of_worker(worker, command, dialect)

    @rule(data=st.data(), final=st.booleans())
    def reply(self, data, final):
        if not self.at_worker:
            return
        number = data.draw(st.integers(0, len(self.at_worker) - 1))
        worker, address, envelope, dialect = self.at_worker.pop(number)
        body = [b"reply"]
        if envelope is not None:
            body.insert(0, ReplyEnvelope(envelope.request_id, envelope.session).frame())
        command = mdp.WorkerFinal if final else mdp.WorkerPartial
        self.of_worker(worker, command(address, body), dialect)
        if not final:
            self.at_worker.append((worker, address, envelope, dialect))

    @rule(side=st.sampled_from(Side), peer=peers)
    def peer_gone(self, side, peer):
        command = mdp.Heartbeat() if side is Side.WORKERS else mdp.ClientFinal(b"echo", [b"x"])
        if side is Side.CLIENTS:
            self.cancelled |= self.streams & self.open  # perhaps: those of this client are
        self.take(self.core.undelivered(side, [peer, *command.frames()], self.now))

    @rule(seconds=st.sampled_from([0.1, 1.0, 3.0, 20.0]))
    def pass_time(self, seconds):
        self.now += seconds
        self.take(self.core.tick(self.now))
        assert self.core.next_deadline() > self.now

    @invariant()
    def bounded(self):
        gauges = self.core.gauges
        assert 0 <= gauges["queued"] <= LIMITS.queue_total + LIMITS.credit_total
        assert 0 <= gauges["in_flight"] <= LIMITS.credit_total
        assert gauges["services"] <= 2 * LIMITS.services
        assert gauges["workers"] <= LIMITS.workers
        assert 0 <= gauges["held_bytes"] <= LIMITS.held_bytes
        assert len(self.core._disconnected) <= LIMITS.disconnected
        dispatcher = self.core._dispatcher
        kept = dispatcher.kept
        assert gauges["kept_finals"] <= LIMITS.finals
        for generation in (kept._newer, kept._older):
            assert sum(len(b"".join(final.body)) for final in generation.values()) <= LIMITS.finals_bytes / 2
        assert not (kept._newer.keys() | kept._older.keys()) & dispatcher.known.by_key.keys()
        assert len(dispatcher.known.by_key) <= gauges["queued"] + gauges["in_flight"]
        assert gauges["queued"] == sum(len(service.queue) for service in dispatcher.services.values())
        assert gauges["in_flight"] == sum(len(worker.in_flight) for worker in self.core._workers.values())
        opened = [service for service in dispatcher.services.values() if service.opener is not None]
        assert dispatcher._unserved.taken == len(opened) <= LIMITS.services
        assert not any(service.workers for service in opened)
        for service in dispatcher.services.values():
            assert service.room.taken == len(service.queue)
        for room in (dispatcher._waiting, dispatcher._held, dispatcher._unserved):
            assert room.taken == sum(room._by_peer.values())
            assert all(amount > 0 for amount in room._by_peer.values())
        streams = [key for of_client in dispatcher.known.streams.values() for key in of_client]
        assert set(streams) <= dispatcher.known.by_key.keys()
        assert len(streams) == len(set(streams))
        assert len(dispatcher._expiries) <= 4 * LIMITS.queue_total + 4 * LIMITS.credit_total + 64

    def teardown(self):
        for _ in range(400):  # all workers fall silent: every deadline passes
            self.now += 1.0
            self.take(self.core.tick(self.now))
        assert self.open <= self.cancelled, "never answered"
        assert not self.core._dispatcher._held._by_peer
        assert not self.core._dispatcher.known.streams
        kept = {"kept_finals": len(self.core._dispatcher.kept)}
        none = dict.fromkeys(("services", "workers", "queued", "in_flight", "held_bytes"), 0)
        assert self.core.gauges == none | kept


class OnOneSocket(AnyOrder):
    shared = True


TestAnyOrder, TestOnOneSocket = AnyOrder.TestCase, OnOneSocket.TestCase
TestAnyOrder.settings = TestOnOneSocket.settings = settings(stateful_step_count=50)
