"""MDP/0.2 (RFC 18): commands <-> frames. Pure: no socket, no clock.

Rules:
1. Frames here are those behind the routing id that a ROUTER prepends (`start` skips it).
2. Command numbers differ between the sides: 02 is PARTIAL for a client and REQUEST for a worker.
3. A worker's reply does not name its service; the broker inserts it. The client address is opaque to the worker.
4. Any message either becomes one of these commands or raises `MalformedFrames`.

Declared extensions, sent only to peers that announce them:
* READY may have a fourth frame (credit, capabilities, secret): how many requests the worker accepts at once, whether it
  reads envelopes and CANCEL, and the secret that a reserved name requires. A strict worker holds one request and gets
  bodies without envelope.
* CANCEL (07, broker to worker: address, empty): the client does not wait for the reply any more. The worker must still
  send the FINAL.
"""

from __future__ import annotations

import struct
from functools import lru_cache
from typing import TYPE_CHECKING, ClassVar, Final, TypeAlias

import msgspec

from transport.access import SECRET_BYTES, Secret
from transport.errors import MalformedFrames, TooLarge

if TYPE_CHECKING:
    from collections.abc import Sequence

    import zmq

Frame: TypeAlias = "bytes | zmq.Frame"
Frames: TypeAlias = "list[Frame]"

CLIENT: Final = b"MDPC02"
WORKER: Final = b"MDPW02"
SERVICE_BYTES_LIMIT: Final = 255
CREDIT_LIMIT: Final = 1024
NUMBER_BYTES: Final = 8
"""Of the address of a worker's request: the broker's number. Behind it stands who sent it, for services that are told."""
BODY_LIMIT: Final = 64 * 2**20
BODY_FRAMES: Final = 1000
"""With the other frames of a message, fewer than a socket accepts in one (`sockets.FRAMES_LIMIT`)."""
_EXTENSION: Final = struct.Struct("!HB")
_ENVELOPES: Final = 1
_EMPTY: Final = b""


class ClientCommand(msgspec.Struct, frozen=True):
    """A command between client and broker: `service` and a body of one frame or more."""

    number: ClassVar[bytes]
    service: bytes
    body: Frames

    def frames(self) -> Frames:
        return [CLIENT, self.number, self.service, *self.body]


class ClientRequest(ClientCommand, frozen=True):
    number = b"\x01"


class ClientPartial(ClientCommand, frozen=True):
    number = b"\x02"


class ClientFinal(ClientCommand, frozen=True):
    number = b"\x03"


class Ready(msgspec.Struct, frozen=True):
    """A worker registers. `extended`: it reads envelopes and CANCEL, may hold `credit` requests, and shows a `secret`."""

    service: bytes
    credit: int = 1
    extended: bool = False
    secret: Secret | None = None

    def frames(self) -> Frames:
        if not self.extended:
            return [WORKER, b"\x01", self.service]
        shown = b"" if self.secret is None else self.secret.value
        return [WORKER, b"\x01", self.service, _EXTENSION.pack(self.credit, _ENVELOPES) + shown]


class WorkerCommand(msgspec.Struct, frozen=True):
    """A command between broker and worker about one request."""

    number: ClassVar[bytes]
    address: bytes
    body: Frames

    def frames(self) -> Frames:
        return [WORKER, self.number, self.address, _EMPTY, *self.body]


class WorkerRequest(WorkerCommand, frozen=True):
    number = b"\x02"


class WorkerPartial(WorkerCommand, frozen=True):
    number = b"\x03"


class WorkerFinal(WorkerCommand, frozen=True):
    number = b"\x04"


class Heartbeat(msgspec.Struct, frozen=True):
    def frames(self) -> Frames:
        return [WORKER, b"\x05"]


class Disconnect(msgspec.Struct, frozen=True):
    def frames(self) -> Frames:
        return [WORKER, b"\x06"]


class Cancel(msgspec.Struct, frozen=True):
    """Extension: the client does not wait for the reply to this request any more."""

    address: bytes

    def frames(self) -> Frames:
        return [WORKER, b"\x07", self.address, _EMPTY]


ToOrFromClient: TypeAlias = ClientRequest | ClientPartial | ClientFinal
ToOrFromWorker: TypeAlias = (
    Ready | WorkerRequest | WorkerPartial | WorkerFinal | Heartbeat | Disconnect | Cancel
)

_CLIENT_COMMANDS: Final[dict[bytes, type[ClientRequest | ClientPartial | ClientFinal]]] = {
    command.number: command for command in (ClientRequest, ClientPartial, ClientFinal)
}
_WORKER_COMMANDS: Final[dict[bytes, type[WorkerRequest | WorkerPartial | WorkerFinal]]] = {
    command.number: command for command in (WorkerRequest, WorkerPartial, WorkerFinal)
}
_BARE_COMMANDS: Final[dict[bytes, Heartbeat | Disconnect]] = {b"\x05": Heartbeat(), b"\x06": Disconnect()}


def is_of_worker(frames: Frames) -> bool:
    """Whether a message with its routing id begins as those of workers do."""
    return len(frames) > 1 and frames[1] == WORKER


def parse_client(frames: Frames, *, start: int = 0) -> ToOrFromClient:
    """Parse a command between client and broker.

    Raises:
        MalformedFrames: not a command of MDP/Client 0.2.
    """
    if len(frames) < start + 4:
        raise MalformedFrames("MDP/Client has four frames or more")
    if frames[start] != CLIENT:
        raise MalformedFrames("not MDPC02")
    command = _CLIENT_COMMANDS.get(_small(frames[start + 1]))
    if command is None:
        raise MalformedFrames("unknown command of MDP/Client")
    return command(_service(frames[start + 2]), frames[start + 3 :])


def parse_worker(frames: Frames, *, start: int = 0) -> ToOrFromWorker:
    """Parse a command between worker and broker.

    Raises:
        MalformedFrames: not a command of MDP/Worker 0.2, nor CANCEL.
    """
    count = len(frames) - start
    if count < 2 or frames[start] != WORKER:
        raise MalformedFrames("not MDPW02")
    number = _small(frames[start + 1])
    command = _WORKER_COMMANDS.get(number)
    if command is not None:
        if count < 5 or frames[start + 3] != _EMPTY:
            raise MalformedFrames("address, empty frame and body expected")
        return command(_small(frames[start + 2]), frames[start + 4 :])
    bare = _BARE_COMMANDS.get(number)
    if bare is not None:
        if count != 2:
            raise MalformedFrames("HEARTBEAT and DISCONNECT have two frames")
        return bare
    if number == b"\x01":
        return _ready(frames, start, count)
    if number == b"\x07" and count == 4 and frames[start + 3] == _EMPTY:
        return Cancel(_small(frames[start + 2]))
    raise MalformedFrames("unknown command of MDP/Worker")


def _ready(frames: Frames, start: int, count: int) -> Ready:
    if count == 3:
        return Ready(_service(frames[start + 2]))
    extension = _small(frames[start + 3]) if count == 4 else b""
    if len(extension) not in {_EXTENSION.size, _EXTENSION.size + SECRET_BYTES}:
        raise MalformedFrames(
            "READY has three frames, or a fourth with credit, capabilities and perhaps a secret"
        )
    credit, capabilities = _EXTENSION.unpack_from(extension)
    if not 1 <= credit <= CREDIT_LIMIT or capabilities != _ENVELOPES:
        raise MalformedFrames(f"credit is 1 to {CREDIT_LIMIT}, capabilities are {_ENVELOPES}")
    shown = extension[_EXTENSION.size :]
    secret = Secret(shown) if shown else None
    return Ready(_service(frames[start + 2]), credit, extended=True, secret=secret)


def check_body(service: str, body: Sequence[bytes], *, what: str = "") -> None:
    """Check a body before it is sent.

    Raises:
        TypeError: a frame is not bytes.
        TooLarge: it has too many bytes, or too many frames.
    """
    if not all(type(frame) is bytes for frame in body):
        raise TypeError("a body is a sequence of bytes")
    size = sum(map(len, body))
    if size > BODY_LIMIT:
        raise TooLarge(service, f"{what}{size} bytes, {BODY_LIMIT} are allowed")
    if len(body) > BODY_FRAMES:
        raise TooLarge(service, f"{what}{len(body)} frames, {BODY_FRAMES} are allowed")


def plain(body: Sequence[Frame]) -> list[bytes]:
    """Return body frames as bytes, also those that arrived as `zmq.Frame`."""
    return [frame if isinstance(frame, bytes) else frame.bytes for frame in body]


def _small(frame: Frame) -> bytes:
    """Return a header frame; one that arrives as `zmq.Frame` is too large."""
    if type(frame) is not bytes:
        raise MalformedFrames("header frame too large")
    return frame


def service_name(name: str) -> bytes:
    """Return a service name as a frame.

    Raises:
        MalformedFrames: it has not 1 to 255 printable ASCII characters.
    """
    return _service(name.encode(errors="surrogatepass"))


@lru_cache(maxsize=1024)
def _is_service(name: bytes) -> bool:
    return 0 < len(name) <= SERVICE_BYTES_LIMIT and name.isascii() and name.decode().isprintable()


def _service(frame: Frame) -> bytes:
    name = _small(frame)
    if not _is_service(name):
        raise MalformedFrames(f"a service name has 1 to {SERVICE_BYTES_LIMIT} printable ASCII characters")
    return name
