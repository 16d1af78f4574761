"""Environment steps per second through the whole daemon: daemon, journal, real conductors, and an executor that watches.

Each row stands beside the bare Gymnasium loop with the same agent, played in the same minute.
`python benchmarks/bench_daemon.py` takes about 25 s.
"""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, field
from typing import Any

import gymnasium
from bench_steps import bare
from support.instance import Instance
from support.rows import Row, p50, spread, table

BARE_SECONDS = 0.7
REPEAT = 3
PEER = "43 steps/s"
AIM = 2000.0


@dataclass(frozen=True, kw_only=True)
class World:
    """`episodes` is chosen so that a run takes about three seconds at the aim; `entry` is what the run file says."""

    identifier: str
    episodes: int
    what: str = ""
    entry: str = ""
    max_steps: int | None = None
    params: dict[str, Any] = field(default_factory=dict)
    peer: str = ""


WORLDS = (
    World(
        what="1 episode of 1000 steps",
        identifier="Endless-v0",
        entry="user_code.step_world:Endless",
        episodes=1,
        max_steps=1000,
        peer=PEER,
    ),
    World(identifier="FrozenLake-v1", params={"is_slippery": False}, episodes=800),
    World(identifier="CartPole-v1", episodes=300),
)
gymnasium.register(id="Endless-v0", entry_point="user_code.step_world:Endless")


def _run(world: World) -> dict[str, Any]:
    return {
        "name": "steps",
        "seed": 7,
        "conductors": {
            "environments": {
                "world": {"entry": world.entry or f"gymnasium:{world.identifier}", "params": world.params}
            },
            "agents": {"walker": {"entry": "user_code.step_agent:TrivialAgent"}},
        },
        "phases": [
            {
                "name": "train",
                "mode": "train",
                "simulate": {
                    "environment": "world",
                    "agents": ["walker"],
                    "episodes": world.episodes,
                    "max_steps": world.max_steps,
                },
            }
        ],
        "limits": {"wall_clock": "30s"},
    }


@dataclass(frozen=True, kw_only=True)
class _Played:
    """Steps per second from the phase's start to its end as they are on record, and steps an episode."""

    rate: float
    length: float


async def _through(instance: Instance, world: World) -> _Played:
    result, events = await instance.run(_run(world))
    at = {event.kind: event.at for event in events if event.kind in ("phase.started", "phase.ended")}
    metrics = result.phases[0].metrics
    rate = metrics["steps_total"] / (at["phase.ended"] - at["phase.started"])
    return _Played(rate=rate, length=metrics["steps_total"] / world.episodes)


async def _measure() -> list[Row]:
    rows = []
    step_ms = 0.0
    async with Instance() as instance:
        for world in WORLDS:
            alone = bare(world.identifier, world.params, world.max_steps, BARE_SECONDS)
            runs = [await _through(instance, world) for _ in range(REPEAT)]
            rate, length = p50([run.rate for run in runs]), p50([run.length for run in runs])
            if not step_ms:  # the long episode comes first: what it has beyond its steps is next to nothing
                step_ms = 1000 / rate
            beyond = length * (1000 / rate - step_ms)
            rows.append(
                Row(
                    what=f"steps through the daemon, {world.what or world.identifier}",
                    figure=rate,
                    unit="steps/s",
                    peer=world.peer,
                    at_least=AIM,
                    note=f"{spread([run.rate for run in runs], 'steps/s')}; {length:.1f} steps an episode; "
                    f"bare loop {alone:,.0f}/s, ratio {rate / alone:.3f}",
                    if_missed=f"of {length * 1000 / rate:.1f} ms an episode, {beyond:.1f} ms are not steps: reset, saved "
                    "state, report, commit, and this world's own time",
                )
            )
    return rows


def measure() -> list[Row]:
    return asyncio.run(_measure())


if __name__ == "__main__":
    print(table(measure()))
