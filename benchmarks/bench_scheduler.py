"""What the end of a task costs the scheduler, by runners, by `repeat` and by tasks: about half a minute.

The core is measured alone, without processes, in CPU time; sizes take turns, so that all see the same machine, and a
ratio is that of the medians of the turns. `--full` plays a million tasks by `repeat` through the real engine with the
journal too, which takes some minutes.
"""

from __future__ import annotations

import asyncio
import gc
import sys
import tracemalloc
from collections import deque
from time import process_time
from typing import TYPE_CHECKING

from bench_tasks import Opened
from support.rows import Row, p50, spread, table
from tasks.journal import Journaled

from governor import logs
from governor.messages import TaskSpec
from governor.tasks.protocol.wire import Begun, Over
from governor.tasks.scheduling.core import Core
from governor.tasks.scheduling.events import (
    BatchSpec,
    BatchSubmitted,
    Dispatch,
    RunnerGone,
    RunnerReady,
    RunnerReported,
    StartRunner,
    Tick,
)

if TYPE_CHECKING:
    from collections.abc import Callable

    from bench_tasks import Stage

    from governor.tasks.scheduling.events import SchedulerEffect, SchedulerEvent

TURNS = 5
LONG = 1.0
"""Seconds of a task: the runner gets one at a time."""
SHORT = 1e-5
"""Seconds of a task that travels in a bundle."""
FEW, MANY = 10_000, 1_000_000


def play(*, runners: int, repeat: int, split: int | None = 1, seconds: float = LONG) -> float:
    """CPU seconds of each run of one task, from its submission to its end, when all runners are busy."""
    core, now = Core(capacity={(): runners}), 0.0
    for effect in core.warm(now):
        if isinstance(effect, StartRunner):
            core.on(RunnerReady(now, effect.runner))
    task = TaskSpec(id="t", call="m:f", timeout=30.0, repeat=repeat)
    began = process_time()
    effects = core.on(BatchSubmitted(now, BatchSpec(id="b", tasks=(task,), split=split)))
    busy = deque(effect for effect in effects if type(effect) is Dispatch)
    while busy:
        sent = busy.popleft()
        for attempt in sent.attempts:
            for run in attempt.runs:
                now += SHORT
                reports = [Begun(attempt.ticket, run, now), Over(attempt.ticket, run, now, seconds)]
                effects = core.on(RunnerReported(now, sent.runner, reports))
                busy += [effect for effect in effects if type(effect) is Dispatch]
    spent = process_time() - began
    if core.batches:
        raise RuntimeError("the batch has not ended")
    return spent / repeat


def in_turns(*plays: Callable[[], float], turns: int = TURNS) -> list[list[float]]:
    """What each has cost, in microseconds."""
    found: list[list[float]] = [[] for _ in plays]
    for _ in range(turns):
        for costs, each in zip(found, plays, strict=True):
            gc.collect()
            costs.append(each() * 1e6)
    return found


def by_runners() -> list[Row]:
    four, some, most = in_turns(
        *(lambda runners=runners: play(runners=runners, repeat=20_000) for runners in (4, 256, 4096))
    )
    yielded = [Row(what="a task's end, 4 runners", figure=p50(four), unit="us", note=spread(four, "us"))]
    for runners, costs in ((256, some), (4096, most)):
        yielded.append(
            Row(
                what=f"a task's end, {runners:,} runners",
                figure=p50(costs) / p50(four),
                unit="x that of 4",
                at_most=1.3,
                note=f"{p50(costs):.1f} us",
            )
        )
    return yielded


def by_repeat() -> list[Row]:
    found = []
    for what, split in (("in sub-tasks of one run", 1), ("in one sub-task", None)):
        few, many = in_turns(
            *(
                lambda repeat=repeat, split=split: play(runners=4, repeat=repeat, split=split)
                for repeat in (1_000, 64_000)
            )
        )
        found.append(
            Row(
                what=f"a run's end, repeat 64,000 {what}",
                figure=p50(many) / p50(few),
                unit="x that of 1,000",
                at_most=1.2,
                note=f"{p50(many):.1f} us",
            )
        )
    return found


def by_tasks(turns: int = 3) -> list[Row]:
    few, many = in_turns(
        *(lambda repeat=repeat: play(runners=4, repeat=repeat, seconds=SHORT) for repeat in (FEW, MANY)),
        turns=turns,
    )
    return [
        Row(
            what=f"{MANY:,} tasks of a phase by `repeat`: cost of each",
            figure=p50(many) / p50(few),
            unit=f"x that of {FEW:,}",
            at_most=1.2,
            note=f"{p50(many):.1f} us",
        )
    ]


def kept() -> Row:
    """What the core keeps of a task that has ended, while its phase goes on."""
    repeat = 100_000
    core = Core(capacity={(): 1})
    core.on(RunnerReady(0.0, core.warm(0.0)[0].runner))  # type: ignore[attr-defined]  # it starts one
    task = TaskSpec(id="t", call="m:f", repeat=repeat + 1)
    tracemalloc.start()
    before = tracemalloc.get_traced_memory()[0]
    (sent,) = core.on(BatchSubmitted(0.0, BatchSpec(id="b", tasks=(task,), split=1)))
    for run in range(repeat):
        ticket = sent.attempts[0].ticket  # type: ignore[attr-defined]  # it is a Dispatch
        reports = [Begun(ticket, run, 0.0), Over(ticket, run, 0.0, LONG, value={"return": float(run)})]
        *_, sent = core.on(RunnerReported(0.0, 0, reports))
    size = (tracemalloc.get_traced_memory()[0] - before) / repeat
    tracemalloc.stop()
    return Row(what="memory of the core for an ended task", figure=size, unit="bytes", at_most=16)


def at_once() -> Row:
    """The longest event when the runner of a sub-task of `MANY` runs exits, from its start until all have ended."""
    core, spent = Core(capacity={(): 1}), list[float]()

    def on(event: SchedulerEvent) -> list[SchedulerEffect]:
        began = process_time()
        effects = core.on(event)
        spent.append((process_time() - began) * 1e3)
        return effects

    core.warm(0.0)
    on(RunnerReady(0.0, 0))
    task = TaskSpec(id="t", call="m:f", repeat=MANY)
    (sent,) = on(BatchSubmitted(0.0, BatchSpec(id="b", tasks=(task,))))
    on(RunnerReported(0.0, 0, [Begun(sent.attempts[0].ticket, 0, 0.0)]))  # type: ignore[attr-defined]  # it is a Dispatch
    on(RunnerGone(0.0, 0, "killed"))
    while core.batches:
        on(Tick(0.0))
    note = f"{sum(spent):,.0f} ms in {len(spent)} events"
    return Row(
        what=f"longest event of a sub-task of {MANY:,} runs that crash together",
        figure=max(spent),
        unit="ms CPU",
        at_most=50,
        note=note,
    )


async def through_the_engine() -> Row:
    """CPU time of the driver, with the journal's thread: the runners share the cores with it, and with other processes."""
    async with Opened() as stage:
        journaled = Journaled(stage.engine, stage.folder)

        async def cost(repeat: int) -> float:
            began = process_time()
            await journaled.run(_batch(stage, repeat))
            return (process_time() - began) / repeat * 1e6

        await cost(FEW)
        few, many = [], []
        for _ in range(3):
            few += [await cost(FEW) for _ in range(5)]
            many.append(await cost(MANY))
        await journaled.close()
    return Row(
        what=f"{MANY:,} no-op tasks by `repeat`, engine and journal: cost of each",
        figure=p50(many) / p50(few),
        unit=f"x that of {FEW:,}",
        at_most=1.2,
        note=f"{p50(many):.1f} us of CPU",
    )


def _batch(stage: Stage, repeat: int) -> BatchSpec:
    stage.number += 1
    task = TaskSpec(id="t", call="tasks.code:nothing", timeout=30.0, repeat=repeat)
    return BatchSpec(id=stage.number, tasks=(task,), split=1)


def measure(*, full: bool = False) -> list[Row]:
    logs.configure(log_format="console", level="warning")
    found = [*by_runners(), *by_repeat(), *by_tasks(), kept(), at_once()]
    return [*found, asyncio.run(through_the_engine())] if full else found


if __name__ == "__main__":
    print(table(measure(full="--full" in sys.argv)))
