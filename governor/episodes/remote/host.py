"""A thread of its own for user code, behind a direct socket: what hangs in it blocks nobody else.

Rules:
1. The thread owns its sockets and answers one request at a time, each with one answer. It is a daemon thread: a hang
   never holds the process.
2. Whoever connects says first who it is, in a message of its own.
3. The event loop reaches it by errands: a queue, and a bell that wakes it. A bell that is gone ends it.
4. An abandoned thread ends as soon as it comes back to Python code, and answers nobody any more.
5. One that ends by a fault of its own is `over` before its peers see it gone, and `fault` says why: its owner replaces it.
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
from typing import TYPE_CHECKING, Any, Final, TypeVar

from governor import logs
from governor.episodes.entries import one_line, tell
from governor.episodes.remote.pipe import Hung, MessageStream
from governor.errors import ConductorError

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

T = TypeVar("T")
IPC_PATH_LIMIT: Final = 107
BACKLOG: Final = 1024
"""As many workers as a phase may have: they connect while user code has the thread."""

log = logs.get_logger()


class Abandoned(BaseException):
    """Raised inside a thread that was given up; no `except Exception` of user code stops it."""


class ThreadHost(ABC):
    """One thread of user code. Its methods without underscore belong to the event loop's thread."""

    def __init__(self, *, name: str, path: Path) -> None:
        if len(str(path).encode()) > IPC_PATH_LIMIT:
            raise ConductorError(f"the socket path {path} is longer than {IPC_PATH_LIMIT} bytes")
        self.name = name
        self.endpoint = str(path)
        self.ended = asyncio.Event()
        self.fault = ""
        self._path = path
        self._over = self._abandoned = False
        self._errands: queue.SimpleQueue[Callable[[], None]] = queue.SimpleQueue()
        self._bell: socket.socket | None = None
        self._peers: dict[int, _Peer] = {}
        self._poller = select.poll()
        self._thread: threading.Thread | None = None

    # -- in the thread --------------------------------------------------------------------------------------

    @abstractmethod
    def _prepare(self) -> None:
        """Imports and builds user code. Raises ConductorError."""

    @abstractmethod
    def _answer(self, peer: bytes, data: bytes) -> bytes | None:
        """The answer to one request; None for nobody."""

    @abstractmethod
    def _finish(self) -> None:
        """Gives back what user code holds."""

    def reply(self, peer: bytes, answer: bytes) -> None:
        """An answer that `_answer` did not give, from another thread."""

        def errand() -> None:
            for fd, known in list(self._peers.items()):
                if known.name == peer:
                    with contextlib.suppress(Hung):
                        known.pipe.send(answer)
                    self._hear(fd, select.POLLOUT)

        with contextlib.suppress(ConductorError):  # the host has been given up meanwhile
            self._ring(errand)

    @property
    def over(self) -> bool:
        """It answers nobody any more; for any thread."""
        return self._over

    # -- in the event loop ----------------------------------------------------------------------------------

    async def start(self) -> None:
        """Returns when the endpoint is served. Raises ConductorError with one line."""
        loop = asyncio.get_running_loop()
        started: asyncio.Future[None] = loop.create_future()
        bell, rung = socket.socketpair()
        for end in (bell, rung):
            end.setblocking(False)
        work = (loop, started, rung)
        self._thread = threading.Thread(target=self._live, args=work, name=self.name, daemon=True)
        self._thread.start()
        try:
            await started
        except ConductorError:
            bell.close()
            raise
        self._bell = bell

    async def do(self, work: Callable[[], T]) -> T:
        """Runs `work` in the thread, after what it is at; raises what it raises."""
        loop = asyncio.get_running_loop()
        done: asyncio.Future[T] = loop.create_future()

        def errand() -> None:
            try:
                result = work()
            except Abandoned:
                raise
            except BaseException as error:  # noqa: BLE001  # user code: whatever it is goes to who asked
                wrapped = error if isinstance(error, Exception) else ConductorError(one_line(error))
                tell(loop, partial(_fail, done, wrapped))
            else:
                tell(loop, partial(_settle, done, result))

        self._ring(errand)
        return await done

    async def close(self, *, seconds: float) -> None:
        """Lets the thread end in order; abandons it when it has not after `seconds`."""

        def leave() -> None:
            self._over = True

        if self._bell is not None and not self.ended.is_set():
            self._ring(leave)
            try:
                await asyncio.wait_for(self.ended.wait(), seconds)
            except TimeoutError:
                self.abandon()
        self._hang_up()

    def abandon(self) -> None:
        """Gives the thread up. Pure Python code in it is interrupted; a blocking call is left to end by itself."""
        self._over = self._abandoned = True
        if self._thread is not None and self._thread.ident is not None and not self.ended.is_set():
            ctypes.pythonapi.PyThreadState_SetAsyncExc(
                ctypes.c_ulong(self._thread.ident), ctypes.py_object(Abandoned)
            )
        self._hang_up()

    def _ring(self, errand: Callable[[], None]) -> None:
        if self._bell is None:
            raise ConductorError(f"{self.name} is not served")
        self._errands.put(errand)
        with contextlib.suppress(OSError):  # it rings already, or nobody is there any more
            self._bell.send(b"\0")

    def _hang_up(self) -> None:
        if self._bell is not None:
            self._bell.close()
            self._bell = None
        self._path.unlink(missing_ok=True)

    # -- in the thread --------------------------------------------------------------------------------------

    def _live(
        self, loop: asyncio.AbstractEventLoop, started: asyncio.Future[None], rung: socket.socket
    ) -> None:
        try:
            with rung:
                try:
                    self._prepare()
                    listener = self._bind()
                except ConductorError as error:
                    tell(loop, partial(_fail, started, error))
                    return
                except BaseException as error:  # noqa: BLE001  # user code may raise anything, SystemExit too
                    tell(loop, partial(_fail, started, ConductorError(f"{self.name}: {one_line(error)}")))
                    return
                tell(loop, partial(_settle, started, None))
                with listener:
                    self._serve(listener, rung)
        except Abandoned:
            pass
        except BaseException as error:
            self.fault = one_line(error)
            log.exception("host.died", host=self.name)
        finally:
            tell(loop, self.ended.set)

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

    def _serve(self, listener: socket.socket, rung: socket.socket) -> None:
        poller = self._poller
        for end in (listener, rung):
            poller.register(end, select.POLLIN)
        try:
            while not self._over:
                for fd, event in poller.poll():
                    if fd in self._peers:
                        self._hear(fd, event)
                    elif fd == rung.fileno():
                        self._run_errands(rung)
                    elif fd == listener.fileno():
                        self._accept(listener)
        finally:
            self._over = True
            for peer in self._peers.values():
                peer.pipe.close()
            self._finish()

    def _run_errands(self, rung: socket.socket) -> None:
        with contextlib.suppress(BlockingIOError):
            self._over = self._over or not rung.recv(4096)
        while not self._errands.empty():
            self._errands.get()()

    def _accept(self, listener: socket.socket) -> None:
        with contextlib.suppress(OSError):  # who knocked has gone
            pipe = MessageStream(listener.accept()[0])
            self._peers[pipe.fileno()] = _Peer(pipe)
            self._poller.register(pipe, select.POLLIN)

    def _hear(self, fd: int, event: int) -> None:
        peer = self._peers[fd]
        pipe = peer.pipe
        try:
            if event & ~select.POLLOUT:
                pipe.fill()
            while not self._over and (message := pipe.next()) is not None:
                if not peer.name:
                    peer.name = message
                elif (answer := self._answer(peer.name, message)) is not None and not self._over:
                    pipe.send(answer)
            if pipe.unsent:
                pipe.flush()
            if bool(pipe.unsent) != peer.pressed:
                peer.pressed = bool(pipe.unsent)
                self._poller.modify(pipe, select.POLLIN | (select.POLLOUT if peer.pressed else 0))
        except Hung:
            self._poller.unregister(pipe)
            pipe.close()
            del self._peers[fd]


class _Peer:
    """`name` is who it says it is; `pressed`: not all that was answered has been taken."""

    __slots__ = ("name", "pipe", "pressed")

    def __init__(self, pipe: MessageStream) -> None:
        self.pipe = pipe
        self.name = b""
        self.pressed = False


def _settle(future: asyncio.Future[Any], result: Any) -> None:
    if not future.done():
        future.set_result(result)


def _fail(future: asyncio.Future[Any], error: Exception) -> None:
    if not future.done():
        future.set_exception(error)
