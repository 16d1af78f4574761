"""The broker as RFC 18 and RFC 8 have it, and as its own rules add. Time is a number here."""

from __future__ import annotations

import pytest

from tests.support.broker_stage import Stage
from transport import envelope as envelopes
from transport import frames as mdp
from transport.broker_core import Side
from transport.envelope import ReplyStatus

HEARTBEAT = mdp.Heartbeat().frames()
DISCONNECT = mdp.Disconnect().frames()


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
    assert stage.answers(b"c") == [(9, ReplyStatus.OK, [b"reply"])]


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
SENDS_DISCONNECT, SENDS_NOTHING, REGISTERS = "disconnect", "nothing", "registers"
EXPECTED = {
    ("unregistered", "READY"): REGISTERS,
    ("unregistered", "READY mmi"): SENDS_DISCONNECT,
    ("unregistered", "REQUEST"): SENDS_DISCONNECT,
    ("unregistered", "PARTIAL of nothing"): SENDS_DISCONNECT,
    ("unregistered", "FINAL of nothing"): SENDS_DISCONNECT,
    ("unregistered", "HEARTBEAT"): SENDS_DISCONNECT,
    ("unregistered", "DISCONNECT"): SENDS_NOTHING,
    ("unregistered", "CANCEL"): SENDS_DISCONNECT,
    **{
        (state, name): SENDS_NOTHING if name in {"HEARTBEAT", "DISCONNECT"} else SENDS_DISCONNECT
        for state in ("idle", "busy")
        for name in WORKER_COMMANDS
    },
    **{("disconnected", name): SENDS_NOTHING for name in WORKER_COMMANDS},
    ("disconnected", "READY"): REGISTERS,  # a new conversation
    ("disconnected", "READY mmi"): SENDS_DISCONNECT,
}


@pytest.mark.parametrize("name", WORKER_COMMANDS)
@pytest.mark.parametrize("state", ["unregistered", "idle", "busy", "disconnected"])
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
    lost = [(1, ReplyStatus.WORKER_LOST, [b"the worker was lost while it had this request"])]
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
def test_commands_of_a_broker_are_not_accepted_from_a_client(command):
    stage = Stage()
    stage.client(b"c", command)
    assert (stage.sent, stage.core.counters.unexpected) == ({}, 1)


def test_malformed_is_dropped_and_counted_and_changes_nothing():
    """A worker that sends it is lost (`test_conformance.py`), but not by a client with its name."""
    stage = Stage()
    stage.ready(b"w")
    for side in (Side.CLIENTS, Side.PRIVATE):
        stage.raw(side)
        stage.raw(side, b"w")
        stage.raw(side, b"w", b"MDPW02", b"\x09")
        stage.raw(side, b"w", b"MDPC02", b"\x01", b"echo")
    stage.raw(Side.CLIENTS, b"c", b"MDPC02", b"\x01", b"echo", envelopes.MAGIC + b"garbage")
    assert (stage.sent, stage.core.counters.malformed) == ({}, 4 * 2 + 1)
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
    assert [(number, status) for number, status, _ in stage.answers(b"c")] == [(2, ReplyStatus.WORKER_LOST)]
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
