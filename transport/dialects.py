"""Peers that do not speak MDP/0.2 as RFC 18 has it: what they send becomes its frames, and what they get becomes theirs. Pure.

Rules:
1. All of them put an empty frame in front; no peer of RFC 18 does. So a message tells its dialect.
2. `MDP_01` is MDP/0.1 (RFC 7). Its clients know one reply: PARTIALs are not sent to them. Nor is CANCEL to any worker here.
3. `MAJORTOMO` is what the library of this name (0.2.0) makes of MDP/0.2: its clients count commands as workers do, and get no
   name of a service.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import msgspec

from transport.errors import MalformedFrames
from transport.frames import CLIENT, WORKER

if TYPE_CHECKING:
    from transport.frames import Frame, Frames

EMPTY: Final = b""
"""The first frame of a message in a dialect."""
_REQUEST: Final = b"\x01"
_NUMBERS: Final = [bytes([number]) for number in range(8)]


class Dialect(msgspec.Struct, frozen=True, eq=False):
    """`client` and `worker` are the headers. `from_worker` and `to_worker` have the commands of RFC 18 for those of the dialect, and the
    other way round; `to_client` what a client's PARTIAL and FINAL begin with.
    """

    client: bytes
    worker: bytes
    from_client: tuple[bytes, ...]
    """What a REQUEST begins with, behind the header."""
    to_client: dict[bytes, tuple[bytes, ...]]
    has_service: bool
    """Whether a reply names it."""
    from_worker: dict[bytes, bytes]
    to_worker: dict[bytes, bytes]

    def read(self, frames: Frames) -> Frames:
        """Frames of RFC 18, with the routing id. Raises MalformedFrames for a command that the dialect does not have."""
        header, rest = frames[2], frames[3:]
        if header == self.worker:
            number = self.from_worker.get(rest[0]) if rest and type(rest[0]) is bytes else None
            if number is None:
                raise MalformedFrames("unknown command of a worker")
            if number == _NUMBERS[1] and len(rest) != 2:  # our extension of READY is for peers of RFC 18
                raise MalformedFrames("READY has a service and nothing behind it")
            return [frames[0], WORKER, number, *rest[1:]]
        begun = len(self.from_client)
        if header != self.client or tuple(rest[:begun]) != self.from_client:
            raise MalformedFrames("unknown command of a client")
        return [frames[0], CLIENT, _REQUEST, *rest[begun:]]

    def for_worker(self, frames: Frames) -> Frames | None:
        """A command for a worker, which begins with its header; None if the dialect has none for it."""
        number = self.to_worker.get(frames[1])  # type: ignore[arg-type]  # ours are bytes
        return None if number is None else [EMPTY, self.worker, number, *frames[2:]]

    def for_client(self, frames: Frames) -> Frames | None:
        """A reply to a client, which begins with its header; None if the dialect has none for it."""
        begun = self.to_client.get(frames[1])  # type: ignore[arg-type]  # as above
        if begun is None:
            return None
        return [EMPTY, self.client, *begun, *frames[2 if self.has_service else 3 :]]


def _numbered(*numbers: int) -> dict[bytes, bytes]:
    """From the numbers of RFC 18, in the order in which a dialect counts them from 1 on."""
    return {_NUMBERS[ours]: _NUMBERS[theirs] for theirs, ours in enumerate(numbers, 1)}


def _reversed(numbers: dict[bytes, bytes]) -> dict[bytes, bytes]:
    return {theirs: ours for ours, theirs in numbers.items()}


_OF_01: Final = _numbered(1, 2, 4, 5, 6)
_OF_02: Final = _numbered(1, 2, 3, 4, 5, 6)
MDP_01: Final = Dialect(
    client=b"MDPC01",
    worker=b"MDPW01",
    from_client=(),
    to_client={_NUMBERS[3]: ()},
    has_service=True,
    from_worker=_reversed(_OF_01),
    to_worker=_OF_01,
)
MAJORTOMO: Final = Dialect(
    client=CLIENT,
    worker=WORKER,
    from_client=(_NUMBERS[2],),
    to_client={_NUMBERS[2]: (_NUMBERS[3],), _NUMBERS[3]: (_NUMBERS[4],)},
    has_service=False,
    from_worker=_reversed(_OF_02),
    to_worker=_OF_02,
)
_BY_HEADER: Final = {header: each for each in (MDP_01, MAJORTOMO) for header in (each.client, each.worker)}


def dialect_of(frames: Frames) -> Dialect:
    """Of a message with its routing id whose first frame is empty. Raises MalformedFrames without a header of a dialect behind it."""
    header: Frame = frames[2] if len(frames) > 3 else EMPTY  # a command has one frame more
    found = _BY_HEADER.get(header) if type(header) is bytes else None
    if found is None:
        raise MalformedFrames("no header behind an empty frame")
    return found


def is_partial(frames: Frames) -> bool:
    """Whether a message to a client, with its routing id, is a PARTIAL."""
    return frames[1:3] == [CLIENT, _NUMBERS[2]] or frames[1:4] == [EMPTY, CLIENT, _NUMBERS[3]]
