"""What is owed to slow readers: in order, bounded, shared, and dropped at once when one has gone."""

from __future__ import annotations

from transport import slow_readers
from transport.slow_readers import SlowReaders
from transport.sockets import Sent


class Socket:
    """Says of each client what a send comes to, and notes what went out."""

    def __init__(self):
        self.answers: dict[bytes, Sent] = {}
        self.tried: list[bytes] = []
        self.sent: list[list[bytes]] = []

    def send(self, frames):
        self.tried.append(frames[0])
        answer = self.answers.get(frames[0], Sent.OK)
        if answer is Sent.OK:
            self.sent.append(frames)
        return answer


def test_what_is_owed_goes_out_in_order_before_anything_newer():
    socket = Socket()
    slow = SlowReaders(socket.send)
    socket.answers[b"c"] = Sent.FULL
    assert [slow.send(b"c", [b"c", b"%d" % number]) for number in range(3)] == [Sent.OK] * 3
    socket.answers.clear()
    assert slow.send(b"c", [b"c", b"3"]) is Sent.OK
    assert slow.pay() == []
    assert socket.sent == [[b"c", b"%d" % number] for number in range(4)]
    assert len(slow) == 0


def test_a_client_that_has_gone_costs_one_send_and_is_told_of_once():
    socket = Socket()
    slow = SlowReaders(socket.send)
    socket.answers[b"c"] = Sent.FULL
    for number in range(10_000):
        slow.send(b"c", [b"c", b"%d" % number])
    slow.send(b"d", [b"d", b"x"])
    socket.answers[b"c"] = Sent.UNREACHABLE
    socket.tried.clear()
    assert slow.pay() == [[b"c", b"0"]]
    assert socket.tried == [b"c"]
    assert len(slow) == 0
    assert slow.send(b"c", [b"c", b"x"]) is Sent.UNREACHABLE


def test_one_slow_reader_leaves_room_for_others(monkeypatch):
    monkeypatch.setattr(slow_readers, "OWED_MESSAGES", 100)
    monkeypatch.setattr(slow_readers, "OWED_BYTES", 10_000)
    socket = Socket()
    slow = SlowReaders(socket.send)
    socket.answers = dict.fromkeys((b"a", b"b", b"c"), Sent.FULL)
    for number in range(1_000):
        slow.send(b"a", [b"a", b"%d" % number])
    assert (len(slow), slow.dropped) == (51, 949)
    slow.send(b"b", [b"b", b"x" * 5_000])
    slow.send(b"c", [b"c", b"x"])
    assert (len(slow), slow.dropped) == (53, 949)
