"""From start to end of a run of ten steps: on a warm daemon, and cold, through the command line as a user types it.

"Cold" is a process tree that does not exist yet; the disk's cache is warm. `python benchmarks/bench_runs.py` takes about 30 s.
"""

from __future__ import annotations

import asyncio
import subprocess
import tempfile
from time import perf_counter
from typing import TYPE_CHECKING

from support.instance import HERE, RUN_SECONDS, Instance, environment, governor
from support.rows import Row, p50, spread, table

if TYPE_CHECKING:
    from pathlib import Path

TEN = HERE / "ten_steps.yaml"
TEN_AND_TASK = HERE / "ten_steps_task.yaml"
PEER = "32 to 36 s"


def _typed(file: Path) -> float:
    """Seconds of `governor run FILE`, from exec to exit."""
    with tempfile.TemporaryDirectory(prefix="gb-") as folder:
        begun = perf_counter()
        subprocess.run(
            governor("run", str(file), "--state-dir", folder),
            env=environment(),
            cwd=HERE,
            stdout=subprocess.DEVNULL,
            check=True,
            timeout=RUN_SECONDS,
        )
        return perf_counter() - begun


async def _submitted(instance: Instance, file: Path) -> float:
    """Seconds from submit to the end of the run, its last process gone, as an executor sees it."""
    begun = perf_counter()
    last = [event async for event in instance.events(file)][-1]
    seconds = perf_counter() - begun
    if last.data["outcome"] != "finished":
        raise RuntimeError(f"the run did not finish: {last.data}")
    return seconds


async def _warm() -> tuple[list[float], float, list[float]]:
    async with Instance() as instance:
        await _submitted(instance, TEN)
        ten = [await _submitted(instance, TEN) for _ in range(9)]
        first = await _submitted(instance, TEN_AND_TASK)
        with_task = [await _submitted(instance, TEN_AND_TASK) for _ in range(3)]
    return ten, first, with_task


def measure() -> list[Row]:
    ten, first, with_task = asyncio.run(_warm())
    _typed(TEN)  # byte code is compiled
    typed = [_typed(TEN) for _ in range(5)]
    typed_task = [_typed(TEN_AND_TASK) for _ in range(2)]
    return [
        Row(
            what="run of 10 steps, warm daemon",
            figure=p50(ten),
            unit="s",
            peer=PEER,
            at_most=3.0,
            note=f"submit to last process gone; {spread(ten, 's')}",
        ),
        Row(
            what="run of 10 steps, `governor run FILE`",
            figure=p50(typed),
            unit="s",
            peer=PEER,
            at_most=10.0,
            note=f"exec to exit; {spread(typed, 's')}",
        ),
        Row(
            what="10 steps and a Ray task, warm daemon, warm Ray head",
            figure=p50(with_task),
            unit="s",
            note=spread(with_task, "s"),
        ),
        Row(what="10 steps and a Ray task, warm daemon, cold Ray head", figure=first, unit="s", note="once"),
        Row(
            what="10 steps and a Ray task, `governor run FILE`",
            figure=p50(typed_task),
            unit="s",
            note=spread(typed_task, "s"),
        ),
    ]


if __name__ == "__main__":
    print(table(measure()))
