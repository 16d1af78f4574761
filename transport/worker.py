"""The worker: serves one service, up to `credit` requests at once, and reconnects whatever happens to the broker.

Rules:
1. A conversation is one connection, one READY. DISCONNECT, missed heartbeats or a broken connection end it; the next one
   is on a new socket, at once the first time, then with backoff, for ever.
2. A started handler continues when the conversation ends. If the client sends the same request again, that gets the reply of
   the running handler; if not, the reply is dropped.
3. Every request is answered: with the result of the handler, or with the type and message of its error. Errors are sent as
   text, never pickled.
4. When the reader of a stream leaves, the handler is cancelled. The handler of a plain request runs to its end, since it
   may be in the middle of a change; its reply is dropped.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections import deque
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from functools import partial
from math import inf
from typing import TYPE_CHECKING, Final, Self, TypeAlias

import zmq

from transport import endpoints
from transport import envelope as envelopes
from transport import frames as mdp
from transport.access import Peer
from transport.backoff import Backoff
from transport.connection import Connection
from transport.envelope import ReplyEnvelope, ReplyStatus
from transport.errors import MalformedFrames
from transport.sockets import Sent

if TYPE_CHECKING:
    from transport.access import Secret
    from transport.frames import Frames

_log = logging.getLogger("transport.worker")
_BACKOFF: Final = Backoff(0.025, longest=2.0, spread=1.0)
_ERROR_LIMIT: Final = 4_000
_LINGER: Final = 1.0
_SHOWN: Final = 3
"""Errors of one type that are logged with their tracebacks, in a row without a minute between two."""
_QUIET: Final = 60.0


class Request:
    """One request, for its handler. `key` correlates its replies; None for a plain MDP client, which has no envelope. `peer`:
    who sent it, where the broker tells that (`Access.stamped`).
    """

    __slots__ = ("_worker", "address", "answered", "body", "key", "peer", "sequence", "stream", "task")

    def __init__(self, worker: Worker, *, address: bytes, frames: Frames) -> None:
        envelope = envelopes.read_request(frames[0])
        self._worker = worker
        self.address: bytes | None = address
        stamp = address[mdp.NUMBER_BYTES :]
        self.peer = Peer.read(stamp) if stamp else None
        self.body = mdp.plain(frames if envelope is None else frames[1:])
        self.key = None if envelope is None else (envelope.request_id, envelope.session)
        self.stream = envelope is not None and envelope.stream
        self.answered = False
        self.sequence = 0
        self.task: asyncio.Task[None] | None = None

    async def partial(self, *frames: bytes) -> None:
        """Send a part of the reply; waits while the connection is full. Dropped when the client can't be reached, and after the FINAL."""
        await self._worker._reply(self, frames, final=False)  # noqa: SLF001 - one thing in two classes

    def reply_body(self, frames: Sequence[bytes], status: ReplyStatus) -> Frames:
        """Return the reply's frames behind the envelope with which the client correlates it."""
        self.sequence += 1
        if self.key is None:
            return list(frames) or [b""]
        return [ReplyEnvelope(*self.key, int(status), self.sequence).frame(), *frames]


class Failures:
    """Errors of handlers in the log. One that comes again and again, as while the disk is full, is counted: after the first ones there
    is a line a minute. Errors that are `foreseen` have no traceback.
    """

    def __init__(
        self,
        service: str,
        foreseen: Sequence[type[Exception]] = (),
        now: Callable[[], float] = time.monotonic,
    ) -> None:
        self._service, self._foreseen, self._now = service, tuple(foreseen), now
        self._known: dict[str, _Repeated] = {}

    def log(self, error: BaseException) -> None:
        """To be called where it is handled."""
        name, now = type(error).__name__, self._now()
        if (known := self._known.get(name)) is None or now - known.last >= _QUIET:
            known = self._known[name] = _Repeated(now)
        known.last, known.count = now, known.count + 1
        data: dict[str, object] = {"service": self._service, "error": name, "reason": _text_of(error)}
        if known.count > _SHOWN:
            if now - known.since < _QUIET:
                return
            data |= {"count": known.count - known.told, "seconds": round(now - known.since, 3)}
        known.told, known.since = known.count, now
        is_traced = known.count <= _SHOWN and not isinstance(error, self._foreseen)
        _log.warning("worker.handler_failed", exc_info=is_traced or None, extra={"data": data})


def _text_of(error: BaseException) -> str:
    """What it says; its own code may fail."""
    try:
        return str(error)[:_ERROR_LIMIT]
    except Exception as of_text:  # noqa: BLE001 - user code
        return f"its text can't be made: {type(of_text).__name__}"


@dataclass(slots=True)
class _Repeated:
    """`count` since the last minute without one, `told` of them by the line at `since`."""

    last: float
    since: float = 0.0
    count: int = 0
    told: int = 0


Handler: TypeAlias = Callable[[Request], Awaitable[Sequence[bytes]]]


class Worker:
    """A worker of `service`, to be used in one event loop.

    `start` (or entering it as an async context manager) begins; `aclose` cancels the handlers, sends DISCONNECT, and has
    closed everything when it returns; it may be called twice.

    Args:
        endpoint: the broker's socket for workers.
        service: 1 to 255 printable ASCII characters.
        handler: is awaited with each request, and returns the frames of the FINAL.
        credit: the number of requests at once.
        secret: the secret that the broker requires for a reserved name.
        foreseen: errors of the handler that are no fault of its code: the log has what they say, and no traceback.
        heartbeat: seconds between heartbeats; the broker's must be about the same.
        liveness: missed heartbeats after which the broker counts as gone.
    """

    def __init__(
        self,
        endpoint: str,
        service: str,
        handler: Handler,
        credit: int = 1,
        *,
        secret: Secret | None = None,
        foreseen: Sequence[type[Exception]] = (),
        heartbeat: float = 1.0,
        liveness: int = 4,
        context: zmq.Context[zmq.Socket[bytes]] | None = None,
    ) -> None:
        if type(credit) is not int or not 1 <= credit <= mdp.CREDIT_LIMIT:
            raise ValueError(f"credit is 1 to {mdp.CREDIT_LIMIT}, not {credit!r}")
        if not 0 < heartbeat < inf:
            raise ValueError(f"heartbeat is a number of seconds above 0, not {heartbeat!r}")
        if not callable(handler):
            raise TypeError(f"handler is a coroutine function, not {handler!r}")
        self.endpoint = str(endpoints.parse_connect(endpoint))
        self.service = service
        self.credit = credit
        self.conversations = 0
        self.malformed = 0
        self._ready = mdp.Ready(mdp.service_name(service), credit, extended=True, secret=secret)
        self._handler = handler
        self._heartbeat = heartbeat
        self._liveness = liveness
        self._context = context or zmq.Context.instance()
        self._connection: Connection | None = None
        self._running: dict[bytes, Request] = {}
        self._by_key: dict[tuple[int, bytes], Request] = {}
        self._waiting: deque[Request] = deque()
        self._tasks: set[asyncio.Task[None]] = set()
        self._registered = asyncio.Event()
        self._ended = asyncio.Event()
        self._disconnected_by_broker = False
        self._closing = False
        self._writable = asyncio.Event()
        self._last_seen = 0.0
        self._failures = Failures(service, foreseen)
        self._last_sent = 0.0
        self._supervisor: asyncio.Task[None] | None = None

    def __repr__(self) -> str:
        state = "registered" if self._registered.is_set() else "not registered"
        return f"<Worker {self.service} at {self.endpoint} {state} running={len(self._tasks)}/{self.credit}>"

    async def __aenter__(self) -> Self:
        self.start()
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.aclose()

    def start(self) -> None:
        """Start to serve."""
        if self._supervisor is None:
            self._supervisor = asyncio.create_task(self._converse(), name=f"worker.{self.service}")

    async def registered(self) -> None:
        """Wait until the broker has answered since READY."""
        await self._registered.wait()

    async def aclose(self) -> None:
        """Cancel the handlers, send DISCONNECT, close."""
        self._closing = True
        tasks = list(self._tasks)
        if self._supervisor is not None:
            tasks.append(self._supervisor)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    # -- the conversation -----------------------------------------------------------------------------------

    async def _converse(self) -> None:
        unanswered = 0
        while True:
            before = self.conversations
            try:
                await self._one_conversation()
            finally:
                self._disconnect()
            unanswered = 0 if self.conversations > before else unanswered + 1
            await asyncio.sleep(_BACKOFF.delay(unanswered))

    async def _one_conversation(self) -> None:
        loop = asyncio.get_running_loop()
        self._ended.clear()
        self._disconnected_by_broker = False
        self._last_seen = loop.time()
        self._connection = Connection(
            self.endpoint,
            context=self._context,
            on_message=self._on_message,
            on_connected=self._send_ready,
            on_lost=self._ended.set,
            on_writable=self._writable.set,
        )
        due = loop.time() + self._heartbeat
        while not self._ended.is_set():
            try:
                async with asyncio.timeout_at(due):
                    await self._ended.wait()
            except TimeoutError:
                due = self._send_heartbeat(loop.time(), due)

    def _send_ready(self) -> None:
        self._last_seen = asyncio.get_running_loop().time()
        self._send(self._ready.frames())

    def _send_heartbeat(self, now: float, due: float) -> float:
        connection = self._connection
        if connection is not None and connection.connected:
            if (
                now > due + self._heartbeat
            ):  # the loop was blocked: the broker's messages have not been read yet
                self._last_seen = now
            if now - self._last_seen > self._heartbeat * self._liveness:
                _log.warning("worker.broker_silent", extra={"data": {"service": self.service}})
                self._ended.set()
            elif now - self._last_sent > self._heartbeat / 2:
                self._send(mdp.Heartbeat().frames())
        return now + self._heartbeat

    def _disconnect(self) -> None:
        connection, self._connection = self._connection, None
        self._registered.clear()
        for request in self._running.values():
            request.address = None
        self._running.clear()
        for request in self._waiting:
            self._forget(request)
        self._waiting.clear()
        self._writable.set()  # senders that wait find that there is no connection
        if connection is not None:
            if connection.connected and not self._disconnected_by_broker:
                connection.send(mdp.Disconnect().frames())
            connection.close(linger=_LINGER)

    def _send(self, frames: Frames) -> bool:
        if self._connection is None:
            return False
        self._last_sent = asyncio.get_running_loop().time()
        return self._connection.send(frames) is Sent.OK

    def _on_message(self, frames: Frames) -> None:
        try:
            command = mdp.parse_worker(frames)
            self._last_seen = asyncio.get_running_loop().time()
            if type(command) is mdp.WorkerRequest:
                self._take(command.address, Request(self, address=command.address, frames=command.body))
            elif type(command) is mdp.Cancel:
                self._cancel(command.address)
            elif type(command) is mdp.Disconnect:
                self._disconnected_by_broker = True
                self._ended.set()
                return
        except MalformedFrames:
            self.malformed += 1
            return
        if not self._registered.is_set():
            self._registered.set()
            self.conversations += 1

    # -- requests -------------------------------------------------------------------------------------------

    def _take(self, address: bytes, request: Request) -> None:
        known = self._by_key.get(request.key) if request.key is not None else None
        if known is not None:
            known.address = address
            self._running[address] = known
            return
        self._running[address] = request
        if request.key is not None:
            self._by_key[request.key] = request
        self._waiting.append(request)
        self._start_waiting()

    def _start_waiting(self) -> None:
        """Start waiting requests; they wait only while handlers of an earlier conversation are running."""
        while self._waiting and len(self._tasks) < self.credit and not self._closing:
            request = self._waiting.popleft()
            request.task = asyncio.create_task(self._serve(request), name=f"{self.service}.request")
            self._tasks.add(request.task)
            request.task.add_done_callback(partial(self._done, request))

    async def _serve(self, request: Request) -> None:
        try:
            await self._reply(request, await self._handler(request), final=True)
        except asyncio.CancelledError as error:
            if request.task is None or request.task.cancelling():
                raise
            await self._reply_error(request, error)  # it has waited for something else that was cancelled
        except Exception as error:  # noqa: BLE001 - whatever a handler raises becomes the client's RemoteError
            await self._reply_error(request, error)

    async def _reply_error(self, request: Request, error: BaseException) -> None:
        self._failures.log(error)
        frames = (type(error).__name__.encode(errors="replace"), _text_of(error).encode(errors="replace"))
        await self._reply(request, frames, final=True, status=ReplyStatus.REMOTE_ERROR)

    def _done(self, request: Request, task: asyncio.Task[None]) -> None:
        self._tasks.discard(task)
        self._forget(request)
        if not request.answered and not self._closing:
            self._send_cancelled(request)
        self._start_waiting()

    def _cancel(self, address: bytes) -> None:
        request = self._running.get(address)
        if request is None:
            return
        if request.task is None:
            self._waiting.remove(request)
            self._forget(request)
            self._send_cancelled(request)
        elif request.stream:
            request.task.cancel()

    def _forget(self, request: Request) -> None:
        if request.address is not None:
            self._running.pop(request.address, None)
        if request.key is not None:
            self._by_key.pop(request.key, None)

    def _send_cancelled(self, request: Request) -> None:
        """Send the FINAL that every request requires, though the client will not read it."""
        if request.address is not None:
            frames = request.reply_body(
                [b"CancelledError", b"the handler was cancelled"], ReplyStatus.CANCELLED
            )
            self._send(mdp.WorkerFinal(request.address, frames).frames())

    async def _reply(
        self, request: Request, frames: Sequence[bytes], *, final: bool, status: ReplyStatus = ReplyStatus.OK
    ) -> None:
        """Send a part or the end of a reply, and wait while the connection is full. After the end nothing is sent."""
        if request.answered:
            return
        mdp.check_body(self.service, frames, what="reply of ")
        body = request.reply_body(frames, status)
        request.answered = final
        command = mdp.WorkerFinal if final else mdp.WorkerPartial
        while self._connection is not None and request.address is not None and request.answered == final:
            if self._send(command(request.address, body).frames()):
                return
            self._writable.clear()
            await self._writable.wait()
