"""What a failing episode costs: CPU time beside one that ends well, bytes of the journal; and how long its failures take to list.

The CPU time is that of whole runs (`governor run`, children included), without that of a run of one episode. Kinds take turns.
`python benchmarks/bench_failures.py` takes about 2 minutes.
"""

from __future__ import annotations

import asyncio
import json
import resource
import subprocess
import sys
import tempfile
from pathlib import Path
from time import perf_counter
from typing import Any

from support.rows import Row, p50, spread, table

from governor.journal.journal import Journal
from governor.messages import EpisodeRecord
from governor.runs.record import failures

EPISODES = 30_000
TURNS = 3
WORLD = """
from gymnasium import Env
from gymnasium.spaces import Discrete

class World(Env):
    observation_space = action_space = Discrete(2)
    number = 0

    def __init__(self, kind):
        self.kind = kind

    def reset(self, *, seed=None, options=None):
        return 0, {}

    def step(self, action):
        self.number += 1
        if self.kind != "good":
            self.fail(self.number if self.kind == "different" else 1)
        return 1, 1.0, True, False, {}

    def fail(self, number):
        raise ValueError(f"no map {number}")

class Agent:
    def __init__(self, **_):
        pass

    def act(self, observation, *, explore):
        return 0
"""
KINDS = ("good", "alike", "different")
LISTED = 100
FEW, MANY = 10_000, 1_000_000
BATCH = 1_000


def _run(kind: str, episodes: int) -> dict[str, Any]:
    simulate = {"environment": "w", "agents": ["a"], "episodes": episodes, "transport": "in_process"}
    return {
        "name": "failures",
        "conductors": {
            "environments": {"w": {"entry": "world:World", "params": {"kind": kind}}},
            "agents": {"a": {"entry": "world:Agent"}},
        },
        "phases": [{"name": "p", "mode": "eval", "on_failure": "continue", "simulate": simulate}],
    }


def _play(folder: Path, kind: str, episodes: int) -> tuple[float, int]:
    """CPU seconds, and bytes of the journal."""
    file = folder / f"{kind}-{episodes}.json"
    file.write_text(json.dumps(_run(kind, episodes)))
    (folder / "world.py").write_text(WORLD)
    with tempfile.TemporaryDirectory(prefix="bench-", dir=folder) as state:
        before = resource.getrusage(resource.RUSAGE_CHILDREN)
        command = [sys.executable, "-m", "governor", "run", str(file), "--quiet", "--state-dir", state]
        subprocess.run(command, check=True, capture_output=True)
        after = resource.getrusage(resource.RUSAGE_CHILDREN)
        size = (Path(state) / "governor.db").stat().st_size
    return after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime, size


def _episode(index: int, *, failed: bool) -> EpisodeRecord:
    return EpisodeRecord(
        index=index,
        worker=0,
        seed=1,
        outcome="failed" if failed else "terminated",
        value=1.0,
        steps=1,
        seconds=0.1,
        reason=f"environment.step: ValueError: no map {index} (world.py:20)" if failed else "",
    )


async def _listing(folder: Path, episodes: int) -> float:
    """Seconds for a page with all failures of a run, of which every so many-th episode has failed."""
    journal = Journal(folder / f"{episodes}.db")
    spec = _run("good", episodes)
    await journal.write(lambda tx: tx.submit(uid="r", key=None, name="r", spec=spec, folder="/"))
    await journal.write(lambda tx: tx.event("r", "phase.started", {"index": 0, "phase": "p"}))
    every = episodes // LISTED
    for start in range(0, episodes, BATCH):
        records = [_episode(index, failed=index % every == 0) for index in range(start, start + BATCH)]
        await journal.write(lambda tx, records=records: tx.episodes("r", 0, records))
    took = []
    for _ in range(5):
        begun = perf_counter()
        found = failures.page(journal, "r", phase=None, after=0, limit=1_000)
        took.append(perf_counter() - begun)
        assert len(found.failures) == LISTED
    await journal.close()
    return p50(took)


def measure() -> list[Row]:
    with tempfile.TemporaryDirectory(prefix="bench-failures-") as name:
        folder = Path(name)
        cost: dict[str, list[float]] = {kind: [] for kind in KINDS}
        size: dict[str, int] = {}
        for _ in range(TURNS):
            for kind in KINDS:
                whole, size[kind] = _play(folder, kind, EPISODES)
                cost[kind].append(1e6 * (whole - _play(folder, kind, 1)[0]) / EPISODES)
        few, many = (asyncio.run(_listing(folder, episodes)) for episodes in (FEW, MANY))
    ratios = {
        kind: [bad / good for bad, good in zip(cost[kind], cost["good"], strict=True)] for kind in KINDS
    }
    alike, different = ratios["alike"], ratios["different"]
    more = (size["alike"] - size["good"]) / EPISODES
    return [
        Row(what="an episode of one step that ends well, CPU", figure=p50(cost["good"]), unit="µs"),
        Row(
            what="one that fails, by that",
            figure=p50(alike),
            unit="times",
            at_most=2.0,
            note=spread(alike, "times"),
        ),
        Row(
            what="one that fails with a text of its own, by that",
            figure=p50(different),
            unit="times",
            at_most=2.0,
            note=spread(different, "times"),
        ),
        Row(
            what="bytes of the journal for a failure, beside those of its episode",
            figure=more,
            unit="B",
            at_most=200,
        ),
        Row(
            what=f"list {LISTED} failures among {MANY:,} episodes",
            figure=1000 * many,
            unit="ms",
            at_most=1000,
            note=f"among {FEW:,} episodes {1000 * few:.3g} ms",
        ),
    ]


if __name__ == "__main__":
    print(table(measure()))
