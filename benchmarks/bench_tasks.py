"""The task engine beside plain Ray, on one head, in one run. `python benchmarks/bench_tasks.py` takes about 90 s.

Both sides take turns, so that both see the same machine; a ratio is that of the medians of the turns. Plain Ray is
``ray.get([f.remote() ...])`` with its defaults; its tasks have no deadline, ours have.
"""

from __future__ import annotations

import asyncio
import gc
import secrets
import shutil
import tempfile
import time
import tracemalloc
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from support.rows import Row, p50, spread, table
from tasks.deaths import lateness
from tasks.finalize import longest_block
from tasks.journal import Journaled
from tasks.listener import Counting

from governor import logs
from governor.messages import TaskSpec
from governor.tasks.cluster.head import RayHead
from governor.tasks.scheduling.events import BatchSpec

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable

    from governor.tasks.engine import Engine

HERE = Path(__file__).resolve().parent
CPUS = 2
TURNS = 3
DEADLINE = 30.0
AGENTLAB = "AgentLab 0.74 x Ray"
TOKEN = secrets.token_hex(32)
"""Of all heads: Ray takes one in each process."""


@dataclass
class Stage:
    """One Ray head, this process its driver, and the engine on it."""

    engine: Engine
    ray: Any
    folder: Path
    number: int = 0

    def batch(self, specs: list[TaskSpec]) -> BatchSpec:
        self.number += 1
        return BatchSpec(id=self.number, tasks=tuple(specs), split=1)

    async def run(self, specs: list[TaskSpec]) -> float:
        """Seconds from the submission to the last outcome."""
        listener = Counting()
        began = time.perf_counter()
        self.engine.submit(self.batch(specs), listener)
        await listener.ended.wait()
        seconds = time.perf_counter() - began
        if listener.failures or listener.runs != sum(spec.repeat for spec in specs):
            raise RuntimeError(f"{listener.failures} of {listener.runs} runs failed")
        return seconds


class Opened:
    """The stage, as a context manager."""

    async def __aenter__(self) -> Stage:
        self.folder = Path(tempfile.mkdtemp(prefix="bt-"))
        self.head = RayHead(state_folder=self.folder, runtime_folder=self.folder, num_cpus=CPUS, token=TOKEN)
        address = await self.head.start()
        from governor.tasks.cluster.cluster import Cluster  # Ray: only after its variables are set

        self.cluster = Cluster(
            address=address.address, token_path=str(address.token_path), namespace="benchmark"
        )
        await self.cluster.connect()
        from governor.tasks.engine import Engine
        from governor.tasks.runners.pool import Runners

        self.runners = Runners(
            cluster=self.cluster,
            run="benchmark",
            run_folder=self.folder,
            socket_folder=self.folder,
            import_path=[str(HERE)],
        )
        self.engine = Engine(runners=self.runners, cluster=self.cluster, folder=self.folder, grace=0.1)
        await self.engine.start()
        gc.freeze()  # as the task conductor does
        return Stage(self.engine, self.cluster.ray, self.folder)

    async def __aexit__(self, *_: object) -> None:
        await self.engine.close()
        await self.cluster.disconnect()
        await self.head.stop()
        shutil.rmtree(self.folder, ignore_errors=True)


def specs(number: int, call: str = "nothing", **fields: Any) -> list[TaskSpec]:
    return [
        TaskSpec(id=f"t{n}", call=f"tasks.code:{call}", timeout=DEADLINE, **fields) for n in range(number)
    ]


def chain(length: int) -> list[TaskSpec]:
    return [
        TaskSpec(
            id=f"t{n}", call="tasks.code:nothing", timeout=DEADLINE, depends_on=(f"t{n - 1}",) if n else ()
        )
        for n in range(length)
    ]


def fan(width: int) -> list[TaskSpec]:
    middle = [
        TaskSpec(id=f"m{n}", call="tasks.code:nothing", timeout=DEADLINE, depends_on=("first",))
        for n in range(width)
    ]
    first = TaskSpec(id="first", call="tasks.code:nothing", timeout=DEADLINE)
    last = TaskSpec(
        id="last", call="tasks.code:nothing", timeout=DEADLINE, depends_on=tuple(spec.id for spec in middle)
    )
    return [first, *middle, last]


class Plain:
    """The same jobs for plain Ray."""

    def __init__(self, ray: Any) -> None:
        self._ray = ray

        def nothing(*_: object) -> None:
            return None

        self._nothing = ray.remote(nothing)

    def many(self, number: int) -> float:
        began = time.perf_counter()
        self._ray.get([self._nothing.remote() for _ in range(number)])
        return time.perf_counter() - began

    def chain(self, length: int) -> float:
        began = time.perf_counter()
        reference = self._nothing.remote()
        for _ in range(length - 1):
            reference = self._nothing.remote(reference)
        self._ray.get(reference)
        return time.perf_counter() - began

    def fan(self, width: int) -> float:
        began = time.perf_counter()
        first = self._nothing.remote()
        self._ray.get(self._nothing.remote(*[self._nothing.remote(first) for _ in range(width)]))
        return time.perf_counter() - began


async def in_turns(
    ours: Callable[[], Any], plain: Callable[[], float], turns: int = TURNS
) -> tuple[list[float], list[float]]:
    """Seconds of both, one after the other."""
    found: tuple[list[float], list[float]] = ([], [])
    for _ in range(turns):
        found[0].append(await ours())
        found[1].append(await asyncio.to_thread(plain))
    return found


async def throughput(stage: Stage, plain: Plain, number: int) -> AsyncIterator[Row]:
    journaled = Journaled(stage.engine, stage.folder)
    turns = TURNS if number > 1_000 else 3 * TURNS
    await journaled.run(stage.batch(specs(100)))
    recorded: list[float] = []

    async def alone_and_recorded() -> float:
        recorded.append(await journaled.run(stage.batch(specs(number))))
        return await stage.run(specs(number))

    ours, theirs = await in_turns(alone_and_recorded, lambda: plain.many(number), turns)
    rate = number / p50(theirs)
    yield Row(what=f"plain Ray, no-op tasks, N = {number:,}", figure=rate, unit="tasks/s", peer=AGENTLAB)
    for what, seconds in (("engine alone", ours), ("with the journal", recorded)):
        rates = [number / each for each in seconds]
        yield Row(
            what=f"no-op tasks with deadlines, N = {number:,}, {what}",
            figure=p50(rates) / rate,
            unit="x plain Ray",
            at_least=15,
            note=spread(rates, "tasks/s"),
            if_missed="the journal's thread shares the interpreter lock" if seconds is recorded else "",
        )
    await journaled.close()


async def growth(stage: Stage) -> Row:
    few, many = [], []
    for _ in range(TURNS):
        few.append(await stage.run(specs(10_000)))
        many.append(await stage.run(specs(100_000)))
    small, large = p50(few), p50(many)
    return Row(
        what="100,000 no-op tasks: cost of each, against 10,000",
        figure=(large / 100_000) / (small / 10_000),
        unit="x",
        at_most=1.3,
        note=f"{100_000 / large:,.0f} tasks/s",
    )


async def lengths(stage: Stage) -> AsyncIterator[Row]:
    for milliseconds in (1, 10):
        number = 2000 // milliseconds
        shares = []
        for _ in range(TURNS):
            seconds = await stage.run(specs(number, "busy", args={"seconds": milliseconds / 1000}))
            shares.append(number * milliseconds / 1000 / CPUS / seconds)
        yield Row(
            what=f"tasks of {milliseconds} ms, share of what {CPUS} cores can do",
            figure=p50(shares),
            unit="",
            at_least=0.9,
            note=f"{spread(shares, '').strip()}; the tasks compute",
            if_missed="Ray runs its workers at nice 15: whatever else runs on the machine goes first",
        )


async def shapes(stage: Stage, plain: Plain) -> AsyncIterator[Row]:
    ours, theirs = await in_turns(lambda: stage.run(chain(200)), lambda: plain.chain(200))
    yield Row(
        what="chain of 200, per hop",
        figure=p50(ours) / p50(theirs),
        unit="x plain Ray",
        peer="AgentLab 1.08 x Ray",
        at_most=1.0,
        note=f"{p50(ours) * 5:.2f} ms against {p50(theirs) * 5:.2f} ms",
    )
    ours, theirs = await in_turns(lambda: stage.run(fan(1000)), lambda: plain.fan(1000))
    yield Row(
        what="fan 1-1000-1",
        figure=p50(ours) / p50(theirs),
        unit="x plain Ray",
        at_most=0.5,
        note=f"{p50(ours) * 1000:.0f} ms against {p50(theirs) * 1000:.0f} ms",
    )


async def pending_memory() -> Row:
    """Of the driver, for tasks that wait: their own descriptions included."""
    from governor.tasks.scheduling.core import Core
    from governor.tasks.scheduling.events import BatchSubmitted

    core, number = Core(capacity={(): 0}), 20_000
    tracemalloc.start()
    before = tracemalloc.get_traced_memory()[0]
    batch = BatchSpec(id=0, tasks=tuple(specs(number)), split=1)
    core.on(BatchSubmitted(0.0, batch))
    size = (tracemalloc.get_traced_memory()[0] - before) / number
    tracemalloc.stop()
    return Row(what="memory of the driver for a pending task", figure=size / 1000, unit="kB", at_most=2.0)


async def rows() -> list[Row]:
    async with Opened() as stage:
        plain = Plain(stage.ray)
        await stage.run(specs(200))
        await asyncio.to_thread(plain.many, 200)
        found: list[Row] = []
        for number in (1_000, 10_000):
            found += [row async for row in throughput(stage, plain, number)]
        found.append(await growth(stage))
        found += [row async for row in lengths(stage)]
        found += [row async for row in shapes(stage, plain)]
        found += [row async for row in lateness(stage.engine, stage.folder)]
        found += [await pending_memory(), await longest_block()]
    return found


def measure() -> list[Row]:
    logs.configure(log_format="console", level="warning")
    return asyncio.run(rows())


if __name__ == "__main__":
    print(table(measure()))
