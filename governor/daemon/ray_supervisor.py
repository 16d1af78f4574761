"""Ray for the runs: a cluster that somebody else keeps, or a head of our own, started on first need and kept warm.

A head that dies, or of which a part is frozen, is replaced when the next task conductor asks for it; the one that was
connected ends by itself with the reason, and the run's restart budget pays for its successor. After `MOST_DEATHS` heads
that died in a row, who asks is told their story instead, until the next one may be tried.
"""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from governor import logs
from governor.errors import ProcessError
from governor.processes.backoff import RestartPolicy
from governor.processes.silence import BEAT_SECONDS
from governor.tasks.cluster.head import RayHead

if TYPE_CHECKING:
    from pathlib import Path

    from governor.config import RayConfig

FIRST_BACK_OFF: Final = 0.5
BACK_OFF_LIMIT: Final = 8.0
STEADY_SECONDS: Final = 30.0
MOST_DEATHS: Final = 8
TRY_AGAIN_SECONDS: Final = 60.0
"""After the last of them."""

log = logs.get_logger()


@dataclass(frozen=True, slots=True, kw_only=True)
class _Living:
    """A head that is up, and the task that takes it away when it is lost."""

    head: RayHead
    settings: dict[str, Any]
    watch: asyncio.Task[None]


class RayService:
    """Implements `RayProvider`."""

    def __init__(
        self,
        config: RayConfig,
        *,
        state_folder: Path,
        runtime_folder: Path,
        most_deaths: int = MOST_DEATHS,
        try_again: float = TRY_AGAIN_SECONDS,
    ) -> None:
        self._config = config
        self._state_folder = state_folder
        self._runtime_folder = runtime_folder
        self._turn = asyncio.Lock()
        self._living: _Living | None = None
        self._budget = RestartPolicy(
            most=most_deaths, steady=STEADY_SECONDS, first=FIRST_BACK_OFF, longest=BACK_OFF_LIMIT
        )
        self._try_again = try_again
        self._died = 0.0

    def __str__(self) -> str:
        if self._config.address != "local":
            return f"cluster at {self._config.address}"
        if self._living is None:
            return f"not started: its head {self._budget.story}" if self._budget.used_up else "not started"
        return f"local head at {self._living.settings['address']} (pid {self._living.head.pid})"

    async def settings(self) -> dict[str, Any]:
        """Address and token file of a Ray that answers; one of somebody else's, the task conductor asks. Starts the head
        where it is ours and none lives; raises ProcessError.
        """
        if self._config.address != "local":
            token = self._config.token_path
            return {"address": self._config.address, "token_path": str(token) if token else None}
        while True:
            async with self._turn:
                living = self._living = self._living or await self._start()
            if await living.head.answers():
                return living.settings
            await asyncio.wait(
                {living.watch}, timeout=BEAT_SECONDS
            )  # it sees the same, and takes the head away

    async def _start(self) -> _Living:
        loop = asyncio.get_running_loop()
        since = loop.time() - self._died
        if self._budget.used_up and since < self._try_again:
            wait = self._try_again - since
            raise ProcessError(f"Ray's head {self._budget.story}; the next one may be tried in {wait:.0f} s")
        await asyncio.sleep(self._budget.back_off - since)
        head = RayHead(
            state_folder=self._state_folder,
            runtime_folder=self._runtime_folder,
            num_cpus=self._config.num_cpus,
        )
        try:
            found = await head.start()
        except ProcessError as error:
            self._note_death(str(error), lived=0.0)
            raise
        log.info("ray.started", address=found.address, pid=head.pid)
        return _Living(
            head=head,
            settings={"address": found.address, "token_path": str(found.token_path)},
            watch=asyncio.create_task(self._outlive(head), name="ray.watch"),
        )

    async def _outlive(self, head: RayHead) -> None:
        loop = asyncio.get_running_loop()
        begun = loop.time()
        how = await head.lost()
        async with self._turn:  # who asks meanwhile gets the next one
            log.warning("ray.lost", pid=head.pid, reason=how)
            self._living = None
            self._note_death(how, lived=loop.time() - begun)
            try:
                await head.stop()
            except ProcessError as error:
                log.error("ray.survives", reason=str(error))  # noqa: TRY400  # no fault of ours

    def _note_death(self, how: str, *, lived: float) -> None:
        self._budget.died(how, lived=lived)
        self._died = asyncio.get_running_loop().time()

    async def aclose(self) -> None:
        """Takes the head down, if there is one."""
        async with self._turn:
            if (living := self._living) is not None:
                living.watch.cancel()
                await asyncio.wait({living.watch})
                await living.head.stop()
            self._living = None
