"""What metrics cost: a step with them, as a part of the same step without, and their curves.

A step has three keys of `info`, and a loss that the agent reports: the controller's whole way, as in `bench_in_process`, with
recording, reports, the Parquet file at the end. Of curves: a value, an episode of one step (the dearest case) of a run with and
without them, their size on record and in memory. What is compared is played in turns, and the ratio is the median of the ratios
of the pairs. `python benchmarks/bench_metrics.py [pairs]` for steps, `python benchmarks/bench_metrics.py curves [episodes]`.
"""

from __future__ import annotations

import asyncio
import json
import random
import resource
import subprocess
import sys
import tempfile
import tracemalloc
from pathlib import Path
from statistics import median
from time import process_time
from typing import Any

import numpy as np
from bench_in_process import Instance, World
from gymnasium.envs.classic_control import CartPoleEnv
from support.instance import HERE, environment, governor
from support.process_tree import cpu_seconds
from support.rows import Row, p50, spread, table
from user_code.step_agent import TrivialAgent

from governor.messages import Made, encode
from governor.messages.curves import Curve

PAIRS = 20
CURVE_PAIRS = 5
EPISODES = 80
CURVE_EPISODES = 50_000
VALUES = 1_000_000
STEPS = 500
INFO = {"upright": "last", "distance": "last", "pushes": "last"}


class Informed(CartPoleEnv):
    """CartPole that tells three numbers in the info of each step, and does not fall."""

    def __init__(self) -> None:
        super().__init__()
        self.theta_threshold_radians = self.x_threshold = float("inf")

    def step(self, action: Any) -> Any:
        observation, reward, terminated, truncated, _ = super().step(action)
        info = {
            "upright": bool(abs(self.state[2]) < 0.2),
            "distance": float(self.state[0]),
            "pushes": int(action),
        }
        return observation, reward, terminated, truncated, info


class Learner(TrivialAgent):
    """A linear policy with actor and critic in numpy, which learns from every step: a small agent of those that learn."""

    def __init__(self, *, context: Any = None, reports: bool = False, **more: Any) -> None:
        super().__init__(**more)
        self._context = context if reports else None
        self._weights = np.zeros((2, 4))
        self._critic = np.zeros(4)

    def act(self, observation: Any, *, explore: bool) -> int:  # noqa: ARG002
        logits = self._weights @ np.clip(observation, -1, 1)
        return int(logits[1] - logits[0] + self.random.gauss(0, 0.1) > 0)

    def learn(self, transition: Any) -> None:
        before, after = np.clip(transition.observation, -1, 1), np.clip(transition.next_observation, -1, 1)
        error = transition.reward + 0.99 * (self._critic @ after) - self._critic @ before
        self._critic += 1e-4 * error * before
        self._weights[transition.action] += 1e-6 * error * before
        self.learned += 1
        if self.learned % 100 == 0 and self._context is not None:
            self._context.report(loss=float(error * error))


async def cpu_of_step(instance: Instance, world: World, *, metrics: bool) -> float:
    """In seconds."""
    before = cpu_seconds(instance.pid)
    await instance.begin(
        world,
        episodes=EPISODES,
        max_steps=STEPS,
        info=INFO if metrics else {},
        made_environment=Made(entry="bench_metrics:Informed"),
        made_agents=(Made(entry=world.agent, params={"reports": True} if metrics else {}),),
        agents=(f"{world.agent.rpartition(':')[2]}-{metrics}",),
    )
    steps = (await instance.end())["steps_total"]
    return (cpu_seconds(instance.pid) - before) / steps


async def rows(pairs: int = PAIRS) -> list[Row]:
    world = World(what="CartPole, a small agent that learns", agent="bench_metrics:Learner", made=Learner)
    ratios, costs = [], []
    async with Instance() as instance:
        for warm_up in (False, True):
            await cpu_of_step(instance, world, metrics=warm_up)
        for pair in range(pairs):
            found = {}
            for metrics in (pair % 2 == 0, pair % 2 == 1):
                found[metrics] = await cpu_of_step(instance, world, metrics=metrics)
            ratios.append(found[True] / found[False])
            costs.append(found[True] - found[False])
            without = found[False]
    return [
        Row(
            what=f"CPU time of a step with three keys of info and a reported loss, {world.what}: part of that without",
            figure=p50(ratios),
            unit="",
            at_most=1.03,
            if_missed="three numbers are read and kept in about 0.9 µs, more where others use the caches of this machine",
            note=f"{spread(ratios, '')}; {p50(costs) * 1e6:.2f} µs more than {without * 1e6:.1f} µs",
        )
    ]


def measure() -> list[Row]:
    return asyncio.run(rows())


def run_of(world: str, episodes: int) -> dict[str, Any]:
    simulate = {"environment": "world", "agents": ["agent"], "episodes": episodes, "max_steps": 1}
    return {
        "name": "curves",
        "conductors": {
            "environments": {"world": {"entry": f"user_code.step_world:{world}"}},
            "agents": {"agent": {"entry": "user_code.step_agent:TrivialAgent"}},
        },
        "phases": [{"name": "train", "mode": "train", "simulate": simulate | {"transport": "in_process"}}],
    }


def cpu_of_run(world: str, episodes: int) -> float:
    """Seconds of all its processes."""
    with tempfile.TemporaryDirectory(prefix="gb-") as folder:
        path = Path(folder) / "run.json"
        path.write_text(json.dumps(run_of(world, episodes)))
        before = resource.getrusage(resource.RUSAGE_CHILDREN)
        subprocess.run(
            [*governor("run"), str(path), "--quiet", "--state-dir", f"{folder}/s"],
            check=True,
            cwd=HERE,
            env=environment() | {"PYTHONPATH": str(HERE / "benchmarks")},
            stdout=subprocess.DEVNULL,
        )
        after = resource.getrusage(resource.RUSAGE_CHILDREN)
    return after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime


def of_a_curve() -> list[Row]:
    draws = random.Random(1)
    values = [draws.gauss() for _ in range(VALUES)]
    tracemalloc.start()
    small = tracemalloc.get_traced_memory()[0]
    curve = Curve()
    for index in range(VALUES // 10 - 1):
        curve.add(values[index], episode=index, step=index * 90, at=index * 1e-3)
    memory = tracemalloc.get_traced_memory()[0] - small
    tracemalloc.stop()
    curve = Curve()
    begun = process_time()
    for index, value in enumerate(values):
        curve.add(value, episode=index, step=index * 90, at=index * 1e-3)
    each = (process_time() - begun) / VALUES * 1e6
    return [
        Row(what=f"a value, of {VALUES:,}", figure=each, unit="us CPU", at_most=2.0),
        Row(what="a curve on record", figure=len(encode(curve)) / 1000, unit="kB", at_most=100),
        Row(what="a curve in memory", figure=memory / 1000, unit="kB", at_most=100),
    ]


def measure_curves(episodes: int = CURVE_EPISODES) -> list[Row]:
    pairs = [
        (cpu_of_run("Endless", episodes), cpu_of_run("EndlessWithoutCurves", episodes))
        for _ in range(CURVE_PAIRS)
    ]
    note = f"median of {CURVE_PAIRS} interleaved pairs of {episodes:,} episodes"
    return [
        Row(
            what="a run of episodes of one step, with curves over without",
            figure=median(one / other for one, other in pairs),
            unit="CPU",
            at_most=1.1,
            note=note,
        ),
        Row(
            what="all CPU of such an episode",
            figure=median(one for one, _ in pairs) / episodes * 1e6,
            unit="us CPU",
        ),
        *of_a_curve(),
    ]


def main() -> None:
    match sys.argv[1:]:
        case ["curves", *episodes]:
            print(table(measure_curves(*map(int, episodes))))
        case pairs:
            print(table(asyncio.run(rows(*map(int, pairs)))))


if __name__ == "__main__":
    main()
