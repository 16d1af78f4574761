"""Stream sockets between the driver and its runners, the driver's side.

Rules:
1. Runners on this machine come by the unix socket, others by TCP. Nobody is heard before a `Hello` with the secret.
2. A read is bounded, so that the loop goes on turning; a write never waits, what does not fit is kept.
3. What a peer sends can end its connection, and nothing else.
"""

from __future__ import annotations

import asyncio
import contextlib
import hmac
import os
import socket
import struct
from typing import TYPE_CHECKING, Final

import msgspec

from governor import logs
from governor.tasks.wire import LARGEST, LENGTH, Bundle, FromRunner, Hello, decode_from_runner, frames

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable
    from pathlib import Path

READ_BYTES: Final = 16 * 1024
"""At once: some 500 reports, which take the scheduler 4 ms."""
LARGE_READ_BYTES: Final = 1024 * 1024
"""At once, while a single large document is on its way."""
STRANGER_BYTES: Final = 4096
"""Of a first document."""
STRANGER_SECONDS: Final = 10.0
STRANGERS: Final = 256
"""At once; the kernel keeps others waiting."""

log = logs.get_logger()


class Connection:
    """One runner's stream. `heard` gets all documents of one read; `closed` is called once, at the end."""

    def __init__(self, sock: socket.socket, *, local: bool) -> None:
        sock.setblocking(False)
        self.local = local
        self.heard: Callable[[list[FromRunner]], None] | None = None
        self.closed: Callable[[], None] | None = None
        self._sock = sock
        self._loop = asyncio.get_running_loop()
        self._in = bytearray()
        self._out = bytearray()
        self.is_open = True
        self._limit = STRANGER_BYTES
        self._loop.add_reader(sock.fileno(), self._readable)

    def trust(self) -> None:
        """It may send documents of any size from now on."""
        self._limit = LARGEST

    def peer_pid(self) -> int:
        """The process at the other end of a unix socket, as the kernel has it."""
        credentials = self._sock.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, struct.calcsize("3i"))
        pid: int = struct.unpack("3i", credentials)[0]
        return pid

    def send(self, documents: Iterable[Bundle]) -> None:
        """Never waits. Sending to a peer that is gone does nothing: its end is on its way."""
        if not self.is_open:
            return
        data = frames(documents)
        if self._out:
            self._out += data
            return
        try:
            sent = self._sock.send(data)
        except BlockingIOError:
            sent = 0
        except OSError:
            return  # the reader sees the end
        if sent < len(data):
            self._out += memoryview(data)[sent:]
            self._loop.add_writer(self._sock.fileno(), self._writable)

    def drain(self) -> None:
        """Reads all that the kernel has of a peer that is dead."""
        while self.is_open and self._read():
            pass

    def hear(self, documents: list[FromRunner]) -> None:
        """Hands on what was read."""
        if documents and self.heard is not None:
            self.heard(documents)

    def close(self) -> None:
        """Again: nothing."""
        if not self.is_open:
            return
        self.is_open = False
        self._loop.remove_reader(self._sock.fileno())
        self._loop.remove_writer(self._sock.fileno())
        self._sock.close()
        if self.closed is not None:
            self.closed()

    def _readable(self) -> None:
        self._read()

    def _read(self) -> bool:
        """One read; whether there may be more."""
        size = LARGE_READ_BYTES if len(self._in) > READ_BYTES else READ_BYTES
        try:
            data = self._sock.recv(size)
        except BlockingIOError:
            return False
        except OSError:
            data = b""
        if data:
            self._in += data
            try:
                documents = self._split()
            except (ValueError, msgspec.MsgspecError) as error:
                log.warning("runner.malformed", reason=str(error))
                self.close()
                return False
            self.hear(documents)
            return True
        self.close()
        return False

    def _split(self) -> list[FromRunner]:
        found: list[FromRunner] = []
        start, data = 0, self._in
        with memoryview(data) as view:
            while len(data) - start >= LENGTH.size:
                (length,) = LENGTH.unpack_from(data, start)
                if length > self._limit:
                    raise ValueError(f"a document of {length} bytes")
                end = start + LENGTH.size + length
                if end > len(data):
                    break
                found.append(decode_from_runner(view[start + LENGTH.size : end]))
                start = end
        del data[:start]
        return found

    def _writable(self) -> None:
        try:
            sent = self._sock.send(self._out)
        except BlockingIOError:
            return
        except OSError:
            self._out.clear()
            sent = 0
        del self._out[:sent]
        if not self._out:
            self._loop.remove_writer(self._sock.fileno())


class Gate:
    """The two listening sockets. `welcome` is called with a connection and its proven `Hello`.

    Args:
        folder: for the unix socket; its path must be short (107 bytes). host: the address for runners elsewhere.
    """

    def __init__(
        self, *, folder: Path, host: str, secret: bytes, welcome: Callable[[Connection, Hello], None]
    ) -> None:
        self._loop = asyncio.get_running_loop()
        self._secret = secret
        self._welcome = welcome
        self._strangers: dict[Connection, asyncio.TimerHandle] = {}
        self.path = str(folder / f"runners-{os.getpid()}-{os.urandom(3).hex()}.sock")
        self._unix = socket.socket(socket.AF_UNIX)
        self._unix.bind(self.path)
        os.chmod(self.path, 0o600)  # noqa: PTH101  # a path of a socket, not of a file
        self._tcp = socket.create_server((host, 0))
        self.address: tuple[str, int] = self._tcp.getsockname()[:2]
        self._listening = (self._unix, self._tcp)
        for listener in self._listening:
            listener.listen(STRANGERS)
            listener.setblocking(False)
            self._loop.add_reader(listener.fileno(), self._accept, listener)

    def close(self) -> None:
        for listener in self._listening:
            self._loop.remove_reader(listener.fileno())
            listener.close()
        with contextlib.suppress(FileNotFoundError):
            os.unlink(self.path)  # noqa: PTH108  # as above
        for stranger in list(self._strangers):
            stranger.close()

    def _accept(self, listener: socket.socket) -> None:
        try:
            sock, _ = listener.accept()
        except OSError:  # it has left already, or there are no descriptors: then the others go on
            return
        local = listener is self._unix
        if not local:
            sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        if len(self._strangers) >= STRANGERS:
            next(iter(self._strangers)).close()
        stranger = Connection(sock, local=local)
        self._strangers[stranger] = self._loop.call_later(STRANGER_SECONDS, stranger.close)
        stranger.closed = lambda: self._forget(stranger)
        stranger.heard = lambda documents: self._heard(stranger, documents)

    def _forget(self, stranger: Connection) -> None:
        timer = self._strangers.pop(stranger, None)
        if timer is not None:
            timer.cancel()

    def _heard(self, stranger: Connection, documents: list[FromRunner]) -> None:
        first = documents[0]
        if not isinstance(first, Hello) or not hmac.compare_digest(first.secret, self._secret):
            log.warning("runner.stranger", local=stranger.local)
            stranger.close()
            return
        self._forget(stranger)
        stranger.trust()
        stranger.closed = stranger.heard = None
        self._welcome(stranger, first)
        stranger.hear(documents[1:])
