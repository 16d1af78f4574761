"""Environment steps per second in process, beside the bare Gymnasium loop with the same agent, and a vector beside Gymnasium's own and
those of Stable-Baselines3, where it is installed.

Ours is the controller's whole way: values looked at, episodes written and reported to a governor in another process, the
state of an agent that learns saved. Takes about five minutes: `python benchmarks/bench_in_process.py [seconds for each side of each row]`.

Sides take turns within a row, and the ratio is the median of the turns' ratios.
"""

from __future__ import annotations

import asyncio
import subprocess
import sys
import tempfile
from contextlib import AsyncExitStack, closing
from dataclasses import dataclass
from functools import partial
from importlib.util import find_spec
from math import nan
from pathlib import Path
from time import perf_counter
from typing import TYPE_CHECKING, Any, Literal, Self

import gymnasium
import numpy as np
from bench_steps import HERE, PROGRAM, SECRET, UID, Governor
from gymnasium.vector import AutoresetMode, SyncVectorEnv
from support.process_tree import cpu_seconds
from support.rows import Row, p50, spread, table
from user_code.pole_agents import Balancing, FixedPolicy, Policy
from user_code.step_agent import TrivialAgent

from governor.episodes import Transition
from governor.messages import (
    ConductorSpec,
    Made,
    PartEndedReport,
    ReadyReport,
    StartSimulation,
    StopPartCommand,
    conductor_service,
    encode,
    run_service,
)
from governor.output import spool
from transport.broker import Broker, BrokerSettings
from transport.client import Client
from transport.worker import Worker

if TYPE_CHECKING:
    from collections.abc import Callable

TURNS = 15
VECTOR = 16
OF_SB3 = 8


@dataclass(frozen=True, kw_only=True)
class World:
    what: str
    agent: str
    made: Callable[..., Any]
    vector: int = 1
    mode: Literal["sync", "async", "native"] = "sync"
    longest: int = 500
    """Steps of an episode, at most."""
    at_least: float = 0.8
    if_missed: str = "a step is looked at, copied for the agent and kept: about 2 µs where CartPole takes 6.5"

    def environment(self) -> gymnasium.Env[Any, Any]:
        return gymnasium.make("CartPole-v1", max_episode_steps=self.longest)


def bare(world: World, seconds: float) -> float:
    """Steps per second of the loop that everybody writes."""
    environment = world.environment()
    agent = world.made(
        observation_space=environment.observation_space, action_space=environment.action_space, seed=0
    )
    learns = agent.learn is not None
    began, steps, seed = perf_counter(), 0, 0
    while perf_counter() - began < seconds:
        observation, _ = environment.reset(seed=seed)
        seed += 1
        over = False
        while not over:
            action = agent.act(observation, explore=True)
            following, reward, terminated, truncated, _ = environment.step(action)
            if learns:
                agent.learn(
                    Transition(
                        observation=observation,
                        action=action,
                        reward=reward,
                        next_observation=following,
                        terminated=terminated,
                        truncated=truncated,
                    )
                )
            observation = following
            steps += 1
            over = terminated or truncated
    return steps / (perf_counter() - began)


def bare_vector(world: World, seconds: float) -> float:
    """Gymnasium's own vector, with the same agent: it acts for all at once, and learns from one after the other."""
    environment = SyncVectorEnv(
        [lambda: gymnasium.make("CartPole-v1")] * world.vector, autoreset_mode=AutoresetMode.DISABLED
    )
    agent = world.made(
        observation_space=environment.single_observation_space,
        action_space=environment.single_action_space,
        seed=0,
    )
    observations, _ = environment.reset(seed=0)
    began, steps = perf_counter(), 0
    while perf_counter() - began < seconds:
        for _ in range(100):
            actions = np.array(agent.act_many(observations, explore=True))
            following, rewards, terminated, truncated, _ = environment.step(actions)
            for place in range(world.vector):
                agent.learn(
                    Transition(
                        observation=observations[place],
                        action=actions[place],
                        reward=rewards[place],
                        next_observation=following[place],
                        terminated=terminated[place],
                        truncated=truncated[place],
                    )
                )
            steps += world.vector
            over = terminated | truncated
            if over.any():
                following, _ = environment.reset(seed=steps, options={"reset_mask": over})
            observations = following
    return steps / (perf_counter() - began)


def bare_native(world: World, seconds: float) -> float:
    """Gymnasium's CartPole as a vector of its own, with the same agent, which does not learn."""
    environment = gymnasium.make_vec(
        "CartPole-v1", num_envs=world.vector, vectorization_mode="vector_entry_point"
    )
    agent = world.made(
        observation_space=environment.single_observation_space,
        action_space=environment.single_action_space,
        seed=0,
    )
    observations, _ = environment.reset(seed=0)
    return acting_alone(environment, agent, observations, world, seconds)


def bare_of_sb3(environment: Any, world: World, seconds: float) -> float:
    """`environment` is a vector of Stable-Baselines3; with the same agent, which does not learn."""
    agent = world.made(
        observation_space=environment.observation_space, action_space=environment.action_space, seed=0
    )
    return acting_alone(environment, agent, environment.reset(), world, seconds)


def acting_alone(environment: Any, agent: Any, observations: Any, world: World, seconds: float) -> float:
    """Steps per second of a vector whose agent does not learn."""
    began, steps = perf_counter(), 0
    while perf_counter() - began < seconds:
        for _ in range(100):
            observations, *_ = environment.step(agent.act_many(observations, explore=True))
        steps += 100 * world.vector
    return steps / (perf_counter() - began)


class Instance:
    """A broker, somebody who takes reports, and a simulation controller in a process of its own, of the run in `folder`."""

    folder: Path

    def __init__(self) -> None:
        self.pid = 0
        self._governor = Governor()
        self._stack = AsyncExitStack()
        self._phase = 0

    async def __aenter__(self) -> Self:
        stack = self._stack
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="gb-")))
        self.folder = folder
        ends = {"client_endpoint": f"ipc://{folder}/c", "worker_endpoint": f"ipc://{folder}/w"}
        await stack.enter_async_context(Broker(BrokerSettings(**ends)))
        await stack.enter_async_context(
            Worker(ends["worker_endpoint"], run_service(UID), self._governor.take, credit=16)
        )
        self._client = await stack.enter_async_context(Client(ends["client_endpoint"]))
        spec = ConductorSpec(
            uid=UID,
            name="simulation",
            kind="simulation",
            incarnation=1,
            secret=SECRET,
            run_folder=str(folder),
            socket_folder=str(folder),
            import_folder=str(HERE),
            seed=0,
            log_level="warning",
            **ends,
        )
        path = folder / "spec"
        path.write_bytes(encode(spec))
        command = [sys.executable, "-c", PROGRAM, str(path)]
        child = subprocess.Popen(command, cwd=HERE.parent)  # noqa: ASYNC220  # once, before anything is timed
        self.pid = child.pid
        stack.callback(child.wait)
        stack.callback(child.kill)
        await self._governor.next(ReadyReport)
        return self

    async def __aexit__(self, *_: object) -> None:
        await self._stack.aclose()

    async def play(self, world: World, seconds: float) -> dict[str, float]:
        """Metrics of a phase that is stopped after `seconds`."""
        service = conductor_service(UID, "simulation", 1)
        mode = "eval" if world.made is FixedPolicy else "train"
        params = {"max_episode_steps": world.longest}
        made = Made(entry="gymnasium:CartPole-v1", params=params, vector=world.vector, vector_mode=world.mode)
        await self.begin(world, mode=mode, made_environment=made)
        await asyncio.sleep(seconds)
        await self._client.request(
            service, encode(StopPartCommand(phase=self._phase, reason="enough")), SECRET.value, timeout=10
        )
        return await self.end()

    async def end(self) -> dict[str, float]:
        return (await self._governor.next(PartEndedReport)).metrics

    async def begin(self, world: World, **settings: Any) -> None:
        """`settings` are fields of `StartSimulation`."""
        service = conductor_service(UID, "simulation", 1)
        self._phase += 1
        start = StartSimulation(
            **{
                "phase": self._phase,
                "name": f"bench-{self._phase}",
                "mode": "train",
                "environment": "e",
                "agents": (world.agent.rpartition(":")[2],),
                "episodes": 10**7,
                "workers": 1,
                "max_steps": None,
                "episode_timeout": 60.0,
                "seed": 0,
                "transport": "in_process",
                "made_environment": Made(entry="gymnasium:CartPole-v1", vector=world.vector),
                "made_agents": (Made(entry=world.agent),),
                **settings,
            }
        )
        await self._client.request(service, encode(start), SECRET.value, timeout=10)


class Captured(Instance):
    """As `Instance`, with environments of `user_code.switched`: in each phase its output is captured, or not."""

    async def turn(
        self, world: World, *, environment: str, captured: bool, **settings: Any
    ) -> tuple[float, float]:
        """CPU seconds and steps of a phase; `environment` is the name of a class."""
        params = {"spools": str(spool.folder_of(self.folder)), "captured": captured}
        before = cpu_seconds(self.pid)
        await self.begin(
            world,
            made_environment=Made(entry=f"user_code.switched:{environment}", params=params),
            **settings,
        )
        steps = (await self.end())["steps_total"]
        return cpu_seconds(self.pid) - before, steps


WORLDS = (
    World(what="a pole that stands", agent="user_code.pole_agents:Balancing", made=Balancing),
    World(what="a policy in numpy", agent="user_code.pole_agents:Policy", made=Policy),
    World(what="a pole that falls", agent="user_code.step_agent:TrivialAgent", made=TrivialAgent),
    World(
        what="a fixed policy in numpy, 500 steps an episode",
        agent="user_code.pole_agents:FixedPolicy",
        made=FixedPolicy,
        at_least=0.85,
    ),
    World(
        what="a fixed policy in numpy, 22 steps an episode",
        agent="user_code.pole_agents:FixedPolicy",
        made=FixedPolicy,
        longest=22,
        at_least=0.75,
    ),
    World(what="a pole that stands", agent="user_code.pole_agents:Balancing", made=Balancing, vector=VECTOR),
    World(what="a policy in numpy", agent="user_code.pole_agents:Policy", made=Policy, vector=VECTOR),
    World(
        what="a pole that falls", agent="user_code.step_agent:TrivialAgent", made=TrivialAgent, vector=VECTOR
    ),
)


NATIVE = World(
    what="a fixed policy in numpy",
    agent="user_code.pole_agents:FixedPolicy",
    made=FixedPolicy,
    vector=64,
    mode="native",
    at_least=0.9,
    if_missed="a round is put on record by some twenty calls of numpy, about 8 µs beside 46 of its own, 15 where caches are cold, and the "
    "write and the ends of its episodes cost about 6 more",
)
BESIDE_SB3 = World(
    what="a fixed policy in numpy",
    agent="user_code.pole_agents:FixedPolicy",
    made=FixedPolicy,
    vector=OF_SB3,
    at_least=1.0,
)


async def measure(seconds: float) -> list[Row]:
    rows = []
    async with Instance() as instance:
        for world in WORLDS:
            kind = f"a vector of {world.vector}" if world.vector > 1 else "CartPole"
            peer = "the SyncVectorEnv loop" if world.vector > 1 else "the bare loop"
            what = f"steps in process, {kind}, {world.what}: part of {peer}"
            rows.append(
                await taking_turns(instance, world, bare_vector if world.vector > 1 else bare, seconds, what)
            )
        what = f"steps in process, a native vector of {NATIVE.vector}, {NATIVE.what}: part of its bare loop"
        rows.append(await taking_turns(instance, NATIVE, bare_native, seconds, what))
        for kind in ("DummyVecEnv", "SubprocVecEnv"):
            what = f"steps in process, a vector of {OF_SB3}, {BESIDE_SB3.what}: part of those of SB3's {kind} of {OF_SB3}"
            if find_spec("stable_baselines3") is None:
                note = "not measured: stable-baselines3 is not installed (extra `sb3`)"
                rows.append(Row(what=what, figure=nan, unit="", note=note))
                continue
            from stable_baselines3.common import vec_env

            with closing(getattr(vec_env, kind)([BESIDE_SB3.environment] * OF_SB3)) as environment:
                beside = partial(bare_of_sb3, environment)
                rows.append(await taking_turns(instance, BESIDE_SB3, beside, seconds, what))
    return rows


async def taking_turns(
    instance: Instance, world: World, beside: Callable[[World, float], float], seconds: float, what: str
) -> Row:
    await instance.play(world, seconds / 4)
    ratios, rates = [], []
    for _ in range(TURNS):
        alone = beside(world, seconds)
        metrics = await instance.play(world, seconds)
        rates.append(metrics["steps_per_second"])
        ratios.append(rates[-1] / alone)
    return Row(
        what=what,
        figure=p50(ratios),
        unit="",
        at_least=world.at_least,
        if_missed=world.if_missed,
        note=f"{spread(ratios, '')}; {p50(rates):,.0f} steps/s; {metrics['steps_mean']:.0f} steps an episode",
    )


if __name__ == "__main__":
    sys.path.insert(0, str(HERE.parent))
    print(table(asyncio.run(measure(float(sys.argv[1]) if len(sys.argv) > 1 else 0.7))))
