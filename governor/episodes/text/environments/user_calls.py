"""Calls of user functions, sync or async: a sync one runs beside the event loop, which it cannot block."""

from __future__ import annotations

import asyncio
import inspect
import threading
from functools import partial
from queue import SimpleQueue
from typing import TYPE_CHECKING, Any, TypeAlias, TypeVar

from governor.episodes.entries import answer, in_daemon_thread

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Coroutine

    Run: TypeAlias = Callable[[Callable[[], Any]], Awaitable[Any]]
    Work: TypeAlias = tuple[Callable[[], Any], asyncio.Future[Any]]

T = TypeVar("T")


async def call(run: Run, function: Callable[..., Any], /, *args: Any, **named: Any) -> Any:
    """The result of `function`; `run` runs it in a thread if it is sync. That goes on when the caller is cancelled."""
    work = partial(function, *args, **named)
    found = work() if inspect.iscoroutinefunction(function) else await run(work)
    return await found if inspect.isawaitable(found) else found


async def in_own_thread(work: Callable[[], Any]) -> Any:
    return await in_daemon_thread(work, name="user.call")


async def run_to_completion(work: Coroutine[Any, Any, T], *, name: str) -> T:
    """The result of `work`, which must be bounded. A cancelled caller waits for it, and is cancelled then."""
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
    """Runs functions one after the other, in the order of the calls, in one daemon thread: a thread for each call would take
    0.5 ms of the event loop. For one event loop. A call completes also when its caller is cancelled.
    """

    def __init__(self, name: str) -> None:
        self._name = name
        self._queue: SimpleQueue[Work | None] = SimpleQueue()
        self._started = False

    async def run(self, work: Callable[[], Any]) -> Any:
        loop = asyncio.get_running_loop()
        if not self._started:
            threading.Thread(target=self._run, args=(loop,), name=self._name, daemon=True).start()
            self._started = True
        ended: asyncio.Future[Any] = loop.create_future()
        self._queue.put((work, ended))
        return await ended

    def close(self) -> None:
        """Completes the earlier calls. May be called again, and `run` after it."""
        if self._started:
            self._started = False
            self._queue.put(None)

    def _run(self, loop: asyncio.AbstractEventLoop) -> None:
        while (work := self._queue.get()) is not None:
            answer(loop, work[1], work[0])
