"""Phases of episodes on a real Ray, without a daemon."""

from __future__ import annotations

import asyncio

import msgspec

from governor.episodes import trajectories
from governor.episodes.simulation import Simulation, episode_seed
from governor.messages import Made, PartEndedReport, StartSimulation
from governor.messages.link import RecordingLink
from tests.support.in_process_commands import episodes as told


class Phases:
    """Each has a number of its own."""

    def __init__(self, harness):
        self.harness = harness
        self.spec = harness.spec
        self.given_up = []

    def command(self, *, agent="far_walks:Reflex", entry="far_walks:Walk", **fields):
        number = next(self.harness.phases)
        base = {
            "phase": number, "name": f"phase {number}", "mode": "eval", "environment": "field", "agents": ("walker",),
            "episodes": 3, "workers": 1, "max_steps": None, "episode_timeout": None, "seed": 7, "transport": "ray",
        }  # fmt: skip
        made = Made(entry=entry, params=fields.pop("params", {}))
        return StartSimulation(**base | fields, made_environment=made, made_agents=(Made(entry=agent),))

    def begin(self, command, *, flow="CONTINUE", ray_answers=None):
        from governor.tasks.phases.simulation import RaySimulation

        link = RecordingLink(flow=flow)
        simulation = Simulation(command=command, spec=self.spec, link=link)
        ray = RaySimulation(
            simulation,
            engine=self.harness.engine,
            ray_answers=ray_answers or self.harness.cluster.answers,
            give_up=self.given_up.append,
        )
        return simulation, link, asyncio.create_task(ray.run())

    async def end(self, link, playing, *, seconds=60):
        async with asyncio.timeout(seconds):
            await playing
        *_, end = link.events
        assert isinstance(end, PartEndedReport)
        return told(link), end

    async def play(self, command, **more):
        _, link, playing = self.begin(command, **more)
        return await self.end(link, playing)

    def steps(self, command):
        return trajectories.read(self.harness.folder, command.name)


def seeds(command, *indices):
    return [episode_seed(command.seed, command.phase, index) for index in indices]


def with_params(command, **params):
    """Of its environment: what is bad is known by its seed, which the command tells."""
    made = msgspec.structs.replace(command.made_environment, params=params)
    return msgspec.structs.replace(command, made_environment=made)


def pids(path):
    return [int(line) for line in path.read_text().split()]


def once_each(records, episodes):
    return sorted(record.index for record in records) == list(range(episodes))
