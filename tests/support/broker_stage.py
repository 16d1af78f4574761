"""A broker core with a clock that is a number."""

from __future__ import annotations

from transport import envelope as envelopes
from transport import frames as mdp
from transport.broker_core import BrokerCore, BrokerLimits, Side
from transport.envelope import ReplyEnvelope, ReplyStatus, RequestEnvelope

SESSION = b"s" * 16


class Stage:
    """A core, a clock, and the messages that the core sent, by peer."""

    def __init__(self, *, access=None, **limits):
        self.core = BrokerCore(limits=BrokerLimits(**limits), access=access)
        self.now = 0.0
        self.sent: dict[bytes, list] = {}

    def _note(self, sends):
        for side, frames in sends:
            parse = mdp.parse_worker if side is Side.WORKERS else mdp.parse_client
            self.sent.setdefault(frames[0], []).append(parse(frames, start=1))

    def client(self, peer, command, *, side=Side.CLIENTS):
        self._note(self.core.feed(side, [peer, *command.frames()], self.now))

    def worker(self, peer, command):
        self._note(self.core.feed(Side.WORKERS, [peer, *command.frames()], self.now))

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

    def take(self, peer):
        """The messages for peer `peer` since the last call, without heartbeats."""
        return [command for command in self.sent.pop(peer, []) if type(command) is not mdp.Heartbeat]

    # -- messages of our own peers ------------------------------------------------------------------------

    def ready(self, peer, service=b"echo", credit=1, *, extended=True):
        self.worker(peer, mdp.Ready(service, credit, extended))
        self.take(peer)

    def ask(
        self,
        peer,
        number,
        *,
        service=b"echo",
        body=b"body",
        seconds=30.0,
        session=SESSION,
        side=Side.CLIENTS,
        **flags,
    ):
        envelope = RequestEnvelope(number, session, int(seconds * 1000), **flags)
        self.client(peer, mdp.ClientRequest(service, [envelope.frame(), body]), side=side)

    def request_at(self, peer):
        """The only request for worker `peer`: (address, request id, body)."""
        (command,) = self.take(peer)
        assert type(command) is mdp.WorkerRequest
        return command.address, envelopes.read_request(command.body[0]).request_id, command.body[1:]

    def answer(self, peer, address, number, *, body=b"reply", kind=mdp.WorkerFinal, sequence=1):
        self.worker(peer, kind(address, [ReplyEnvelope(number, SESSION, 0, sequence).frame(), body]))

    def answers(self, peer):
        """(request id, status, rest of the body) of each FINAL for client `peer`."""
        found = []
        for command in self.take(peer):
            assert type(command) is mdp.ClientFinal
            envelope = envelopes.read_reply(command.body[0])
            found.append((envelope.request_id, ReplyStatus(envelope.status), command.body[1:]))
        return found
