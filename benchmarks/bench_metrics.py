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
from bench_in_process import Captured, World
from support.instance import HERE, environment, governor
from support.rows import Row, p50, spread, table
from support.same_process import PAIRS, Turn, seconds_of_step
from user_code.step_agent import TrivialAgent

from governor.messages import Made, encode
from governor.messages.curves import Curve

CURVE_PAIRS = 5
EPISODES = 8
CURVE_EPISODES = 50_000
VALUES = 1_000_000
STEPS = 500
INFO = {"upright": "last", "distance": "last", "pushes": "last"}


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


WORLD = World(what="CartPole, a small agent that learns", agent="bench_metrics:Learner", made=Learner)


def side(*, metrics: bool, logs: bool = False) -> Turn:
    """Turns of the world with metrics, with its output captured."""

    async def turn(process: Captured, *, whole: bool) -> tuple[float, float]:
        return await process.turn(
            WORLD,
            environment="Informed",
            captured=logs,
            episodes=EPISODES if whole else 1,
            max_steps=STEPS if whole else 1,
            info=INFO if metrics else {},
            made_agents=(Made(entry=WORLD.agent, params={"reports": metrics}),),
            agents=(f"Learner-{metrics}",),
        )

    return turn


async def rows(pairs: int = PAIRS) -> list[Row]:
    sides = {
        "off": side(metrics=False),
        "metrics": side(metrics=True),
        "both": side(metrics=True, logs=True),
    }
    costs = await seconds_of_step(Captured, sides, pairs=pairs)
    off = p50([cost["off"] for cost in costs]) * 1e6
    found = []
    for on, what in (
        ("metrics", "with three keys of info and a reported loss"),
        ("both", "with these metrics, and with its output captured"),
    ):
        ratios = [cost[on] / cost["off"] for cost in costs]
        more = p50([cost[on] - cost["off"] for cost in costs]) * 1e6
        found.append(
            Row(
                what=f"CPU time of a step {what}, {WORLD.what}: part of that without",
                figure=p50(ratios),
                unit="",
                at_most=1.03,
                if_missed="three numbers are read and kept in about 0.9 µs, more where others use the caches of this machine",
                note=f"{spread(ratios, '')}; {more:.2f} µs more than {off:.1f} µs",
            )
        )
    return found


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
