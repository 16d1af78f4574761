"""The task conductor: the Ray driver of a run. No other process of the run uses Ray.

Rules:
1. It never starts Ray: the address and the token come with its settings.
2. When the GCS or the raylet is lost it ends within seconds with the reason, and the run continues with a new task
   conductor: a Ray driver cannot reconnect.
3. Runners stay warm from one phase to the next, and are killed with it.
4. A phase is run once, however often `StartTasks` arrives: the first reply may have been lost, and the phase may be
   over.
"""

from __future__ import annotations

import asyncio
import gc
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec

from governor import logs
from governor.conductors.conductor import Conductor
from governor.errors import ConductorError, ExitCode
from governor.messages import Done, Refused, StartSimulation, StartTasks, StopPartCommand
from governor.processes import kill_tree
from governor.tasks.api import DynamicTimeout
from governor.tasks.cluster.cluster import Cluster
from governor.tasks.engine import Engine
from governor.tasks.phases.task_graph import PhaseTasks
from governor.tasks.scheduling.dynamic_timeout import Durations

if TYPE_CHECKING:
    from governor.episodes.simulation import Simulation
    from governor.messages import ConductorCommand, ConductorSpec, DynamicTimeoutSpec
    from governor.messages.link import Link

CLOSE_SECONDS = 1.0
"""Seconds for the workers of a simulation to see that their episodes are over."""

log = logs.get_logger()


class TaskConductor(Conductor):
    """Performs `StartTasks`, `StartSimulation` with transport ``ray``, and `StopPartCommand`."""

    def __init__(self, *, spec: ConductorSpec, link: Link) -> None:
        super().__init__(spec=spec, link=link)
        settings = spec.settings.get("ray", {})
        self._cluster = Cluster(
            address=settings.get("address", ""), token_path=settings.get("token_path"), namespace=spec.uid
        )
        self._engine: Engine | None = None
        self._durations: dict[DynamicTimeoutSpec, Durations] = {}
        self._phase: PhaseTasks | None = None
        self._working: asyncio.Task[None] | None = None
        self._simulation: Simulation | None = None
        self._simulating: asyncio.Task[None] | None = None
        self._watching: asyncio.Task[None] | None = None
        self._following: asyncio.Task[None] | None = None

    async def prepare(self) -> dict[str, Any]:
        await self._cluster.connect()
        from governor.tasks.runners.pool import Runners  # noqa: PLC0415  # Ray: only after its variables are set

        runners = Runners(
            cluster=self._cluster,
            run=self.spec.uid,
            run_folder=Path(self.spec.run_folder),
            socket_folder=Path(self.spec.socket_folder),
            import_path=[self.spec.import_folder],
            mark=kill_tree.own_mark(),
        )
        self._engine = Engine(
            runners=runners,
            cluster=self._cluster,
            folder=Path(self.spec.run_folder),
            models=self.spec.settings.get("models", ()),
        )
        self._engine.warm()
        gc.freeze()  # collections skip Ray's modules, which are never freed (10,000 tasks: a third faster)
        self._watching = asyncio.create_task(self._watch(), name="tasks.ray_watch")
        self._following = asyncio.create_task(self._cluster.follow(self._engine), name="tasks.nodes")
        cpus = sum(node.resources.get("CPU", 0.0) for node in self._cluster.nodes)
        return {"ray": self._cluster.address, "nodes": len(self._cluster.nodes), "cpus": cpus}

    async def perform(self, command: ConductorCommand) -> Done | Refused:
        match command:
            case StartTasks():
                return await self._start(command)
            case StartSimulation():
                return await self._simulate(command)
            case StopPartCommand():
                if self._phase is not None and self._phase.phase == command.phase:
                    self._phase.stop(command.reason)
                if self._simulation is not None and self._simulation.command.phase == command.phase:
                    self._simulation.stop(end="stopped")
                return Done()
            case _:
                return _refused(f"a task conductor does not perform {type(command).__name__}")

    @property
    def progress(self) -> int:
        tasks = 0 if self._phase is None else self._phase.progress
        return tasks + (0 if self._simulation is None else self._simulation.progress)

    async def close(self) -> None:
        """Closes all; every runner is confirmed dead afterwards."""
        if self._simulation is not None:
            self._simulation.abandon()
        for task in (self._watching, self._following, self._working):
            if task is not None:
                task.cancel()
                await asyncio.wait({task})
        if self._engine is not None:
            await self._engine.close()
        if self._simulating is not None:
            await asyncio.wait({self._simulating}, timeout=CLOSE_SECONDS)
        self._cluster.close()

    async def _start(self, command: StartTasks) -> Done | Refused:
        if self._engine is None:
            return _refused("not ready yet: no connection to Ray")
        if self._has_begun(command.phase):
            return Done()
        if not await self.handed_over(self._working):
            return _refused("another phase's tasks are in work")
        if self._has_begun(command.phase):  # by the same command, meanwhile
            return Done()
        limits = self._limits(command.dynamic_timeout)
        phase = PhaseTasks(
            command=command,
            link=self.link,
            engine=self._engine,
            ray_answers=self._cluster.answers,
            limits=limits,
        )
        try:
            phase.begin()
        except ConductorError as error:
            return _refused(error.reason)
        self._phase = phase
        self._working = asyncio.create_task(self._work(phase), name=f"tasks.phase.{command.phase}")
        return Done()

    async def _simulate(self, command: StartSimulation) -> Done | Refused:
        if self._engine is None:
            return _refused("not ready yet: no connection to Ray")
        if self._has_simulated(command.phase):
            return Done()
        simulation = await asyncio.to_thread(import_module, "governor.tasks.phases.simulation")
        if not await self.handed_over(self._simulating):
            return _refused("another phase is being simulated")
        if self._has_simulated(command.phase):  # by the same command, meanwhile
            return Done()
        if wrong := simulation.refusals(command):
            return _refused("; ".join(wrong))
        self._simulation = simulation.Simulation(command=command, spec=self.spec, link=self.link)
        playing = simulation.RaySimulation(
            self._simulation, engine=self._engine, ray_answers=self._cluster.answers, give_up=self.fail
        )
        self._simulating = asyncio.create_task(playing.run(), name=f"tasks.simulation.{command.phase}")
        return Done()

    def _has_simulated(self, phase: int) -> bool:
        """As `_has_begun`; the command for the current phase ends a PAUSE."""
        if self._simulation is None or phase > self._simulation.command.phase:
            return False
        if phase == self._simulation.command.phase:
            self._simulation.resume()
        return True

    def _has_begun(self, phase: int) -> bool:
        """Whether this command was sent before: phases come one after the other."""
        return self._phase is not None and phase <= self._phase.phase

    def _limits(self, wanted: DynamicTimeoutSpec | None) -> Durations | None:
        """The durations that phases with the same settings share."""
        if wanted is None:
            return None
        if wanted not in self._durations:
            config = DynamicTimeout(True, **msgspec.structs.asdict(wanted))  # enable
            self._durations[wanted] = Durations(config, float("inf"))
        return self._durations[wanted]

    async def _work(self, phase: PhaseTasks) -> None:
        try:
            await phase.run()
        except ConductorError as error:
            self.fail(error.reason)
        except Exception as error:
            log.exception("tasks.failed")
            self.fail(f"the task scheduler failed: {type(error).__name__}: {error}")

    async def _watch(self) -> None:
        reason = await self._cluster.lost()
        log.error("ray.lost", reason=reason)
        if self._working is not None:
            self._working.cancel()  # its tasks may have failed because Ray is lost
        if self._simulation is not None:
            self._simulation.abandon()
        self.fail(f"Ray is lost: {reason}")


def _refused(message: str) -> Refused:
    return Refused(code="conductor", message=message, exit_code=ExitCode.INTERNAL)
