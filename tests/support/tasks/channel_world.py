"""The driver's sockets without a runner: what the driver receives, and peers that say anything."""

from __future__ import annotations

import asyncio
import socket
import struct
from collections import deque

from governor.processes.identity import ProcessIdentity
from governor.tasks.protocol.wire import Hello, WorkItem, decode_to_runner
from governor.tasks.runners.channel import RunnerListener

SECRET = b"s" * 32


def hello(**fields):
    fields = {
        "secret": SECRET,
        "runner": 0,
        "identity": ProcessIdentity(pid=1, ticks=0, boot="b"),
        "node": "n",
        "host": "h",
        **fields,
    }
    return Hello(mark=5, ticket_pipe=3, cancel_pipe=4, shares_folder=True, **fields)


def small_work(**fields):
    return WorkItem(batch=1, task="t", runs=(0,), attempt=1, call="a:b", **{"ticket": 1, **fields})


class Driver:
    """A listener and everything that it received."""

    def __init__(self, folder):
        self.listener = RunnerListener(
            folder=folder, host="127.0.0.1", secret=SECRET, on_runner=self.accept_runner
        )
        self.guests = []
        self.received = []
        self.reads = []
        self.ended = []
        self.news = asyncio.Event()

    def accept_runner(self, connection, first):
        self.guests.append((connection, first))
        connection.on_documents = self.receive
        connection.on_closed = lambda: (self.ended.append(first.runner), self.news.set())
        self.news.set()

    def receive(self, documents):
        self.reads.append(len(documents))
        self.received += documents
        self.news.set()

    async def until(self, condition, seconds=10):
        async with asyncio.timeout(seconds):
            while not condition():
                self.news.clear()
                await self.news.wait()


class Peer:
    """The other end, as a blocking socket that this test drives from the loop."""

    def __init__(self, driver, *, tcp=False):
        self.loop = asyncio.get_running_loop()
        self.sock = socket.socket(socket.AF_INET if tcp else socket.AF_UNIX)
        self.sock.setblocking(False)
        self.to = driver.listener.address if tcp else driver.listener.path

    async def connect(self):
        await self.loop.sock_connect(self.sock, self.to)
        return self

    async def say(self, data):
        await self.loop.sock_sendall(self.sock, data)

    async def is_shut(self, seconds=5):
        """Whether the driver ends the connection."""
        try:
            async with asyncio.timeout(seconds):
                return await self.loop.sock_recv(self.sock, 1) == b""
        except ConnectionResetError:
            return True

    async def receive(self, size):
        data = bytearray(size)
        view = memoryview(data)
        while view:
            view = view[await self.loop.sock_recv_into(self.sock, view) :]
        return bytes(data)

    async def bundle(self):
        (length,) = struct.unpack("<I", await self.receive(4))
        return decode_to_runner(await self.receive(length))

    def close(self):
        self.sock.close()


def send_all(sock, data):
    sock.setblocking(True)
    sock.sendall(data)
    sock.setblocking(False)


def receive_two(sock):
    sock.setblocking(True)
    found = deque()
    with sock.makefile("rb") as file:
        for _ in range(2):
            (length,) = struct.unpack("<I", file.read(4))
            found.append(decode_to_runner(file.read(length)))
    sock.setblocking(False)
    return found
