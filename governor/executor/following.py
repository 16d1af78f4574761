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
    ) -> AsyncGenerator[list[Followed], None]:
        """The messages, as many as come together, and the end as the last one. After a broken connection it is `asked` anew, for what is `behind` the last message."""
        loop = asyncio.get_running_loop()
        end: WatchEnd | None = None
        until = loop.time() + self.patience
        while True:
            try:
                async for messages in self._receive(asked, until - loop.time()):
                    last = messages.pop() if messages and isinstance(messages[-1], WatchEnd) else None
                    if last is None:
                        until = loop.time() + self.patience
                    if messages:
                        end, asked = None, behind(asked, messages[-1])
                        yield messages
                    if isinstance(last, WatchEnd):
                        end = last
                        break
            except TransportError as error:
                failure = from_transport(error, endpoint=self.endpoint)
                hopeless = isinstance(error, ClientClosed | RemoteError | TooLarge) or isinstance(
                    failure, NotPermitted
                )
                if hopeless or (end is None and loop.time() > until):
                    raise failure from error
            interrupted = end is not None and end.outcome == "interrupted" and self._awaits_restart
            if end is not None and not (interrupted and loop.time() <= until):
                yield [end]
                return
            await asyncio.sleep(RETRY_SECONDS)

    async def _receive(self, asked: Watch | WatchGroup, send_within: float) -> AsyncIterator[list[Followed]]:
        """The messages as they come, none behind an end; without any it is a heartbeat."""
        parts = self._client.stream(
            self.service,
            encoded(asked),
            idle_timeout=IDLE_SECONDS,
            send_within=max(send_within, CONNECT_SECONDS),
        )
        async for part in parts:
            found: list[Followed] = []
            for reply in (self._decode(frame) for frame in part.body if frame):
                if isinstance(reply, Refused):
                    if found:
                        yield found
                    raise from_refusal(reply, source=asked.uid)
                if isinstance(reply, Followed):
                    found.append(reply)
                if isinstance(reply, WatchEnd):
                    break
            yield found
