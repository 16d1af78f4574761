"""Ray for the runs: an existing cluster, or a head of our own, started on first use and kept warm.

A head that exits or has a frozen part is replaced when the next task conductor needs one; a conductor that was
connected ends by itself with the reason, and its restart counts against the run's restart limit. After `MOST_DEATHS`
consecutive exits of heads, callers get their reasons as an error until the next attempt is due.
"""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from governor import logs
from governor.errors import ProcessError
from governor.processes.restart_policy import RestartPolicy
from governor.processes.silence import TICK_SECONDS
from governor.tasks.cluster.head import RayHead

if TYPE_CHECKING:
    from pathlib import Path

    from governor.config import RayConfig

FIRST_BACK_OFF: Final = 0.5
BACK_OFF_LIMIT: Final = 8.0
STEADY_SECONDS: Final = 30.0
MOST_DEATHS: Final = 8
TRY_AGAIN_SECONDS: Final = 60.0
"""Seconds until the next attempt, after so many exits."""

log = logs.get_logger()


@dataclass(frozen=True, slots=True, kw_only=True)
class _RunningHead:
    """A running head, and the task that stops it when it is lost."""

    head: RayHead
    settings: dict[str, Any]
    watch: asyncio.Task[None]


class RayService:
    """Implements `RayProvider`."""

    def __init__(self, config: RayConfig, *, state_folder: Path, runtime_folder: Path) -> None:
        self._config = config
        self._state_folder = state_folder
        self._runtime_folder = runtime_folder
        self._lock = asyncio.Lock()
        self._running: _RunningHead | None = None
        self._exits = RestartPolicy(
            most=MOST_DEATHS, steady=STEADY_SECONDS, first=FIRST_BACK_OFF, longest=BACK_OFF_LIMIT
        )
        self._last_exit = 0.0

    def __str__(self) -> str:
        if self._config.address != "local":
            return f"cluster at {self._config.address}"
        if self._running is None:
            return f"not started: its head {self._exits.summary}" if self._exits.exhausted else "not started"
        return f"local head at {self._running.settings['address']} (pid {self._running.head.pid})"

    async def settings(self) -> dict[str, Any]:
        """Address and token file of a Ray that answers; a cluster of others is not checked here, the task conductor
        does that. Starts our own head if none is running; raises ProcessError.
        """
        if self._config.address != "local":
            token = self._config.token_path
            return {"address": self._config.address, "token_path": str(token) if token else None}
        while True:
            async with self._lock:
                running = self._running = self._running or await self._start()
            if await running.head.answers():
                return running.settings
            await asyncio.wait(
                {running.watch}, timeout=TICK_SECONDS
            )  # it detects the loss too, and stops the head

    async def _start(self) -> _RunningHead:
        loop = asyncio.get_running_loop()
        since = loop.time() - self._last_exit
        if self._exits.exhausted and since < TRY_AGAIN_SECONDS:
            wait = TRY_AGAIN_SECONDS - since
            raise ProcessError(f"Ray's head {self._exits.summary}; the next one may be tried in {wait:.0f} s")
        await asyncio.sleep(self._exits.delay - since)
        head = RayHead(
            state_folder=self._state_folder,
            runtime_folder=self._runtime_folder,
            num_cpus=self._config.num_cpus,
        )
        try:
            found = await head.start()
        except ProcessError as error:
            self._record_exit(str(error), lived=0.0)
            raise
        log.info("ray.started", address=found.address, pid=head.pid)
        return _RunningHead(
            head=head,
            settings={"address": found.address, "token_path": str(found.token_path)},
            watch=asyncio.create_task(self._watch(head), name="ray.watch"),
        )

    async def _watch(self, head: RayHead) -> None:
        loop = asyncio.get_running_loop()
        begun = loop.time()
        how = await head.lost()
        async with self._lock:  # callers meanwhile get the next head
            log.warning("ray.lost", pid=head.pid, reason=how)
            self._running = None
            self._record_exit(how, lived=loop.time() - begun)
            try:
                await head.stop()
            except ProcessError as error:
                log.error("ray.not_stopped", reason=str(error))  # noqa: TRY400  # no fault of ours

    def _record_exit(self, how: str, *, lived: float) -> None:
        self._exits.exited(how, lived=lived)
        self._last_exit = asyncio.get_running_loop().time()

    async def aclose(self) -> None:
        """Stops the head, if there is one."""
        async with self._lock:
            if (running := self._running) is not None:
                running.watch.cancel()
                await asyncio.wait({running.watch})
                await running.head.stop()
            self._running = None
