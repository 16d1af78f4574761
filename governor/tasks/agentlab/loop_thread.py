"""An event loop in a thread of its own, for callers without one."""

from __future__ import annotations

import asyncio
import inspect
import threading
from concurrent.futures import Future
from concurrent.futures import wait as wait_for
from contextlib import suppress
from typing import TYPE_CHECKING, Any, TypeVar

from governor import clock

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine

T = TypeVar("T")


class LoopThread:
    """Its methods are called in any other thread."""

    def __init__(self, name: str) -> None:
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name=name, daemon=True)
        self._awaited: set[Future[Any]] = set()  # by callers of `wait`

    def call(self, function: Callable[[], T]) -> T:
        """Runs it in the loop's thread, and waits for it. Raises what it raises."""
        if threading.current_thread() is self._thread:
            return function()

        async def called() -> T:
            return function()

        return self.wait(called())

    def wait(self, work: Coroutine[Any, Any, T]) -> T:
        """Runs a coroutine in the loop's thread. An interrupt cancels it and waits for its end."""
        ended: Future[T] = Future()
        self._awaited.add(ended)
        ended.add_done_callback(self._awaited.discard)
        begun: list[asyncio.Task[T]] = []

        def set_end(task: asyncio.Task[T]) -> None:
            try:
                ended.set_result(task.result())
            except BaseException as error:  # noqa: BLE001  # also when it was cancelled
                ended.set_exception(error)

        def begin() -> None:
            begun.append(self._loop.create_task(work))
            begun[0].add_done_callback(set_end)

        def stop() -> None:
            begun[0].cancel()

        try:
            self._loop.call_soon_threadsafe(begin)
        except RuntimeError:
            work.close()
            self._awaited.discard(ended)
            raise RuntimeError("the session is closed") from None
        try:
            return clock.result_of(ended)
        except BaseException:
            if not ended.done():
                with suppress(RuntimeError):  # the loop is closed, and with it all has ended
                    self._loop.call_soon_threadsafe(stop)
                wait_for([ended])
            raise
        finally:
            if inspect.getcoroutinestate(work) == inspect.CORO_CREATED:
                work.close()

    def _in_loop(self, function: Callable[[], object]) -> None:
        """Without waiting for it, and not before the caller has returned. Does nothing when the loop is closed."""
        call = (
            self._loop.call_soon
            if threading.current_thread() is self._thread
            else self._loop.call_soon_threadsafe
        )
        with suppress(RuntimeError):
            call(function)

    def _end_thread(self) -> None:
        """Returns when the thread has ended. Whoever still waits gets RuntimeError."""
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()
        for ended in list(self._awaited):  # its work has not begun, or has not come to its end
            ended.set_exception(RuntimeError("the session is closed"))
