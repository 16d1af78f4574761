"""The broker as RFC 18 and RFC 8 have it, and as its own rules add. Time is a number here."""

from __future__ import annotations

import pytest

from transport import envelope as envelopes
from transport import frames as mdp
from transport.broker_core import BrokerCore, Limits, Side
from transport.envelope import ReplyEnvelope, RequestEnvelope, Status

SESSION = b"s" * 16
HEARTBEAT = mdp.Heartbeat().frames()
DISCONNECT = mdp.Disconnect().frames()


class Stage:
    """A core, a clock, and what was sent, by peer."""

    def __init__(self, **limits):
        self.core = BrokerCore(limits=Limits(**limits))
        self.now = 0.0
        self.sent: dict[bytes, list] = {}

    def _note(self, sends):
        for side, frames in sends:
            parse = mdp.parse_client if side is Side.CLIENTS else mdp.parse_worker
            self.sent.setdefault(frames[0], []).append(parse(frames, start=1))

    def client(self, who, command):
        self._note(self.core.feed(Side.CLIENTS, [who, *command.frames()], self.now))

    def worker(self, who, command):
        self._note(self.core.feed(Side.WORKERS, [who, *command.frames()], self.now))

    def raw(self, side, *frames):
        self._note(self.core.feed(side, list(frames), self.now))

    def pass_time(self, seconds):
        end = self.now + seconds
        while (due := self.core.next_deadline()) <= end:
            self.now = max(self.now, due)
            self._note(self.core.tick(self.now))
        self.now = end

    def undelivered(self, side, *frames):
        self._note(self.core.undelivered(side, list(frames), self.now))

    def take(self, who):
        """What `who` was sent since the last look, heartbeats aside."""
        return [command for command in self.sent.pop(who, []) if type(command) is not mdp.Heartbeat]

    # -- in the words of our own peers ----------------------------------------------------------------------

    def ready(self, who, service=b"echo", credit=1, *, extended=True):
        self.worker(who, mdp.Ready(service, credit, extended))
        self.take(who)

    def ask(self, who, number, *, service=b"echo", body=b"body", seconds=30.0, session=SESSION, **flags):
        envelope = RequestEnvelope(number, session, int(seconds * 1000), **flags)
        self.client(who, mdp.ClientRequest(service, [envelope.frame(), body]))

    def request_at(self, who):
        """The one request that `who` was sent: (address, request id, body)."""
        (command,) = self.take(who)
        assert type(command) is mdp.WorkerRequest
        return command.address, envelopes.read_request(command.body[0]).request_id, command.body[1:]

    def answer(self, who, address, number, *, body=b"reply", kind=mdp.WorkerFinal, sequence=1):
        self.worker(who, kind(address, [ReplyEnvelope(number, SESSION, 0, sequence).frame(), body]))

    def answers(self, who):
        """(request id, status, rest of the body) of each FINAL that `who` was sent."""
        found = []
        for command in self.take(who):
            assert type(command) is mdp.ClientFinal
            envelope = envelopes.read_reply(command.body[0])
            found.append((envelope.request_id, Status(envelope.status), command.body[1:]))
        return found


# -- request and reply --------------------------------------------------------------------------------------


def test_a_request_goes_to_the_worker_and_its_reply_to_the_client_with_the_service_inserted():
    stage = Stage()
    stage.worker(b"w", mdp.Ready(b"echo"))
    stage.client(b"c", mdp.ClientRequest(b"echo", [b"one", b"two"]))
    (request,) = stage.take(b"w")
    assert request.body == [b"one", b"two"]
    stage.worker(b"w", mdp.WorkerPartial(request.address, [b"part"]))
    stage.worker(b"w", mdp.WorkerFinal(request.address, [b"end"]))
    assert stage.take(b"c") == [mdp.ClientPartial(b"echo", [b"part"]), mdp.ClientFinal(b"echo", [b"end"])]


def test_a_strict_worker_holds_one_request_and_gets_the_oldest_next():
    stage = Stage()
    stage.ready(b"w", extended=False)
    for number in range(3):
        stage.client(b"c%d" % number, mdp.ClientRequest(b"echo", [b"%d" % number]))
    for number in range(3):
        (request,) = stage.take(b"w")
        assert request.body == [b"%d" % number]
        stage.worker(b"w", mdp.WorkerFinal(request.address, [b"done %d" % number]))
        assert stage.take(b"c%d" % number) == [mdp.ClientFinal(b"echo", [b"done %d" % number])]


def test_a_worker_holds_as_many_as_its_credit_and_answers_in_any_order():
    stage = Stage()
    stage.ready(b"w", credit=3)
    for number in range(5):
        stage.ask(b"c", number)
    held = stage.take(b"w")
    assert len(held) == 3
    for request in reversed(held):
        number = envelopes.read_request(request.body[0]).request_id
        stage.answer(b"w", request.address, number)
    assert [number for number, _, _ in stage.answers(b"c")] == [2, 1, 0]
    assert len(stage.take(b"w")) == 2


def test_the_least_loaded_worker_is_next():
    stage = Stage()
    stage.ready(b"w1", credit=4)
    stage.ready(b"w2", credit=4)
    for number in range(6):
        stage.ask(b"c", number)
    held = stage.take(b"w2")
    assert len(stage.take(b"w1")) == len(held) == 3
    for request in held:
        stage.answer(b"w2", request.address, envelopes.read_request(request.body[0]).request_id)
    stage.ask(b"c", 7)
    assert stage.take(b"w1") == []
    assert len(stage.take(b"w2")) == 1


def test_the_time_in_the_queue_is_taken_from_the_budget():
    stage = Stage()
    stage.ask(b"c", 1, seconds=5)
    stage.pass_time(2)
    stage.worker(b"w", mdp.Ready(b"echo", 1, extended=True))
    (request,) = stage.take(b"w")
    assert envelopes.read_request(request.body[0]).budget_ms == pytest.approx(3000, abs=2)


def test_a_strict_worker_never_sees_an_envelope_and_its_client_always_does():
    stage = Stage()
    stage.ready(b"w", extended=False)
    stage.ask(b"c", 9, body=b"bare")
    (request,) = stage.take(b"w")
    assert request.body == [b"bare"]
    stage.worker(b"w", mdp.WorkerFinal(request.address, [b"reply"]))
    assert stage.answers(b"c") == [(9, Status.OK, [b"reply"])]


# -- every command of a worker in every state of it ---------------------------------------------------------

WORKER_COMMANDS = {
    "READY": mdp.Ready(b"echo"),
    "READY mmi": mdp.Ready(b"mmi.service"),
    "REQUEST": mdp.WorkerRequest(b"address", [b"x"]),
    "PARTIAL of nothing": mdp.WorkerPartial(b"address", [b"x"]),
    "FINAL of nothing": mdp.WorkerFinal(b"address", [b"x"]),
    "HEARTBEAT": mdp.Heartbeat(),
    "DISCONNECT": mdp.Disconnect(),
    "CANCEL": mdp.Cancel(b"address"),
}
SAYS_DISCONNECT, SAYS_NOTHING, REGISTERS = "disconnect", "nothing", "registers"
EXPECTED = {
    ("stranger", "READY"): REGISTERS,
    ("stranger", "READY mmi"): SAYS_DISCONNECT,
    ("stranger", "REQUEST"): SAYS_DISCONNECT,
    ("stranger", "PARTIAL of nothing"): SAYS_DISCONNECT,
    ("stranger", "FINAL of nothing"): SAYS_DISCONNECT,
    ("stranger", "HEARTBEAT"): SAYS_DISCONNECT,
    ("stranger", "DISCONNECT"): SAYS_NOTHING,
    ("stranger", "CANCEL"): SAYS_DISCONNECT,
    **{
        (state, name): SAYS_NOTHING if name in {"HEARTBEAT", "DISCONNECT"} else SAYS_DISCONNECT
        for state in ("idle", "busy")
        for name in WORKER_COMMANDS
    },
    **{("disconnected", name): SAYS_NOTHING for name in WORKER_COMMANDS},
    ("disconnected", "READY"): REGISTERS,  # a new conversation
    ("disconnected", "READY mmi"): SAYS_DISCONNECT,
}


@pytest.mark.parametrize("name", WORKER_COMMANDS)
@pytest.mark.parametrize("state", ["stranger", "idle", "busy", "disconnected"])
def test_every_command_in_every_state_of_a_worker(state, name):
    stage = Stage()
    if state in {"idle", "busy"}:
        stage.ready(b"w")
    if state == "busy":
        stage.ask(b"c", 1)
    if state == "disconnected":
        stage.worker(b"w", mdp.Heartbeat())
    stage.sent.clear()
    stage.worker(b"w", WORKER_COMMANDS[name])
    lost = [(1, Status.WORKER_LOST, [b"the worker was lost while it had this request"])]
    assert stage.answers(b"c") == (lost if state == "busy" and name != "HEARTBEAT" else [])
    match EXPECTED[state, name]:
        case "disconnect":
            assert stage.sent[b"w"] == [mdp.Disconnect()]
            stage.sent.clear()
            stage.worker(b"w", mdp.Heartbeat())
            stage.pass_time(20)
            assert b"w" not in stage.sent, "nothing further after DISCONNECT"
        case "nothing":
            assert b"w" not in stage.sent
        case "registers":
            assert stage.sent[b"w"] == [mdp.Heartbeat()]
            assert stage.core.gauges["workers"] == 1


@pytest.mark.parametrize("command", [mdp.ClientPartial(b"echo", [b"x"]), mdp.ClientFinal(b"echo", [b"x"])])
def test_what_only_a_broker_says_is_not_taken_from_a_client(command):
    stage = Stage()
    stage.client(b"c", command)
    assert (stage.sent, stage.core.counters.unexpected) == ({}, 1)


def test_malformed_is_dropped_and_counted_and_changes_nothing():
    stage = Stage()
    stage.ready(b"w")
    for side in Side:
        stage.raw(side)
        stage.raw(side, b"w")
        stage.raw(side, b"w", b"MDPW02", b"\x09")
        stage.raw(side, b"w", b"MDPC02", b"\x01", b"echo")
    stage.raw(Side.CLIENTS, b"c", b"MDPC02", b"\x01", b"echo", envelopes.MAGIC + b"garbage")
    assert (stage.sent, stage.core.counters.malformed) == ({}, 9)
    stage.ask(b"c", 1)
    assert stage.request_at(b"w")[1] == 1


# -- heartbeats and death -----------------------------------------------------------------------------------


def test_workers_get_heartbeats_and_a_silent_one_is_lost_after_liveness_intervals():
    stage = Stage(heartbeat=1.0, liveness=4)
    stage.ready(b"w")
    stage.pass_time(4)
    assert len(stage.sent[b"w"]) >= 3
    assert stage.core.gauges["workers"] == 1
    stage.pass_time(2)
    assert stage.core.gauges["workers"] == 0


@pytest.mark.parametrize("kind", ["heartbeat", "partial"])
def test_any_command_counts_as_a_heartbeat(kind):
    stage = Stage(heartbeat=1.0, liveness=4)
    stage.ready(b"w", credit=2)
    stage.ask(b"c", 1, seconds=100)
    address, _, _ = stage.request_at(b"w")
    for sequence in range(1, 10):
        stage.pass_time(2)
        if kind == "heartbeat":
            stage.worker(b"w", mdp.Heartbeat())
        else:
            stage.answer(b"w", address, 1, kind=mdp.WorkerPartial, sequence=sequence)
    assert stage.core.gauges["workers"] == 1


def test_a_broker_that_slept_does_not_take_its_workers_for_dead():
    stage = Stage(heartbeat=1.0, liveness=4)
    stage.ready(b"w")
    stage.now = 60.0
    stage._note(stage.core.tick(stage.now))
    assert stage.core.gauges["workers"] == 1
    stage.pass_time(6)
    assert stage.core.gauges["workers"] == 0


@pytest.mark.parametrize("death", ["disconnect", "silence", "unreachable", "second READY"])
def test_a_dead_workers_requests_are_started_again_only_if_they_may(death):
    stage = Stage(heartbeat=1.0, liveness=4)
    stage.ready(b"w1", credit=4)
    for number, idempotent in ((1, True), (2, False), (3, True)):
        stage.ask(b"c", number, idempotent=idempotent)
    stage.take(b"w1")
    stage.ask(b"c", 4, service=b"other", seconds=100)
    match death:
        case "disconnect":
            stage.worker(b"w1", mdp.Disconnect())
        case "silence":
            stage.pass_time(6)
        case "unreachable":
            stage.undelivered(Side.WORKERS, b"w1", *HEARTBEAT)
        case "second READY":
            stage.worker(b"w1", mdp.Ready(b"echo"))
    assert [(number, status) for number, status, _ in stage.answers(b"c")] == [(2, Status.WORKER_LOST)]
    stage.worker(b"w2", mdp.Ready(b"echo", 1, extended=True))
    address, number, body = stage.request_at(b"w2")
    assert (number, body) == (1, [b"body"]), "the oldest first, with its body"
    stage.answer(b"w2", address, 1)
    address, number, _ = stage.request_at(b"w2")
    assert number == 3
    stage.answer(b"w2", address, 3)
    assert [number for number, _, _ in stage.answers(b"c")] == [1, 3]


def test_a_plain_clients_request_is_started_again_as_rfc_18_has_it():
    stage = Stage()
    stage.ready(b"w1")
    stage.client(b"c", mdp.ClientRequest(b"echo", [b"plain"]))
    stage.take(b"w1")
    stage.worker(b"w1", mdp.Disconnect())
    stage.worker(b"w2", mdp.Ready(b"echo"))
    (request,) = stage.take(b"w2")
    assert request.body == [b"plain"]


# -- time ---------------------------------------------------------------------------------------------------


def test_a_service_that_never_comes_is_said_to_be_missing():
    stage = Stage(service_wait=5.0)
    stage.ask(b"c", 1, seconds=60)
    stage.pass_time(4.9)
    assert stage.answers(b"c") == []
    stage.pass_time(0.2)
    assert [(n, s) for n, s, _ in stage.answers(b"c")] == [(1, Status.SERVICE_NOT_FOUND)]
    assert stage.core.gauges["services"] == 0


def test_the_wait_for_a_service_begins_when_its_last_worker_is_lost():
    stage = Stage(service_wait=5.0, heartbeat=100.0)
    stage.ready(b"w")
    stage.ask(b"c", 1, seconds=60)
    stage.ask(b"c", 2, seconds=60)
    stage.pass_time(20)
    stage.worker(b"w", mdp.Disconnect())
    assert [(n, s) for n, s, _ in stage.answers(b"c")] == [(1, Status.WORKER_LOST)]
    stage.pass_time(4.9)
    assert stage.answers(b"c") == []
    stage.pass_time(6)
    assert [(n, s) for n, s, _ in stage.answers(b"c")] == [(2, Status.SERVICE_NOT_FOUND)]


def test_a_queued_request_expires_at_its_deadline_one_at_work_does_not():
    stage = Stage(heartbeat=100.0)
    stage.ready(b"w")
    stage.ask(b"c", 1, seconds=1)
    stage.ask(b"c", 2, seconds=1)
    stage.pass_time(1.01)
    assert [(n, s) for n, s, _ in stage.answers(b"c")] == [(2, Status.EXPIRED)]
    address, _, _ = stage.request_at(b"w")
    stage.answer(b"w", address, 1)
    assert [n for n, _, _ in stage.answers(b"c")] == [1]


def test_a_plain_request_expires_too_but_cannot_be_told():
    stage = Stage(plain_wait=3.0, service_wait=10.0)
    stage.client(b"c", mdp.ClientRequest(b"echo", [b"plain"]))
    stage.pass_time(3.1)
    assert (stage.sent, stage.core.counters.dropped_plain, stage.core.gauges["queued"]) == ({}, 1, 0)


# -- dedupe and cancel --------------------------------------------------------------------------------------


@pytest.mark.parametrize("queued", [True, False])
def test_the_same_request_again_is_not_started_twice_and_answers_where_it_was_asked_last(queued):
    stage = Stage()
    if not queued:
        stage.ready(b"w", credit=2)
    stage.ask(b"old", 1, idempotent=True)
    stage.ask(b"new", 1, idempotent=True)
    stage.ask(b"new", 1, idempotent=True, session=b"t" * 16)  # another session's request 1 is another request
    if queued:
        stage.worker(b"w", mdp.Ready(b"echo", 2, extended=True))
    first, other = stage.take(b"w")
    stage.answer(b"w", first.address, 1)
    assert stage.answers(b"old") == []
    assert len(stage.answers(b"new")) == 1
    assert other.body[0] != first.body[0]


def test_a_cancelled_request_in_the_queue_is_gone_one_at_work_is_told_to_its_worker():
    stage = Stage()
    stage.ready(b"w")
    for number in (1, 2, 3):
        stage.ask(b"c", number)
    address, _, _ = stage.request_at(b"w")
    stage.ask(b"c", 2, cancel=True)
    stage.ask(b"c", 1, cancel=True)
    assert stage.take(b"w") == [mdp.Cancel(address)]
    stage.answer(b"w", address, 1)
    assert stage.request_at(b"w")[1] == 3, "the credit is free only when the FINAL is there"
    assert stage.answers(b"c") == []
    assert stage.core.counters.late_replies == 1


def test_a_stream_whose_reader_has_gone_is_cancelled():
    stage = Stage()
    stage.ready(b"w")
    stage.ask(b"c", 1, stream=True)
    address, _, _ = stage.request_at(b"w")
    stage.answer(b"w", address, 1, kind=mdp.WorkerPartial)
    (part,) = stage.take(b"c")
    stage.undelivered(Side.CLIENTS, b"c", *part.frames())
    assert stage.take(b"w") == [mdp.Cancel(address)]


# -- MMI ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("service", "asked", "code"),
    [
        (b"mmi.service", b"echo", b"200"),
        (b"mmi.service", b"waited-for", b"404"),
        (b"mmi.service", b"unknown", b"404"),
        (b"mmi.workers", b"echo", b"501"),
        (b"mmi.", b"", b"501"),
    ],
)
def test_mmi_is_answered_by_the_broker(service, asked, code):
    stage = Stage()
    stage.ready(b"w")
    stage.ask(b"c", 1, service=b"waited-for")
    stage.client(b"c", mdp.ClientRequest(service, [asked]))
    assert stage.take(b"c") == [mdp.ClientFinal(service, [code])]
    stage.ask(b"c", 2, service=service, body=asked)
    assert stage.answers(b"c") == [(2, Status.OK, [code])]


# -- bounds -------------------------------------------------------------------------------------------------


def statuses(stage, who):
    return [status for _, status, _ in stage.answers(who)]


def test_queues_are_bounded_one_by_one_and_in_all():
    stage = Stage(queue=2, queue_total=3, services=10)
    for number in range(3):
        stage.ask(b"a", number, service=b"one")
    for number in range(3, 6):
        stage.ask(b"b", number, service=b"two")
    assert statuses(stage, b"a") == [Status.QUEUE_FULL]
    assert statuses(stage, b"b") == [Status.QUEUE_FULL] * 2


def test_services_workers_and_credit_are_bounded():
    stage = Stage(services=1, workers=2, credit_total=10)
    stage.ready(b"w1", credit=8)
    stage.worker(b"w2", mdp.Ready(b"echo", 8, extended=True))
    stage.worker(b"w3", mdp.Ready(b"other"))
    stage.worker(b"w4", mdp.Ready(b"echo"))
    stage.worker(b"w5", mdp.Ready(b"echo"))
    refused = [who for who in (b"w2", b"w3", b"w4", b"w5") if stage.take(who) == [mdp.Disconnect()]]
    assert refused == [b"w2", b"w3", b"w5"]
    stage.ask(b"c", 1, service=b"another")
    assert statuses(stage, b"c") == [Status.QUEUE_FULL]


def test_bodies_are_bounded_one_by_one_and_in_all():
    stage = Stage(body_bytes=1000, held_bytes=1500)
    stage.ask(b"a", 1, body=b"x" * 1001)
    assert statuses(stage, b"a") == [Status.TOO_LARGE]
    stage.ask(b"b", 2, body=b"x" * 900)
    stage.ask(b"b", 3, body=b"x" * 900)
    assert statuses(stage, b"b") == [Status.QUEUE_FULL]
    stage.ready(b"w")
    stage.ask(b"b", 4, body=b"x" * 900)
    assert statuses(stage, b"b") == [], "a request in flight that may not be repeated is not held"


def test_the_expiry_list_does_not_outgrow_the_queue():
    stage = Stage(heartbeat=1e6)
    stage.ready(b"w")
    stage.ask(b"c", 0, seconds=1000)
    address, number, _ = stage.request_at(b"w")
    for following in range(1, 2000):
        stage.ask(b"c", following, seconds=1000)
        stage.answer(b"w", address, number)
        address, number, _ = stage.request_at(b"w")
    assert len(stage.core._dispatcher._expiries) < 100
