import os
import select
import socket
import threading
from time import monotonic

import numpy as np
import pytest

from governor.episodes.remote import wire
from governor.episodes.remote.request_channel import Interrupted, Overdue, PeerLost, RequestChannel
from governor.message_stream import MessageStream


@pytest.fixture
def stop():
    fd = os.eventfd(0, os.EFD_NONBLOCK)
    yield fd
    os.close(fd)


class Peer:
    """Reads and answers as a host does, but waits for it."""

    def __init__(self, path):
        self.listener = socket.socket(socket.AF_UNIX)
        self.listener.bind(str(path))
        self.listener.listen()
        self.stream = None

    def read(self):
        if self.stream is None:
            connected, _ = self.listener.accept()
            self.stream = MessageStream(connected)
        while (message := self.stream.next_message(bytes)) is None:
            select.select([self.stream], [], [])
            self.stream.receive()
        return message

    def answer(self, *answers):
        for each in answers:
            self.stream.send(wire.encode(each))

    def close(self):
        self.listener.close()
        if self.stream is not None:
            self.stream.close()


@pytest.fixture
def peer(tmp_path):
    made = Peer(tmp_path / "s")
    yield made
    made.close()


@pytest.fixture
def channel(peer, tmp_path, stop):
    made = RequestChannel(name="peer", endpoint=f"{tmp_path}/s", identity="lease-1", stop=stop)
    yield made
    made.close()


def reset(channel):
    return wire.ResetFrame(channel.next_number(), 1)


def test_a_stale_answer_is_not_taken_for_a_new_one(channel, peer):
    with pytest.raises(Overdue):
        channel.ask(reset(channel), deadline=monotonic())
    assert peer.read() == b"lease-1"
    peer.read()
    peer.answer(wire.ObservedFrame(1, 10), wire.ObservedFrame(2, 20))
    assert channel.ask(reset(channel), deadline=monotonic() + 5) == wire.ObservedFrame(2, 20)


def test_a_stop_ends_the_waiting_at_once_and_a_late_answer_settles_it(channel, peer, stop):
    began = monotonic()
    os.eventfd_write(stop, 1)
    with pytest.raises(Interrupted):
        channel.ask(reset(channel), deadline=began + 10)
    assert monotonic() - began < 1
    assert channel.wait_late(seconds=0.01) is None
    peer.read()
    peer.answer(wire.ObservedFrame(1, 0))
    assert channel.wait_late(seconds=5) == wire.ObservedFrame(1, 0)


def test_a_peer_that_goes_is_seen_while_waiting_and_at_the_next_request(channel, peer):
    def leave():
        peer.read()
        peer.close()

    thread = threading.Thread(target=leave)
    thread.start()
    for _ in range(2):
        with pytest.raises(PeerLost):
            channel.ask(reset(channel), deadline=monotonic() + 10)
    thread.join()


def test_an_endpoint_without_a_listener_is_a_lost_peer(tmp_path, stop):
    channel = RequestChannel(name="peer", endpoint=f"{tmp_path}/none", identity="x", stop=stop)
    with pytest.raises(PeerLost):
        channel.ask(reset(channel), deadline=monotonic() + 10)
    channel.close()


def test_a_message_larger_than_the_kernels_buffer_crosses_piece_by_piece(channel, peer):
    image = np.arange(3_000_000, dtype=np.uint8).reshape(1000, 3000)

    def echo():
        peer.read()
        request = wire.decode_environment_request(peer.read())
        peer.answer(wire.ObservedFrame(1, request.action))
        while peer.stream.unsent:
            select.select([], [peer.stream], [])
            peer.stream.flush()

    thread = threading.Thread(target=echo)
    thread.start()
    answer = channel.ask(wire.StepFrame(channel.next_number(), image), deadline=monotonic() + 30)
    thread.join()
    assert (answer.observation == image).all()


def test_a_peer_that_does_not_read_is_overdue(channel):
    with pytest.raises(Overdue):
        channel.ask(wire.StepFrame(channel.next_number(), np.zeros(3_000_000)), deadline=monotonic() + 0.05)


def test_a_peer_that_sends_garbage_is_lost(channel, peer):
    stranger, _ = peer.listener.accept()
    with stranger:
        stranger.send(b"\xff" * 8)
        with pytest.raises(PeerLost):
            channel.ask(reset(channel), deadline=monotonic() + 10)


NONSENSE = (b"\xc1", b"\x94\x03\x01\xc7\x00\x63\xc0")
"""No message at all, and one with an extension that is none of ours."""


@pytest.mark.parametrize("nonsense", NONSENSE)
def test_what_is_no_message_of_ours_is_a_fault_in_time_or_late(channel, peer, nonsense):
    with pytest.raises(Overdue):
        channel.ask(reset(channel), deadline=monotonic())
    for _ in range(2):
        peer.read()
    peer.stream.send(nonsense)
    late = channel.wait_late(seconds=5)
    assert (type(late), late.number, late.where) == (wire.FaultFrame, 1, "wire")
    peer.stream.send(nonsense)
    answer = channel.ask(reset(channel), deadline=monotonic() + 5)
    assert (type(answer), answer.number, answer.where) == (wire.FaultFrame, 2, "wire")
    peer.answer(wire.ObservedFrame(2, 20), wire.ObservedFrame(3, 30))
    assert channel.ask(reset(channel), deadline=monotonic() + 5) == wire.ObservedFrame(3, 30)
