"""A thread of its own for user code, behind a direct socket: what hangs in it blocks nobody else.

Rules:
1. The thread owns its ROUTER and answers one request at a time, each with one answer. It is a daemon thread: a hang
   never holds the process.
2. The event loop reaches it by errands: a queue, and a message on the same socket that wakes it.
3. An abandoned thread ends as soon as it comes back to Python code, and answers nobody any more.
"""

from __future__ import annotations

import asyncio
import contextlib
import ctypes
import queue
import secrets
import threading
from abc import ABC, abstractmethod
from functools import partial
from typing import TYPE_CHECKING, Any, Final, TypeVar

import zmq

from governor.episodes.entries import one_line, tell
from governor.errors import ConductorError

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

T = TypeVar("T")
IPC_PATH_LIMIT: Final = 107


class Abandoned(BaseException):
    """Raised inside a thread that was given up; no `except Exception` of user code stops it."""


class Host(ABC):
    """One thread of user code. Its methods without underscore belong to the event loop's thread."""

    def __init__(self, *, name: str, path: Path) -> None:
        if len(str(path).encode()) > IPC_PATH_LIMIT:
            raise ConductorError(f"the socket path {path} is longer than {IPC_PATH_LIMIT} bytes")
        self.name = name
        self.endpoint = f"ipc://{path}"
        self.ended = asyncio.Event()
        self._path = path
        self._over = False
        self._errands: queue.SimpleQueue[Callable[[], None]] = queue.SimpleQueue()
        self._bell_id = b"bell-" + secrets.token_bytes(8)
        self._bell: zmq.Socket[bytes] | None = None
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

    # -- in the event loop ----------------------------------------------------------------------------------

    async def start(self) -> None:
        """Returns when the endpoint is served. Raises ConductorError with one line."""
        loop = asyncio.get_running_loop()
        started: asyncio.Future[None] = loop.create_future()
        self._thread = threading.Thread(target=self._live, args=(loop, started), name=self.name, daemon=True)
        self._thread.start()
        await started
        self._bell = zmq.Context.instance().socket(zmq.DEALER)
        self._bell.setsockopt(zmq.ROUTING_ID, self._bell_id)
        self._bell.setsockopt(zmq.LINGER, 0)
        self._bell.connect(self.endpoint)

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
        self._over = True
        if self._thread is not None and self._thread.ident is not None and not self.ended.is_set():
            ctypes.pythonapi.PyThreadState_SetAsyncExc(
                ctypes.c_ulong(self._thread.ident), ctypes.py_object(Abandoned)
            )
        self._hang_up()

    def _ring(self, errand: Callable[[], None]) -> None:
        if self._bell is None:
            raise ConductorError(f"{self.name} is not served")
        self._errands.put(errand)
        self._bell.send(b"", zmq.NOBLOCK)

    def _hang_up(self) -> None:
        if self._bell is not None:
            self._bell.close()
            self._bell = None
        self._path.unlink(missing_ok=True)

    # -- in the thread --------------------------------------------------------------------------------------

    def _live(self, loop: asyncio.AbstractEventLoop, started: asyncio.Future[None]) -> None:
        try:
            try:
                self._prepare()
                socket = self._bind()
            except ConductorError as error:
                tell(loop, partial(_fail, started, error))
                return
            except BaseException as error:  # noqa: BLE001  # user code may raise anything, SystemExit too
                tell(loop, partial(_fail, started, ConductorError(f"{self.name}: {one_line(error)}")))
                return
            tell(loop, partial(_settle, started, None))
            with socket, contextlib.suppress(Abandoned):
                self._serve(socket)
        finally:
            tell(loop, self.ended.set)

    def _bind(self) -> zmq.Socket[bytes]:
        socket: zmq.Socket[bytes] = zmq.Context.instance().socket(zmq.ROUTER)
        socket.setsockopt(zmq.LINGER, 0)
        socket.setsockopt(zmq.ROUTER_HANDOVER, 1)
        self._path.unlink(missing_ok=True)
        try:
            socket.bind(self.endpoint)
        except zmq.ZMQError as error:
            socket.close()
            raise ConductorError(f"cannot bind {self.endpoint}: {error.strerror}") from error
        return socket

    def _serve(self, socket: zmq.Socket[bytes]) -> None:
        try:
            while not self._over:
                frames = socket.recv_multipart()
                peer = frames[0]
                if peer == self._bell_id:
                    self._errands.get()()
                    continue
                answer = self._answer(peer, frames[1]) if len(frames) == 2 else None
                if answer is not None and not self._over:
                    socket.send_multipart((peer, answer), zmq.NOBLOCK)
        finally:
            self._finish()


def _settle(future: asyncio.Future[Any], result: Any) -> None:
    if not future.done():
        future.set_result(result)


def _fail(future: asyncio.Future[Any], error: Exception) -> None:
    if not future.done():
        future.set_exception(error)
