"""The conductor's way to the governor: events are kept in order and sent again until acknowledged.

What has gathered while one batch was under way travels as the next one, so that a conductor with many short
episodes pays one round trip and one commit for many events.
"""

from __future__ import annotations

import asyncio
from collections import deque
from typing import TYPE_CHECKING, Final, Self, TypeAlias

import msgspec

from governor import logs
from governor.errors import ConductorError
from governor.messages import (
    Acknowledged,
    ConductorEvent,
    ConductorSpec,
    Refused,
    Report,
    decode_acknowledged,
    encode,
    run_service,
)
from transport.errors import TooLarge, TransportError

if TYPE_CHECKING:
    from collections.abc import Sequence

    from transport.client import Client

BATCH: Final = 1024
ATTEMPT_SECONDS: Final = 30.0
BACK_OFF_SECONDS: Final = 0.2
"""After a refusal of the journal or a lost connection, before the same batch is sent again."""

log = logs.get_logger()
_Waiting: TypeAlias = "tuple[ConductorEvent, asyncio.Future[Acknowledged]]"


class _Unspeakable(Exception):
    """An event that msgpack has no words for. It never leaves this module."""


class Outbox:
    """Implements `Link`. One sender task; `report` may be called from any number of tasks of the loop."""

    def __init__(self, *, spec: ConductorSpec, client: Client) -> None:
        self.client = client
        self._spec = spec
        self._waiting: deque[_Waiting] = deque()
        self._arrived = asyncio.Event()
        self._next_seq = 1
        self._sender: asyncio.Task[None] | None = None

    async def __aenter__(self) -> Self:
        self._sender = asyncio.create_task(self._send(), name="outbox.sender")
        return self

    async def __aexit__(self, *_: object) -> None:
        if self._sender is not None:
            self._sender.cancel()
            await asyncio.wait({self._sender})

    async def report(self, event: ConductorEvent) -> Acknowledged:
        return await self.report_all([event])

    async def report_all(self, events: Sequence[ConductorEvent]) -> Acknowledged:
        loop = asyncio.get_running_loop()
        futures: list[asyncio.Future[Acknowledged]] = [loop.create_future() for _ in events]
        self._waiting += zip(events, futures, strict=True)
        self._arrived.set()
        await asyncio.wait(futures[-1:])  # they are answered in their order
        return [future.result() for future in futures][-1]

    async def _send(self) -> None:
        while True:
            await self._arrived.wait()
            batch = [self._waiting.popleft() for _ in range(min(len(self._waiting), BATCH))]
            if not self._waiting:
                self._arrived.clear()
            if not batch:
                continue
            await self._deliver(batch)

    async def _deliver(self, batch: list[_Waiting]) -> None:
        """A batch that is too large goes in halves; an event that can't travel at all is its reporter's error."""
        report = Report(
            conductor=self._spec.name,
            incarnation=self._spec.incarnation,
            seq=self._next_seq,
            events=tuple(event for event, _ in batch),
        )
        try:
            answer = await self._until_answered(_packed(report))
        except (TooLarge, _Unspeakable) as error:
            if len(batch) > 1:
                middle = len(batch) // 2
                await self._deliver(batch[:middle])
                await self._deliver(batch[middle:])
                return
            _answer(batch, ConductorError(f"an event can't be sent: {error}"))
            return
        self._next_seq += len(batch)
        if isinstance(answer, Refused):
            _answer(batch, ConductorError(f"the governor refused an event: {answer.message}"))
        else:
            _answer(batch, answer)

    async def _until_answered(self, body: bytes) -> Acknowledged | Refused:
        service = run_service(self._spec.uid)
        while True:
            try:
                answer = await self.client.request(
                    service, body, self._spec.secret.value, timeout=ATTEMPT_SECONDS, idempotent=True
                )
                return decode_acknowledged(answer[0])
            except TooLarge:
                raise
            except (TransportError, msgspec.MsgspecError, IndexError) as error:
                log.warning("outbox.unanswered", service=service, reason=str(error))
                await asyncio.sleep(BACK_OFF_SECONDS)


def _packed(report: Report) -> bytes:
    try:
        return encode(report)
    except (ValueError, TypeError, OverflowError, RecursionError) as error:
        raise _Unspeakable(str(error)) from error


def _answer(batch: list[_Waiting], answer: Acknowledged | ConductorError) -> None:
    for _, future in batch:
        if future.cancelled():
            continue
        if isinstance(answer, ConductorError):
            future.set_exception(answer)
        else:
            future.set_result(answer)
