"""CPU time of a step with metrics, as a part of the same step without: three keys of `info`, and a loss that the agent reports.

The controller's whole way, as in `bench_in_process`: recording, reports, the Parquet file at the end. Both sides play the same
episodes in turns, and the ratio is the median of the ratios of `PAIRS` pairs. `python benchmarks/bench_metrics.py [pairs]`.
"""

from __future__ import annotations

import asyncio
import sys
from typing import Any

import numpy as np
import psutil
from bench_in_process import Instance, World
from gymnasium.envs.classic_control import CartPoleEnv
from support.rows import Row, p50, spread, table
from user_code.step_agent import TrivialAgent

from governor.messages import Made

PAIRS = 20
EPISODES = 80
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
    process = psutil.Process(instance.pid)
    before = process.cpu_times()
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
    after = process.cpu_times()
    return (after.user + after.system - before.user - before.system) / steps


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


if __name__ == "__main__":
    print(table(asyncio.run(rows(int(sys.argv[1]) if len(sys.argv) > 1 else PAIRS))))
