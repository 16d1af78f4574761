"""Following what happens in a daemon: messages as they come, until the end, over broken connections and restarts."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Final, TypeAlias, TypeVar

from governor.errors import NotPermitted, from_refusal, from_transport
from governor.executor.connection import CONNECT_SECONDS, RETRY_SECONDS, Connection, encoded
from governor.messages import GroupProgress, Refused, RunEvent, Watch, WatchEnd, WatchGroup
from transport.errors import ClientClosed, RemoteError, TooLarge, TransportError

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, AsyncIterator, Callable

Followed: TypeAlias = RunEvent | GroupProgress | WatchEnd
W = TypeVar("W", Watch, WatchGroup)

IDLE_SECONDS: Final = 15.0
"""Without a message for so long (the daemon sends one every 5 s) a watch reconnects."""


class Following(Connection):
    async def _follow(
        self, asked: W, *, behind: Callable[[W, Followed], W] = lambda asked, _: asked
    ) -> AsyncGenerator[Followed, None]:
        """The messages, and the end as the last one. After a broken connection it is `asked` anew, for what is `behind` the last message."""
        loop = asyncio.get_running_loop()
        end: WatchEnd | None = None
        until = loop.time() + self.patience
        while True:
            try:
                async for message in self._receive(asked, until - loop.time()):
                    if isinstance(message, WatchEnd):
                        end = message
                        break
                    until = loop.time() + self.patience
                    if message is not None:
                        end, asked = None, behind(asked, message)
                        yield message
            except TransportError as error:
                failure = from_transport(error, endpoint=self.endpoint)
                hopeless = isinstance(error, ClientClosed | RemoteError | TooLarge) or isinstance(
                    failure, NotPermitted
                )
                if hopeless or (end is None and loop.time() > until):
                    raise failure from error
            interrupted = end is not None and end.outcome == "interrupted" and self._awaits_restart
            if end is not None and not (interrupted and loop.time() <= until):
                yield end
                return
            await asyncio.sleep(RETRY_SECONDS)

    async def _receive(self, asked: Watch | WatchGroup, send_within: float) -> AsyncIterator[Followed | None]:
        """The messages as they come; None is a heartbeat."""
        parts = self._client.stream(
            self.service,
            encoded(asked),
            idle_timeout=IDLE_SECONDS,
            send_within=max(send_within, CONNECT_SECONDS),
        )
        async for part in parts:
            for reply in (self._decode(frame) if frame else None for frame in part.body):
                if isinstance(reply, Refused):
                    raise from_refusal(reply, source=asked.uid)
                if reply is None or isinstance(reply, Followed):
                    yield reply
