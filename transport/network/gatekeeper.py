"""Who comes in through the network: answers libzmq's questions about the keys of peers (ZAP, RFC 27).

Rules:
1. The network's socket has a context of its own, hence a thread of its own for handshakes and their cryptography: a flood
   of strangers takes nothing from the sockets of this machine.
2. Who a peer is follows from its key alone. Each message is looked up again, so that a key that is taken away is worth
   nothing from then on, also on a connection that is open.
3. Refusals are logged with the peer's address and the rule, `LINES` in each interval at most; the others are counted.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from typing import TYPE_CHECKING, Any, Final

import msgspec
import zmq
from zmq.utils import z85

from transport import frames as mdp
from transport.access import Peer
from transport.network.curve import Member
from transport.sockets import SocketLoop

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from transport.broker_events import OnEvent
    from transport.frames import Frames
    from transport.network.curve import NetworkSettings
    from transport.sockets import DrainedSocket

LINES: Final = 5
UNKNOWN_KEY: Final = "its key is not known"
NO_HANDSHAKE: Final = "no handshake with a key, or no message behind it"
_ADDRESSES: Final = 1_000
_ZAP_ENDPOINT: Final = "inproc://zeromq.zap.01"
_DOMAIN: Final = b"network"
_VERSION: Final = b"1.0"
_FRAMES: Final = 7
_KEY_BYTES: Final = 32


class Gatekeeper:
    """For one broker. `start` once in its event loop; `aclose` when its sockets are to be closed."""

    def __init__(self, settings: NetworkSettings, *, on_event: OnEvent) -> None:
        self.context: zmq.Context[zmq.Socket[bytes]] = zmq.Context()
        self.refused = 0
        self.on_message: Callable[[int], None] = lambda _: None
        """Is called with the descriptor of a connection through which a message has come."""
        self._pair = settings.pair
        self._on_event = on_event
        self._members: dict[str, Member] = {}
        self.admit(settings.members)
        self._refusals: Counter[tuple[str, str]] = Counter()
        self._unknown: Counter[str] = Counter()
        """By address: those with an unknown key, whose connections are about to end."""

    def admit(self, members: Iterable[Member]) -> None:
        """From now on these come in, and no others."""
        self._members = {member.public: member for member in members}

    def admit_encoded(self, members: bytes) -> Callable[[Peer | None], bool]:
        """As `admit`, with members in msgpack; returns `knows`. Raises MsgspecError."""
        self.admit(msgspec.msgpack.decode(members, type=tuple[Member, ...]))
        return self.knows

    def start(self) -> None:
        """Answer from the next turn of the event loop on. Before the first socket is bound."""
        self._asked = self.context.socket(zmq.ROUTER)
        self._asked.set(zmq.LINGER, 0)
        self._asked.bind(_ZAP_ENDPOINT)
        self._loop = SocketLoop()
        self._drained = self._loop.add(self._asked, on_message=self._on_question)

    async def aclose(self, linger: int) -> None:
        """Close; what is to be sent may take so many milliseconds."""
        self.log_refusals()
        self._loop.remove(self._drained)
        self._asked.close()
        await asyncio.to_thread(self.context.destroy, linger)

    def guard(self, socket: zmq.Socket[bytes]) -> None:
        """Only peers with a known key can connect to this one."""
        socket.set(zmq.CURVE_SERVER, 1)
        socket.set(zmq.CURVE_SECRETKEY, self._pair.secret.encode())
        socket.set(zmq.ZAP_DOMAIN, _DOMAIN)

    def peer(self, drained: DrainedSocket) -> Peer:
        """Who sent the message that is being read; without a name if its key is no longer known."""
        self.on_message(drained.descriptor)
        member = self._members.get(drained.user_id)
        if member is None:
            return Peer.told(drained.peer_address, local=False)
        return Peer(address=drained.peer_address, name=member.name, role=member.role)

    def knows(self, peer: Peer | None) -> bool:
        """Whether it comes in with this name and role."""
        return peer is not None and any(
            (member.name, member.role) == (peer.name, peer.role) for member in self._members.values()
        )

    # -- refusals ---------------------------------------------------------------------------------------------

    def stranger(self, address: str) -> None:
        """A connection from there has ended before a message."""
        if self._unknown[address] > 0:
            self._unknown[address] -= 1
        else:
            self.refuse(address, NO_HANDSHAKE)

    def refuse(self, address: str, rule: str) -> None:
        """Count a refusal, and log it with the next ones."""
        self.refused += 1
        key = (address, rule)
        self._refusals[key if key in self._refusals or len(self._refusals) < LINES else ("", "")] += 1

    def log_refusals(self) -> None:
        refusals, self._refusals = self._refusals, Counter()
        for (address, rule), times in refusals.items():
            told: dict[str, Any] = {"address": address, "rule": rule} if rule else {"rule": "others"}
            self._on_event("broker.peer_refused", **told, times=times)

    # -- ZAP --------------------------------------------------------------------------------------------------

    def _on_question(self, frames: Frames) -> None:
        plain = mdp.plain(frames)
        if (answer := self.answer(plain[2:])) is not None:
            self._drained.send([*plain[:2], *answer])

    def answer(self, question: list[bytes]) -> list[bytes] | None:
        """The reply to a request of ZAP, both without their envelope; None for what is none."""
        if len(question) != _FRAMES or question[0] != _VERSION:
            return None
        _, number, _, address, _, mechanism, key = question
        public = _text(key) if mechanism == b"CURVE" else ""
        if public in self._members:
            return [_VERSION, number, b"200", b"OK", public.encode(), b""]
        place = address.decode(errors="replace")
        if len(self._unknown) > _ADDRESSES:
            self._unknown.clear()
        self._unknown[place] += 1
        self.refuse(place, UNKNOWN_KEY)
        return [_VERSION, number, b"400", b"unknown key", b"", b""]


def _text(key: bytes) -> str:
    return z85.encode(key).decode() if len(key) == _KEY_BYTES else ""
