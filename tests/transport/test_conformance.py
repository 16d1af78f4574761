"""The rules of RFC 18 and RFC 8 for a broker, frame by frame as the RFCs write them. `docs/majordomo.md` has a line for each rule."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from tests.transport.wire import (
    CLIENT_FINAL,
    CLIENT_PARTIAL,
    CLIENT_REQUEST,
    DISCONNECT,
    FINAL,
    HEARTBEAT,
    PARTIAL,
    READY,
    REQUEST,
    C,
    W,
    Wire,
)
from transport.broker_core import Side

ROOT = Path(__file__).parents[2]


@pytest.fixture
def wire():
    made = Wire(heartbeat=1.0, liveness=4, service_wait=10.0)
    made.worker(b"w", READY, b"echo")
    made.take(b"w", heartbeats=True)
    return made


# -- request and reply --------------------------------------------------------------------------------------


def test_a_request_has_one_address_frame_then_an_empty_frame_then_the_body(wire):
    wire.client(b"c", CLIENT_REQUEST, b"echo", b"one", b"two")
    [[header, command, address, empty, *body]] = wire.take(b"w")
    assert (header, command, empty, body) == (W, REQUEST, b"", [b"one", b"two"])
    assert address


def test_partials_and_the_final_reach_the_client_with_the_name_of_the_service(wire):
    wire.client(b"c", CLIENT_REQUEST, b"echo", b"one")
    address = wire.address(b"w")
    wire.worker(b"w", PARTIAL, address, b"", b"some")
    wire.worker(b"w", PARTIAL, address, b"", b"more", b"frames")
    wire.worker(b"w", FINAL, address, b"", b"end")
    assert wire.take(b"c") == [
        [C, CLIENT_PARTIAL, b"echo", b"some"],
        [C, CLIENT_PARTIAL, b"echo", b"more", b"frames"],
        [C, CLIENT_FINAL, b"echo", b"end"],
    ]


@pytest.mark.parametrize("command", [PARTIAL, FINAL])
def test_after_the_final_nothing_further_is_sent_to_the_client(wire, command):
    wire.client(b"c", CLIENT_REQUEST, b"echo", b"one")
    address = wire.address(b"w")
    wire.worker(b"w", FINAL, address, b"", b"end")
    wire.take(b"c")
    wire.worker(b"w", command, address, b"", b"again")
    assert wire.take(b"c") == []
    assert wire.take(b"w") == [[W, DISCONNECT]], "a valid command that is not expected"


@pytest.mark.parametrize(
    "frames", [[b"address", b"body"], [b"address", b"not empty", b"body"], [b"address", b""]]
)
def test_a_reply_without_the_empty_frame_or_a_body_is_invalid_and_dropped(wire, frames):
    wire.client(b"c", CLIENT_REQUEST, b"echo", b"one")
    wire.take(b"w")
    wire.worker(b"w", FINAL, *frames)
    assert wire.take(b"c") == []
    assert wire.take(b"w") == [[W, DISCONNECT]]


def test_a_request_waits_for_its_service_and_goes_to_the_first_worker():
    wire = Wire(service_wait=10.0)
    wire.client(b"c", CLIENT_REQUEST, b"echo", b"one")
    wire.wait(9)
    wire.worker(b"w", READY, b"echo")
    assert len(wire.take(b"w")) == 1


def test_a_request_whose_service_nobody_registers_expires():
    wire = Wire(service_wait=10.0)
    wire.client(b"c", CLIENT_REQUEST, b"echo", b"one")
    wire.wait(11)
    wire.worker(b"w", READY, b"echo")
    assert wire.take(b"w") == []
    assert wire.core.gauges["queued"] == 0


def test_many_workers_handle_a_service_and_each_has_one_request_at_a_time(wire):
    wire.worker(b"v", READY, b"echo")
    for number in range(3):
        wire.client(b"c%d" % number, CLIENT_REQUEST, b"echo", b"%d" % number)
    assert [len(wire.take(worker)) for worker in (b"w", b"v")] == [1, 1]
    assert wire.core.gauges["queued"] == 1


def test_a_worker_handles_its_own_service_alone(wire):
    wire.client(b"c", CLIENT_REQUEST, b"other", b"one")
    assert wire.take(b"w") == []


def test_the_worker_that_was_used_least_recently_is_next(wire):
    wire.worker(b"v", READY, b"echo")
    order = []
    for number in range(4):
        wire.client(b"c%d" % number, CLIENT_REQUEST, b"echo", b"x")
        [worker] = [peer for peer, frames in wire.sent if frames[1] == REQUEST]
        order.append(worker)
        wire.worker(worker, FINAL, wire.address(worker), b"", b"end")
    assert order in ([b"w", b"v"] * 2, [b"v", b"w"] * 2)


def test_the_request_of_a_worker_that_is_lost_goes_to_another_one(wire):
    wire.client(b"c", CLIENT_REQUEST, b"echo", b"one")
    wire.take(b"w")
    wire.worker(b"v", READY, b"echo")
    wire.take(b"v", heartbeats=True)
    wire.wait(3)
    wire.worker(b"v", HEARTBEAT)
    wire.wait(3)
    [[_, command, _, _, body]] = wire.take(b"v")
    assert (command, body) == (REQUEST, b"one")


# -- a worker's conversation --------------------------------------------------------------------------------


def test_there_is_no_response_to_a_ready_but_a_heartbeat():
    wire = Wire()
    wire.worker(b"w", READY, b"echo")
    assert wire.take(b"w", heartbeats=True) == [[W, HEARTBEAT]]


def test_a_second_ready_is_answered_by_disconnect(wire):
    wire.worker(b"w", READY, b"echo")
    assert wire.take(b"w") == [[W, DISCONNECT]]
    assert wire.core.gauges["workers"] == 0


def test_after_a_workers_disconnect_it_gets_nothing_further(wire):
    wire.worker(b"w", DISCONNECT)
    wire.client(b"c", CLIENT_REQUEST, b"echo", b"one")
    wire.wait(9)
    assert wire.take(b"w", heartbeats=True) == []


def test_a_disconnect_before_ready_is_no_fault():
    wire = Wire()
    wire.worker(b"w", DISCONNECT)
    assert wire.take(b"w", heartbeats=True) == []


@pytest.mark.parametrize(
    "frames",
    [
        [REQUEST, b"address", b"", b"x"],
        [PARTIAL, b"address", b"", b"x"],
        [FINAL, b"address", b"", b"x"],
        [HEARTBEAT],
    ],
    ids=["REQUEST", "PARTIAL", "FINAL", "HEARTBEAT"],
)
def test_a_valid_command_before_ready_is_answered_by_disconnect_and_then_nothing(frames):
    wire = Wire()
    wire.worker(b"w", *frames)
    assert wire.take(b"w", heartbeats=True) == [[W, DISCONNECT]]
    wire.worker(b"w", *frames)
    wire.wait(9)
    assert wire.take(b"w", heartbeats=True) == []


@pytest.mark.parametrize("command", [REQUEST, PARTIAL, FINAL], ids=["REQUEST", "PARTIAL", "FINAL"])
def test_a_valid_command_that_is_not_expected_is_answered_by_disconnect_and_then_nothing(wire, command):
    wire.worker(b"w", command, b"address", b"", b"x")
    assert wire.take(b"w", heartbeats=True) == [[W, DISCONNECT]]
    wire.client(b"c", CLIENT_REQUEST, b"echo", b"one")
    wire.wait(9)
    assert wire.take(b"w", heartbeats=True) == []


def test_a_clients_requests_wait_for_those_of_others_in_turns(wire):
    for number in range(100):
        wire.client(b"greedy", CLIENT_REQUEST, b"echo", b"%d" % number)
    wire.client(b"second", CLIENT_REQUEST, b"echo", b"of the second")
    wire.client(b"third", CLIENT_REQUEST, b"echo", b"of the third")
    served = []
    while got := wire.take(b"w"):
        [[_, _, address, _, body]] = got
        served.append(body)
        wire.worker(b"w", FINAL, address, b"", b"end")
    assert served[:5] == [b"0", b"1", b"of the second", b"of the third", b"2"]
    assert served[5:] == [b"%d" % number for number in range(3, 100)]


@pytest.mark.parametrize(
    "frames",
    [
        [b"MDPW03", READY, b"echo"],
        [W, b"\x09"],
        [W],
        [W, READY, b""],
        [W, HEARTBEAT, b"more"],
        [b"", W, READY],
    ],
)
def test_an_invalid_message_is_dropped(frames):
    wire = Wire()
    wire.note(wire.core.feed(Side.WORKERS, [b"w", *frames], 0.0))
    assert (wire.sent, wire.core.gauges["workers"], wire.core.counters.malformed) == ([], 0, 1)


@pytest.mark.parametrize(
    "frames",
    [[b"MDPW03", HEARTBEAT], [W, b"\x09"], [W], [W, HEARTBEAT, b"more"], [C, b"\x01", b"echo", b"x"]],
)
def test_an_invalid_message_of_a_registered_worker_makes_it_invalid(wire, frames):
    wire.client(b"c", CLIENT_REQUEST, b"echo", b"one")
    wire.take(b"w")
    wire.note(wire.core.feed(Side.WORKERS, [b"w", *frames], 0.0))
    assert wire.take(b"w", heartbeats=True) == [[W, DISCONNECT]]
    wire.worker(b"v", READY, b"echo")
    assert len(wire.take(b"v")) == 1, "its request goes to another one"
    wire.wait(9)
    assert wire.take(b"w", heartbeats=True) == []


# -- heartbeats ---------------------------------------------------------------------------------------------


def test_heartbeats_come_at_regular_intervals(wire):
    for _ in range(10):
        wire.wait(1)
        wire.worker(b"w", HEARTBEAT)
    assert wire.take(b"w", heartbeats=True) == [[W, HEARTBEAT]] * 10


def test_no_heartbeat_is_sent_while_other_commands_are(wire):
    for number in range(40):
        wire.wait(0.25)
        wire.client(b"c", CLIENT_REQUEST, b"echo", b"%d" % number)
        got = wire.take(b"w", heartbeats=True)
        assert [frames[1] for frames in got] == [REQUEST]
        wire.worker(b"w", FINAL, got[0][2], b"", b"end")


@pytest.mark.parametrize("command", [HEARTBEAT, PARTIAL], ids=["HEARTBEAT", "PARTIAL"])
def test_any_command_acts_as_a_heartbeat(wire, command):
    wire.client(b"c", CLIENT_REQUEST, b"echo", b"one")
    address = wire.address(b"w")
    for _ in range(10):
        wire.wait(3)
        wire.worker(b"w", command, *([address, b"", b"some"] if command == PARTIAL else []))
    assert wire.core.gauges["workers"] == 1


def test_a_silent_worker_is_disconnected_after_some_intervals_and_gets_nothing_further(wire):
    wire.wait(4)
    assert wire.core.gauges["workers"] == 1
    wire.wait(2)
    assert wire.core.gauges["workers"] == 0
    wire.take(b"w", heartbeats=True)
    wire.client(b"c", CLIENT_REQUEST, b"echo", b"one")
    wire.wait(9)
    assert wire.take(b"w", heartbeats=True) == []


# -- RFC 8 --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("service", "body", "code"),
    [(b"mmi.service", b"echo", b"200"), (b"mmi.service", b"other", b"404"), (b"mmi.unknown", b"x", b"501")],
)
def test_the_services_of_mmi_are_answered_by_the_broker(wire, service, body, code):
    wire.client(b"c", CLIENT_REQUEST, service, body)
    assert wire.take(b"c") == [[C, CLIENT_FINAL, service, code]]


def test_a_service_whose_workers_have_gone_is_not_found(wire):
    wire.worker(b"w", DISCONNECT)
    wire.client(b"c", CLIENT_REQUEST, b"mmi.service", b"echo")
    assert wire.take(b"c") == [[C, CLIENT_FINAL, b"mmi.service", b"404"]]


def test_a_worker_that_registers_a_service_of_mmi_is_disconnected():
    wire = Wire()
    wire.worker(b"w", READY, b"mmi.echo")
    assert wire.take(b"w", heartbeats=True) == [[W, DISCONNECT]]


# -- the page -----------------------------------------------------------------------------------------------


def test_each_test_that_the_page_names_is_there_and_each_of_these_is_named():
    page = (ROOT / "docs" / "majordomo.md").read_text()
    named = set(re.findall(r"`(test_\w+)`", page))
    folder = ROOT / "tests" / "transport"
    there = {
        name
        for path in folder.glob("test_*.py")
        for name in re.findall(r"^(?:async )?def (test_\w+)", path.read_text(), re.MULTILINE)
    }
    here = set(re.findall(r"^def (test_\w+)", Path(__file__).read_text(), re.MULTILINE))
    assert named <= there
    assert here - named == {"test_each_test_that_the_page_names_is_there_and_each_of_these_is_named"}
