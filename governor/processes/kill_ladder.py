"""How a child process ends: message, grace, SIGTERM, grace, SIGKILL; then nothing of it is left.

Rules:
* A rung is left when the child's exit has been seen, or its deadline has passed; a message that cannot be delivered
  is no reason to wait for an answer.
* When the child has ended, or is to be killed, all that it has started is killed and seen dead, by `kill_tree`: also what
  left its process group (setsid), and what the death of its parent has cut off.
* The tree is looked for in a thread: the event loop goes on. It is one of those that nothing else waits for, and the last grace
  begins when all have been sent SIGKILL.
"""

from __future__ import annotations

import asyncio
import contextlib
import signal
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, Literal, Protocol

from governor import logs
from governor.errors import ProcessError, text_of
from governor.processes import kill_tree
from governor.processes.readiness import is_readable, readable

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Awaitable, Callable

    from governor.processes.identity import ProcessIdentity


class Child(Protocol):
    """What is brought down: a process that leads its own group. `ChildProcess` is one."""

    name: str
    pid: int
    birth: ProcessIdentity
    mark: int

    @property
    def exit_code(self) -> int | None: ...

    async def wait(self) -> int: ...

    def signal(self, number: int) -> bool: ...


Rung = Literal["none", "message", "SIGTERM", "SIGKILL"]
AGAIN_SECONDS: Final = 0.5
"""After somebody could not be watched."""

_THREADS: Final = ThreadPoolExecutor(max_workers=8, thread_name_prefix="kill")

log = logs.get_logger()


@dataclass(frozen=True, slots=True, kw_only=True)
class GracePeriods:
    """Seconds of grace: after the message, after SIGTERM (0: it is left out), and until everything must be seen dead after
    SIGKILL.
    """

    ask: float = 2.0
    terminate: float = 2.0
    kill: float = 5.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Gone:
    """How a child ended: on which rung ("none": it had ended before), how long it took, and which pids it had left."""

    exit_code: int
    rung: Rung
    seconds: float
    killed: tuple[int, ...] = ()


async def terminate(
    child: Child,
    ask: Callable[[], Awaitable[object]] | None = None,
    rungs: GracePeriods | None = None,
    *,
    on_stuck: Callable[[ProcessError], None] | None = None,
) -> Gone:
    """Brings `child` and all its descendants down, in `sum(rungs)` seconds at most, besides the time in which they are found.

    `ask` sends the message that asks it to close; its time counts as grace. When anything is alive after the last rung
    it raises ProcessError, with the pid of who lives; or tells it to `on_stuck`, if there is one, and waits for as long
    as that lives.
    """
    rungs = rungs or GracePeriods()
    loop = asyncio.get_running_loop()
    begin = loop.time()
    descent = _Descent(child)
    try:
        await descent.climb(ask, rungs)
    except (ProcessError, OSError) as error:
        stuck = error
        if not isinstance(stuck, ProcessError):
            stuck = ProcessError(
                f"{child.name} (pid {child.pid}) was not seen dead: {text_of(error)}", pid=child.pid
            )
        if on_stuck is None:
            raise stuck from error
        on_stuck(stuck)
        child.signal(signal.SIGKILL)
        await descent.end(None)
    return Gone(
        exit_code=await child.wait(),
        rung=descent.rung,
        seconds=loop.time() - begin,
        killed=tuple(sorted(descent.killed)),
    )


async def _ended(child: Child, grace: float) -> None:
    with contextlib.suppress(TimeoutError):
        async with asyncio.timeout(grace):
            await child.wait()


async def _ask(child: Child, ask: Callable[[], Awaitable[object]], grace: float) -> None:
    """Until the child has ended, `grace` is over, or the message has failed: its error is the caller's to log."""

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


class _Descent:
    """Of one child: how far it has come, and who was killed besides it."""

    def __init__(self, child: Child) -> None:
        self._child = child
        self.rung: Rung = "none"
        self.killed: set[int] = set()

    async def climb(self, ask: Callable[[], Awaitable[object]] | None, rungs: GracePeriods) -> None:
        """Rung by rung until nothing is left. Raises what keeps it from seeing that."""
        child = self._child
        if child.exit_code is None and ask is not None:
            self.rung = "message"
            await _ask(child, ask, rungs.ask)
        if child.exit_code is None and rungs.terminate > 0:
            self.rung = "SIGTERM"
            child.signal(signal.SIGTERM)
            child.signal(signal.SIGCONT)  # a stopped process hears SIGTERM when it goes on
            await _ended(child, rungs.terminate)
        if child.exit_code is None:
            self.rung = "SIGKILL"
        await self.end(rungs.kill)

    async def end(self, grace: float | None) -> None:
        """Kills who is left, the child too if it lives, and sees all dead; `killed` tells whom.

        Raises ProcessError, with the pid, when one lives for longer than its grace, OSError when that could not be seen until then.
        """
        begun = asyncio.get_running_loop().time()
        while True:
            try:
                return await self._end(grace)
            except OSError as error:  # no descriptor is left to watch it by, for one
                log.warning("process.not_watched", pid=self._child.pid, reason=text_of(error))
                passed = asyncio.get_running_loop().time() - begun
                if grace is not None and passed + AGAIN_SECONDS > grace:
                    raise
            await asyncio.sleep(AGAIN_SECONDS)

    async def _end(self, grace: float | None) -> None:
        child, loop = self._child, asyncio.get_running_loop()
        if child.exit_code is not None and child.mark == kill_tree.UNMARKED:
            return  # nothing of it can be found any more
        striking = loop.run_in_executor(_THREADS, _strike, child)
        try:
            handles = await asyncio.shield(striking)
        except asyncio.CancelledError:
            striking.add_done_callback(_forget)
            raise
        child.signal(signal.SIGKILL)  # its whole group
        deadline = None if grace is None else loop.time() + grace
        try:
            self.killed |= handles.keys() - {child.pid}
            for pid, handle in handles.items():
                if is_readable(handle):
                    continue  # dead, also where no time is left
                what = f"{child.name} (pid {pid})" if pid == child.pid else f"pid {pid}, of {child.name},"
                async with _until(deadline, f"{what} is alive after SIGKILL", pid):
                    await readable(handle)
        finally:
            kill_tree.close(handles)
        async with _until(deadline, f"{child.name} (pid {child.pid}) is alive after SIGKILL", child.pid):
            await child.wait()
        await loop.run_in_executor(_THREADS, kill_tree.remove_group, child.mark)


def _strike(child: Child) -> dict[int, int]:
    """Sends SIGKILL to the child, if it lives, and to all that it has started; the pidfds of those that it is for."""
    handle = child.birth.open()
    roots = {} if handle is None else {child.pid: handle}
    try:
        return kill_tree.strike(roots, marks=(child.mark,))
    except OSError:
        kill_tree.close(roots)
        raise


def _forget(striking: asyncio.Future[dict[int, int]]) -> None:
    if striking.exception() is None:
        kill_tree.close(striking.result())


@contextlib.asynccontextmanager
async def _until(deadline: float | None, otherwise: str, pid: int) -> AsyncIterator[None]:
    try:
        async with asyncio.timeout_at(deadline):
            yield
    except TimeoutError:
        raise ProcessError(otherwise, pid=pid) from None
