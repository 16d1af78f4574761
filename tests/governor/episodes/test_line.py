import os
import threading
from time import monotonic

import pytest
import zmq

from governor.episodes import wire
from governor.episodes.line import Interrupted, Line, Overdue, PeerLost


@pytest.fixture
def stop():
    fd = os.eventfd(0, os.EFD_NONBLOCK)
    yield fd
    os.close(fd)


@pytest.fixture
def peer(tmp_path):
    with zmq.Context() as context, context.socket(zmq.ROUTER) as socket:
        socket.linger = 0
        socket.bind(f"ipc://{tmp_path}/s")
        yield socket


@pytest.fixture
def line(peer, tmp_path, stop):
    made = Line(name="peer", endpoint=f"ipc://{tmp_path}/s", identity="lease-1", stop=stop)
    yield made
    made.close()


def reset(line):
    return wire.Reset(line.next(), 1)


def test_a_stale_answer_is_not_taken_for_a_new_one(line, peer):
    with pytest.raises(Overdue):
        line.ask(reset(line), deadline=monotonic())
    name, _ = peer.recv_multipart()
    for number in (1, 2):
        peer.send_multipart([name, wire.encode(wire.Observed(number, number * 10))])
    assert name == b"lease-1"
    assert line.ask(reset(line), deadline=monotonic() + 5) == wire.Observed(2, 20)


def test_a_stop_ends_the_waiting_at_once_and_a_late_answer_settles_it(line, peer, stop):
    began = monotonic()
    os.eventfd_write(stop, 1)
    with pytest.raises(Interrupted):
        line.ask(reset(line), deadline=began + 10)
    assert monotonic() - began < 1
    assert not line.settle(seconds=0.01)
    name, _ = peer.recv_multipart()
    peer.send_multipart([name, wire.encode(wire.Observed(1, 0))])
    assert line.settle(seconds=5)


def test_a_peer_that_goes_is_seen_while_waiting_and_at_the_next_request(line, peer):
    def leave():
        peer.recv_multipart()
        peer.close()

    thread = threading.Thread(target=leave)
    thread.start()
    for _ in range(2):
        with pytest.raises(PeerLost):
            line.ask(reset(line), deadline=monotonic() + 10)
    thread.join()


def test_nobody_listens(tmp_path, stop):
    line = Line(name="peer", endpoint=f"ipc://{tmp_path}/none", identity="x", stop=stop)
    with pytest.raises(PeerLost):
        line.ask(reset(line), deadline=monotonic() + 10)
    line.close()
