"""Ray for the runs: a cluster that somebody else keeps, or a head of our own, started on first need and kept warm.

A head that dies is replaced when the next task conductor asks for it; the one that was connected ends by itself with
the reason, and the run's restart budget pays for its successor.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

from governor import logs
from governor.ray_head import RayHead

if TYPE_CHECKING:
    from pathlib import Path

    from governor.config import RayConfig

log = logs.get_logger()


class RayService:
    """Implements `RayProvider`."""

    def __init__(self, config: RayConfig, *, state_folder: Path, runtime_folder: Path) -> None:
        self._config = config
        self._state_folder = state_folder
        self._runtime_folder = runtime_folder
        self._turn = asyncio.Lock()
        self._head: RayHead | None = None
        self._settings: dict[str, Any] | None = None
        self._watch: asyncio.Task[None] | None = None

    def __str__(self) -> str:
        if self._config.address != "local":
            return f"cluster at {self._config.address}"
        if self._settings is None:
            return "not started"
        return f"local head at {self._settings['address']} (pid {self._head.pid if self._head else None})"

    async def settings(self) -> dict[str, Any]:
        """Address and token file. Starts the head where it is ours and none lives; raises ProcessError."""
        if self._config.address != "local":
            token = self._config.token_path
            return {"address": self._config.address, "token_path": str(token) if token else None}
        async with self._turn:
            if self._settings is None:
                self._settings = await self._start()
            return self._settings

    async def _start(self) -> dict[str, Any]:
        head = RayHead(
            state_folder=self._state_folder,
            runtime_folder=self._runtime_folder,
            num_cpus=self._config.num_cpus,
        )
        found = await head.start()
        self._head = head
        self._watch = asyncio.create_task(self._outlive(head), name="ray.watch")
        log.info("ray.started", address=found.address, pid=head.pid)
        return {"address": found.address, "token_path": str(found.token_path)}

    async def _outlive(self, head: RayHead) -> None:
        code = await head.exited()
        log.warning("ray.exited", exit_code=code)
        async with self._turn:  # who asks meanwhile gets the next one
            self._head = self._settings = None
            await head.stop()

    async def aclose(self) -> None:
        """Takes the head down, if there is one."""
        async with self._turn:
            if self._watch is not None:
                self._watch.cancel()
                await asyncio.wait({self._watch})
            if self._head is not None:
                await self._head.stop()
            self._head = self._settings = None
