"""One environment of the pool, or one vector of environments, as its conductor sees it: a process, and what it says (`messages`).

Rules:
1. Its end is seen at once, whatever ended it, and `ended` is set when it is dead and why is known (`exit_reason`).
2. A process that does not answer within `ANSWER_SECONDS` is stopped, or its user code holds Python's lock.
3. After `close` nothing is left of it, nor of what it has started.
"""

from __future__ import annotations

import asyncio
import contextlib
import signal
import socket
from typing import TYPE_CHECKING, Final

import msgspec

from governor import logs
from governor.episodes.remote.environments import messages
from governor.episodes.remote.environments.messages import Built, Ending, Lend, Look, Renew, Seen
from governor.errors import ConductorError, ProcessError
from governor.failures import Reason, signal_name
from governor.message_stream import READ_BYTES, MessageBuffer, framed
from governor.processes import kill_ladder
from governor.processes.identity import is_stopped

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable
    from pathlib import Path
    from typing import TypeAlias

    from governor.processes.process import ChildProcess

    Starter: TypeAlias = "Callable[[str, Path, socket.socket], Awaitable[ChildProcess]]"
    """Starts the process of this name, which serves its environment at the path, and gets the socket."""

ANSWER_SECONDS: Final = 1.0
LOOK_SECONDS: Final = 0.5
"""For the place of code that hangs: it is killed anyway."""
CLOSE_SECONDS: Final = 2.0
"""How long the user's `close` of an environment may take."""
KILL_SECONDS: Final = 5.0
"""Until all processes must be dead that were killed."""

log = logs.get_logger()


class EnvironmentExited(ConductorError):
    """The process ended while the environment was built."""


class EnvironmentProcess:
    """To be used in one event loop. `start` it first; `on_ended` is called when it has ended, however that came."""

    built: Built

    def __init__(
        self, name: str, path: Path, *, start: Starter, on_ended: Callable[[EnvironmentProcess], None]
    ) -> None:
        self.name = name
        self.endpoint = str(path)
        self.ended = asyncio.Event()
        self.exit_reason = Reason("")
        """How it ended, as ``exit code 3: os._exit(3) in environment.step of episode 5``."""
        self.is_replaced = False
        """For its pool: another one takes its place."""
        self._path = path
        self._start = start
        self._on_ended = on_ended
        self._child: ChildProcess | None = None
        self._writer: asyncio.StreamWriter | None = None
        self._ready: asyncio.Future[Built] = asyncio.get_running_loop().create_future()
        self._asked: asyncio.Future[Seen] | None = None
        self._asking = asyncio.Lock()
        self._last_words: Ending | None = None
        self._watch: asyncio.Task[None] | None = None
        self._closing: asyncio.Task[None] | None = None

    @property
    def pid(self) -> int:
        """0 before it is started."""
        return 0 if self._child is None else self._child.pid

    @property
    def is_stopped(self) -> bool:
        return self.pid != 0 and not self.ended.is_set() and is_stopped(self.pid)

    async def start(self) -> None:
        """Returns when the environment is built and served. Raises ConductorError with one line, EnvironmentExited if the process
        has died, and ProcessError if there is none.
        """
        ours, theirs = socket.socketpair()
        reader, self._writer = await asyncio.open_unix_connection(sock=ours)
        try:
            with theirs:
                self._child = await self._start(self.name, self._path, theirs)
            self._watch = asyncio.create_task(
                self._live(self._child, reader), name=f"environment {self.name}"
            )
            self.built = await self._ready
        except BaseException:
            await self.close()
            raise

    async def lend(self, lease: str) -> Seen | None:
        """It is reset and stepped under this identity from now on, by nobody if that is empty. None if it does not answer."""
        return await self._ask(Lend(lease=lease))

    async def look(self) -> Seen | None:
        """Where its code is; None if it does not answer."""
        return await self._ask(Look(), seconds=LOOK_SECONDS)

    async def renew(self) -> bool:
        """Builds the environment anew; False if it does not close. Raises ConductorError as `start`."""
        self._ready = asyncio.get_running_loop().create_future()
        if await self._ask(Renew(), seconds=CLOSE_SECONDS) is None:
            return False
        self.built = await self._ready
        return True

    async def kill(self, why: str) -> None:
        """`why` is told in `exit_reason`."""
        self._last_words = Ending(reason=why)
        await self.close()

    async def close(self, *, seconds: float = 0.0) -> None:
        """Kills it with all that it has started; the environment may close itself first, for so many `seconds`."""
        if self._closing is None:
            self._closing = asyncio.create_task(self._terminate(seconds), name=f"close {self.name}")
        await asyncio.shield(self._closing)

    async def wait_ended(self) -> Reason:
        """`exit_reason`, when it is dead. Its socket was seen closed: a process that lives on is killed."""
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(ANSWER_SECONDS):
                await self.ended.wait()
        if not self.ended.is_set():
            await self.close()
        return self.exit_reason

    async def _terminate(self, seconds: float) -> None:
        child, writer = self._child, self._writer
        if child is not None:

            async def ask() -> None:
                if writer is not None:
                    writer.write_eof()

            grace = kill_ladder.GracePeriods(ask=seconds, terminate=0.0, kill=KILL_SECONDS)
            try:
                await kill_ladder.terminate(child, ask if seconds else None, grace)
            except ProcessError as error:
                log.warning("environment.stuck", environment=self.name, pid=error.pid, reason=str(error))
        if self._watch is not None:
            await asyncio.wait({self._watch}, timeout=ANSWER_SECONDS)
            self._watch.cancel()
        if writer is not None:
            writer.transport.abort()
        self._path.unlink(missing_ok=True)

    async def _ask(self, request: messages.Request, *, seconds: float = ANSWER_SECONDS) -> Seen | None:
        async with self._asking:
            if self._writer is None or self.ended.is_set():
                return None
            self._asked = asyncio.get_running_loop().create_future()
            self._writer.write(framed(messages.encode(request)))
            try:
                async with asyncio.timeout(seconds):
                    return await self._asked
            except (TimeoutError, ConnectionError):
                return None
            finally:
                self._asked = None

    async def _live(self, child: ChildProcess, reader: asyncio.StreamReader) -> None:
        """Takes what it says, until it is dead."""
        received = MessageBuffer()
        with contextlib.suppress(OSError, msgspec.MsgspecError):
            while True:
                received.feed(await reader.read(READ_BYTES))
                while (message := received.next_message(messages.decode_message)) is not None:
                    self._take(message)
        code = await self._exit_code(child)
        self.exit_reason = self._why(code)
        told = log.info if code else log.debug
        told("environment.exited", environment=self.name, pid=child.pid, reason=self.exit_reason)
        if not self._ready.done():
            self._ready.set_exception(
                EnvironmentExited(self.exit_reason.within("the process of the environment exited"))
            )
        if self._asked is not None and not self._asked.done():
            self._asked.set_exception(ConnectionError(self.name))
        self.ended.set()
        self._on_ended(self)

    async def _exit_code(self, child: ChildProcess) -> int:
        """Its socket ends just before the process does; one that lives on has closed it, or sends what is no message."""
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(CLOSE_SECONDS + ANSWER_SECONDS):
                return await child.wait()
        child.signal(signal.SIGKILL)
        return await child.wait()

    def _take(self, message: messages.FromProcess) -> None:
        match message:
            case Built():
                if not self._ready.done():
                    self._ready.set_result(message)
            case Ending():
                self._last_words = message
                if not self._ready.done():
                    self._ready.set_exception(ConductorError(message.why))
            case Seen():
                if self._asked is not None and not self._asked.done():
                    self._asked.set_result(message)

    def _why(self, code: int) -> Reason:
        text = f"exit code {code}" if code >= 0 else signal_name(-code)
        said = self._last_words
        return Reason(text) if said is None else said.why.within(text)
