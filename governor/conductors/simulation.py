"""Simulation controller: runs the episodes of a phase between an environment conductor and an agent conductor.

It runs no user code, except with ``transport: in_process``: then environments and agents run here, in threads of
their own; language models are called from here, and their environments have processes of their own. `StartSimulation`
begins a phase's simulation, `PausePartCommand` pauses it and lets it go on, `StopPartCommand` ends it, `Retire` leaves what has not begun to the next process; `PartEnded` reports the end, once. `StartSimulation` sent
again ends a PAUSE of the same phase and begins nothing, also when the phase is over.
"""

from __future__ import annotations

import asyncio
from functools import partial
from importlib import import_module
from typing import TYPE_CHECKING, Any, Final

from governor.conductors.conductor import Conductor
from governor.conductors.phase_work import SimulationWork
from governor.episodes.local.in_process import InProcess
from governor.episodes.records.checkpoints import COPY_SECONDS
from governor.episodes.remote import control, playing
from governor.episodes.rules.conditions import faults
from governor.episodes.simulation import Simulation
from governor.episodes.text.entries import is_language_model
from governor.errors import ConductorError
from governor.messages import (
    ChangeWorkCommand,
    ConductorCommand,
    ConductorSpec,
    Done,
    PausePartCommand,
    Refused,
    Retire,
    StartSimulation,
    StopPartCommand,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine
    from pathlib import Path

    from governor.episodes.local.local_agent import LocalAgent
    from governor.episodes.records.checkpoints import Copy
    from governor.messages.link import Link

AWAY_SECONDS: Final = 60.0
"""Seconds that the agent's conductor may be unavailable, in addition; a conductor whose agent does not answer within
`COPY_SECONDS` is replaced.
"""
CLOSE_SECONDS = 2.0


class SimulationController(Conductor):
    def __init__(self, *, spec: ConductorSpec, link: Link) -> None:
        super().__init__(spec=spec, link=link)
        self._work = SimulationWork(fail=self.fail)
        self._agents: dict[str, LocalAgent] = {}

    async def prepare(self) -> dict[str, Any]:
        """Imports Arrow while environments and agents are built: no other process needs it."""
        await asyncio.to_thread(import_module, "governor.episodes.trajectories")
        return {}

    async def perform(self, command: ConductorCommand) -> Done | Refused:
        match command:
            case StartSimulation():
                return await self._work.begin(command.phase, partial(self._make, command))
            case PausePartCommand():
                self._work.pause(command)
                return Done()
            case ChangeWorkCommand():
                self._work.change(command)
                return Done()
            case StopPartCommand():
                self._work.stop(command.phase)
                return Done()
            case Retire():
                self._work.retire(self.retired)
                return Done()
            case _:
                return await super().perform(command)

    @property
    def progress(self) -> int:
        return self._work.progress

    async def close(self) -> None:
        self._work.abandon()
        if self._work.task is not None:
            _, late = await asyncio.wait({self._work.task}, timeout=CLOSE_SECONDS)
            for task in late:
                task.cancel()

    def _make(self, command: StartSimulation) -> tuple[Simulation, Coroutine[Any, Any, None]]:
        wrong = faults(command)
        if not command.agents or not {*command.players.values()} <= {*command.agents}:
            wrong.append(f"its players' agents {command.players} are not among {command.agents}")
        if command.transport == "ray" and (len(command.agents) > 1 or command.players):
            wrong.append("several players need transport: conductors or in_process")
        if command.workers < 1:
            wrong.append(f"workers must be at least 1, not {command.workers}")
        if command.transport == "in_process" and (
            command.made_environment is None or len(command.made_agents) != len(command.agents)
        ):
            wrong.append("the command does not say what its environment and agents are made of")
        if command.checkpoint is not None and any(
            is_language_model(made.entry) for made in command.made_agents
        ):
            wrong.append("no checkpoint can be taken of a language model")
        if wrong:
            raise ConductorError("; ".join(wrong))
        simulation = Simulation(command=command, spec=self.spec, link=self.link)
        return simulation, self._play(simulation)

    def _play(self, simulation: Simulation) -> Coroutine[Any, Any, None]:
        command = simulation.command
        if command.transport == "conductors":
            copy = copy_through_conductors(self.link, self.spec.uid, join=simulation.joins.get)
            return simulation.run(playing.run_worker, copy=copy)
        if is_language_model(command.made_agents[0].entry):
            return _play_text(simulation)
        return InProcess(simulation, agents=self._agents, give_up=self.fail).run()


async def _play_text(simulation: Simulation) -> None:
    """Imports the client of the model in a thread, because that takes half a second."""
    text_phase = await asyncio.to_thread(import_module, "governor.episodes.text.phase")
    await text_phase.TextPhase(simulation).run()


def copy_through_conductors(
    link: Link, uid: str, *, join: Callable[[str], Callable[[], control.Join] | None]
) -> Copy:
    """Copies the learned state of an agent, for checkpoints, through its conductor; waits for one that is unavailable. `join` makes,
    by the agent's name, the request of a worker that has joined it.
    """

    async def copy(name: str, path: Path) -> None:
        make = join(name)
        answer = await control.ask_when_available(
            link.client,
            control.agent_service(uid, name),
            control.Copy(path=str(path), join=make() if make is not None else None),
            seconds=COPY_SECONDS + AWAY_SECONDS,
        )
        if isinstance(answer, control.Failed):
            raise ConductorError(answer.why)

    return copy
