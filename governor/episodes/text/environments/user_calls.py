"""Calls of functions that users bring, sync or async: a sync one runs beside the event loop, where it can hold up nobody."""

from __future__ import annotations

import asyncio
import inspect
import threading
from functools import partial
from queue import SimpleQueue
from typing import TYPE_CHECKING, Any, TypeAlias, TypeVar

from governor.episodes.entries import answer, in_daemon_thread

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine

    Work: TypeAlias = tuple[Callable[[], Any], asyncio.Future[Any]]

T = TypeVar("T")


async def call(function: Callable[..., Any], /, *args: Any, **named: Any) -> Any:
    """Who is cancelled while a sync function runs leaves its thread behind until it returns."""
    if inspect.iscoroutinefunction(function):
        return await function(*args, **named)
    thread = f"user.{getattr(function, '__name__', 'call')}"
    found = await in_daemon_thread(partial(function, *args, **named), name=thread)
    return await found if inspect.isawaitable(found) else found


async def to_its_end(work: Coroutine[Any, Any, T], *, name: str) -> T:
    """What `work`, which must be bounded, comes to. Who is cancelled waits for it, and is cancelled then."""
    task = asyncio.create_task(work, name=name)
    cancelled = False
    while not task.done():
        try:
            await asyncio.wait({task})
        except asyncio.CancelledError:
            cancelled = True
    if cancelled:
        raise asyncio.CancelledError from (None if task.cancelled() else task.exception())
    return task.result()


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
            answer(loop, ended, function)
