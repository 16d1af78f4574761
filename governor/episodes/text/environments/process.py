"""Text environments in Python: each in a process of its own, so that a hang or a crash affects only that process.

Rules:
1. User code runs only in the child (`child`). Requests are pickled; answers are JSON, checked like an answer over HTTP.
2. A call that times out or is cancelled kills the process, because its state is unknown.
3. The child is killed when the thread that started it ends, and leads a session of its own. The supervisor in it (`child`)
   kills its descendants, also when this process gets SIGKILL.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import pickle
import signal
import socket
import subprocess
import sys
from functools import partial
from multiprocessing import spawn
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, Self

from governor.episodes.context import reports
from governor.episodes.metrics import Reported
from governor.episodes.text.environments.environment import (
    EnvironmentCrashed,
    EnvironmentFault,
    EnvironmentHung,
    decoded,
    prompt_of,
    step_of,
)
from governor.episodes.text.environments.user_calls import run_to_completion
from governor.failures import Reason, one_line, signal_name
from governor.message_stream import READ_BYTES, MessageBuffer, MessageTooLarge, framed
from governor.output import capture
from governor.processes import kill_ladder, kill_tree, supervisor
from governor.processes.identity import ProcessIdentity
from governor.processes.readiness import is_readable, readable

if TYPE_CHECKING:
    from collections.abc import Mapping

    from governor.episodes.context import Context
    from governor.episodes.text.environments.environment import TextStep

GRACE: Final = kill_ladder.GracePeriods(ask=2.0, terminate=0.5, kill=5.0)
"""Seconds for the environment's own `close`, for SIGTERM, and until every process must be gone."""
MAX_ANSWER_BYTES: Final = 1 << 26
"""Bytes."""


class NotSendable(EnvironmentFault):
    """It cannot be pickled, or no other process can load it."""


class TextProcess:
    """A text environment in a process of its own, made by `started`. One call at a time; timeouts are in seconds.

    `has_reset` says whether it has `reset`; `broken` why it cannot be used again. `pid` is the supervisor's; user code runs in
    a child of it.
    """

    def __init__(self, child: _Child, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.name = child.name
        self.pid = child.pid
        self.broken = ""
        self.has_reset = False
        self._reported = Reported()
        self._closed = False
        self._child = child
        self._reader = reader
        self._writer = writer
        self._received = MessageBuffer(MAX_ANSWER_BYTES)
        self._watch = asyncio.create_task(child.wait(), name=f"wait for the end of {child.name}")

    @classmethod
    async def started(
        cls,
        made: Any,
        params: Mapping[str, Any] | None = None,
        *,
        timeout: float,  # noqa: ASYNC109 - one deadline, owned here
        context: Context | None = None,
    ) -> Self:
        """Returns when the environment is built. Raises EnvironmentFault (Hung after `timeout` seconds); nothing is left of it then.

        `made`: ``module:Class``, or a picklable class or function (called with `params`), or object. It has
        `get_task_prompt()`, which returns a list of chat messages, and `step(action)` for a text, sync (called in the child's main
        thread) or async (in one event loop that runs on between calls). A step returns a mapping, or
        ``(reward, terminated, truncated, info)``. Optional are `close()`, and `reset(seed=...)`, which begins a new episode.
        A constructor with a parameter `context` gets that.
        """
        name = made if isinstance(made, str) else type(made).__name__
        order = _pickled_order(name, made, dict(params or {}), context)
        ours, theirs = socket.socketpair()
        with theirs:
            reader, writer = await asyncio.open_unix_connection(sock=ours)
            try:
                child = _Child(name, theirs.fileno())
            except OSError as error:
                writer.transport.abort()
                raise EnvironmentFault(f"{name}: no process: {one_line(error)}") from error
        process = cls(child, reader, writer)
        try:
            process.has_reset = await process._call(order, "start", timeout)
        except BaseException:
            await process.aclose()
            raise
        return process

    def __repr__(self) -> str:
        return f"TextProcess({self.name!r}, {self._state})"

    @property
    def _state(self) -> str:
        if self._closed:
            return "closed"
        return f"broken: {self.broken}" if self.broken else "at work"

    async def begin(self, **fields: str | float) -> None:
        """What it prints belongs to `fields` from now on."""
        if not self.broken and not self._closed:
            with contextlib.suppress(OSError):  # the next call says why
                await self._send(pickle.dumps(("begin", fields)))

    def take_reported(self) -> dict[str, float]:
        """The figures of what user code has reported since the last call."""
        reported, self._reported = self._reported, Reported()
        return reported.figures()

    async def reset(self, *, seed: int, timeout: float) -> None:  # noqa: ASYNC109 - one deadline, owned here
        """Does nothing if the environment has no `reset`."""
        if self.has_reset:
            await self._call(pickle.dumps(("reset", seed)), "reset", timeout)

    async def get_task_prompt(self, *, timeout: float) -> Any:  # noqa: ASYNC109 - one deadline, owned here
        return prompt_of(await self._call(pickle.dumps(("get_task_prompt",)), "get_task_prompt", timeout))

    async def step(self, action: str, *, key: str = "", timeout: float) -> TextStep:  # noqa: ARG002, ASYNC109 - a pipe sends once
        return step_of(await self._call(pickle.dumps(("step", action)), "step", timeout))

    async def aclose(self) -> None:
        """Lets the environment close itself, then kills what is left, in `sum(GRACE)` seconds at most; a cancelled caller waits for
        that.

        Raises ProcessError if a process survives.
        """
        if not self._closed:
            self._closed = True
            await run_to_completion(self._terminate(), name=f"close {self.name}")

    async def _terminate(self) -> None:
        try:
            await kill_ladder.terminate(self._child, partial(self._send, pickle.dumps(("close",))), GRACE)
        finally:
            self._child.signal(signal.SIGKILL)  # alive only if this failed
            self._writer.transport.abort()
            with contextlib.suppress(OSError):
                await self._writer.wait_closed()
            self._watch.cancel()
            self._child.release()

    async def _send(self, request: bytes) -> None:
        self._writer.write(framed(request))
        await self._writer.drain()

    async def _call(self, request: bytes, where: str, seconds: float) -> Any:
        """The result of user code. Raises EnvironmentFault."""
        if self.broken or self._closed:
            raise EnvironmentFault(f"{where}: the environment {self.name} is {self._state}")
        try:
            async with asyncio.timeout(seconds):
                await self._send(request)
                while (data := self._received.next_message(bytes)) is None:
                    self._received.feed(await self._reader.read(READ_BYTES))
        except TimeoutError:
            raise self._break(
                EnvironmentHung(f"{where}: no answer within {seconds:g} s; its process is killed")
            ) from None
        except MessageTooLarge:
            raise self._break(
                EnvironmentFault(f"{where}: the answer is larger than {MAX_ANSWER_BYTES} bytes")
            ) from None
        except OSError:
            code = await self._exit_code()
            raise self._break(
                EnvironmentCrashed(f"{where}: its process ended with {_exit_text(code)}")
            ) from None
        except asyncio.CancelledError:
            self._break(EnvironmentFault(f"{where} was cancelled; its process is killed"))
            raise
        answer = decoded(data, where=where)
        self._reported.merge(answer.get("reported", {}))
        if "fault" in answer:
            raise EnvironmentFault(Reason(answer["fault"], answer.get("traceback", "")).within(where))
        return answer["value"]

    def _break(self, fault: EnvironmentFault) -> EnvironmentFault:
        self.broken = fault.reason
        self._child.kill()
        return fault

    async def _exit_code(self) -> int:
        """The socket ends just before its process does; if the process stays, user code has closed the socket."""
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(1.0):
                return await self._child.wait()
        self._child.kill()
        return await self._child.wait()


class _Child:
    """The process, with the interface of `kill_ladder`: leader of its group; when it has exited, the rest of its group is killed."""

    def __init__(self, name: str, descriptor: int) -> None:
        self.name = name
        path = os.pathsep.join(part for part in sys.path if part)
        self._process = subprocess.Popen(
            [
                sys.executable,
                "-m",
                "governor.episodes.text.environments.child",
                str(descriptor),
                str(os.getpid()),
            ],
            stdin=subprocess.DEVNULL,
            stdout=2,  # the parent's standard output is not for user code; if that is captured, so is the child's own
            env={**os.environ, "PYTHONPATH": path, **capture.for_child()},
            pass_fds=[descriptor],
            start_new_session=True,
        )
        self.pid = self._process.pid
        self.identity = ProcessIdentity.of(self.pid)
        self.mark = kill_tree.UNMARKED
        """It has no mark of its own: it is below this process, and its supervisor finds what it starts."""
        self._pidfd = os.pidfd_open(self.pid)
        self._code: int | None = None

    @property
    def exit_code(self) -> int | None:
        if self._code is None and is_readable(self._pidfd):
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.killpg(self.pid, signal.SIGKILL)  # not reaped yet, so the number is still its own
            self._code = self._process.wait()
        return self._code

    async def wait(self) -> int:
        while (code := self.exit_code) is None:
            await readable(self._pidfd)
        return code

    def signal(self, number: int) -> bool:
        if self.exit_code is not None:
            return False
        os.killpg(self.pid, number)
        return True

    def kill(self) -> None:
        """Through its supervisor, which finds all that user code has started."""
        if self.exit_code is None:
            os.kill(self.pid, supervisor.KILL_ALL)
            os.kill(self.pid, signal.SIGCONT)  # user code may have stopped its whole group

    def release(self) -> None:
        if self.exit_code is not None:
            os.close(self._pidfd)


def _pickled_order(name: str, made: Any, params: dict[str, Any], context: Context | None) -> bytes:
    try:
        pickled = pickle.dumps((made, params))
    except Exception as error:
        raise NotSendable(
            f"{name} cannot be sent to a process of its own: {one_line(error)}; name it as 'module:Class'"
        ) from error
    # Only a class of the user's script needs that script; as with multiprocessing, it is run again, as __mp_main__.
    of_script = spawn.get_preparation_data(name) if b"__main__" in pickled else {}
    main = {key: value for key, value in of_script.items() if key.startswith("init_main")}
    in_main = "__main__" in {getattr(made, "__module__", ""), type(made).__module__}
    in_file = "init_main_from_name" in main or Path(main.get("init_main_from_path", "")).is_file()
    if in_main and not in_file:
        raise NotSendable(
            f"{name} cannot be sent to a process of its own: it is defined in no file; name it as 'module:Class'"
        )
    return pickle.dumps((pickled, main, context, reports.phase))


def _exit_text(code: int) -> str:
    return f"exit code {code}" if code >= 0 else signal_name(-code)
