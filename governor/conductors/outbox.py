"""The conductor's way to the governor: events are kept in order and sent again until acknowledged.

What has gathered while one batch was under way travels as the next one, so that a conductor with many short
episodes pays one round trip and one commit for many events.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Final, Self

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
from transport.errors import TransportError

if TYPE_CHECKING:
    from transport.client import Client

BATCH: Final = 256
ATTEMPT_SECONDS: Final = 30.0
BACK_OFF_SECONDS: Final = 0.2
"""After a refusal of the journal or a lost connection, before the same batch is sent again."""

log = logs.get_logger()


class Outbox:
    """Implements `Link`. One sender task; `report` may be called from any number of tasks of the loop."""

    def __init__(self, *, spec: ConductorSpec, client: Client) -> None:
        self.client = client
        self._spec = spec
        self._waiting: list[tuple[ConductorEvent, asyncio.Future[Acknowledged]]] = []
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
        acknowledged: asyncio.Future[Acknowledged] = asyncio.get_running_loop().create_future()
        self._waiting.append((event, acknowledged))
        self._arrived.set()
        return await acknowledged

    async def _send(self) -> None:
        while True:
            await self._arrived.wait()
            batch, self._waiting = self._waiting[:BATCH], self._waiting[BATCH:]
            if not self._waiting:
                self._arrived.clear()
            if not batch:
                continue
            report = Report(
                conductor=self._spec.name,
                incarnation=self._spec.incarnation,
                seq=self._next_seq,
                events=tuple(event for event, _ in batch),
            )
            self._next_seq += len(batch)
            answer = await self._until_answered(encode(report))
            for _, future in batch:
                if future.cancelled():
                    continue
                if isinstance(answer, Refused):
                    future.set_exception(ConductorError(f"the governor refused an event: {answer.message}"))
                else:
                    future.set_result(answer)

    async def _until_answered(self, body: bytes) -> Acknowledged | Refused:
        service = run_service(self._spec.uid)
        while True:
            try:
                answer = await self.client.request(service, body, timeout=ATTEMPT_SECONDS, idempotent=True)
                return decode_acknowledged(answer[0])
            except TransportError as error:
                log.warning("outbox.unanswered", service=service, reason=str(error))
                await asyncio.sleep(BACK_OFF_SECONDS)
