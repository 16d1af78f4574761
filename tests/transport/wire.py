"""A broker core whose peers write and read frames as the RFCs have them."""

from __future__ import annotations

from transport.broker_core import BrokerCore, BrokerLimits, Side

C, W = b"MDPC02", b"MDPW02"
READY, REQUEST, PARTIAL, FINAL, HEARTBEAT, DISCONNECT = (bytes([number]) for number in range(1, 7))
CLIENT_REQUEST, CLIENT_PARTIAL, CLIENT_FINAL = b"\x01", b"\x02", b"\x03"


class Wire:
    """A broker and what it has sent to each peer, without the first frame, which a ROUTER takes. `front` stands before
    a command. `shared`: workers come to the socket of the clients.
    """

    def __init__(self, *, shared=False, **limits):
        self.core = BrokerCore(limits=BrokerLimits(**limits), shared=shared)
        self.side_of_workers = Side.CLIENTS if shared else Side.WORKERS
        self.now = 0.0
        self.sent = []

    def note(self, sends):
        self.sent += [(frames[0], frames[1:]) for _, frames in sends]

    def client(self, peer, *frames, front=(C,)):
        self.note(self.core.feed(Side.CLIENTS, [peer, *front, *frames], self.now))

    def worker(self, peer, *frames, front=(W,)):
        self.note(self.core.feed(self.side_of_workers, [peer, *front, *frames], self.now))

    def wait(self, seconds):
        end = self.now + seconds
        while (due := self.core.next_deadline()) <= end:
            self.now = due
            self.note(self.core.tick(due))
        self.now = end

    def take(self, wanted, *, heartbeats=False):
        """What this peer has got since the last call."""
        found = [frames for peer, frames in self.sent if peer == wanted]
        self.sent = [each for each in self.sent if each[0] != wanted]
        return [frames for frames in found if heartbeats or frames not in HEARTBEATS]

    def address(self, worker):
        """That of the only request which this worker has got."""
        [frames] = self.take(worker)
        command, address, *_ = frames[frames.index(REQUEST) :]
        assert command == REQUEST
        return address


HEARTBEATS = ([W, HEARTBEAT], [b"", b"MDPW01", b"\x04"], [b"", W, HEARTBEAT])
