"""Calls of functions that users bring, sync or async: a sync one runs beside the event loop, where it can hold up nobody."""

from __future__ import annotations

import asyncio
import inspect
import threading
from functools import partial
from queue import SimpleQueue
from typing import TYPE_CHECKING, Any, TypeAlias

from governor.episodes.entries import in_daemon_thread, one_line, tell
from governor.errors import ConductorError

if TYPE_CHECKING:
    from collections.abc import Callable

    Work: TypeAlias = tuple[Callable[[], Any], asyncio.Future[Any]]


async def call(function: Callable[..., Any], /, *args: Any, **named: Any) -> Any:
    """Who is cancelled while a sync function runs leaves its thread behind until it returns."""
    if inspect.iscoroutinefunction(function):
        return await function(*args, **named)
    thread = f"user.{getattr(function, '__name__', 'call')}"
    found = await in_daemon_thread(partial(function, *args, **named), name=thread)
    return await found if inspect.isawaitable(found) else found


class CallThread:
    """Functions one after the other, in the order of the calls, all in one daemon thread: to start one for each call
    takes 0.5 ms of the event loop. For one event loop. A call is made to its end, also when its caller is cancelled.
    """

    def __init__(self, name: str) -> None:
        self._name = name
        self._work: SimpleQueue[Work | None] = SimpleQueue()
        self._started = False

    async def call(self, function: Callable[..., Any], /, *args: Any, **named: Any) -> Any:
        loop = asyncio.get_running_loop()
        if not self._started:
            self._started = True
            threading.Thread(target=self._live, args=(loop,), name=self._name, daemon=True).start()
        ended: asyncio.Future[Any] = loop.create_future()
        self._work.put((partial(function, *args, **named), ended))
        return await ended

    async def idle(self) -> None:
        """Returns when all that was called before has ended."""
        if self._started:
            await self.call(lambda: None)

    def close(self) -> None:
        """What was called before is still done. May be called again, and `call` after it."""
        if self._started:
            self._started = False
            self._work.put(None)

    def _live(self, loop: asyncio.AbstractEventLoop) -> None:
        while (work := self._work.get()) is not None:
            function, ended = work
            result, failure = None, None
            try:
                result = function()
            except BaseException as error:  # noqa: BLE001  # also SystemExit of user code: it goes to who waits
                failure = error if isinstance(error, Exception) else ConductorError(one_line(error))
            tell(loop, partial(_settle, ended, result, failure))


def _settle(ended: asyncio.Future[Any], result: Any, failure: Exception | None) -> None:
    if ended.done():
        return
    if failure is not None:
        ended.set_exception(failure)
    else:
        ended.set_result(result)
