"""Bounds the connections of a socket. libzmq accepts until the process has no descriptor left, and then aborts it
(`ipc_listener.cpp` does not handle EMFILE); none of its options bounds that.

Rules:
1. A connection beyond the bound is shut down as soon as the monitor reports it: libzmq closes it, and a libzmq peer tries
   again by itself. A message that came before that is taken like any other. The listener is kept: to unbind it would end all of its connections.
2. Of a network's socket strangers go first, from whom no message has come (`known`; a handshake is reported without its connection):
   whoever opens connections and says nothing takes nobody's place.
3. Until then libzmq continues to accept, but its I/O thread waits while `UNSEEN` events are unread, however busy this thread
   is. With so many descriptors in reserve for each socket, a flood never uses up the last one. With a lower limit of open
   files, three quarters of it are the reserve, and a flood must be noticed in time.
"""

from __future__ import annotations

import os
import socket
from contextlib import suppress
from typing import TYPE_CHECKING, Final

import zmq

from transport.errors import TooFewFiles
from transport.file_limits import LEAST_FILES
from transport.sockets import Monitor, last_endpoint

if TYPE_CHECKING:
    from collections.abc import Callable

UNSEEN: Final = 1_002
OWN_FILES: Final = 128
"""Open files of a broker without any connection; measured: 23."""
_ROOM_AGAIN: Final = 0.9
"""When at most this part of the bound is in use, there is room again."""


def bound_of_each(*, files: int, sockets: int, most: int) -> int:
    """Return how many connections each of `sockets` may have, at most `most`, with a limit of `files` open files.

    Raises:
        TooFewFiles: fewer than `LEAST_FILES`.
    """
    if files < LEAST_FILES:
        raise TooFewFiles(limit=files, needed=LEAST_FILES)
    spare = files - OWN_FILES
    reserve = min(UNSEEN * sockets, spare * 3 // 4)
    return min(most, (spare - reserve) // sockets)


def files_needed(*, sockets: int) -> int:
    """Return the limit of open files with which `sockets` have their whole reserve, hence some hundred connections each."""
    return OWN_FILES + UNSEEN * sockets * 4 // 3


class BoundedConnections:
    """Watches the connections of a socket from before its bind, and keeps them within `most`.

    `on_disconnected` is called for each that ends; `on_full` with True when the first one is refused, and with False when
    there is room again. With `on_stranger` rule 2 holds; it is called with the address of one who has left without a message.
    """

    def __init__(
        self,
        bound: zmq.Socket[bytes],
        *,
        most: int,
        on_full: Callable[[bool], None],
        on_disconnected: Callable[[], None] | None = None,
        on_stranger: Callable[[str], None] | None = None,
    ) -> None:
        self.refused = 0
        self._bound = bound
        self._most = most
        self._on_full = on_full
        self._on_disconnected = on_disconnected
        self._on_stranger = on_stranger
        self._open: set[int] = set()
        self._strangers: dict[int, str] = {}
        """By descriptor: their addresses, the oldest one first."""
        self._full = False
        events = int(zmq.EVENT_ACCEPTED | zmq.EVENT_DISCONNECTED)
        self._monitor = Monitor(bound, on_event=self._happened, events=events)

    def __len__(self) -> int:
        """The number of connections, including those that are just being refused."""
        return len(self._open)

    def close(self) -> None:
        """Stop watching. Call it once, before the socket is closed."""
        self._monitor.close()

    def known(self, descriptor: int) -> None:
        """A message has come from there."""
        self._strangers.pop(descriptor, None)

    def _happened(self, event: int, descriptor: int) -> None:
        if event == zmq.EVENT_ACCEPTED:
            self._open.add(descriptor)
            if self._on_stranger is not None:
                self._strangers[descriptor] = _address_of(descriptor)
            if len(self._open) > self._most:
                refused = next(iter(self._strangers), descriptor)
                self._strangers.pop(refused, None)
                self._refuse(refused)
            return
        stranger = self._strangers.pop(descriptor, None)
        if stranger is not None and self._on_stranger is not None:
            self._on_stranger(stranger)
        self._open.discard(descriptor)
        if self._full and len(self._open) <= self._most * _ROOM_AGAIN:
            self._full = False
            self._on_full(False)
        if self._on_disconnected is not None:
            self._on_disconnected()

    def _refuse(self, descriptor: int) -> None:
        self.refused += 1
        with suppress(OSError), _opened(descriptor) as connection:
            # Closed by now, its number may be that of another socket's connection.
            if self._is_here(connection):
                connection.shutdown(socket.SHUT_RDWR)
        if not self._full:
            self._full = True
            self._on_full(True)

    def _is_here(self, connection: socket.socket) -> bool:
        """Whether it was accepted at the place where the watched socket is bound."""
        endpoint = last_endpoint(self._bound)
        name = connection.getsockname()
        return f"ipc://{name}" == endpoint if isinstance(name, str) else endpoint.endswith(f":{name[1]}")


def _address_of(descriptor: int) -> str:
    """Of the machine at the other end; "" for one that has left already."""
    try:
        with _opened(descriptor) as connection:
            return str(connection.getpeername()[0])
    except OSError:
        return ""


def _opened(descriptor: int) -> socket.socket:
    """Another descriptor of the same socket. Raises OSError where it is none any more."""
    duplicate = os.dup(descriptor)
    try:
        return socket.socket(fileno=duplicate)
    except OSError:
        os.close(duplicate)
        raise
