"""Which kind of worker plays a phase through conductors."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from governor.episodes.players.assignment import SeveralPlayers
from governor.episodes.remote.players_worker import PlayersWorker
from governor.episodes.remote.rounds import SingleWorker, VectorWorker
from governor.episodes.remote.worker import run

if TYPE_CHECKING:
    from governor.episodes.simulation import Simulation

LINGER_SECONDS: Final = 0.05
"""How long reports of a vector wait: each slot has its own recorder, so waiting combines episodes that end together into one write."""


def run_worker(simulation: Simulation, number: int) -> None:
    """Runs worker `number`."""
    command = simulation.command
    if len(command.agents) == 1 and not command.players:
        try:
            if command.vector == 1:
                run(SingleWorker(simulation, number))
            else:
                run(VectorWorker(simulation, number, linger=LINGER_SECONDS))
        except SeveralPlayers:  # it has closed its channels; no episode has begun
            pass
        else:
            return
    run(PlayersWorker(simulation, number))
