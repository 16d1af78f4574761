"""Environment steps per second: the bare Gymnasium loop, and through conductors in their own processes.

Both sides play the same environment with the same trivial agent in train mode (act, learn), one worker, with one environment
and with a vector of them.
Through conductors every episode is also recorded, reported, acknowledged, and the agent's state saved. Takes about 25 s:
`python benchmarks/bench_steps.py [seconds for each row]`.
"""

from __future__ import annotations

import asyncio
import subprocess
import sys
import tempfile
from contextlib import AsyncExitStack
from pathlib import Path
from time import perf_counter
from typing import TypeVar

import gymnasium
from support.rows import Row, table
from user_code.step_agent import TrivialAgent

from governor.episodes import Transition
from governor.messages import (
    Acknowledged,
    ConductorSpec,
    PartEndedReport,
    ReadyReport,
    StartSimulation,
    StopPartCommand,
    conductor_service,
    decode_report,
    encode,
    run_service,
)
from transport.access import Secret
from transport.broker import Broker, BrokerSettings
from transport.client import Client
from transport.worker import Request, Worker

HERE = Path(__file__).parent
UID = "bench"
SECRET = Secret.new()
E = TypeVar("E")
PROGRAM = (
    "import sys, asyncio, os, pathlib; from governor.conductors.conductor import main;"
    "os._exit(asyncio.run(main(pathlib.Path(sys.argv[1]).read_bytes())))"
)
ROWS = (
    ("FrozenLake-v1", {"is_slippery": False}, None, 1),
    ("FrozenLake-v1", {"is_slippery": True}, 100, 1),
    ("CartPole-v1", {}, None, 1),
    ("CartPole-v1", {}, None, 16),
)
AIMS = {1: 2000.0, 16: 15_000.0}
"""Steps per second by environments in the vector."""


def bare(identifier: str, params: dict, max_steps: int | None, seconds: float) -> float:
    """Steps per second of the loop that everybody writes."""
    environment = gymnasium.make(identifier, **params)
    agent = TrivialAgent(
        observation_space=environment.observation_space, action_space=environment.action_space, seed=0
    )
    began, steps, seed = perf_counter(), 0, 0
    while perf_counter() - began < seconds:
        observation, _ = environment.reset(seed=seed)
        seed += 1
        for step in range(max_steps or sys.maxsize):
            action = agent.act(observation, explore=True)
            following, reward, terminated, truncated, _ = environment.step(action)
            cut = truncated or step + 1 == max_steps
            agent.learn(
                Transition(
                    observation=observation,
                    action=action,
                    reward=reward,
                    next_observation=following,
                    terminated=terminated,
                    truncated=cut,
                )
            )
            observation = following
            steps += 1
            if terminated or cut:
                break
    return steps / (perf_counter() - began)


class Governor:
    """Takes the conductors' reports as the daemon would, but keeps no journal."""

    def __init__(self) -> None:
        self.events: asyncio.Queue = asyncio.Queue()

    async def take(self, request: Request) -> list[bytes]:
        for event in decode_report(request.body[0]).events:
            if isinstance(event, (ReadyReport, PartEndedReport)):
                self.events.put_nowait(event)
        return [encode(Acknowledged())]

    async def next(self, kind: type[E]) -> E:
        while not isinstance(event := await asyncio.wait_for(self.events.get(), 60), kind):
            pass
        return event


async def conducted(
    identifier: str, params: dict, max_steps: int | None, seconds: float, vector: int = 1
) -> dict[str, float]:
    """Metrics of a phase that is stopped after `seconds`."""
    async with AsyncExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="gb-")))
        client_endpoint, worker_endpoint = f"ipc://{folder}/c", f"ipc://{folder}/w"
        governor = Governor()
        await stack.enter_async_context(
            Broker(BrokerSettings(client_endpoint=client_endpoint, worker_endpoint=worker_endpoint))
        )
        await stack.enter_async_context(Worker(worker_endpoint, run_service(UID), governor.take, credit=16))
        client = await stack.enter_async_context(Client(client_endpoint))
        for name, settings in (
            ("environment.e", {"entry": f"gymnasium:{identifier}", "params": params, "vector": vector}),
            ("agent.a", {"entry": "user_code.step_agent:TrivialAgent"}),
            ("simulation", {}),
        ):
            spec = ConductorSpec(
                uid=UID,
                name=name,
                kind=name.partition(".")[0],
                incarnation=1,
                client_endpoint=client_endpoint,
                worker_endpoint=worker_endpoint,
                secret=SECRET,
                run_folder=str(folder),
                socket_folder=str(folder),
                import_folder=str(HERE),
                seed=0,
                settings=settings,
                log_level="warning",
            )
            path = folder / f"{name}.spec"
            path.write_bytes(encode(spec))
            child = subprocess.Popen([sys.executable, "-c", PROGRAM, str(path)], cwd=HERE.parent)  # noqa: ASYNC220  # once, before anything is timed
            stack.callback(child.wait)
            stack.callback(child.kill)
            await governor.next(ReadyReport)
        service = conductor_service(UID, "simulation", 1)
        start = StartSimulation(
            phase=0,
            name="bench",
            mode="train",
            environment="e",
            agents=("a",),
            episodes=10**7,
            workers=1,
            max_steps=max_steps,
            episode_timeout=60.0,
            seed=0,
            vector=vector,
        )
        await client.request(service, encode(start), SECRET.value, timeout=10)
        await asyncio.sleep(seconds)
        await client.request(
            service, encode(StopPartCommand(phase=0, reason="enough")), SECRET.value, timeout=10
        )
        return (await governor.next(PartEndedReport)).metrics


async def measure(seconds: float) -> list[Row]:
    """`seconds` for each world through conductors, a quarter of it for the bare loop."""
    rows = []
    for identifier, params, max_steps, vector in ROWS:
        alone = bare(identifier, params, max_steps, seconds / 4)
        metrics = await conducted(identifier, params, max_steps, seconds, vector)
        rate = metrics["steps_per_second"]
        rows.append(
            Row(
                what=f"steps through conductors, {identifier}{' slippery' if params.get('is_slippery') else ''}"
                f"{f', {vector} in a vector' if vector > 1 else ''}",
                figure=rate,
                unit="steps/s",
                at_least=AIMS[vector],
                note=f"{metrics['steps_mean']:.1f} steps an episode; "
                f"bare loop {alone:,.0f}/s, ratio {rate / alone:.3f}",
            )
        )
    return rows


if __name__ == "__main__":
    sys.path.insert(0, str(HERE.parent))
    print(table(asyncio.run(measure(float(sys.argv[1]) if len(sys.argv) > 1 else 4.0))))
