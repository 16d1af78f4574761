"""A dedicated thread for user code behind a direct socket: user code that hangs blocks nothing else.

Rules:
1. The thread owns its sockets and answers one request at a time, each with one answer. It is a daemon thread: a hang
   never prevents the process from exiting.
2. The first message of a peer is its identity (a lease or a session).
3. The event loop runs calls in the thread through a queue and a wake-up socket. Closing that socket ends the thread.
4. An abandoned thread ends as soon as it executes Python code again, and sends no more answers.
5. If the thread ends by an internal error, `closed` is true before its peers are disconnected, and `fault` holds the reason:
   its owner replaces it.
"""

from __future__ import annotations

import asyncio
import contextlib
import ctypes
import queue
import select
import socket
import threading
from abc import ABC, abstractmethod
from functools import partial
from typing import TYPE_CHECKING, Final, TypeVar

from governor import logs
from governor.episodes.entries import Abandoned, answer, call_in_loop, settle
from governor.errors import ConductorError
from governor.failures import Reason, reason_of, stack_of
from governor.message_stream import MessageStream, StreamClosed
from transport.endpoints import IPC_PATH_LIMIT

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

T = TypeVar("T")
BACKLOG: Final = 1024
"""The most workers that a phase may have: they connect while the thread runs user code."""

log = logs.get_logger()


class ThreadHost(ABC):
    """One thread of user code. Public methods are for the event loop, unless they say otherwise."""

    def __init__(self, *, name: str, path: Path) -> None:
        if len(str(path).encode()) > IPC_PATH_LIMIT:
            raise ConductorError(f"the socket path {path} is longer than {IPC_PATH_LIMIT} bytes")
        self.name = name
        self.endpoint = str(path)
        self.ended = asyncio.Event()
        self.fault = ""
        self._path = path
        self._closed = self._abandoned = False
        self._calls: queue.SimpleQueue[Callable[[], None]] = queue.SimpleQueue()
        self._wakeup: socket.socket | None = None
        self._peers: dict[int, _Peer] = {}
        self._poller = select.poll()
        self._thread: threading.Thread | None = None

    # -- in the thread --------------------------------------------------------------------------------------

    @abstractmethod
    def _prepare(self) -> None:
        """Imports and builds user code. Raises ConductorError."""

    @abstractmethod
    def _answer(self, peer: bytes, data: bytes) -> bytes | None:
        """The answer to one request; None sends none."""

    @abstractmethod
    def _finish(self) -> None:
        """Releases what user code holds."""

    def reply(self, peer: bytes, answer: bytes) -> None:
        """Sends an answer that `_answer` deferred; for any thread."""

        def call() -> None:
            for fd, connected in list(self._peers.items()):
                if connected.name == peer:
                    with contextlib.suppress(StreamClosed):
                        connected.stream.send(answer)
                    self._handle_peer(fd, select.POLLOUT)

        with contextlib.suppress(ConductorError):  # the host was abandoned meanwhile
            self._call_soon(call)

    def stack(self, reason: str) -> Reason:
        """`reason` with the place where the thread is, and its stack; for any thread."""
        thread = self._thread
        return Reason(reason) if thread is None or thread.ident is None else stack_of(thread.ident, reason)

    @property
    def closed(self) -> bool:
        """Whether it has stopped to answer; for any thread."""
        return self._closed

    # -- in the event loop ----------------------------------------------------------------------------------

    async def start(self) -> None:
        """Returns when the endpoint is served. Raises ConductorError with one line."""
        loop = asyncio.get_running_loop()
        started: asyncio.Future[None] = loop.create_future()
        wakeup, woken = socket.socketpair()
        for end in (wakeup, woken):
            end.setblocking(False)
        work = (loop, started, woken)
        self._thread = threading.Thread(target=self._run, args=work, name=self.name, daemon=True)
        self._thread.start()
        try:
            await started
        except ConductorError:
            wakeup.close()
            raise
        self._wakeup = wakeup

    async def run_in_thread(self, work: Callable[[], T]) -> T:
        """Runs `work` in the thread, after its current request; raises what `work` raises."""
        loop = asyncio.get_running_loop()
        done: asyncio.Future[T] = loop.create_future()
        self._call_soon(partial(answer, loop, done, work))
        return await done

    async def close(self, *, seconds: float) -> None:
        """Ends the thread in order; abandons it if it still runs after `seconds`."""

        def finish() -> None:
            self._closed = True

        if self._wakeup is not None and not self.ended.is_set():
            self._call_soon(finish)
            try:
                await asyncio.wait_for(self.ended.wait(), seconds)
            except TimeoutError:
                self.abandon()
        self._disconnect()

    def abandon(self) -> None:
        """Gives the thread up. Interrupts pure Python code in it; a blocking call ends by itself or never."""
        self._closed = self._abandoned = True
        if self._thread is not None and self._thread.ident is not None and not self.ended.is_set():
            ctypes.pythonapi.PyThreadState_SetAsyncExc(
                ctypes.c_ulong(self._thread.ident), ctypes.py_object(Abandoned)
            )
        self._disconnect()

    def _call_soon(self, call: Callable[[], None]) -> None:
        if self._wakeup is None:
            raise ConductorError(f"{self.name} is not served")
        self._calls.put(call)
        with contextlib.suppress(OSError):  # a wake-up is pending already, or the thread has ended
            self._wakeup.send(b"\0")

    def _disconnect(self) -> None:
        if self._wakeup is not None:
            self._wakeup.close()
            self._wakeup = None
        self._path.unlink(missing_ok=True)

    # -- in the thread --------------------------------------------------------------------------------------

    def _run(
        self, loop: asyncio.AbstractEventLoop, started: asyncio.Future[None], woken: socket.socket
    ) -> None:
        try:
            with woken:
                try:
                    self._prepare()
                    listener = self._bind()
                except BaseException as error:  # noqa: BLE001  # user code may raise anything, SystemExit too
                    failure = (
                        error
                        if isinstance(error, ConductorError)
                        else ConductorError(reason_of(error).within(self.name))
                    )
                    settle(loop, started, failure=failure)
                    return
                settle(loop, started)
                with listener:
                    self._serve(listener, woken)
        except Abandoned:
            pass
        except BaseException as error:
            self.fault = reason_of(error)
            log.exception("host.failed", host=self.name)
        finally:
            call_in_loop(loop, self.ended.set)

    def _bind(self) -> socket.socket:
        made = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        made.setblocking(False)
        self._path.unlink(missing_ok=True)
        try:
            made.bind(self.endpoint)
            made.listen(BACKLOG)
        except OSError as error:
            made.close()
            raise ConductorError(f"cannot bind {self.endpoint}: {error.strerror}") from error
        return made

    def _serve(self, listener: socket.socket, woken: socket.socket) -> None:
        poller = self._poller
        for end in (listener, woken):
            poller.register(end, select.POLLIN)
        try:
            while not self._closed:
                for fd, event in poller.poll():
                    if fd in self._peers:
                        self._handle_peer(fd, event)
                    elif fd == woken.fileno():
                        self._run_calls(woken)
                    elif fd == listener.fileno():
                        self._accept(listener)
        finally:
            self._closed = True
            for peer in self._peers.values():
                peer.stream.close()
            self._finish()

    def _run_calls(self, woken: socket.socket) -> None:
        with contextlib.suppress(BlockingIOError):
            self._closed = self._closed or not woken.recv(4096)
        while not self._calls.empty():
            self._calls.get()()

    def _accept(self, listener: socket.socket) -> None:
        with contextlib.suppress(OSError):  # the peer is gone already
            stream = MessageStream(listener.accept()[0])
            self._peers[stream.fileno()] = _Peer(stream)
            self._poller.register(stream, select.POLLIN)

    def _handle_peer(self, fd: int, event: int) -> None:
        peer = self._peers[fd]
        stream = peer.stream
        try:
            if event & ~select.POLLOUT:
                stream.receive()
            while not self._closed and (message := stream.next_message(bytes)) is not None:
                if not peer.name:
                    peer.name = message
                elif (answer := self._answer(peer.name, message)) is not None and not self._closed:
                    stream.send(answer)
            if stream.unsent:
                stream.flush()
            if bool(stream.unsent) != peer.backlogged:
                peer.backlogged = bool(stream.unsent)
                self._poller.modify(stream, select.POLLIN | (select.POLLOUT if peer.backlogged else 0))
        except StreamClosed:
            self._poller.unregister(stream)
            stream.close()
            del self._peers[fd]


class _Peer:
    """`name` is its identity, empty before its first message; `backlogged`: it has not read all of its answers."""

    __slots__ = ("backlogged", "name", "stream")

    def __init__(self, stream: MessageStream) -> None:
        self.stream = stream
        self.name = b""
        self.backlogged = False
