"""What the curves of metrics cost: a value, an episode of a run with and without them, their size on record and in memory.

The dearest case: episodes of one step, played in process. Takes about a minute: `python benchmarks/bench_curves.py [episodes]`.
"""

from __future__ import annotations

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
from typing import TYPE_CHECKING

from support.instance import HERE, environment, governor
from support.rows import Row, table

from governor.messages import encode
from governor.messages.curves import Curve

if TYPE_CHECKING:
    from typing import Any

EPISODES = 50_000
PAIRS = 5
VALUES = 1_000_000


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


def measure(episodes: int = EPISODES) -> list[Row]:
    pairs = [
        (cpu_of_run("Endless", episodes), cpu_of_run("EndlessWithoutCurves", episodes)) for _ in range(PAIRS)
    ]
    note = f"median of {PAIRS} interleaved pairs of {episodes:,} episodes"
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
    print(table(measure(*map(int, sys.argv[1:]))))


if __name__ == "__main__":
    main()
