"""The task conductor: the Ray driver of a run. Its process is the only one of the run that knows Ray.

Rules:
1. It starts no Ray of its own: the address and the token come with its settings.
2. A lost GCS or raylet ends it within seconds with the reason, and the run goes on with a new one: Ray has no way
   back for a driver.
3. Runners stay warm from one phase to the next, and die with it.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

from governor import logs
from governor.conductors.conductor import Conductor
from governor.errors import ConductorError, ExitCode
from governor.messages import Done, Refused, StartTasks, StopPart
from governor.tasks.cluster import Cluster
from governor.tasks.scheduler import Scheduler

if TYPE_CHECKING:
    from governor.conductors.conductor import Link
    from governor.messages import ConductorCommand, ConductorSpec
    from governor.tasks.runners import Runners

log = logs.get_logger()


class TaskConductor(Conductor):
    """Performs `StartTasks` and `StopPart`."""

    def __init__(self, *, spec: ConductorSpec, link: Link) -> None:
        super().__init__(spec=spec, link=link)
        settings = spec.settings.get("ray", {})
        self._cluster = Cluster(
            address=settings.get("address", ""), token_path=settings.get("token_path"), namespace=spec.uid
        )
        self._runners: Runners | None = None
        self._scheduler: Scheduler | None = None
        self._working: asyncio.Task[None] | None = None
        self._watching: asyncio.Task[None] | None = None

    async def prepare(self) -> dict[str, Any]:
        await self._cluster.connect()
        from governor.tasks.runners import Runners  # noqa: PLC0415  # Ray: only after its variables are set

        self._runners = Runners(cluster=self._cluster, spec=self.spec)
        for _ in range(self._cluster.slots(())):
            self._runners.start(next(self._runners.ids), ())
        self._watching = asyncio.create_task(self._watch(), name="tasks.ray_watch")
        cpus = sum(node.resources.get("CPU", 0.0) for node in self._cluster.nodes)
        return {"ray": self._cluster.address, "nodes": len(self._cluster.nodes), "cpus": cpus}

    async def perform(self, command: ConductorCommand) -> Done | Refused:
        match command:
            case StartTasks():
                return await self._start(command)
            case StopPart():
                if self._scheduler is not None and self._scheduler.phase == command.phase:
                    self._scheduler.stop(command.reason)
                return Done()
            case _:
                return _refused(f"a task conductor knows no {type(command).__name__}")

    async def close(self) -> None:
        """Every runner is seen dead afterwards."""
        for task in (self._watching, self._working):
            if task is not None:
                task.cancel()
                await asyncio.wait({task})
        if self._runners is not None:
            await self._runners.close()
        self._cluster.close()

    async def _start(self, command: StartTasks) -> Done | Refused:
        if self._runners is None:
            return _refused("not ready yet: no connection to Ray")
        if self._working is not None and not self._working.done():
            if self._scheduler is not None and self._scheduler.phase == command.phase:
                return Done()  # the same command, sent again
            if not await self.handed_over(self._working):
                return _refused("another phase's tasks are in work")
        try:
            self._scheduler = Scheduler(
                command=command,
                spec=self.spec,
                link=self.link,
                cluster=self._cluster,
                runners=self._runners,
            )
        except ConductorError as error:
            return _refused(error.reason)
        self._working = asyncio.create_task(self._work(self._scheduler), name=f"tasks.phase.{command.phase}")
        return Done()

    async def _work(self, scheduler: Scheduler) -> None:
        try:
            await scheduler.run()
        except Exception as error:
            log.exception("tasks.failed")
            self.give_up(f"the task scheduler failed: {type(error).__name__}: {error}")

    async def _watch(self) -> None:
        reason = await self._cluster.lost()
        log.error("ray.lost", reason=reason)
        self.give_up(f"Ray is lost: {reason}")


def _refused(message: str) -> Refused:
    return Refused(code="conductor", message=message, exit_code=ExitCode.INTERNAL)
