"""All benchmarks in one run, one table: `make bench`. Prints it, and writes it to docs/benchmarks.md. Takes about 20 minutes.

The machine is asked before each section how busy others keep it, and given a while to come to rest.
"""

from __future__ import annotations

import asyncio
import os
import platform
import sys
from dataclasses import dataclass
from datetime import UTC, datetime
from importlib.metadata import version
from pathlib import Path
from time import perf_counter
from typing import TYPE_CHECKING

import bench_broker
import bench_calls
import bench_daemon
import bench_environments
import bench_failures
import bench_finalizing
import bench_growth
import bench_in_process
import bench_memory
import bench_metrics
import bench_output
import bench_queries
import bench_ray_episodes
import bench_recording
import bench_report
import bench_runs
import bench_scheduler
import bench_start
import bench_steps
import bench_tasks
import bench_text
import psutil
from support.rows import Row, table

if TYPE_CHECKING:
    from collections.abc import Callable

PAGE = Path(__file__).resolve().parent.parent / "docs" / "benchmarks.md"
PACKAGES = (
    "run-governor",
    "pyzmq",
    "msgspec",
    "ray",
    "gymnasium",
    "numpy",
    "pyarrow",
    "openai",
    "aiohttp",
    "aiomultiprocess",
)
QUIET_PERCENT = 15.0
PATIENCE_SECONDS = 30.0
"""In all, not for each section."""
INTRODUCTION = """\
# Benchmarks

Made by `make bench`, which takes about 20 minutes and refreshes this page; all figures are of one run on one machine.
The column *peer* quotes what others did for the same job: palaestrAI 3.5.18, and AgentLab in the section on tasks. Those
figures were measured elsewhere, on a shared machine with 2 cores, and are quoted, not measured again: read them as an order
of magnitude. Plain Ray was measured in this run, taking turns with ours. An *aim* is ours, or the peer's figure where we have
none. `zmq.proxy` is the floor for any broker in this run: it forwards without looking.

"Cold" is a process tree that did not exist before; files are in the page cache and byte code is compiled. Figures of steps
and round trips wander by a third from run to run on a small virtual machine: compare within one table.
"""


@dataclass(frozen=True, kw_only=True)
class Section:
    title: str
    rows: list[Row]
    busy: float
    load: float
    seconds: float


SECTIONS: tuple[tuple[str, Callable[[], list[Row]]], ...] = (
    ("Start of the daemon", bench_start.measure),
    ("From start to end of a run", bench_runs.measure),
    ("Environment steps, the whole daemon", bench_daemon.measure),
    ("Environment steps, conductors alone", lambda: asyncio.run(bench_steps.measure(2.0))),
    ("Environments in processes of their own", lambda: asyncio.run(bench_environments.measure(2.0))),
    (
        "Environment steps in process, beside Gymnasium's own loops",
        lambda: asyncio.run(bench_in_process.measure(1.0)),
    ),
    ("Output of user code", bench_output.measure),
    ("Steps with metrics", bench_metrics.measure),
    ("Steps on record", bench_recording.measure),
    ("Steps become one file", bench_finalizing.measure),
    ("Episodes that fail", bench_failures.measure),
    ("Language models in text environments", bench_text.measure),
    ("Broker, round trips of 100 bytes", bench_broker.rows),
    ("Processes and memory", bench_memory.measure),
    ("Ten million episodes", lambda: asyncio.run(bench_growth.measure())),
    ("Curves of metrics", bench_metrics.measure_curves),
    ("Ten thousand runs", bench_queries.measure),
    ("Reports, and the live page", lambda: asyncio.run(bench_report.measure())),
    ("Tasks, beside plain Ray", bench_tasks.measure),
    ("The scheduler of tasks, alone", bench_scheduler.measure),
    ("Calls of a task graph, beside plain Ray", bench_calls.measure),
    ("Episodes on Ray, beside in process", bench_ray_episodes.rows),
)


class Patience:
    """Waits for a quiet machine, until `PATIENCE_SECONDS` are used up."""

    def __init__(self) -> None:
        self._left = PATIENCE_SECONDS

    def wait(self) -> float:
        """How busy the machine is, in percent of all its cores, when the next section begins."""
        while True:
            begun = perf_counter()
            busy = psutil.cpu_percent(interval=0.5)
            self._left -= perf_counter() - begun
            if busy <= QUIET_PERCENT or self._left <= 0:
                return busy


def machine() -> str:
    memory = psutil.virtual_memory().total / 2**30
    cores = os.cpu_count()
    packages = ", ".join(f"{name} {version(name)}" for name in PACKAGES)
    return (
        f"{datetime.now(tz=UTC):%Y-%m-%d}; {cores} cores ({platform.machine()}), {memory:.0f} GiB of memory, "
        f"Linux {platform.release().partition('-')[0]}, {platform.python_implementation()} {platform.python_version()}; "
        f"{packages}."
    )


def measure() -> list[Section]:
    patience = Patience()
    found = []
    for title, rows in SECTIONS:
        busy, load = patience.wait(), os.getloadavg()[0]
        print(f"{title} ... ", end="", file=sys.stderr, flush=True)
        begun = perf_counter()
        section = Section(title=title, rows=rows(), busy=busy, load=load, seconds=perf_counter() - begun)
        found.append(section)
        print(f"{section.seconds:.0f} s\n\n{table(section.rows)}\n", file=sys.stderr, flush=True)
    return found


def page(sections: list[Section]) -> str:
    rows = [row for section in sections for row in section.rows]
    missed = [row.what for row in rows if row.met is False]
    verdict = f"Missed: {'; '.join(missed)}." if missed else "Every aim is met."
    busy = ", ".join(f"{section.busy:.0f} % ({section.load:.1f})" for section in sections)
    parts = [
        INTRODUCTION,
        f"{machine()}\n",
        f"Before each section the machine was busy with other work by (load of the last minute in brackets): {busy}.\n",
        f"{sum(row.met is not None for row in rows)} figures have an aim. {verdict}\n",
    ]
    for section in sections:
        parts += [f"## {section.title}\n", f"{table(section.rows)}\n"]
    return "\n".join(parts)


def main() -> None:
    text = page(measure())
    PAGE.parent.mkdir(exist_ok=True)
    PAGE.write_text(text, encoding="utf-8")
    print(text)


if __name__ == "__main__":
    main()
