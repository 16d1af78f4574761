"""Environments in processes of their own: how many cores a pool uses, what a step costs more than in process, and what the death
of one costs.

The conductors are started as the daemon starts them, from a warm forkserver. `python benchmarks/bench_environments.py [seconds]`
takes about a minute.
"""

from __future__ import annotations

import asyncio
import os
import signal
import sys
import tempfile
from contextlib import AsyncExitStack, asynccontextmanager
from itertools import pairwise
from pathlib import Path
from statistics import median
from time import monotonic
from typing import TYPE_CHECKING, Any

import psutil
from bench_steps import HERE, SECRET, UID, Governor
from support.rows import Row, table

from governor.messages import (
    ConductorSpec,
    EpisodeEnded,
    Made,
    PartEndedReport,
    ReadyReport,
    StartSimulation,
    StopPartCommand,
    conductor_service,
    decode_report,
    encode,
    run_service,
)
from governor.processes import process
from transport.broker import Broker, BrokerSettings
from transport.client import Client
from transport.worker import Request, Worker

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

BUSY = "user_code.busy_world:Busy"
AGENT = "user_code.step_agent:TrivialAgent"
POLICY = "user_code.pole_agents:FixedPolicy"
WAKE_UPS = "two round trips between processes that sleep meanwhile: four wake-ups, and code that finds its caches cold"
EACH_ROW = (
    "each environment's step is handled in three processes, one after the other, about 90 µs of CPU in all"
)
EACH_ROUND = (
    "the two round trips as of one environment, and CartPole's own vector takes half as long for a step of 16"
)
ROUNDS = 3
PLACES = 8
PAUSE = 1.0


class Listening(Governor):
    """Also notes which episodes end, in `ends`: when it is told, and their steps; the first of them sets `has_ended`."""

    def __init__(self) -> None:
        super().__init__()
        self.ends: list[tuple[float, int]] = []
        self.has_ended = asyncio.Event()

    async def take(self, request: Request) -> list[bytes]:
        now = monotonic()
        found = [
            event.episode
            for event in decode_report(request.body[0]).events
            if isinstance(event, EpisodeEnded)
        ]
        self.ends += [(now, episode.steps) for episode in found if episode.outcome != "cancelled"]
        if self.ends:
            self.has_ended.set()
        return await super().take(request)


class Stage:
    """The conductors of one run."""

    def __init__(self, governor: Listening, client: Client, folder: Path) -> None:
        self.folder = folder
        self.environments: process.ChildProcess
        self._governor = governor
        self._client = client
        self._phase = 0

    async def start(self, stack: AsyncExitStack, name: str, settings: dict[str, Any]) -> None:
        spec = ConductorSpec(
            uid=UID,
            name=name,
            kind=name.partition(".")[0],  # type: ignore[arg-type]
            incarnation=1,
            client_endpoint=f"ipc://{self.folder}/c",
            worker_endpoint=f"ipc://{self.folder}/w",
            secret=SECRET,
            run_folder=str(self.folder),
            socket_folder=str(self.folder),
            import_folder=str(HERE),
            seed=0,
            settings=settings,
            log_level="error",
        )
        child = await process.start(
            name=name,
            target="governor.conductors.conductor:main",
            payload=encode(spec),
            starts_processes=spec.kind == "environment",
        )
        stack.callback(child.signal, signal.SIGKILL)
        if spec.kind == "environment":
            self.environments = child
        await self._governor.next(ReadyReport)

    async def begin(self, **more: Any) -> None:
        base = {
            "phase": self._phase, "name": f"p{self._phase}", "mode": "train", "environment": "e", "agents": ("a",), "episodes": 10**7,
            "workers": 1, "max_steps": 100, "episode_timeout": 60.0, "seed": 0,
        }  # fmt: skip
        await self._command(StartSimulation(**base | more))

    async def end(self) -> dict[str, float]:
        await self._command(StopPartCommand(phase=self._phase, reason="enough"))
        self._phase += 1
        return (await self._governor.next(PartEndedReport)).metrics

    async def rate(self, seconds: float, **more: Any) -> float:
        """Steps per second from the end of the first episode on: processes start before."""
        ends = self._governor.ends = []
        self._governor.has_ended.clear()
        await self.begin(**more)
        await self._governor.has_ended.wait()
        await asyncio.sleep(seconds)
        await self.end()
        first, last = ends[0][0], ends[-1][0]
        return sum(steps for at, steps in ends if at > first) / (last - first)

    async def _command(self, command: StartSimulation | StopPartCommand) -> None:
        service = conductor_service(UID, "simulation", 1)
        await self._client.request(service, encode(command), SECRET.value, timeout=10)


@asynccontextmanager
async def stage(agent: str = AGENT, **settings: Any) -> AsyncIterator[Stage]:
    async with AsyncExitStack() as stack:
        folder = Path(
            stack.enter_context(tempfile.TemporaryDirectory(prefix="gb-", ignore_cleanup_errors=True))
        )
        client_endpoint, worker_endpoint = f"ipc://{folder}/c", f"ipc://{folder}/w"
        governor = Listening()
        await stack.enter_async_context(
            Broker(BrokerSettings(client_endpoint=client_endpoint, worker_endpoint=worker_endpoint))
        )
        await stack.enter_async_context(Worker(worker_endpoint, run_service(UID), governor.take, credit=16))
        client = await stack.enter_async_context(Client(client_endpoint))
        made = Stage(governor, client, folder)
        if settings:
            await made.start(stack, "environment.e", settings)
        await made.start(stack, "agent.a", {"entry": agent})
        await made.start(stack, "simulation", {})
        yield made


async def cores(seconds: float) -> list[Row]:
    """Two workers against one, one against one in process, and a vector of two in processes against that, taking turns."""
    inside = {
        "transport": "in_process",
        "made_environment": Made(entry=BUSY),
        "made_agents": (Made(entry=AGENT),),
    }
    made_vector = Made(entry=BUSY, vector=2, vector_mode="async")
    together = {**inside, "vector": 2, "made_environment": made_vector}
    found: dict[str, list[float]] = {"one": [], "two": [], "inside": [], "together": []}
    async with stage(entry=BUSY, pool=2) as made, stage() as alone:
        for _ in range(ROUNDS):
            found["one"].append(await made.rate(seconds))
            found["two"].append(await made.rate(seconds, workers=2))
            found["inside"].append(await alone.rate(seconds, **inside))
            found["together"].append(await alone.rate(seconds, **together))
    one, two, within, vector = (median(found[key]) for key in ("one", "two", "inside", "together"))
    return [
        Row(
            what="an environment of 3 ms of CPU a step through conductors, pool: 2 and 2 workers against 1",
            figure=two / one,
            unit="times",
            at_least=1.7,
            note=f"{two:,.0f} and {one:,.0f} steps/s on {os.cpu_count()} cores",
        ),
        Row(
            what="the same through conductors against in process, one worker: what a step costs more",
            figure=1000 / one - 1000 / within,
            unit="ms",
            at_most=0.6,
            note=f"{one:,.0f} and {within:,.0f} steps/s",
        ),
        Row(
            what="the same in process, a vector of 2 of mode async against one",
            figure=vector / within,
            unit="times",
            at_least=1.6,
            note=f"{vector:,.0f} and {within:,.0f} steps/s",
        ),
    ]


class Log:
    """What `Told` has written, as (pid, time)."""

    def __init__(self, folder: str) -> None:
        self.path = Path(folder, "log")

    def lines(self) -> list[tuple[int, float]]:
        found = [line.split() for line in self.path.read_text().splitlines()]
        return [(int(pid), float(at)) for _, pid, at in found]

    async def first_of_another(self, pids: set[int], since: float) -> float:
        """When a process that is none of these wrote first; waits for it."""
        async with asyncio.timeout(20):
            while not (found := [at for pid, at in self.lines() if pid not in pids and at > since]):  # noqa: ASYNC110  # another process writes
                await asyncio.sleep(0.1)
        return min(found)

    def longest_pause(self, pids: set[int], begin: float, end: float) -> float:
        lines = [(pid, at) for pid, at in self.lines() if begin <= at <= end]
        times = [[at for one, at in lines if one == pid] for pid in pids]
        return max(later - earlier for each in times for earlier, later in pairwise(each))


async def deaths() -> list[Row]:
    """One of eight is killed while all play."""
    back, before, after = [], [], []
    with tempfile.TemporaryDirectory() as folder:
        log = Log(folder)
        async with stage(
            entry="user_code.busy_world:Told", params={"log": str(log.path)}, pool=PLACES
        ) as made:
            await made.begin(workers=PLACES, max_steps=20)
            for _ in range(ROUNDS):
                await asyncio.sleep(2 * PAUSE)
                children = psutil.Process(made.environments.pid).children(recursive=True)
                victim = next(each for each in children if each.name().startswith("e."))
                pids = {each.pid for each in children}
                killed = monotonic()
                victim.kill()
                back.append(await log.first_of_another(pids, killed) - killed)
                await asyncio.sleep(PAUSE)
                others = {pid for pid, _ in log.lines()} & (pids - {victim.pid})
                before.append(log.longest_pause(others, killed - PAUSE, killed))
                after.append(log.longest_pause(others, killed, killed + PAUSE))
            await made.end()
    return [
        Row(
            what=f"kill of one of {PLACES} environments, time until its place plays again",
            figure=median(back),
            unit="s",
            at_most=0.5,
            note=f"longest {max(back):.2f} s; longest pause between two steps of another one in the {PAUSE:g} s before "
            f"{median(before):.3f} s, in those behind {median(after):.3f} s",
        )
    ]


async def steps(seconds: float) -> list[Row]:
    made = {"entry": "gymnasium:CartPole-v1"}
    native = {**made, "params": {"max_episode_steps": 500}}
    return [
        Row(
            what=f"{what} through conductors",
            figure=median(await _rates(seconds, agent, settings, vector=vector, mode=mode)),
            unit="steps/s",
            at_least=aim,
            if_missed=reason,
        )
        for what, agent, settings, vector, mode, aim, reason in (
            ("CartPole-v1", POLICY, made, 1, "sync", 6000.0, WAKE_UPS),
            ("CartPole-v1, a vector of 16,", POLICY, made, 16, "sync", 40_000.0, EACH_ROW),
            ("CartPole-v1, a native vector of 16,", POLICY, native, 16, "native", 40_000.0, EACH_ROUND),
            ("CartPole-v1, a native vector of 64,", POLICY, native, 64, "native", None, ""),
            (
                "an environment that takes no time",
                AGENT,
                {"entry": "user_code.step_world:Endless"},
                1,
                "sync",
                None,
                "",
            ),
            (
                "one with observations of 100 kB",
                AGENT,
                {"entry": "user_code.busy_world:Seen"},
                1,
                "sync",
                None,
                "",
            ),
        )
    ]


async def _rates(
    seconds: float, agent: str, settings: dict[str, Any], *, vector: int, mode: str
) -> list[float]:
    async with stage(agent, vector={"num_envs": vector, "mode": mode}, **settings) as made:
        return [await made.rate(seconds, vector=vector, vector_mode=mode) for _ in range(ROUNDS)]


async def measure(seconds: float) -> list[Row]:
    process.warm_up()
    await process.warm()
    try:
        return [*await cores(seconds), *await deaths(), *await steps(seconds)]
    finally:
        process.shut_down()


if __name__ == "__main__":
    sys.path.insert(0, str(HERE.parent))
    print(table(asyncio.run(measure(float(sys.argv[1]) if len(sys.argv) > 1 else 4.0))))
