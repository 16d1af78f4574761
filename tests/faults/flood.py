"""A client that sends too much, in a process of its own: `python flood.py messages|connections|frames SOCKET`.

It reads no answer. It prints "sent" when it has sent everything, or cannot send more, and then waits for its kill.
"""

from __future__ import annotations

import contextlib
import os
import resource
import signal
import socket
import struct
import sys
import time
from typing import TYPE_CHECKING, Final

import zmq

from transport.envelope import RequestEnvelope
from transport.frames import ClientRequest

if TYPE_CHECKING:
    from transport.frames import Frames

MESSAGES: Final = 100_000
CLIENTS: Final = 50
"""The clients send in turn; all of them die at once, with unread messages."""
CONNECTIONS: Final = 1_200
FRAMES: Final = 3_000_000
WRITE: Final = 10_000
"""Frames in one write."""
APART_SECONDS: Final = 0.04
"""Pause between two connects, so that each meets another moment of the broker's periodic work."""
STUCK_MS: Final = 5_000
"""If the broker accepts nothing for so long, the flood ends."""
SECONDS: Final = 5
"""Deadline of one connect or write."""

_GREETING: Final = b"\xff" + bytes(8) + b"\x7f\x03\x00" + b"NULL".ljust(20, b"\0") + bytes(32)
_READY: Final = b"\x05READY\x0bSocket-Type\x00\x00\x00\x06DEALER\x08Identity\x00\x00\x00\x00"
_HANDSHAKE: Final = _GREETING + bytes([0x04, len(_READY)]) + _READY
_EMPTY_FRAME: Final = b"\x01\x00"
_LAST_FRAME: Final = b"\x00\x00"
"""ZMTP 3.0: the handshake of a DEALER; an empty frame with more to follow; an empty last frame."""


def messages(path: str) -> list[zmq.Socket[bytes]]:
    """Sends invalid requests to the daemon and requests to unknown services in turn."""
    session = os.urandom(16)
    made = [_request(number, session) for number in range(MESSAGES)]
    dealers = []
    for _ in range(CLIENTS):
        dealers.append(_dealer(path))
        time.sleep(APART_SECONDS)
    with contextlib.suppress(zmq.Again):
        for number, request in enumerate(made):
            dealers[number % CLIENTS].send_multipart(request)
    return dealers


def _request(number: int, session: bytes) -> Frames:
    service = b"governor" if number // CLIENTS % 2 else b"made-up-%d" % number
    envelope = RequestEnvelope(number + 1, session, budget_ms=60_000)
    return ClientRequest(service, [envelope.frame(), os.urandom(64)]).frames()


def _dealer(path: str) -> zmq.Socket[bytes]:
    dealer = zmq.Context.instance().socket(zmq.DEALER)
    dealer.set(zmq.SNDTIMEO, STUCK_MS)
    dealer.connect(f"ipc://{path}")
    return dealer


def connections(path: str) -> list[socket.socket]:
    """Opens connections that send a handshake, then nothing."""
    _, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))
    opened = []
    with contextlib.suppress(OSError):  # the broker accepts no more
        for _ in range(CONNECTIONS):
            opened.append(_connected(path))
            opened[-1].sendall(_HANDSHAKE)
    return opened


def frames(path: str) -> socket.socket:
    """Sends one message of empty frames."""
    peer = _connected(path)
    with contextlib.suppress(OSError):  # the broker closed the connection
        peer.sendall(_HANDSHAKE)
        received = b""
        while _READY[:6] not in received and (more := peer.recv(1024)):
            received += more
        for _ in range(FRAMES // WRITE):
            peer.sendall(_EMPTY_FRAME * WRITE)
        peer.sendall(_LAST_FRAME)
    return peer


def _connected(path: str) -> socket.socket:
    peer = socket.socket(socket.AF_UNIX)
    # No Python timeout: a non-blocking connect fails if the backlog of the listener is full.
    for option in (socket.SO_SNDTIMEO, socket.SO_RCVTIMEO):
        peer.setsockopt(socket.SOL_SOCKET, option, struct.pack("@ll", SECONDS, 0))
    peer.connect(path)
    return peer


def main(kind: str, path: str) -> None:
    kept = {"messages": messages, "connections": connections, "frames": frames}[kind](path)
    print("sent", flush=True)
    signal.pause()
    del kept


if __name__ == "__main__":
    main(*sys.argv[1:])
