"""Simulation controller: runs the episodes of a phase between an environment conductor and an agent conductor.

It runs no user code, except with ``transport: in_process``: then environments and agents run here, in threads of
their own; language models are called from here, and their environments have processes of their own. `StartSimulation`
begins a phase's simulation, `StopPartCommand` ends it; `PartEnded` reports the end, once. `StartSimulation` sent
again ends a PAUSE of the same phase and begins nothing, also when the phase is over.
"""

from __future__ import annotations

import asyncio
from importlib import import_module
from typing import TYPE_CHECKING, Any

from governor.conductors import agent_copies
from governor.conductors.conductor import Conductor
from governor.episodes.local.in_process import InProcess
from governor.episodes.remote import rounds
from governor.episodes.rules import evaluation
from governor.episodes.rules.conditions import faults
from governor.episodes.simulation import Simulation
from governor.episodes.text.entries import is_language_model
from governor.errors import ExitCode
from governor.messages import ConductorCommand, ConductorSpec, Done, Refused, StartSimulation, StopPartCommand

if TYPE_CHECKING:
    from collections.abc import Coroutine, Sequence

    from governor.episodes.local.local_agent import LocalAgent
    from governor.messages.link import Link

CLOSE_SECONDS = 2.0


class SimulationController(Conductor):
    def __init__(self, *, spec: ConductorSpec, link: Link) -> None:
        super().__init__(spec=spec, link=link)
        self._current: Simulation | None = None
        self._task: asyncio.Task[None] | None = None
        self._agents: dict[str, LocalAgent] = {}

    async def prepare(self) -> dict[str, Any]:
        """Imports Arrow while environments and agents are built: no other process needs it."""
        await asyncio.to_thread(import_module, "governor.episodes.trajectories")
        return {}

    async def perform(self, command: ConductorCommand) -> Done | Refused:
        match command:
            case StartSimulation():
                return await self._start(command)
            case StopPartCommand():
                if self._current is not None and self._current.command.phase == command.phase:
                    self._current.stop(end="stopped")
                return Done()
            case _:
                return _refused([f"a simulation controller does not perform {type(command).__name__}"])

    @property
    def progress(self) -> int:
        return 0 if self._current is None else self._current.progress

    async def close(self) -> None:
        if self._current is None or self._task is None:
            return
        self._current.abandon()
        _, late = await asyncio.wait({self._task}, timeout=CLOSE_SECONDS)
        for task in late:
            task.cancel()

    async def _start(self, command: StartSimulation) -> Done | Refused:
        if self._has_begun(command.phase):
            return Done()
        if not await self.handed_over(self._task):
            return _refused(["another phase is being simulated"])
        if self._has_begun(command.phase):  # by the same command, meanwhile
            return Done()
        wrong = faults(command.until) + evaluation.faults(command)
        if not command.agents or not {*command.players.values()} <= {*command.agents}:
            wrong.append(f"its players' agents {command.players} are not among {command.agents}")
        if command.transport == "conductors" and (len(command.agents) > 1 or command.players):
            wrong.append("several players need transport: in_process")
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
            return _refused(wrong)
        self._current = Simulation(command=command, spec=self.spec, link=self.link)
        self._task = asyncio.create_task(self._playing(self._current), name=f"simulation.{command.phase}")
        return Done()

    def _playing(self, simulation: Simulation) -> Coroutine[Any, Any, None]:
        command = simulation.command
        if command.transport == "conductors":
            copy = agent_copies.through_conductors(self.link, self.spec.uid)
            return simulation.run(rounds.run_worker, copy=copy)
        if is_language_model(command.made_agents[0].entry):
            return _play_text(simulation)
        return InProcess(simulation, agents=self._agents, give_up=self.fail).run()

    def _has_begun(self, phase: int) -> bool:
        """Whether this command was sent before: phases come one after the other. Ends a PAUSE of this phase."""
        if self._current is None or phase > self._current.command.phase:
            return False
        if phase == self._current.command.phase:
            self._current.resume()
        return True


async def _play_text(simulation: Simulation) -> None:
    """Imports the client of the model in a thread, because that takes half a second."""
    text_phase = await asyncio.to_thread(import_module, "governor.episodes.text.phase")
    await text_phase.TextPhase(simulation).run()


def _refused(reasons: Sequence[str]) -> Refused:
    return Refused(code="usage", message="; ".join(reasons), exit_code=ExitCode.USAGE)
