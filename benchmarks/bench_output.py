"""What the output of user code costs: a step whose process is captured, beside one that is not; one run that prints a
million lines a minute, for the run beside it and for the daemon; tasks that print nothing. Takes about two minutes: `python benchmarks/bench_output.py`.

Sides take turns, and a ratio is the median of the turns' ratios. CPU time is that of the process; of a step it is measured as `support.same_process` says.
"""

from __future__ import annotations

import asyncio
import gc
import os
import sys
import tempfile
import threading
import time
from pathlib import Path
from typing import Any

import bench_in_process
import bench_tasks
import psutil
from bench_steps import HERE
from gymnasium import spaces
from support.instance import Instance
from support.process_tree import cpu_seconds
from support.rows import Row, p50, spread, table
from support.same_process import PAIRS, Turn, seconds_of_step
from user_code.step_agent import TrivialAgent

from governor.config import LogsConfig
from governor.output import spool
from governor.output.collector import Collector

TURNS = 6
LINES_PER_SECOND = 1_000_000 / 60
EPISODES = 200
WORLD = bench_in_process.World(
    what="a pole that falls", agent="user_code.step_agent:TrivialAgent", made=TrivialAgent
)
"""About ten steps an episode: what is done for each episode shows."""


class Printing:
    """Prints while there is a file `loud`."""

    observation_space = action_space = spaces.Discrete(2)

    def __init__(self, *, loud: str) -> None:
        self._loud = loud

    def reset(self, *, seed: int | None = None) -> tuple[int, dict[str, Any]]:
        del seed
        return 0, {}

    def step(self, action: int) -> tuple[int, float, bool, bool, dict[str, Any]]:
        due = time.perf_counter()
        for _ in range(100):
            if os.path.exists(self._loud):  # noqa: PTH110  # without a Path for each step
                for number in range(int(LINES_PER_SECOND / 100)):
                    print("line", number, "of what nobody reads that fast", action)
            due += 0.01
            time.sleep(max(0.0, due - time.perf_counter()))
        return 0, 0.0, False, True, {}


def side(*, captured: bool) -> Turn:
    async def turn(process: bench_in_process.Captured, *, whole: bool) -> tuple[float, float]:
        return await process.turn(
            WORLD,
            environment="Falling",
            captured=captured,
            episodes=EPISODES if whole else 1,
            max_steps=None if whole else 1,
        )

    return turn


async def of_a_step(pairs: int = PAIRS) -> Row:
    sides = {"captured": side(captured=True), "free": side(captured=False)}
    costs = await seconds_of_step(bench_in_process.Captured, sides, pairs=pairs)
    ratios = [cost["captured"] / cost["free"] for cost in costs]
    return Row(
        what="CPU time of a step in process, captured: part of one that is not",
        figure=p50(ratios),
        unit="",
        at_most=1.03,
        note=f"{spread(ratios, '')}; {p50([cost['free'] for cost in costs]) * 1e6:.1f} µs without",
    )


def of_the_collector(seconds: float = 5.0) -> Row:
    """Its thread in the daemon, for a process that prints nothing: what comes to the step's own cost."""
    with tempfile.TemporaryDirectory(prefix="gb-") as folder:
        run = Path(folder) / "run"
        spools = [spool.create(spool.folder_of(run), "simulation@7-1", suffix) for suffix in spool.STREAMS]
        collector = Collector(Path(folder), LogsConfig)
        [thread] = [one.ident for one in threading.enumerate() if one.name == "output"]
        clock = time.pthread_getcpuclockid(thread)
        collector.begin(run)
        time.sleep(1.0)
        began = time.clock_gettime(clock)
        time.sleep(seconds)
        used = time.clock_gettime(clock) - began
        collector.end(run.name)
        collector.close()
        for descriptor in spools:
            os.close(descriptor)
    return Row(
        what="CPU of the daemon for a process of a run that prints nothing",
        figure=100 * used / seconds,
        unit="% of a core",
        at_most=0.5,
    )


async def beside_a_loud_run(seconds: float = 3.0) -> list[Row]:
    """Episodes a second of a run while another prints, as a part of those while it does not; and the daemon's CPU time."""
    with tempfile.TemporaryDirectory(prefix="gb-") as folder:
        loud = Path(folder) / "loud"
        async with Instance(slots=2) as instance:
            await instance.executor.submit(_run("bench_output:Printing", {"loud": str(loud)}), folder=HERE)
            uid = await instance.executor.submit(_run("gymnasium:CartPole-v1", {}), folder=HERE)
            daemon = instance.daemon_pid

            async def rate() -> tuple[float, float]:
                """Episodes a second, and the daemon's part of a core."""
                ended, cpu, began = await _ended(instance, uid), cpu_seconds(daemon), time.perf_counter()
                await asyncio.sleep(seconds)
                passed = time.perf_counter() - began
                used = cpu_seconds(daemon) - cpu
                return (await _ended(instance, uid) - ended) / passed, 100 * used / passed

            await rate()
            ratios, parts = [], []
            for _ in range(TURNS):
                quiet, idle = await rate()
                loud.touch()
                beside, busy = await rate()
                loud.unlink()
                ratios.append(beside / quiet)
                parts.append(busy - idle)
    return [
        Row(
            what="episodes a second beside a run that prints 1 million lines a minute: part of those beside a silent one",
            figure=p50(ratios),
            unit="",
            at_least=0.95,
            note=spread(ratios, ""),
        ),
        Row(
            what="CPU of the daemon for 1 million lines a minute",
            figure=p50(parts),
            unit="% of a core",
            at_most=5.0,
            note=spread(parts, ""),
        ),
    ]


async def of_a_task(number: int = 10_000) -> Row:
    """CPU time of a task that does nothing, driver and runners: where output is collected, as a part of that where it is not."""
    opened = bench_tasks.Opened()
    async with opened as stage:
        from governor.tasks.engine import Engine  # Ray: only after its variables are set
        from governor.tasks.runners.pool import Runners

        (folder := stage.folder / "collected").mkdir()
        runners = Runners(
            cluster=opened.cluster,
            run="collected",
            run_folder=folder,
            socket_folder=folder,
            import_path=[str(HERE)],
            spools=folder / "spool",
        )
        engine = Engine(runners=runners, cluster=opened.cluster, folder=folder, grace=0.1)
        await engine.start()
        gc.freeze()
        sides = (stage, bench_tasks.Stage(engine, opened.cluster.ray, folder))
        ratios = []
        for turn in range(PAIRS + 2):
            used = {}
            for side in sides if turn % 2 else sides[::-1]:
                pool = runners if side.engine is engine else opened.runners
                began = _cpu_of(side, pool)
                await side.run(bench_tasks.specs(number))
                used[side is sides[0]] = _cpu_of(side, pool) - began
            if turn > 1:
                ratios.append(used[False] / used[True])
        await engine.close()
    return Row(
        what="CPU of a task that prints nothing, driver and runner, where output is collected: part of that where it is not",
        figure=p50(ratios),
        unit="",
        at_most=1.2,
        note=spread(ratios, ""),
    )


def _cpu_of(side: bench_tasks.Stage, runners: Any) -> float:
    slots = side.engine.plain_slots().values()
    times = [psutil.Process(runners.pid(slot.runner)).cpu_times() for slot in slots]
    return time.process_time() + sum(each.user + each.system for each in times)


async def _ended(instance: Instance, uid: str) -> int:
    return (await instance.executor.status(uid)).runs[0].episodes_ended


def _run(entry: str, params: dict[str, Any]) -> dict[str, Any]:
    simulate = {"environment": "e", "agents": ["a"], "episodes": 1_000_000, "transport": "in_process"}
    return {
        "name": "output",
        "conductors": {
            "environments": {"e": {"entry": entry, "params": params}},
            "agents": {"a": {"entry": "user_code.step_agent:TrivialAgent"}},
        },
        "phases": [{"name": "eval", "mode": "eval", "simulate": simulate}],
    }


def measure() -> list[Row]:
    return [
        asyncio.run(of_a_step()),
        of_the_collector(),
        *asyncio.run(beside_a_loud_run()),
        asyncio.run(of_a_task()),
    ]


if __name__ == "__main__":
    sys.path.insert(0, str(HERE.parent))
    print(table(measure()))
