"""Sends a conductor's events to the governor, in order, again and again until they are acknowledged.

Events that arrive while one batch is under way form the next one, so a conductor with many short episodes needs one
round trip and one commit for many events.
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
"""Seconds before a batch is sent again, after a refusal by the journal or a lost connection."""

log = logs.get_logger()
_Waiting: TypeAlias = "tuple[ConductorEvent, asyncio.Future[Acknowledged]]"


class Outbox:
    """Implements `Link`. One task sends; `report` may be called from any number of tasks of the loop."""

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
        await asyncio.wait(futures[-1:])  # they are answered in order
        return [future.result() for future in futures][-1]

    async def _send(self) -> None:
        while True:
            await self._arrived.wait()
            batch = [self._waiting.popleft() for _ in range(min(len(self._waiting), BATCH))]
            if not self._waiting:
                self._arrived.clear()
            await self._deliver(batch)

    async def _deliver(self, batch: list[_Waiting]) -> None:
        """Sends a batch; one that is too large is halved. An event that can't be sent at all is an error for its
        reporter.
        """
        report = Report(
            conductor=self._spec.name,
            incarnation=self._spec.incarnation,
            seq=self._next_seq,
            events=tuple(event for event, _ in batch),
        )
        try:
            answer = await self._until_answered(_encoded(report))
        except (TooLarge, ConductorError) as error:
            if len(batch) > 1:
                middle = len(batch) // 2
                await self._deliver(batch[:middle])
                await self._deliver(batch[middle:])
            else:
                _resolve(batch, ConductorError(f"an event can't be sent: {error}"))
        except Exception as error:  # noqa: BLE001  # a bug: its reporters raise it, and the conductor fails
            _resolve(batch, error)
        else:
            self._next_seq += len(batch)
            if isinstance(answer, Refused):
                _resolve(batch, ConductorError(f"the governor refused an event: {answer.message}"))
            else:
                _resolve(batch, answer)

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


def _encoded(report: Report) -> bytes:
    """Raises ConductorError."""
    try:
        return encode(report)
    except (ValueError, TypeError, OverflowError, RecursionError) as error:
        raise ConductorError(str(error)) from error


def _resolve(batch: list[_Waiting], answer: Acknowledged | Exception) -> None:
    for _, future in batch:
        if future.cancelled():
            continue
        if isinstance(answer, Exception):
            future.set_exception(answer)
        else:
            future.set_result(answer)
