"""The whole instance as a user has it: `python -m governor serve`, below its guard, in folders of its own.

Rules:
1. Children see the environment of a plain shell: no service manager's variables, byte code kept as Python does by default.
2. Whatever happens, the instance is taken down with the block, and its folder is gone.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import shutil
import signal
import sys
import tempfile
from collections import deque
from pathlib import Path
from time import perf_counter
from typing import TYPE_CHECKING, Any, Self

from governor.executor import Executor

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from governor.messages import RunEvent, RunResult

HERE = Path(__file__).resolve().parent.parent
READY_SECONDS = 30.0
RUN_SECONDS = 60.0
STOP_SECONDS = 30.0
LAST_LINES = 25
_NOT_A_SHELL = (
    *("NOTIFY_SOCKET", "WATCHDOG_USEC", "WATCHDOG_PID", "INVOCATION_ID", "SYSTEMD_EXEC_PID"),
    *("STATE_DIRECTORY", "RUNTIME_DIRECTORY", "GOVERNOR_BROKER", "PYTHONDONTWRITEBYTECODE"),
)


def environment() -> dict[str, str]:
    """Rule 1."""
    return {name: value for name, value in os.environ.items() if name not in _NOT_A_SHELL}


def governor(*arguments: str) -> list[str]:
    return [sys.executable, "-m", "governor", *arguments]


class Instance:
    """`pid` is the guard's, `daemon_pid` the daemon's; `executor` is connected. `options` are those of `serve`. In a `folder`
    that is given another instance may go on, or one that was filled. `logged`: when each kind of line was first seen, and
    `said` the line; `seconds_to_ready`: from exec on.
    """

    def __init__(
        self,
        *options: str,
        slots: int = 1,
        folder: Path | None = None,
        ready_seconds: float = READY_SECONDS,
    ) -> None:
        self._options = options
        self._slots = slots
        self._folder = folder
        self._ready_seconds = ready_seconds
        self.logged: dict[str, float] = {}
        self.said: dict[str, dict[str, Any]] = {}
        self.seconds_to_ready = 0.0
        self._stack = contextlib.AsyncExitStack()
        self._log: deque[str] = deque(maxlen=LAST_LINES)
        self._reader: asyncio.Task[None] | None = None
        self._process: asyncio.subprocess.Process | None = None
        self._killed = False
        self.executor: Executor
        self.pid = 0
        self.daemon_pid = 0

    async def __aenter__(self) -> Self:
        try:
            await self._open()
        except BaseException:
            await self._stack.aclose()
            raise
        return self

    async def __aexit__(self, *_: object) -> None:
        await self._stack.aclose()

    async def _open(self) -> None:
        folder = self._folder
        if folder is None:
            folder = Path(tempfile.mkdtemp(prefix="gb-"))
            self._stack.callback(shutil.rmtree, folder, ignore_errors=True)
        folders = ("--state-dir", str(folder / "s"), "--runtime-dir", str(folder / "r"))
        begun = perf_counter()
        process = await asyncio.create_subprocess_exec(
            *governor("serve", *folders, "--slots", str(self._slots), "--log-format", "json", *self._options),
            env=environment(),
            cwd=HERE,
            stderr=asyncio.subprocess.PIPE,
        )
        self._process = process
        self.pid = process.pid
        self._stack.push_async_callback(self._end, process)
        async with asyncio.timeout(self._ready_seconds):
            endpoint = await self._ready(process)
        self.seconds_to_ready = perf_counter() - begun
        self._reader = asyncio.create_task(self._drain(process), name="instance.log")
        self.executor = await self._stack.enter_async_context(Executor(endpoint))
        self.daemon_pid = (await self.executor.status()).pid

    async def events(self, run: Path | dict[str, Any]) -> AsyncIterator[RunEvent]:
        """Hands the run in and follows it to its end, at most `RUN_SECONDS`."""
        async with asyncio.timeout(RUN_SECONDS):
            uid = await self.executor.submit(run, folder=HERE)
            async for event in self.executor.watch(uid):
                yield event

    async def run(self, run: Path | dict[str, Any]) -> tuple[RunResult, list[RunEvent]]:
        """The result and the events of a run that must finish."""
        seen = [event async for event in self.events(run)]
        result = await self.executor.result(seen[0].uid)
        if result.outcome != "finished":
            raise RuntimeError(f"the run {result.outcome}: {result.reason}")
        return result, seen

    async def kill(self) -> None:
        """Ends the daemon with SIGKILL; returns when its guard has ended all others. Nothing follows but the block's end."""
        assert self._process is not None
        os.kill(self.daemon_pid, signal.SIGKILL)
        await self._process.wait()
        self._killed = True

    async def _ready(self, process: asyncio.subprocess.Process) -> str:
        """The client endpoint, as the daemon logs it with `daemon.ready`."""
        assert process.stderr is not None
        while line := (await process.stderr.readline()).decode():
            self._log.append(line)
            with contextlib.suppress(ValueError):
                entry = json.loads(line)
                self.logged.setdefault(entry.get("event"), perf_counter())
                self.said.setdefault(entry.get("event"), entry)
                if entry.get("event") == "daemon.ready":
                    return str(entry["endpoint"])
        raise RuntimeError(f"the daemon ended before it was ready:\n{''.join(self._log)}")

    async def _drain(self, process: asyncio.subprocess.Process) -> None:
        assert process.stderr is not None
        while line := await process.stderr.readline():
            self._log.append(line.decode())

    async def _end(self, process: asyncio.subprocess.Process) -> None:
        """Asks it to stop. An instance that does not stop well makes its figures worthless: raises RuntimeError."""
        if process.returncode is None:
            process.send_signal(signal.SIGTERM)
        try:
            async with asyncio.timeout(STOP_SECONDS):
                code = await process.wait()
        except TimeoutError:
            process.kill()
            code = await process.wait()
        if self._reader is not None:
            await asyncio.wait({self._reader}, timeout=1.0)
            self._reader.cancel()
        if code != 0 and not self._killed:
            raise RuntimeError(f"the daemon ended with {code}:\n{''.join(self._log)}")
