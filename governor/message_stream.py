"""Length-prefixed messages on stream sockets: all that processes of this machine, and runners, send to each other directly.

Rules:
1. A message is preceded by its length: four bytes, little-endian.
2. A peer that announces a larger message than is accepted is disconnected, before memory is allocated for it.
3. The module imports nothing but sockets: processes for user code import it, and must start quickly.

A step costs two round trips and little else. A round trip takes 80 µs here and 160 µs through ZeroMQ, which wakes a thread
of its own on either side for each message.
"""

from __future__ import annotations

import socket
import struct
from typing import TYPE_CHECKING, Final, TypeVar

if TYPE_CHECKING:
    from collections.abc import Callable

T = TypeVar("T")

LENGTH: Final = struct.Struct("<I")
MAX_MESSAGE_BYTES: Final = 1 << 30
READ_BYTES: Final = 1 << 18


class StreamClosed(ConnectionError):
    """The other end is closed, or it sent something that is not a message."""


class MessageTooLarge(StreamClosed):
    """The other end announces a message that is larger than accepted."""


def framed(message: bytes) -> bytes:
    """The message, preceded by its length."""
    return LENGTH.pack(len(message)) + message


class MessageBuffer:
    """Received bytes, cut into messages of at most `max_bytes`, which may be changed at any time."""

    def __init__(self, max_bytes: int = MAX_MESSAGE_BYTES) -> None:
        self.max_bytes = max_bytes
        self._received = bytearray()

    def __len__(self) -> int:
        return len(self._received)

    def feed(self, data: bytes) -> None:
        """Adds what a read has returned. Raises StreamClosed for the empty bytes at the end of the stream."""
        if not data:
            raise StreamClosed("the other end is closed")
        self._received += data

    def next_message(self, decode: Callable[[memoryview], T]) -> T | None:
        """The next whole message, or None. `decode` must keep no reference to its argument; if it raises, the message stays
        in the buffer. Raises MessageTooLarge.
        """
        received = self._received
        if len(received) < LENGTH.size:
            return None
        (length,) = LENGTH.unpack_from(received)
        if length > self.max_bytes:
            raise MessageTooLarge(f"a message of {length} bytes")
        end = LENGTH.size + length
        if len(received) < end:
            return None
        message = decode(memoryview(received)[LENGTH.size : end])
        del received[:end]
        return message

    def next_messages(self, decode: Callable[[memoryview], T], *, into: list[T], most: int) -> None:
        """As `next_message` for all that are whole, until `into` has `most`; in half the time, if they are many and small."""
        received, at = self._received, 0
        view = memoryview(received)
        have, unpack, length = len(view), LENGTH.unpack_from, 0
        try:
            while len(into) < most and have - at >= LENGTH.size:
                (length,) = unpack(view, at)
                begin = at + LENGTH.size
                end = begin + length
                if length > self.max_bytes or end > have:
                    break
                into.append(decode(view[begin:end]))
                at = end
        except BaseException:  # its traceback may hold a part of `received`, which cannot be shortened then
            self._received = received[at:]
            raise
        view.release()
        del received[:at]
        if length > self.max_bytes:
            raise MessageTooLarge(f"a message of {length} bytes")


class MessageStream(MessageBuffer):
    """One end of a connection, for one thread. `unsent` holds bytes that did not fit into the kernel's buffer, until `flush`.

    Of a `blocking` stream only `receive` and `wait_message` are used.
    """

    def __init__(
        self, connected: socket.socket, *, max_bytes: int = MAX_MESSAGE_BYTES, blocking: bool = False
    ) -> None:
        super().__init__(max_bytes)
        connected.setblocking(blocking)
        self.unsent = bytearray()
        self._socket = connected

    @classmethod
    def connect(cls, path: str) -> MessageStream:
        """Raises OSError when no socket listens at `path`."""
        made = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        try:
            made.setblocking(False)
            made.connect(path)
        except OSError:
            made.close()
            raise
        return cls(made)

    def fileno(self) -> int:
        return self._socket.fileno()

    def send(self, message: bytes) -> None:
        """Sends a message, or queues it in `unsent`. Raises StreamClosed."""
        self.send_framed(framed(message))

    def send_framed(self, data: bytes | bytearray) -> None:
        """As `send`, for messages that are preceded by their lengths already. A large bytearray is kept, not copied."""
        if self.unsent:
            self.unsent += data
            return
        sent = self._write(data)
        if sent < len(data):
            self.unsent = bytearray(data) if isinstance(data, bytes) else data
            del self.unsent[:sent]

    def flush(self) -> None:
        """Sends as much of `unsent` as fits. Raises StreamClosed."""
        sent = self._write(self.unsent)
        del self.unsent[:sent]

    def receive(self, most: int = READ_BYTES) -> bool:
        """Reads once; False if nothing has arrived. Raises StreamClosed at the end of the stream."""
        try:
            data = self._socket.recv(most)
        except BlockingIOError:
            return False
        except OSError as error:
            raise StreamClosed(str(error)) from None
        self.feed(data)
        return True

    def wait_message(self, decode: Callable[[memoryview], T]) -> T:
        """As `next_message`, but blocks until it has arrived. Raises StreamClosed."""
        while (message := self.next_message(decode)) is None:
            self.receive()
        return message

    def close(self) -> None:
        self._socket.close()

    def _write(self, data: bytes | bytearray) -> int:
        try:
            return self._socket.send(data)
        except BlockingIOError:
            return 0
        except OSError as error:
            raise StreamClosed(str(error)) from None
