"""Stream sockets between the driver and its runners, the driver's side.

Rules:
1. Runners on this machine come by the unix socket, others by TCP. Nobody is heard before a `Hello` with the secret.
2. A read is bounded, so that the loop goes on turning; a write never waits, what does not fit is kept.
3. What a peer sends can end its connection, and nothing else.
"""

from __future__ import annotations

import asyncio
import contextlib
import errno
import hmac
import os
import socket
import struct
from typing import TYPE_CHECKING, Final

from governor import logs
from governor.tasks.protocol.wire import (
    LARGEST,
    LENGTH,
    Bundle,
    FromRunner,
    Hello,
    decode_from_runner,
    frames,
    keep_alive,
)

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
"""At once on each of the two sockets; then the one that has been silent longest has to go."""
ACCEPT_PAUSE: Final = 0.1
"""Seconds without descriptors; a listener that cannot accept stays readable, and the loop would spin on it."""
COMPLAINT_SECONDS: Final = 10.0
"""Between two lines of the log about strangers."""
_NO_ROOM: Final = (errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM)

log = logs.get_logger()


class RunnerConnection:
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
        self._trusted = False
        self._loop.add_reader(sock.fileno(), self._read)

    def trust(self) -> None:
        """It may send documents of any size from now on."""
        self._trusted = True

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
            del data[:sent]
            self._out = data
            self._loop.add_writer(self._sock.fileno(), self._writable)

    def drain(self) -> None:
        """Reads all that the kernel has of a peer that is dead."""
        while self.is_open and self._read():
            pass

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

    def _read(self) -> bool:
        """One read; whether there may be more."""
        size = LARGE_READ_BYTES if len(self._in) > READ_BYTES else READ_BYTES
        try:
            data = self._sock.recv(size)
        except BlockingIOError:
            return False
        except OSError:
            data = b""
        if not data:
            self.close()
            return False
        self._in += data
        self._hand_on()
        return self.is_open

    def _hand_on(self) -> None:
        """All that is whole; what came before a fault counts."""
        while self.is_open:
            trusted = self._trusted
            documents, fault = self._split()
            if documents and self.heard is not None:
                self.heard(documents)
            if fault:
                if trusted:
                    log.warning("runner.malformed", reason=fault)
                self.close()
            elif trusted is self._trusted:
                return

    def _split(self) -> tuple[list[FromRunner], str]:
        """What is whole, of a stranger the first document; and what is wrong with the next one."""
        found: list[FromRunner] = []
        limit = LARGEST if self._trusted else STRANGER_BYTES
        fault, start, data = "", 0, self._in
        with memoryview(data) as view:
            while len(data) - start >= LENGTH.size and (self._trusted or not found):
                (length,) = LENGTH.unpack_from(data, start)
                end = start + LENGTH.size + length
                if length > limit:
                    fault = f"a document of {length} bytes"
                if fault or end > len(data):
                    break
                try:
                    found.append(decode_from_runner(view[start + LENGTH.size : end]))
                except (ValueError, RecursionError) as error:  # msgspec's errors are ValueErrors
                    fault = f"{type(error).__name__}: {error}"
                    break
                start = end
        del data[:start]
        return found, fault

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
        self, *, folder: Path, host: str, secret: bytes, welcome: Callable[[RunnerConnection, Hello], None]
    ) -> None:
        self._loop = asyncio.get_running_loop()
        self._secret = secret
        self._welcome = welcome
        self._strangers: dict[bool, dict[RunnerConnection, asyncio.TimerHandle]] = {True: {}, False: {}}
        """Of this machine and others."""
        self._refused = 0
        self._complain_at = 0.0
        self._pauses: set[asyncio.TimerHandle] = set()
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
            self._listen(listener)

    def close(self) -> None:
        for pause in self._pauses:
            pause.cancel()
        for listener in self._listening:
            self._loop.remove_reader(listener.fileno())
            listener.close()
        with contextlib.suppress(FileNotFoundError):
            os.unlink(self.path)  # noqa: PTH108  # as above
        for stranger in [*self._strangers[True], *self._strangers[False]]:
            stranger.close()

    def _listen(self, listener: socket.socket) -> None:
        self._loop.add_reader(listener.fileno(), self._accept, listener)

    def _accept(self, listener: socket.socket) -> None:
        try:
            sock, _ = listener.accept()
        except OSError as error:  # it has left already, or there is no room
            if error.errno in _NO_ROOM:
                self._pause(listener)
            return
        local = listener is self._unix
        if not local:
            sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            keep_alive(sock)
        strangers = self._strangers[local]
        if len(strangers) >= STRANGERS:
            next(iter(strangers)).close()
        stranger = RunnerConnection(sock, local=local)
        strangers[stranger] = self._loop.call_later(STRANGER_SECONDS, stranger.close)
        stranger.closed = lambda: self._forget(stranger)
        stranger.heard = lambda documents: self._heard(stranger, documents[0])

    def _pause(self, listener: socket.socket) -> None:
        log.warning("runner.no_descriptors")
        self._loop.remove_reader(listener.fileno())

        def go_on() -> None:
            self._pauses.discard(pause)
            self._listen(listener)

        pause = self._loop.call_later(ACCEPT_PAUSE, go_on)
        self._pauses.add(pause)

    def _forget(self, stranger: RunnerConnection) -> None:
        timer = self._strangers[stranger.local].pop(stranger, None)
        if timer is not None:
            timer.cancel()

    def _heard(self, stranger: RunnerConnection, first: FromRunner) -> None:
        if not isinstance(first, Hello) or not hmac.compare_digest(first.secret, self._secret):
            self._complain(local=stranger.local)
            stranger.close()
            return
        self._forget(stranger)
        stranger.trust()
        stranger.closed = stranger.heard = None
        self._welcome(stranger, first)

    def _complain(self, *, local: bool) -> None:
        """Now and then: who floods us is not to flood the log."""
        self._refused += 1
        if self._loop.time() >= self._complain_at:
            log.warning("runner.strangers", refused=self._refused, local=local)
            self._refused, self._complain_at = 0, self._loop.time() + COMPLAINT_SECONDS
