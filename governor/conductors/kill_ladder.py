"""How a child process ends: message, grace, SIGTERM, grace, SIGKILL; then nothing of it is left.

Rules:
* A rung is left when the child's exit has been seen, or its deadline has passed; a message that cannot be delivered
  is no reason to wait for an answer.
* Descendants are collected before each rung: who left the process group (setsid) is killed by pid. Before SIGKILL
  everything is stopped first, so that nobody forks behind the back of the count.
* When the child has ended, what it left in its group or outside is killed and seen dead.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, Literal, Protocol

import psutil

from governor import logs
from governor.conductors.readiness import readable
from governor.errors import ProcessError, text_of

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable


class Child(Protocol):
    """What is brought down: a process that leads its own group. `ChildProcess` is one."""

    name: str
    pid: int

    @property
    def exit_code(self) -> int | None: ...

    async def wait(self) -> int: ...

    def signal(self, number: int) -> bool: ...


Rung = Literal["none", "message", "SIGTERM", "SIGKILL"]
_FREEZE_ROUNDS = 10
AGAIN_SECONDS: Final = 0.5
"""After somebody could not be watched."""

log = logs.get_logger()


@dataclass(frozen=True, slots=True, kw_only=True)
class Rungs:
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


async def bring_down(
    child: Child,
    ask: Callable[[], Awaitable[object]] | None = None,
    rungs: Rungs | None = None,
    *,
    on_stuck: Callable[[ProcessError], None] | None = None,
) -> Gone:
    """Brings `child` and all its descendants down, in `sum(rungs)` seconds at most.

    `ask` sends the message that asks it to close; its time counts as grace. When anything is alive after the last rung
    it raises ProcessError, with the pid of who lives; or tells it to `on_stuck`, if there is one, and waits for as long
    as that lives.
    """
    rungs = rungs or Rungs()
    loop = asyncio.get_running_loop()
    begin = loop.time()
    family = _Family(child)
    try:
        await _climb(child, family, ask, rungs)
    except (ProcessError, OSError, psutil.Error) as error:
        stuck = error
        if not isinstance(stuck, ProcessError):
            stuck = ProcessError(
                f"{child.name} (pid {child.pid}) was not seen dead: {text_of(error)}", pid=child.pid
            )
        if on_stuck is None:
            raise stuck from error
        on_stuck(stuck)
        child.signal(signal.SIGKILL)
        await family.end(None)
    return Gone(
        exit_code=await child.wait(),
        rung=family.rung,
        seconds=loop.time() - begin,
        killed=tuple(sorted(family.killed)),
    )


async def _climb(
    child: Child, family: _Family, ask: Callable[[], Awaitable[object]] | None, rungs: Rungs
) -> None:
    """Rung by rung until nothing is left. Raises what keeps it from seeing that."""
    if child.exit_code is None and ask is not None:
        family.rung = "message"
        family.collect()
        await _ask(child, ask, rungs.ask)
    if child.exit_code is None and rungs.terminate > 0:
        family.rung = "SIGTERM"
        family.collect()
        child.signal(signal.SIGTERM)
        child.signal(signal.SIGCONT)  # a stopped process hears SIGTERM when it goes on
        await _ended(child, rungs.terminate)
    if child.exit_code is None:
        family.rung = "SIGKILL"
        family.freeze()
        child.signal(signal.SIGKILL)
    await family.end(asyncio.get_running_loop().time() + rungs.kill)


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


class _Family:
    """The descendants of a child, and its group; known by pid and birth, so that no stranger is killed."""

    def __init__(self, child: Child) -> None:
        self._child = child
        self._known: set[psutil.Process] = set()
        self.rung: Rung = "none"
        self.killed: set[int] = set()

    def collect(self) -> bool:
        """Adds who is there now; whether anybody was new. An orphan is found if it, or its parent, was known."""
        roots = [*self._known]
        if self._child.exit_code is None:
            with contextlib.suppress(psutil.NoSuchProcess):
                roots.append(psutil.Process(self._child.pid))
        found = set()
        for root in roots:
            with contextlib.suppress(psutil.NoSuchProcess):
                found.update(root.children(recursive=True))
        new = found - self._known
        self._known |= new
        return bool(new)

    def freeze(self) -> None:
        """Stops the whole family, round by round, until nobody new has been born."""
        self._child.signal(signal.SIGSTOP)
        for _ in range(_FREEZE_ROUNDS):
            if not self.collect():
                return
            for member in self._living():
                with contextlib.suppress(psutil.Error):
                    member.suspend()

    async def end(self, deadline: float | None) -> None:
        """Kills who is left when the child has ended, or is being killed, and sees all dead; `killed` tells whom.

        Raises ProcessError, with the pid, when one lives past the deadline, OSError when that could not be seen until then.
        """
        while True:
            try:
                return await self._end(deadline)
            except (OSError, psutil.Error) as error:  # no descriptor is left to watch it by, for one
                log.warning("process.not_watched", pid=self._child.pid, reason=text_of(error))
                if deadline is not None and asyncio.get_running_loop().time() + AGAIN_SECONDS > deadline:
                    raise
            await asyncio.sleep(AGAIN_SECONDS)

    async def _end(self, deadline: float | None) -> None:
        while self.collect() or self._living():
            living = self._living()
            for member in living:
                with contextlib.suppress(psutil.Error):  # one of another user is not ours: it will be named
                    member.kill()
                    self.killed.add(member.pid)
            for member in living:
                await self._dead(member, deadline)
        try:
            async with asyncio.timeout_at(deadline):
                await self._child.wait()
        except TimeoutError:
            name, pid = self._child.name, self._child.pid
            raise ProcessError(f"{name} (pid {pid}) is alive after SIGKILL", pid=pid) from None

    async def _dead(self, member: psutil.Process, deadline: float | None) -> None:
        try:
            pidfd = os.pidfd_open(member.pid)
        except ProcessLookupError:
            return
        try:
            if _lives(member):
                async with asyncio.timeout_at(deadline):
                    await readable(pidfd)
        except TimeoutError:
            raise ProcessError(
                f"pid {member.pid}, a descendant of {self._child.name}, is alive after SIGKILL",
                pid=member.pid,
            ) from None
        finally:
            os.close(pidfd)

    def _living(self) -> list[psutil.Process]:
        return [member for member in self._known if _lives(member)]


def _lives(member: psutil.Process) -> bool:
    """False for a zombie too: it is dead, and its parent's to reap. Unless it has threads that are not."""
    try:
        return member.is_running() and (member.status() != psutil.STATUS_ZOMBIE or member.num_threads() > 1)
    except psutil.NoSuchProcess:
        return False
