"""Which kind of worker plays a phase through conductors."""

from __future__ import annotations

from typing import TYPE_CHECKING

from governor.episodes.players.assignment import SeveralPlayers
from governor.episodes.remote.native import NativeWorker
from governor.episodes.remote.players_worker import PlayersWorker
from governor.episodes.remote.rounds import SingleWorker, VectorWorker
from governor.episodes.remote.worker import run

if TYPE_CHECKING:
    from governor.episodes.remote.episode_worker import EpisodeWorker
    from governor.episodes.simulation import Simulation
    from governor.messages import StartSimulation


def run_worker(simulation: Simulation, number: int) -> None:
    """Runs worker `number`."""
    command = simulation.command
    if len(command.agents) == 1 and not command.players:
        try:
            run(_kind(command)(simulation, number))
        except SeveralPlayers:  # it has closed its channels; no episode has begun
            pass
        else:
            return
    run(PlayersWorker(simulation, number))


def _kind(command: StartSimulation) -> type[EpisodeWorker]:
    if command.vector_mode != "sync":
        return NativeWorker
    return SingleWorker if command.vector == 1 else VectorWorker
