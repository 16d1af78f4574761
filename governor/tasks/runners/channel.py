"""Stream sockets between the driver and its runners, the driver's side.

Rules:
1. Runners on this machine connect to the unix socket, others by TCP. A connection is authenticated by a first `Hello`
   with the secret; until then nothing else is accepted.
2. A read is bounded, so that the event loop is not blocked; a write never waits: what does not fit is buffered. Of a runner
   with many small tasks, reports are collected for a moment: each wake-up costs as much as several reports.
3. Invalid data of a peer ends its connection, and has no other effect.
"""

from __future__ import annotations

import asyncio
import errno
import hmac
import os
import socket
import struct
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Final

from governor import logs
from governor.message_stream import MessageStream, MessageTooLarge, StreamClosed
from governor.processes.readiness import is_readable
from governor.tasks.protocol.wire import (
    LARGEST,
    Bundle,
    FromRunner,
    Hello,
    decode_from_runner,
    frames,
    keep_alive,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

READ_BYTES: Final = 16 * 1024
"""Per read: some 500 reports, which take the scheduler 4 ms."""
LARGE_READ_BYTES: Final = 1024 * 1024
"""Per read, while a single large document is being received."""
REST_SECONDS: Final = 0.002
"""Without reading, at most, while many reports are on their way."""
HELLO_BYTES: Final = 4096
"""The largest first document."""
HELLO_SECONDS: Final = 10.0
"""Time for a new connection to send its `Hello`."""
MAX_UNAUTHENTICATED: Final = 256
"""Unauthenticated connections on each of the two sockets; beyond that the oldest is closed."""
ACCEPT_PAUSE: Final = 0.1
"""Seconds without accepting when descriptors run out: the listener stays readable, and the loop would spin on it."""
REFUSED_LOG_SECONDS: Final = 10.0
"""Between two log lines about refused connections."""
_NO_ROOM: Final = (errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM)

log = logs.get_logger()


class RunnerConnection:
    """The stream of one runner. `on_documents` gets all documents of one read; `on_closed` is called once, at the end."""

    def __init__(self, sock: socket.socket, *, local: bool) -> None:
        self.local = local
        self.on_documents: Callable[[list[FromRunner]], None] | None = None
        self.on_closed: Callable[[], None] | None = None
        self._sock = sock
        self._loop = asyncio.get_running_loop()
        self._stream = MessageStream(sock, max_bytes=HELLO_BYTES)
        self.is_open = True
        self.closed = asyncio.Event()
        self._trusted = False
        self._resting: asyncio.TimerHandle | None = None
        self._is_watched = True
        self._loop.add_reader(sock.fileno(), self._read)

    def trust(self) -> None:
        """Accepts documents of any size from now on."""
        self._trusted = True
        self._stream.max_bytes = LARGEST

    def peer_pid(self) -> int:
        """The pid at the other end of a unix socket, from the kernel (SO_PEERCRED)."""
        credentials = self._sock.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, struct.calcsize("3i"))
        pid: int = struct.unpack("3i", credentials)[0]
        return pid

    def send(self, documents: Iterable[Bundle]) -> None:
        """Never waits. Sending to a closed peer does nothing: the reader reports its end."""
        if not self.is_open:
            return
        try:
            self._stream.send_framed(frames(documents))
        except StreamClosed:
            return  # the reader sees the end
        if self._stream.unsent:
            self._loop.add_writer(self._sock.fileno(), self._writable)

    def rest(self, seconds: float) -> None:
        """Reads nothing for so long, `REST_SECONDS` at most, and then what has arrived."""
        if not self.is_open or self._resting is not None:
            return
        if self._is_watched:
            self._is_watched = False
            self._loop.remove_reader(self._sock.fileno())
        self._resting = self._loop.call_later(min(seconds, REST_SECONDS), self._go_on)

    def _go_on(self) -> None:
        self._resting = None
        try:
            self._read()  # at once: to watch the socket before costs as much as several reports
        finally:
            if self.is_open and self._resting is None:
                self._is_watched = True
                self._loop.add_reader(self._sock.fileno(), self._read)

    def drain(self) -> None:
        """Reads all that the kernel has buffered from a peer that has exited."""
        while self.is_open and self._read():
            pass

    def detach(self) -> socket.socket | None:
        """The socket, which is the caller's from now on; None if something was not sent or not read, or it is closed."""
        if not self.is_open or self._stream.unsent or len(self._stream) or is_readable(self._sock.fileno()):
            return None
        self._stop()
        return self._sock

    def close(self) -> None:
        """Idempotent."""
        if not self.is_open:
            return
        self._stop()
        self._sock.close()
        if self.on_closed is not None:
            self.on_closed()

    def _stop(self) -> None:
        self.is_open = False
        self.closed.set()
        self._loop.remove_reader(self._sock.fileno())
        self._loop.remove_writer(self._sock.fileno())
        if self._resting is not None:
            self._resting.cancel()

    def _read(self) -> bool:
        """Reads once; True if there may be more."""
        size = LARGE_READ_BYTES if len(self._stream) > READ_BYTES else READ_BYTES
        try:
            if not self._stream.receive(size):
                return False
        except StreamClosed:
            self.close()
            return False
        if not self._trusted:
            self._deliver(1)
        if self._trusted and self.is_open:
            self._deliver(sys.maxsize)
        return self.is_open

    def _deliver(self, most: int) -> None:
        """Delivers the complete documents, also those before a fault, which ends the connection."""
        found: list[FromRunner] = []
        fault = ""
        try:
            self._stream.next_messages(decode_from_runner, into=found, most=most)
        except (MessageTooLarge, ValueError, RecursionError) as error:  # msgspec's errors are ValueErrors
            fault = f"{type(error).__name__}: {error}"
        if found and self.on_documents is not None:
            self.on_documents(found)
        if fault:
            if self._trusted:
                log.warning("runner.malformed", reason=fault)
            self.close()

    def _writable(self) -> None:
        try:
            self._stream.flush()
        except StreamClosed:
            self._stream.unsent.clear()
        if not self._stream.unsent:
            self._loop.remove_writer(self._sock.fileno())


class RunnerListener:
    """The two listening sockets. `on_runner` is called with each authenticated connection and its `Hello`.

    Args:
        folder: for the unix socket; its path must be short (107 bytes). host: the address for runners on other nodes.
    """

    def __init__(
        self, *, folder: Path, host: str, secret: bytes, on_runner: Callable[[RunnerConnection, Hello], None]
    ) -> None:
        self._loop = asyncio.get_running_loop()
        self._secret = secret
        self._accept_runner = on_runner
        self._pending: dict[bool, dict[RunnerConnection, asyncio.TimerHandle]] = {True: {}, False: {}}
        """Unauthenticated connections: True: from this machine; False: from others."""
        self._refused = 0
        self._log_refused_at = 0.0
        self.path = str(folder / f"runners-{os.getpid()}-{os.urandom(3).hex()}.sock")
        self._unix = socket.socket(socket.AF_UNIX)
        self._unix.bind(self.path)
        os.chmod(self.path, 0o600)  # noqa: PTH101  # a path of a socket, not of a file
        self._tcp = socket.create_server((host, 0))
        self.address: tuple[str, int] = self._tcp.getsockname()[:2]
        self._listening = (self._unix, self._tcp)
        for listener in self._listening:
            listener.listen(MAX_UNAUTHENTICATED)
            listener.setblocking(False)
            self._listen(listener)

    def close(self) -> None:
        for listener in self._listening:
            self._loop.remove_reader(listener.fileno())
            listener.close()
        Path(self.path).unlink(missing_ok=True)
        for pending in [*self._pending[True], *self._pending[False]]:
            pending.close()

    def _listen(self, listener: socket.socket) -> None:
        if listener.fileno() >= 0:  # it is open
            self._loop.add_reader(listener.fileno(), self._accept, listener)

    def _accept(self, listener: socket.socket) -> None:
        try:
            sock, _ = listener.accept()
        except OSError as error:  # the peer has closed already, or no descriptor is left
            if error.errno in _NO_ROOM:
                log.warning("runner.no_descriptors")
                self._loop.remove_reader(listener.fileno())
                self._loop.call_later(ACCEPT_PAUSE, self._listen, listener)
            return
        local = listener is self._unix
        if not local:
            sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            keep_alive(sock)
        pending_here = self._pending[local]
        if len(pending_here) >= MAX_UNAUTHENTICATED:
            next(iter(pending_here)).close()
        pending = RunnerConnection(sock, local=local)
        pending_here[pending] = self._loop.call_later(HELLO_SECONDS, pending.close)
        pending.on_closed = lambda: self._forget(pending)
        pending.on_documents = lambda documents: self._on_hello(pending, documents[0])

    def _forget(self, pending: RunnerConnection) -> None:
        timer = self._pending[pending.local].pop(pending, None)
        if timer is not None:
            timer.cancel()

    def _on_hello(self, pending: RunnerConnection, first: FromRunner) -> None:
        if not isinstance(first, Hello) or not hmac.compare_digest(first.secret, self._secret):
            self._log_refused(local=pending.local)
            pending.close()
            return
        self._forget(pending)
        pending.trust()
        pending.on_closed = pending.on_documents = None
        self._accept_runner(pending, first)

    def _log_refused(self, *, local: bool) -> None:
        """Logs at most once in `REFUSED_LOG_SECONDS`, so that a flood of connections does not flood the log."""
        self._refused += 1
        if self._loop.time() >= self._log_refused_at:
            log.warning("runner.connection_refused", refused=self._refused, local=local)
            self._refused, self._log_refused_at = 0, self._loop.time() + REFUSED_LOG_SECONDS
