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

from governor import logs
from governor.conductors.conductor import Conductor, refused
from governor.conductors.phase_work import PhaseWork, SimulationWork
from governor.errors import ConductorError
from governor.messages import (
    ChangeTasksCommand,
    ChangeWorkCommand,
    Done,
    PausePartCommand,
    StartSimulation,
    StartTasks,
    StopPartCommand,
)
from governor.output import spool
from governor.processes import kill_tree
from governor.tasks.api import DynamicTimeout
from governor.tasks.cluster.cluster import Cluster
from governor.tasks.engine import Engine
from governor.tasks.phases.task_graph import PhaseTasks, results_needed
from governor.tasks.scheduling.dynamic_timeout import TimeoutEstimator

if TYPE_CHECKING:
    from collections.abc import Coroutine

    from governor.episodes.simulation import Simulation
    from governor.messages import ConductorCommand, ConductorSpec, DynamicTimeoutSpec, Refused
    from governor.messages.link import Link

CLOSE_SECONDS = 1.0
"""Seconds for the workers of a simulation to see that their episodes are over."""

NOT_READY = "not ready yet: no connection to Ray"

log = logs.get_logger()


class TaskConductor(Conductor):
    """Performs `StartTasks`, `StartSimulation` with transport ``ray``, `PausePartCommand` and `StopPartCommand`."""

    def __init__(self, *, spec: ConductorSpec, link: Link) -> None:
        super().__init__(spec=spec, link=link)
        settings = spec.settings.get("ray", {})
        self._cluster = Cluster(
            address=settings.get("address", ""), token_path=settings.get("token_path"), namespace=spec.uid
        )
        self._engine: Engine | None = None
        self._timeout_estimators: dict[DynamicTimeoutSpec, TimeoutEstimator] = {}
        self._tasks: PhaseWork[PhaseTasks] = PhaseWork("another phase's tasks are in work", fail=self.fail)
        self._simulation = SimulationWork(fail=self.fail)
        self._watches: list[asyncio.Task[None]] = []

    async def prepare(self) -> dict[str, Any]:
        await self._cluster.connect()
        from governor.tasks.runners.pool import Runners  # noqa: PLC0415  # Ray: only after its variables are set

        runners = Runners(
            cluster=self._cluster,
            run=self.spec.uid,
            run_folder=Path(self.spec.run_folder),
            socket_folder=Path(self.spec.socket_folder),
            import_path=[],
            working_folder=self.spec.import_folder,
            variables=self.spec.variables,
            mark=kill_tree.own_mark(),
            spools=spool.folder_of(self.spec.run_folder),
            conductor=self.spec.name,
        )
        self._engine = Engine(
            runners=runners,
            cluster=self._cluster,
            folder=Path(self.spec.run_folder),
            models=self.spec.settings.get("models", ()),
            kills=logs.Repeated(),
        )
        self._engine.warm()
        gc.freeze()  # collections skip Ray's modules, which are never freed (10,000 tasks: a third faster)
        for watch in (self._watch(), self._cluster.follow(self._engine)):
            self._watches.append(asyncio.create_task(watch, name="tasks.watch"))
        cpus = sum(node.resources.get("CPU", 0.0) for node in self._cluster.nodes)
        return {"ray": self._cluster.address, "nodes": len(self._cluster.nodes), "cpus": cpus}

    async def perform(self, command: ConductorCommand) -> Done | Refused:
        match command:
            case StartTasks():
                return await self._start(command)
            case StartSimulation():
                return await self._simulate(command)
            case PausePartCommand():
                self._pause_engine(paused=command.paused)
                self._simulation.pause(command)
            case ChangeWorkCommand():
                if (tasks := self._tasks.of(command.phase)) is not None and command.task:
                    tasks.change(command.task, again=command.change == "requeue", reason=command.reason)
                self._simulation.change(command)
            case ChangeTasksCommand():
                if (tasks := self._tasks.of(command.phase)) is not None:
                    tasks.change_limits(command.tasks)
            case StopPartCommand():
                if (tasks := self._tasks.of(command.phase)) is not None:
                    tasks.stop(command.reason)
                self._simulation.stop(command.phase)
            case _:
                return await super().perform(command)
        return Done()

    @property
    def progress(self) -> int:
        tasks = 0 if self._tasks.current is None else self._tasks.current.progress
        return tasks + self._simulation.progress

    async def close(self) -> None:
        """Closes all; every runner is confirmed dead afterwards."""
        self._simulation.abandon()
        for task in (*self._watches, self._tasks.task):
            if task is not None:
                task.cancel()
                await asyncio.wait({task})
        if self._engine is not None:
            await self._engine.close()
        if self._simulation.task is not None:
            await asyncio.wait({self._simulation.task}, timeout=CLOSE_SECONDS)
        self._cluster.close()

    def _pause_engine(self, *, paused: bool) -> None:
        """By a user, of whatever is dispatched to runners. It ends when a part begins: that is never in a pause."""
        if self._engine is not None:
            self._engine.pause("user", paused=paused)

    async def _start(self, command: StartTasks) -> Done | Refused:
        engine = self._engine
        if engine is None:
            return refused(NOT_READY)
        self._pause_engine(paused=False)

        def make() -> tuple[PhaseTasks, Coroutine[Any, Any, None]]:
            phase = PhaseTasks(
                command=command,
                link=self.link,
                engine=engine,
                ray_answers=self._cluster.answers,
                limits=self._limits(command.dynamic_timeout),
            )
            if not command.done:  # else results are read first, which takes longer than a command may
                phase.begin()
            return phase, self._work(phase, command)

        return await self._tasks.begin(command.phase, make)

    async def _simulate(self, command: StartSimulation) -> Done | Refused:
        engine = self._engine
        if engine is None:
            return refused(NOT_READY)
        self._pause_engine(paused=False)
        simulation = await asyncio.to_thread(import_module, "governor.tasks.phases.simulation")

        def make() -> tuple[Simulation, Coroutine[Any, Any, None]]:
            if wrong := simulation.refusals(command):
                raise ConductorError("; ".join(wrong))
            made = simulation.Simulation(command=command, spec=self.spec, link=self.link)
            playing = simulation.RaySimulation(
                made, engine=engine, ray_answers=self._cluster.answers, give_up=self.fail
            )
            return made, playing.run()

        return await self._simulation.begin(command.phase, make)

    def _limits(self, wanted: DynamicTimeoutSpec | None) -> TimeoutEstimator | None:
        """The estimator that phases with the same settings share."""
        if wanted is None:
            return None
        if wanted not in self._timeout_estimators:
            config = DynamicTimeout(True, **wanted.model_dump())  # enable
            self._timeout_estimators[wanted] = TimeoutEstimator(config, float("inf"))
        return self._timeout_estimators[wanted]

    async def _work(self, phase: PhaseTasks, command: StartTasks) -> None:
        try:
            if command.done:
                phase.begin(await asyncio.to_thread(results_needed, command, self.spec.uid))
            await phase.run()
        except ConductorError as error:
            self.fail(error.reason)
        except Exception as error:
            log.exception("tasks.failed")
            self.fail(f"the task scheduler failed: {type(error).__name__}: {error}")

    async def _watch(self) -> None:
        reason = await self._cluster.lost()
        log.error("ray.lost", reason=reason)
        if self._tasks.task is not None:
            self._tasks.task.cancel()  # its tasks may have failed because Ray is lost
        self._simulation.abandon()
        self.fail(f"Ray is lost: {reason}")
