"""Terminates a child process: message, grace, SIGTERM, grace, SIGKILL; then nothing of it is left.

Rules:
* A rung ends when the child has exited, or when its grace is over. If the message cannot be delivered, nothing waits for
  an answer.
* When the child has ended, or is to be killed, `kill_tree` kills all that it has started and waits for their deaths: also
  processes that left its process group (setsid), and those whose parent has died.
* The tree is searched in threads of this module's own, so the event loop is not blocked. The last grace begins when all
  have been sent SIGKILL.
"""

from __future__ import annotations

import asyncio
import contextlib
import signal
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, Protocol

from governor import logs
from governor.errors import ProcessError, text_of
from governor.processes import kill_tree
from governor.processes.readiness import is_readable, readable

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Awaitable, Callable

    from governor.processes.identity import ProcessIdentity


class Child(Protocol):
    """The process to terminate: it leads its own group. `ChildProcess` is one."""

    name: str
    pid: int
    identity: ProcessIdentity
    mark: int

    @property
    def exit_code(self) -> int | None: ...

    async def wait(self) -> int: ...

    def signal(self, number: int) -> bool: ...


RETRY_SECONDS: Final = 0.5
"""Pause after a process could not be watched."""

_THREADS: Final = ThreadPoolExecutor(max_workers=8, thread_name_prefix="kill")

log = logs.get_logger()


@dataclass(frozen=True, slots=True, kw_only=True)
class GracePeriods:
    """Seconds of grace: after the message, after SIGTERM (0: no SIGTERM), and after SIGKILL until everything must be dead."""

    ask: float = 2.0
    terminate: float = 2.0
    kill: float = 5.0


async def terminate(
    child: Child,
    ask: Callable[[], Awaitable[object]] | None,
    grace: GracePeriods,
    *,
    on_stuck: Callable[[ProcessError], None] | None = None,
    on_signal: Callable[[str], None] = lambda _: None,
) -> None:
    """Terminates `child` and all its descendants, within the sum of the grace periods and the time to find them.

    `ask` sends the message that asks it to close; its time counts as grace. If a process survives the last rung, this
    raises ProcessError with its pid; or, where `on_stuck` is given, calls it with that error and waits until the process
    is dead. `on_signal` is called with the name of each signal that it is sent while it runs.
    """
    if child.exit_code is None and ask is not None:
        await _ask(child, ask, grace.ask)
    if child.exit_code is None and grace.terminate > 0:
        on_signal("SIGTERM")
        with contextlib.suppress(
            OSError
        ):  # also TimeoutError; without a descriptor to wait by, SIGKILL follows at once
            child.signal(signal.SIGTERM)
            child.signal(signal.SIGCONT)  # a stopped process handles SIGTERM only when it continues
            async with asyncio.timeout(grace.terminate):
                await child.wait()
    if child.exit_code is None:
        on_signal("SIGKILL")
    try:
        await _end(child, grace.kill)
    except ProcessError as error:
        if on_stuck is None:
            raise
        on_stuck(error)
        child.signal(signal.SIGKILL)
        await _end(child, None)


async def _ask(child: Child, ask: Callable[[], Awaitable[object]], grace: float) -> None:
    """Returns when the child has ended, `grace` is over, or the message has failed; `ask` itself logs its error."""

    async def deliver() -> None:
        await ask()
        await child.wait()

    message = asyncio.create_task(deliver(), name=f"ask {child.name} to close")
    exit_ = asyncio.create_task(child.wait(), name=f"wait for the end of {child.name}")
    try:
        await asyncio.wait((message, exit_), timeout=grace, return_when=asyncio.FIRST_COMPLETED)
    finally:
        message.cancel()
        exit_.cancel()
        await asyncio.gather(message, exit_, return_exceptions=True)


async def _end(child: Child, grace: float | None) -> None:
    """Kills all that is left, the child too if it runs, and waits for their deaths. Raises ProcessError, with the pid, when
    a process is alive after the grace, or could not be watched.
    """
    loop = asyncio.get_running_loop()
    begun = loop.time()
    while True:
        try:
            return await _end_once(child, grace)
        except OSError as error:  # no descriptor is left to watch it by, for one
            reason = text_of(error)
            log.warning("process.not_watched", pid=child.pid, reason=reason)
            if grace is not None and loop.time() - begun + RETRY_SECONDS > grace:
                text = f"{child.name} (pid {child.pid}) was not seen dead: {reason}"
                raise ProcessError(text, pid=child.pid) from error
        await asyncio.sleep(RETRY_SECONDS)


async def _end_once(child: Child, grace: float | None) -> None:
    if child.exit_code is not None and child.mark == kill_tree.UNMARKED:
        return  # nothing identifies its descendants any more
    loop = asyncio.get_running_loop()
    killing = loop.run_in_executor(_THREADS, _kill_all, child)
    try:
        handles = await asyncio.shield(killing)
    except asyncio.CancelledError:
        killing.add_done_callback(_close_handles)
        raise
    child.signal(signal.SIGKILL)  # its whole group
    deadline = None if grace is None else loop.time() + grace
    try:
        for pid, handle in handles.items():
            if is_readable(handle):
                continue  # dead, whether or not time is left
            async with _deadline(deadline, child, pid):
                await readable(handle)
    finally:
        kill_tree.close(handles)
    async with _deadline(deadline, child, child.pid):
        await child.wait()
    await loop.run_in_executor(_THREADS, kill_tree.remove_group, child.mark)


def _kill_all(child: Child) -> dict[int, int]:
    """Sends SIGKILL to the child, if it runs, and to all that it has started; returns their pidfds."""
    handle = child.identity.open()
    roots = {} if handle is None else {child.pid: handle}
    return kill_tree.stop_and_kill(roots, marks=(child.mark,))


def _close_handles(killing: asyncio.Future[dict[int, int]]) -> None:
    if killing.exception() is None:
        kill_tree.close(killing.result())


@contextlib.asynccontextmanager
async def _deadline(deadline: float | None, child: Child, pid: int) -> AsyncIterator[None]:
    try:
        async with asyncio.timeout_at(deadline):
            yield
    except TimeoutError:
        what = f"{child.name} (pid {pid})" if pid == child.pid else f"pid {pid}, of {child.name},"
        raise ProcessError(f"{what} is alive after SIGKILL", pid=pid) from None
