"""The envelope, our first body frame: session, request id, time budget, and status.

Rules:
1. 36 bytes, network order: magic, version, kind, flags, status, request id, session, value. The magic starts with
   a byte that is valid neither in UTF-8 nor in msgpack, so that a plain peer's body is not mistaken for one.
2. `value` is the time budget in ms for a request (0: none; relative, since clocks differ), the sequence number for a
   reply: parts of a stream count from 1, so that a reader sees that one is missing.
3. (session, request id) correlates and dedupes; the routing id of a peer changes whenever it reconnects.
4. The broker reads and rewrites this frame and never reads the following ones.
"""

from __future__ import annotations

import struct
from enum import IntEnum
from math import inf
from typing import TYPE_CHECKING, Final

import msgspec

from transport.errors import MalformedFrames

if TYPE_CHECKING:
    from transport.frames import Frame

MAGIC: Final = b"\xc1MDE"
VERSION: Final = 1
SESSION_BYTES: Final = 16
BUDGET_LIMIT_MS: Final = 2**32 - 1
_LAYOUT: Final = struct.Struct("!4sBBBBQ16sI")
_BUDGET: Final = struct.Struct("!I")
SIZE: Final = _LAYOUT.size
_BEFORE_BUDGET: Final = SIZE - _BUDGET.size
_IDENTITY: Final = slice(8, 32)
_IDEMPOTENT: Final = 1
_STREAM: Final = 2
_HEAD: Final = MAGIC + bytes([VERSION])


class ReplyStatus(IntEnum):
    """The end of a request. All but OK and REMOTE_ERROR are sent by the broker; CANCELLED is never delivered."""

    OK = 0
    REMOTE_ERROR = 1
    SERVICE_NOT_FOUND = 2
    EXPIRED = 3
    QUEUE_FULL = 4
    TOO_LARGE = 5
    WORKER_LOST = 6
    CANCELLED = 7
    NOT_PERMITTED = 8


_REQUEST, _REPLY, _CANCEL = 1, 2, 3
"""Kinds of envelopes."""
_STATUSES: Final = frozenset(int(status) for status in ReplyStatus)


class RequestEnvelope(msgspec.Struct, frozen=True, gc=False):
    """Envelope of a request. `stream`: the budget bounds its start, not its end."""

    request_id: int
    session: bytes
    budget_ms: int = 0
    idempotent: bool = False
    stream: bool = False
    cancel: bool = False

    @property
    def budget_seconds(self) -> float:
        """The time budget in seconds, inf without one."""
        return self.budget_ms / 1000 if self.budget_ms else inf

    def frame(self) -> bytes:
        flags = (_IDEMPOTENT if self.idempotent else 0) | (_STREAM if self.stream else 0)
        kind = _CANCEL if self.cancel else _REQUEST
        return _LAYOUT.pack(MAGIC, VERSION, kind, flags, 0, self.request_id, self.session, self.budget_ms)


class ReplyEnvelope(msgspec.Struct, frozen=True, gc=False):
    """Envelope of a reply. `sequence`: 1 for the first part of a stream; the FINAL has the last number."""

    request_id: int
    session: bytes
    status: int = 0
    sequence: int = 1

    def frame(self) -> bytes:
        return _LAYOUT.pack(
            MAGIC, VERSION, _REPLY, 0, self.status, self.request_id, self.session, self.sequence
        )


def read_request(frame: Frame) -> RequestEnvelope | None:
    """Read the first body frame of a request; None when it is no envelope.

    Raises:
        MalformedFrames: it has the magic and is no request envelope of this version.
    """
    if type(frame) is not bytes or not frame.startswith(MAGIC):
        return None
    _, kind, flags, status, request_id, session, budget = _unpack(frame)
    if (kind != _REQUEST and kind != _CANCEL) or flags > (_IDEMPOTENT | _STREAM) or status:  # noqa: PLR1714 - hot path
        raise MalformedFrames("envelope of a request has a strange kind, flag or status")
    return RequestEnvelope(
        request_id, session, budget, bool(flags & _IDEMPOTENT), bool(flags & _STREAM), kind == _CANCEL
    )


def read_reply(frame: Frame) -> ReplyEnvelope | None:
    """Read the first body frame of a reply; None when it is no envelope.

    Raises:
        MalformedFrames: it has the magic and is no reply envelope of this version.
    """
    if type(frame) is not bytes or not frame.startswith(MAGIC):
        return None
    _, kind, flags, status, request_id, session, sequence = _unpack(frame)
    if kind != _REPLY or flags or status not in _STATUSES:
        raise MalformedFrames("envelope of a reply has a strange kind, flag or status")
    return ReplyEnvelope(request_id, session, status, sequence)


def identity(frame: bytes) -> bytes:
    """(request id, session) of an envelope as one key."""
    return frame[_IDENTITY]


def with_budget(frame: bytes, budget_ms: int) -> bytes:
    """Return the same request envelope with another time budget."""
    return frame[:_BEFORE_BUDGET] + _BUDGET.pack(budget_ms)


def milliseconds(seconds: float) -> int:
    """Seconds as a budget: at least 1 ms, since 0 means no limit."""
    return max(1, int(min(BUDGET_LIMIT_MS, seconds * 1000)))


def _unpack(frame: bytes) -> tuple[int, int, int, int, int, bytes, int]:
    if len(frame) != SIZE or not frame.startswith(_HEAD):
        raise MalformedFrames("not an envelope of this version")
    fields: tuple[int, int, int, int, int, bytes, int] = _LAYOUT.unpack(frame)[1:]
    return fields
