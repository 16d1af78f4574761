"""The connection of an executor to its daemon: requests, answers in one or many parts, and the errors they end in."""

from __future__ import annotations

import asyncio
import os
import secrets
from math import inf, isnan
from numbers import Real
from typing import TYPE_CHECKING, Any, Final, Self, TypeVar

import msgspec

from governor.errors import (
    BadRequest,
    GoingDown,
    GovernorError,
    NoAnswer,
    Unreachable,
    UsageError,
    from_refusal,
    from_transport,
)
from governor.locations import find_broker, refuse_stale_socket, refuse_unknown_host
from governor.messages import SERVICE, Done, ExecutorReply, ExecutorRequest, Refused, decode_reply
from governor.messages.base import plain
from governor.network import contexts
from transport.client import Client
from transport.errors import BadEndpoint, TransportError

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from transport.network.curve import ClientKeys

RETRY_SECONDS: Final = 0.2
CONNECT_SECONDS: Final = 5.0
"""For a connection, whatever the patience is."""

R = TypeVar("R", bound=ExecutorReply)


def _seconds(name: str, value: Any) -> float:
    """Of the argument `name`. Raises UsageError."""
    if not isinstance(value, Real) or isnan(value):
        raise UsageError(f"{name} is a number of seconds, not {value!r}")
    return float(value)


def key_of(given: str | None) -> str:
    """Of a submit: a random one by default. Raises UsageError."""
    if given == "":
        raise UsageError(
            "key is a text of 1 to 256 characters, not ''; without one each submit makes a run of its own"
        )
    return secrets.token_hex(16) if given is None else given


def _text(name: str, value: object) -> str | None:
    """Of the argument `name`. Raises UsageError."""
    if isinstance(value, os.PathLike):
        value = os.fspath(value)
    if value is not None and not isinstance(value, str):
        raise UsageError(f"{name} is a text, or a path, not {value!r}")
    return value


def _place(broker: str | None, context: str | None) -> tuple[str, ClientKeys | None]:
    """The endpoint, and the keys for one on another machine. Raises Unreachable, UsageError."""
    named = context or (None if broker else os.environ.get(contexts.VARIABLE) or None)
    if named is None:
        return find_broker(broker), None
    if broker:
        raise UsageError("`broker` and `context` both say where the daemon is: give one of them")
    found = contexts.load(named)
    return found.endpoint, found.keys


def _of_numpy(value: object) -> object:
    """Values of numpy as Python's. Raises TypeError."""
    from governor.units.fields import without_numpy  # noqa: PLC0415  # pydantic is slow; few requests need it

    found = without_numpy(value)
    return plain(value) if found is value else found


_encode: Final = msgspec.msgpack.Encoder(enc_hook=_of_numpy).encode


def encoded(request: ExecutorRequest) -> bytes:
    """Raises UsageError for what no message carries."""
    try:
        return _encode(request)
    except TypeError as error:
        raise UsageError(f"the request has a value of a wrong type: {error}") from None
    except OverflowError:
        raise UsageError("a number of the request does not fit 64 bits") from None
    except UnicodeEncodeError as error:
        raise UsageError(f"{error.object!r} is no text in Unicode, and can't be sent: rename it") from None


class Connection:
    """Its arguments and errors are those of `Executor`. `keys`: those of a daemon on another machine, else None."""

    def __init__(
        self,
        broker: str | os.PathLike[str] | None = None,
        *,
        context: str | os.PathLike[str] | None = None,
        timeout: float = 10.0,
        patience: float = 30.0,
        awaits_restart: bool = True,
        service: str = SERVICE,
    ) -> None:
        self.timeout, self.patience = _seconds("timeout", timeout), _seconds("patience", patience)
        if not 0 < self.timeout < inf:
            raise UsageError(f"timeout is the deadline of each call, in seconds, and not {timeout}")
        if not isinstance(service, str):
            raise UsageError(f"service is the uid of a RunGovernor, not {service!r}")
        self.endpoint, self.keys = _place(_text("broker", broker), _text("context", context))
        self.service = service
        self._awaits_restart = awaits_restart
        try:
            self._client = Client(self.endpoint, keys=self.keys)
        except BadEndpoint as error:
            raise UsageError(str(error)) from error

    async def __aenter__(self) -> Self:
        """Raises Unreachable at once where the socket is one that a dead daemon left behind, or the machine has no address."""
        await refuse_stale_socket(self.endpoint)
        await refuse_unknown_host(self.endpoint, patience=self.patience)
        await self._client.__aenter__()
        return self

    async def __aexit__(self, *_: object) -> None:
        await self._client.aclose()

    async def _ask(
        self,
        request: ExecutorRequest,
        expected: type[R],
        *,
        source: str = "",
        seconds: float | None = None,
        send: Callable[[bytes, float, float], Awaitable[bytes]] | None = None,
    ) -> R:
        """The answer; for `patience` seconds it tries again where no daemon is reached. After one has refused because it
        goes down it asks the next daemon, and raises that refusal if there is no answer.
        """
        loop = asyncio.get_running_loop()
        until = loop.time() + self.patience
        transient: tuple[type[GovernorError], ...] = (Unreachable,)
        refused: GoingDown | None = None
        timeout = seconds or self.timeout
        while True:
            try:
                send_within = max(until - loop.time(), CONNECT_SECONDS)
                answer = await (send or self._request)(encoded(request), timeout, send_within)
                return self._expect(answer, expected, source=source)
            except GoingDown as error:
                if not self._awaits_restart:
                    raise
                refused, transient = error, (Unreachable, NoAnswer)
            except TransportError as error:
                failure = from_transport(error, endpoint=self.endpoint)
                if not isinstance(failure, transient) or (refused is None and loop.time() > until):
                    raise failure from error
            if refused is not None and (timeout := until - loop.time()) <= RETRY_SECONDS:
                raise refused
            await asyncio.sleep(RETRY_SECONDS)

    async def _request(self, request: bytes, timeout: float, send_within: float) -> bytes:  # noqa: ASYNC109  # the transport's own
        answer = await self._client.request(
            self.service, request, timeout=timeout, idempotent=True, send_within=send_within
        )
        return answer[0] if answer else b""

    async def _gather(self, request: bytes, timeout: float, send_within: float) -> bytes:  # noqa: ASYNC109  # as above
        """Receives an answer in parts; the last part is `Done`, or a refusal, which is the answer then."""
        whole = bytearray()
        parts = self._client.stream(self.service, request, idle_timeout=timeout, send_within=send_within)
        async for part in parts:
            last = part.body[0] if part.final and part.body else b""
            if part.final and not isinstance(self._decode(last), Done):
                return bytes(last)
            if not part.final:
                whole += b"".join(bytes(frame) for frame in part.body)
        return bytes(whole)

    def _expect(self, frame: bytes, expected: type[R], *, source: str) -> R:
        reply = self._decode(frame)
        if isinstance(reply, Refused):
            raise from_refusal(reply, source=source)
        if not isinstance(reply, expected):
            raise BadRequest(f"the daemon answered {type(reply).__name__}, not {expected.__name__}")
        return reply

    def _decode(self, frame: bytes) -> ExecutorReply:
        try:
            return decode_reply(frame)
        except msgspec.MsgspecError as error:
            raise BadRequest(f"answer not understood, is the daemon of another version? ({error})") from error
