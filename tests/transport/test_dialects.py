"""MDP/0.1 frame by frame as RFC 7 has it, and what majortomo makes of MDP/0.2, beside peers of RFC 18 at the other end."""

from __future__ import annotations

import pytest

from tests.transport.wire import CLIENT_FINAL, CLIENT_PARTIAL, CLIENT_REQUEST, FINAL, PARTIAL, C, W, Wire
from tests.transport.wire import DISCONNECT as DISCONNECT_02
from tests.transport.wire import READY as READY_02
from transport.envelope import RequestEnvelope

OLD_C, OLD_W = (b"", b"MDPC01"), (b"", b"MDPW01")
READY, REQUEST, REPLY, HEARTBEAT, DISCONNECT = (bytes([number]) for number in range(1, 6))
MAJORTOMO = (b"", C, b"\x02")


@pytest.fixture(params=[False, True], ids=["two sockets", "one socket"])
def wire(request):
    made = Wire(heartbeat=1.0, liveness=4, service_wait=10.0, shared=request.param)
    made.worker(b"w", READY, b"echo", front=OLD_W)
    assert made.take(b"w", heartbeats=True) == [[*OLD_W, HEARTBEAT]]
    return made


def test_a_client_and_a_worker_of_mdp_01(wire):
    wire.client(b"c", b"echo", b"one", b"two", front=OLD_C)
    [[*head, address, empty, one, two]] = wire.take(b"w")
    assert (head, empty, one, two) == ([*OLD_W, REQUEST], b"", b"one", b"two")
    wire.worker(b"w", REPLY, address, b"", b"end", front=OLD_W)
    assert wire.take(b"c") == [[*OLD_C, b"echo", b"end"]]


def test_a_client_of_mdp_02_and_a_worker_of_mdp_01(wire):
    wire.client(b"c", CLIENT_REQUEST, b"echo", b"one")
    [[*_, address, _, _]] = wire.take(b"w")
    wire.worker(b"w", REPLY, address, b"", b"end", front=OLD_W)
    assert wire.take(b"c") == [[C, CLIENT_FINAL, b"echo", b"end"]]


def test_a_request_with_an_envelope_comes_to_a_worker_of_mdp_01_without_it(wire):
    envelope = RequestEnvelope(7, b"s" * 16, 10_000).frame()
    wire.client(b"c", CLIENT_REQUEST, b"echo", envelope, b"one")
    [[*_, address, _, body]] = wire.take(b"w")
    assert body == b"one"
    wire.worker(b"w", REPLY, address, b"", b"end", front=OLD_W)
    [[*_, reply, body]] = wire.take(b"c")
    assert (reply[8:16], body) == ((7).to_bytes(8, "big"), b"end")


def test_a_client_of_mdp_01_gets_the_final_of_a_worker_of_mdp_02_alone(wire):
    wire.worker(b"v", READY_02, b"other")
    wire.client(b"c", b"other", b"one", front=OLD_C)
    [[_, _, address, _, _]] = wire.take(b"v")
    wire.worker(b"v", PARTIAL, address, b"", b"some")
    assert wire.take(b"c") == []
    wire.worker(b"v", FINAL, address, b"", b"end")
    assert wire.take(b"c") == [[*OLD_C, b"other", b"end"]]


def test_a_stream_to_a_majortomo_client(wire):
    wire.worker(b"v", READY_02, b"other")
    wire.client(b"c", b"other", b"one", front=MAJORTOMO)
    [[_, _, address, _, _]] = wire.take(b"v")
    wire.worker(b"v", PARTIAL, address, b"", b"some")
    wire.worker(b"v", FINAL, address, b"", b"the", b"end")
    assert wire.take(b"c") == [[b"", C, b"\x03", b"some"], [b"", C, b"\x04", b"the", b"end"]]


def test_a_stream_of_a_majortomo_worker(wire):
    wire.worker(b"v", READY_02, b"other", front=(b"", W))
    wire.take(b"v", heartbeats=True)
    wire.client(b"c", CLIENT_REQUEST, b"other", b"one")
    [[*head, address, _, _]] = wire.take(b"v")
    assert head == [b"", W, b"\x02"]
    wire.worker(b"v", PARTIAL, address, b"", b"some", front=(b"", W))
    wire.worker(b"v", FINAL, address, b"", b"end", front=(b"", W))
    assert wire.take(b"c") == [[C, CLIENT_PARTIAL, b"other", b"some"], [C, CLIENT_FINAL, b"other", b"end"]]


def test_heartbeats_and_the_disconnect_of_the_broker_are_in_the_workers_dialect(wire):
    for _ in range(3):
        wire.wait(1)
        wire.worker(b"w", HEARTBEAT, front=OLD_W)
    assert wire.take(b"w", heartbeats=True) == [[*OLD_W, HEARTBEAT]] * 3
    wire.note(wire.core.probe())
    wire.note(wire.core.close())
    assert wire.take(b"w", heartbeats=True) == [[*OLD_W, HEARTBEAT], [*OLD_W, DISCONNECT]]


@pytest.mark.parametrize(
    "frames",
    [[READY, b"echo"], [REQUEST, b"address", b"", b"x"], [REPLY, b"address", b"", b"x"]],
    ids=["READY", "REQUEST", "REPLY"],
)
def test_a_command_of_mdp_01_that_is_not_expected_is_answered_by_disconnect(wire, frames):
    wire.worker(b"w", *frames, front=OLD_W)
    assert wire.take(b"w", heartbeats=True) == [[*OLD_W, DISCONNECT]]
    assert wire.core.gauges["workers"] == 0


def test_a_workers_disconnect_ends_its_conversation(wire):
    wire.worker(b"w", DISCONNECT, front=OLD_W)
    assert (wire.take(b"w", heartbeats=True), wire.core.gauges["workers"]) == ([], 0)


def test_a_silent_worker_of_mdp_01_is_lost_and_its_request_goes_to_one_of_mdp_02(wire):
    wire.client(b"c", b"echo", b"one", front=OLD_C)
    wire.worker(b"v", READY_02, b"echo")
    wire.wait(3)
    wire.worker(b"v", b"\x05")
    wire.wait(3)
    [[_, _, address, _, _]] = wire.take(b"v")
    wire.worker(b"v", FINAL, address, b"", b"end")
    assert wire.take(b"c") == [[*OLD_C, b"echo", b"end"]]


@pytest.mark.parametrize(
    "frames",
    [
        [b""],
        [b"", b"MDPC01"],
        [b"", b"MDPC01", b"echo"],
        [b"", b"MDPC03", b"echo", b"x"],
        [b"", b"MDPW01"],
        [b"", b"MDPW01", b"\x06"],
        [b"", b"MDPW01", READY],
        [b"", b"MDPW01", READY, b"echo", b"\x00\x01\x01"],
        [b"", b"MDPW01", REPLY, b"address", b"x"],
        [b"", C, b"\x01", b"echo", b"x"],
        [b"", W, b"\x07", b"address", b""],
        [b"MDPC01", b"echo", b"x"],
        [b"x", b"MDPC01", b"echo", b"x"],
    ],
)
def test_what_is_no_command_of_a_dialect_is_dropped(frames):
    for shared in (False, True):
        wire = Wire(shared=shared)
        wire.note(wire.core.feed(wire.side_of_workers, [b"w", *frames], 0.0))
        assert (wire.sent, wire.core.gauges["workers"], wire.core.counters.malformed) == ([], 0, 1)


def test_mmi_in_mdp_01(wire):
    wire.client(b"c", b"mmi.service", b"echo", front=OLD_C)
    wire.client(b"c", b"mmi.service", b"other", front=OLD_C)
    assert wire.take(b"c") == [[*OLD_C, b"mmi.service", b"200"], [*OLD_C, b"mmi.service", b"404"]]


def test_a_worker_on_the_clients_socket_is_none_where_workers_have_their_own():
    wire = Wire()
    wire.note(wire.core.feed(wire.side_of_workers.CLIENTS, [b"w", W, READY_02, b"echo"], 0.0))
    wire.note(wire.core.feed(wire.side_of_workers.CLIENTS, [b"v", *OLD_W, READY, b"echo"], 0.0))
    assert (wire.sent, wire.core.gauges["workers"]) == ([], 0)


def test_an_invalid_message_on_a_shared_socket_makes_a_worker_invalid_and_no_client():
    wire = Wire(shared=True)
    wire.worker(b"w", READY_02, b"echo")
    wire.take(b"w", heartbeats=True)
    wire.client(b"c", b"\x09", b"echo", b"x")
    assert wire.take(b"c") == []
    wire.client(b"w", b"\x09", b"echo", b"x")
    assert wire.take(b"w") == [[W, DISCONNECT_02]]


def test_a_peer_may_be_client_and_worker_at_once_on_a_shared_socket():
    wire = Wire(shared=True)
    wire.worker(b"w", READY_02, b"echo")
    wire.take(b"w", heartbeats=True)
    wire.client(b"w", CLIENT_REQUEST, b"echo", b"one")
    [[_, _, address, _, _]] = wire.take(b"w")
    wire.worker(b"w", FINAL, address, b"", b"end")
    assert wire.take(b"w") == [[C, CLIENT_FINAL, b"echo", b"end"]]


def test_the_private_socket_has_no_workers_either():
    wire = Wire(shared=True)
    wire.worker(b"w", READY_02, b"echo")
    wire.take(b"w", heartbeats=True)
    private = wire.side_of_workers.PRIVATE
    for frames in ([W, READY_02, b"other"], [C, b"\x09", b"echo", b"x"], [W, b"\x06"]):
        wire.note(wire.core.feed(private, [b"w", *frames], 0.0))
    assert (wire.sent, wire.core.gauges["workers"]) == ([], 1)
