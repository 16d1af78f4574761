from __future__ import annotations

import pytest
import zmq
from hypothesis import given
from hypothesis import strategies as st

from transport import frames as mdp
from transport.access import Secret
from transport.errors import MalformedFrames

service = st.text(st.characters(min_codepoint=32, max_codepoint=126), min_size=1, max_size=255).map(
    str.encode
)
body = st.lists(st.binary(max_size=64), min_size=1, max_size=4)
address = st.binary(max_size=255)


def made(kind, *arguments):
    return st.tuples(*arguments).map(lambda drawn: kind(*drawn))


client_commands = st.one_of(
    made(kind, service, body) for kind in (mdp.ClientRequest, mdp.ClientPartial, mdp.ClientFinal)
)
worker_commands = st.one_of(
    made(mdp.Ready, service),
    made(mdp.Ready, service, st.integers(1, mdp.CREDIT_LIMIT), st.just(True)),
    made(mdp.WorkerRequest, address, body),
    made(mdp.WorkerPartial, address, body),
    made(mdp.WorkerFinal, address, body),
    made(mdp.Heartbeat),
    made(mdp.Disconnect),
    made(mdp.Cancel, address),
)


@given(client_commands)
def test_client_commands_survive_the_wire(command):
    assert mdp.parse_client(command.frames()) == command
    assert mdp.parse_client([b"routing id", *command.frames()], start=1) == command


@given(worker_commands)
def test_worker_commands_survive_the_wire(command):
    assert mdp.parse_worker(command.frames()) == command
    assert mdp.parse_worker([b"routing id", *command.frames()], start=1) == command


pieces = st.sampled_from(
    [
        b"",
        b"MDPC02",
        b"MDPW02",
        *(bytes([n]) for n in range(9)),
        b"echo",
        b"\x00\x01\x01",
        b"\x00\x01\x01" + b"s" * 32,
    ]
)


@given(st.lists(pieces | st.binary(max_size=40), max_size=8), st.integers(0, 2))
def test_arbitrary_frames_are_a_command_or_malformed(frames, start):
    for parse in (mdp.parse_client, mdp.parse_worker):
        try:
            command = parse(frames, start=start)
        except MalformedFrames:
            continue
        assert parse(command.frames()) == command


@pytest.mark.parametrize(
    ("frames", "command"),
    [
        ([b"MDPC02", b"\x01", b"echo", b"a", b"b"], mdp.ClientRequest(b"echo", [b"a", b"b"])),
        ([b"MDPC02", b"\x02", b"echo", b"a"], mdp.ClientPartial(b"echo", [b"a"])),
        ([b"MDPC02", b"\x03", b"echo", b"a"], mdp.ClientFinal(b"echo", [b"a"])),
        ([b"MDPW02", b"\x01", b"echo"], mdp.Ready(b"echo")),
        ([b"MDPW02", b"\x01", b"echo", b"\x00\x40\x01"], mdp.Ready(b"echo", 64, extended=True)),
        (
            [b"MDPW02", b"\x01", b"echo", b"\x00\x01\x01" + b"s" * 32],
            mdp.Ready(b"echo", 1, extended=True, secret=Secret(b"s" * 32)),
        ),
        ([b"MDPW02", b"\x02", b"addr", b"", b"a"], mdp.WorkerRequest(b"addr", [b"a"])),
        ([b"MDPW02", b"\x03", b"addr", b"", b"a"], mdp.WorkerPartial(b"addr", [b"a"])),
        ([b"MDPW02", b"\x04", b"addr", b"", b"a"], mdp.WorkerFinal(b"addr", [b"a"])),
        ([b"MDPW02", b"\x05"], mdp.Heartbeat()),
        ([b"MDPW02", b"\x06"], mdp.Disconnect()),
    ],
)
def test_the_numbers_of_rfc_18(frames, command):
    parse = mdp.parse_client if frames[0] == b"MDPC02" else mdp.parse_worker
    assert parse(frames) == command
    assert command.frames() == frames


@pytest.mark.parametrize(
    "frames",
    [
        [],
        [b"MDPW02"],
        [b"MDPW01", b"\x05"],
        [b"MDPW02", b"\x00"],
        [b"MDPW02", b"\x05", b"extra"],
        [b"MDPW02", b"\x01"],
        [b"MDPW02", b"\x01", b""],
        [b"MDPW02", b"\x01", b"tab\tbed"],
        [b"MDPW02", b"\x01", "städtisch".encode()],
        [b"MDPW02", b"\x01", b"s" * 256],
        [b"MDPW02", b"\x01", b"echo", b"\x00\x00\x01"],
        [b"MDPW02", b"\x01", b"echo", b"\xff\xff\x01"],
        [b"MDPW02", b"\x01", b"echo", b"\x00\x01\x02"],
        [b"MDPW02", b"\x01", b"echo", b"\x00\x01\x01" + b"s" * 31],
        [b"MDPW02", b"\x01", b"echo", b"\x00\x01\x01" + b"s" * 33],
        [b"MDPW02", b"\x01", b"echo", b"\x00\x01\x01", b""],
        [b"MDPW02", b"\x04", b"addr", b"", *[]],
        [b"MDPW02", b"\x04", b"addr", b"not empty", b"body"],
        [b"MDPW02", zmq.Frame(b"\x05")],
        [zmq.Frame(b"MDPW02"), b"\x05"],
    ],
)
def test_malformed_for_a_worker(frames):
    with pytest.raises(MalformedFrames):
        mdp.parse_worker(frames)


@pytest.mark.parametrize("name", ["", "s" * 256, "a\0b", "städtisch", "\udcff"])
def test_text_that_is_no_name_of_a_service(name):
    with pytest.raises(MalformedFrames, match="1 to 255 printable ASCII"):
        mdp.service_name(name)


@pytest.mark.parametrize(
    "frames",
    [
        [],
        [b"MDPC02", b"\x01", b"echo"],
        [b"MDPC01", b"\x01", b"echo", b"a"],
        [b"MDPC02", b"\x04", b"echo", b"a"],
        [b"MDPC02", b"\x01", b"", b"a"],
        [b"MDPC02", b"\x01", zmq.Frame(b"echo"), b"a"],
        [b"MDPC02", b"\x01\x00", b"echo", b"a"],
    ],
)
def test_malformed_for_a_client(frames):
    with pytest.raises(MalformedFrames):
        mdp.parse_client(frames)
