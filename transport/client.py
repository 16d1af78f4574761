"""The client: many requests in flight over one connection, each ending in a reply or in one typed error.

Rules:
1. Every request has a deadline, every stream an idle limit. Nothing waits without one.
2. Without a broker, requests wait here, unsent; at their deadline they fail with BrokerUnreachable. When the connection
   breaks, idempotent requests are sent again under the same (session, request id), other sent ones fail with ConnectionLost.
3. A caller that stops waiting (cancelled, timed out, left the stream) cancels the request at the broker.
4. Late replies are dropped.
"""

from __future__ import annotations

import asyncio
import os
from collections import deque
from math import inf, isfinite
from typing import TYPE_CHECKING, Final, Self

import msgspec
import zmq

from transport import endpoints
from transport import envelope as envelopes
from transport import frames as mdp
from transport.connection import Connection
from transport.envelope import ReplyEnvelope, ReplyStatus, RequestEnvelope
from transport.errors import (
    BrokerUnreachable,
    ClientClosed,
    ConnectionLost,
    DeadlineExceeded,
    MalformedFrames,
    PartialsLost,
    RemoteError,
    RequestError,
    RequestNotPermitted,
    RequestQueueFull,
    ServiceNotFound,
    TooLarge,
    WorkerLost,
)
from transport.sockets import Sent

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator

    from transport.frames import Frames
    from transport.network.curve import ClientKeys

BUFFERED_PARTS: Final = 50_000
_ERRORS_OF_BROKER: Final = {
    ReplyStatus.SERVICE_NOT_FOUND: ServiceNotFound,
    ReplyStatus.QUEUE_FULL: RequestQueueFull,
    ReplyStatus.TOO_LARGE: TooLarge,
    ReplyStatus.WORKER_LOST: WorkerLost,
    ReplyStatus.NOT_PERMITTED: RequestNotPermitted,
}
# The broker's error should arrive before the client's own deadline, whose error tells less.
_HEAD_START: Final = 0.1
_HEAD_START_LIMIT: Final = 0.05


class Part(msgspec.Struct, frozen=True):
    """One message of a stream; `final` is true for the last one only."""

    body: list[bytes]
    final: bool


class _Call(msgspec.Struct, eq=False, kw_only=True):
    """One request in flight. Parts are kept in order; `error` is raised once they have been read."""

    name: bytes
    request_id: int
    service: str
    body: tuple[bytes, ...]
    timeout: float
    deadline: float
    send_within: float
    send_by: float
    idempotent: bool
    stream: bool
    sent: bool = False
    sent_again: bool = False
    settled: bool = False
    sequence: int = 0
    parts: deque[Part] = msgspec.field(default_factory=deque)
    error: RequestError | None = None
    waiter: asyncio.Future[None] | None = None

    @property
    def ended(self) -> bool:
        return self.error is not None or (bool(self.parts) and self.parts[-1].final)

    def wake(self) -> None:
        if self.waiter is not None and not self.waiter.done():
            self.waiter.set_result(None)

    def fail(self, error: RequestError) -> None:
        if not self.ended:
            self.error = error
            self.wake()


class Client:
    """A client of one broker, to be used in one event loop.

    Connects with the first request, or as an async context manager. `aclose` fails requests in flight with ClientClosed;
    it may be called twice, and no request can be made afterwards. With `keys` it comes through the broker's socket for the network.
    """

    def __init__(
        self,
        endpoint: str,
        *,
        keys: ClientKeys | None = None,
        context: zmq.Context[zmq.Socket[bytes]] | None = None,
    ) -> None:
        self.endpoint = str(endpoints.parse_connect(endpoint))
        self.session = os.urandom(envelopes.SESSION_BYTES)
        self._keys = keys
        self._context = context or zmq.Context.instance()
        self._connection: Connection | None = None
        self._calls: dict[int, _Call] = {}
        self._unsent: dict[int, _Call] = {}
        self._next_id = 1
        self._closed = False

    def __repr__(self) -> str:
        state = "closed" if self._closed else "connected" if self.connected else "not connected"
        return f"<Client {self.endpoint} {state} in_flight={len(self._calls)}>"

    @property
    def connected(self) -> bool:
        """Whether the handshake with the broker has succeeded."""
        return self._connection is not None and self._connection.connected

    async def __aenter__(self) -> Self:
        self._open()
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.aclose()

    async def aclose(self) -> None:
        """Close; requests in flight fail with ClientClosed."""
        self._closed = True
        if self._connection is not None:
            self._connection.close()
            self._connection = None
        for call in list(self._calls.values()):
            call.fail(ClientClosed(call.service, "the client was closed"))

    async def request(
        self,
        service: str,
        *body: bytes,
        timeout: float,  # noqa: ASYNC109 - it is sent with the request, for broker and worker
        idempotent: bool = False,
        send_within: float = inf,
    ) -> list[bytes]:
        """Ask `service` and return the body of its reply.

        Args:
            service: 1 to 255 printable ASCII characters.
            body: the frames of the request, which may be none.
            timeout: seconds until the request ends with DeadlineExceeded, or with ConnectionLost if the connection broke and there is no other.
            idempotent: whether it may be started again, which is done after a lost connection or worker, until its deadline.
            send_within: seconds until it ends with BrokerUnreachable, if it has not been sent.

        Raises:
            RequestError: one of its subclasses; see `transport.errors`.
            ValueError: for a timeout without an end.
        """
        call = self._begin(service, body, timeout, idempotent=idempotent, send_within=send_within)
        try:
            self._transmit(call)
            while not call.ended:
                await self._wait(call)
            if call.error is not None:
                raise call.error
            return call.parts[-1].body
        finally:
            self._finish(call)

    async def stream(
        self, service: str, *body: bytes, idle_timeout: float, send_within: float = inf
    ) -> AsyncGenerator[Part, None]:
        """Ask `service` and yield its parts as they come; the last one has `final` set.

        Args:
            service: as for `request`.
            body: as for `request`.
            idle_timeout: seconds without any part after which the stream ends, as a request does.
            send_within: as for `request`.

        Raises:
            RequestError: one of its subclasses, after all parts that came before.
            ValueError: for a timeout without an end.
        """
        call = self._begin(service, body, idle_timeout, stream=True, send_within=send_within)
        try:
            self._transmit(call)
            while True:
                while call.parts:
                    part = call.parts.popleft()
                    yield part
                    if part.final:
                        return
                if call.error is not None:
                    raise call.error
                call.deadline = asyncio.get_running_loop().time() + idle_timeout
                await self._wait(call)
        finally:
            self._finish(call)

    # -- one call -------------------------------------------------------------------------------------------

    def _begin(
        self,
        service: str,
        body: tuple[bytes, ...],
        timeout: float,
        *,
        idempotent: bool = False,
        stream: bool = False,
        send_within: float,
    ) -> _Call:
        if self._closed:
            raise ClientClosed(service, "the client was closed")
        if not isfinite(timeout):
            raise ValueError(f"a request has a deadline: the timeout is a number of seconds, not {timeout!r}")
        mdp.check_body(service, body)
        self._open()
        now = asyncio.get_running_loop().time()
        request_id = self._next_id
        self._next_id += 1
        call = self._calls[request_id] = _Call(
            name=mdp.service_name(service),
            request_id=request_id,
            service=service,
            body=body,
            timeout=timeout,
            deadline=now + timeout,
            send_within=send_within,
            send_by=now + send_within,
            idempotent=idempotent,
            stream=stream,
        )
        return call

    async def _wait(self, call: _Call) -> None:
        """Wait for the next part, the error, or the deadline, which becomes the call's error."""
        loop = asyncio.get_running_loop()
        call.waiter = loop.create_future()
        until = call.deadline if call.sent else min(call.deadline, call.send_by)
        timer = loop.call_at(until, self._expire, call)
        try:
            await call.waiter
        finally:
            timer.cancel()
            call.waiter = None

    def _expire(self, call: _Call) -> None:
        if call.sent and asyncio.get_running_loop().time() < call.deadline:  # it was sent meanwhile
            call.wake()
        elif call.sent and self.connected:
            call.fail(DeadlineExceeded(call.service, timeout=call.timeout))
        elif call.sent:
            text = f"the connection to {self.endpoint} broke, and there was no other one by the deadline"
            call.fail(ConnectionLost(call.service, text))
        else:
            self._fail_unsent(call)

    def _fail_unsent(self, call: _Call) -> None:
        refused = "" if self._connection is None else self._connection.refused
        seconds = min(call.timeout, call.send_within)
        call.fail(BrokerUnreachable(call.service, timeout=seconds, endpoint=self.endpoint, refused=refused))

    def _finish(self, call: _Call) -> None:
        self._calls.pop(call.request_id, None)
        self._unsent.pop(call.request_id, None)
        if call.sent and not call.settled and self.connected:
            self._cancel(call)

    def _cancel(self, call: _Call) -> None:
        envelope = RequestEnvelope(call.request_id, self.session, cancel=True)
        command = mdp.ClientRequest(call.name, [envelope.frame()])
        if self._connection is not None:
            self._connection.send(command.frames())

    def _transmit(self, call: _Call) -> None:
        connection = self._connection
        if connection is None or not connection.connected or not connection.writable:
            self._unsent[call.request_id] = call
            return
        left = call.deadline - asyncio.get_running_loop().time()
        budget = envelopes.milliseconds(left - min(left * _HEAD_START, _HEAD_START_LIMIT))
        envelope = RequestEnvelope(call.request_id, self.session, budget, call.idempotent, call.stream)
        command = mdp.ClientRequest(call.name, [envelope.frame(), *call.body])
        if connection.send(command.frames()) is Sent.OK:
            call.sent = True
        else:
            self._unsent[call.request_id] = call

    # -- the connection -------------------------------------------------------------------------------------

    def _open(self) -> None:
        if self._connection is None:
            self._connection = Connection(
                self.endpoint,
                context=self._context,
                on_message=self._on_message,
                on_connected=self._flush,
                on_lost=self._on_lost,
                on_writable=self._flush,
                keys=self._keys,
                on_unknown=self._on_unknown,
            )

    def _flush(self) -> None:
        unsent, self._unsent = self._unsent, {}
        for call in unsent.values():
            self._transmit(call)

    def _on_unknown(self) -> None:
        """The broker has said so, with its key: a later try ends in the same way, until somebody has changed its mind."""
        for call in list(self._unsent.values()):
            self._fail_unsent(call)

    def _on_lost(self) -> None:
        if self._connection is not None:
            self._connection.read_rest()
            self._connection.close()
            self._connection = None
        for call in list(self._calls.values()):
            if not call.sent or call.ended:
                continue
            if call.idempotent:
                call.sent_again = True
                self._unsent[call.request_id] = call
            else:
                call.fail(ConnectionLost(call.service, f"the connection to {self.endpoint} broke"))
        self._open()

    def _on_message(self, frames: Frames) -> None:
        try:
            command = mdp.parse_client(frames)
            envelope = envelopes.read_reply(command.body[0])
        except MalformedFrames:
            return
        if envelope is None or envelope.session != self.session or type(command) is mdp.ClientRequest:
            return
        call = self._calls.get(envelope.request_id)
        if call is None or call.ended:
            return
        body = mdp.plain(command.body[1:])
        call.settled = type(command) is mdp.ClientFinal
        if envelope.status:
            call.error = _error(call, envelope, body)
        else:
            self._take_part(call, envelope, Part(body, type(command) is mdp.ClientFinal))
        call.wake()

    @staticmethod
    def _take_part(call: _Call, envelope: ReplyEnvelope, part: Part) -> None:
        if call.stream and envelope.sequence:
            call.sequence += 1
            if envelope.sequence != call.sequence:
                call.error = PartialsLost(call.service, f"part {call.sequence} is missing")
                return
            if len(call.parts) >= BUFFERED_PARTS:
                call.error = PartialsLost(call.service, f"{BUFFERED_PARTS} parts were not read")
                return
        if call.stream or part.final:
            call.parts.append(part)


def _error(call: _Call, envelope: ReplyEnvelope, body: list[bytes]) -> RequestError:
    texts = [frame.decode(errors="replace") for frame in body] + ["", ""]
    if envelope.status == ReplyStatus.REMOTE_ERROR:
        return RemoteError(call.service, type_name=texts[0], remote_message=texts[1])
    if envelope.status == ReplyStatus.EXPIRED:
        return DeadlineExceeded(call.service, timeout=call.timeout, detail=texts[0])
    known = _ERRORS_OF_BROKER.get(ReplyStatus(envelope.status), WorkerLost)
    if known is ServiceNotFound and call.sent_again:  # this broker does not know what was done before
        known = WorkerLost
    return known(call.service, texts[0])
