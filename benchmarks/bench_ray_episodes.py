"""Episodes per second on Ray beside in process, with the same environment and agent, recording included.

Short episodes show what a chunk and a report cost, long ones what a second runner brings. Nobody acknowledges: the governor
is left out on both sides. Takes about a minute: `python benchmarks/bench_ray_episodes.py [episodes of FrozenLake]`.
"""

from __future__ import annotations

import asyncio
import os
import sys
import tempfile
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from multiprocessing import get_context
from pathlib import Path
from time import perf_counter
from typing import TYPE_CHECKING, Any

import msgspec
from support.rows import Row, p50, table

from governor.conductors.simulation import SimulationController
from governor.conductors.task import TaskConductor
from governor.messages import ConductorSpec, Made, PartEndedReport, StartSimulation
from governor.messages.link import RecordingLink
from governor.tasks.cluster.head import RayHead
from transport.access import Secret

if TYPE_CHECKING:
    from governor.conductors.conductor import Conductor

HERE = Path(__file__).resolve().parent
TURNS = 3
EPISODES = 4000


@dataclass(frozen=True, kw_only=True)
class World:
    what: str
    entry: str
    agent: str
    part: float
    """Of the episodes."""


WORLDS = (
    World(
        what="FrozenLake-v1",
        entry="gymnasium:FrozenLake-v1",
        agent="user_code.step_agent:TrivialAgent",
        part=1.0,
    ),
    World(
        what="CartPole-v1, 500 steps",
        entry="gymnasium:CartPole-v1",
        agent="bench_ray_episodes:Balancing",
        part=0.05,
    ),
)


class Balancing:
    """Keeps the pole up for all of the 500 steps, most of the time."""

    def __init__(self, *, observation_space: Any, action_space: Any, seed: int) -> None:
        """As agents are built."""

    def act(self, observation: Any, *, explore: bool) -> int:  # noqa: ARG002
        return int(observation[2] + 0.5 * observation[3] + 0.05 * observation[1] > 0)


def spec(kind: str, folder: Path, **settings: Any) -> ConductorSpec:
    return ConductorSpec(
        uid="bench", name=kind, kind=kind, incarnation=1, client_endpoint="", worker_endpoint="",
        secret=Secret.new(), run_folder=str(folder), socket_folder=str(folder), import_folder=str(HERE), seed=0, settings=settings,
    )  # fmt: skip


async def play(conductor: Conductor, link: RecordingLink, command: StartSimulation) -> float:
    """Episodes per second, from the command to the end of the part, finalizing included."""
    seen, began = len(link.events), perf_counter()
    await conductor.perform(command)
    end = await link.next(PartEndedReport, after=seen)
    if end.failures:
        raise RuntimeError(end.first_failure)
    return command.episodes / (perf_counter() - began)


async def measure(episodes: int = EPISODES) -> list[Row]:
    workers = os.cpu_count() or 1
    with tempfile.TemporaryDirectory(prefix="bench-") as name:
        folder = Path(name)
        head = RayHead(state_folder=folder, runtime_folder=folder, num_cpus=workers)
        found = await head.start()
        links = RecordingLink(), RecordingLink()
        ray = {"address": found.address, "token_path": str(found.token_path)}
        inside: Conductor = SimulationController(spec=spec("simulation", folder), link=links[0])
        spread: Conductor = TaskConductor(spec=spec("task", folder, ray=ray), link=links[1])
        try:
            await inside.prepare()
            await spread.prepare()
            sides = ((inside, links[0]), (spread, links[1]))
            return [await row(world, episodes, sides, place) for place, world in enumerate(WORLDS)]
        finally:
            await inside.close()
            await spread.close()
            await head.stop()


async def row(
    world: World, episodes: int, sides: tuple[tuple[Conductor, RecordingLink], ...], place: int
) -> Row:
    workers = os.cpu_count() or 1
    command = StartSimulation(
        phase=0, name="", mode="eval", environment="world", agents=(f"agent{place}",), workers=1, max_steps=None,
        episodes=max(workers, int(episodes * world.part)), episode_timeout=60.0, seed=0, transport="in_process",
        made_environment=Made(entry=world.entry), made_agents=(Made(entry=world.agent),),
    )  # fmt: skip
    figures: tuple[list[float], list[float]] = ([], [])
    for turn in range(-1, TURNS):
        number = place * (TURNS + 1) + turn + 1
        alone = msgspec.structs.replace(command, phase=number, name=f"in_process {number}")
        spread = msgspec.structs.replace(
            command, phase=number, name=f"ray {number}", transport="ray", workers=workers
        )
        commands = (alone, spread)
        both = [await play(*side, command) for side, command in zip(sides, commands, strict=True)]
        if turn >= 0:  # the first one imports and builds
            for side, figure in zip(figures, both, strict=True):
                side.append(figure)
    inside, ours = map(p50, figures)
    return Row(
        what=f"episodes on Ray, {workers} runners, {world.what}",
        figure=ours,
        unit="episodes/s",
        note=f"in process, 1 worker: {inside:,.0f}/s, ratio {ours / inside:.2f}; {command.episodes} episodes",
    )


def rows(episodes: int = EPISODES) -> list[Row]:
    """In a process of its own: Ray takes one token in each."""
    with ProcessPoolExecutor(max_workers=1, mp_context=get_context("spawn")) as alone:
        return alone.submit(_measured, episodes).result()


def _measured(episodes: int) -> list[Row]:
    return asyncio.run(measure(episodes))


if __name__ == "__main__":
    asked = int(sys.argv[1]) if len(sys.argv) > 1 else EPISODES
    print(table(rows(asked)))
