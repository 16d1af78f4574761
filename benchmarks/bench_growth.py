"""Cost that does not grow: a run of 10,000,000 episodes whose daemon is killed behind the first 9,000,000 of them.

A daemon begins the run and is killed with SIGKILL; the episodes that it would have played meanwhile are written by the
project's own writers of the journal and of the lines of episodes; a daemon then goes on. Takes about three minutes, and
6 GB of disk: `python benchmarks/bench_growth.py [episodes]`.
"""

from __future__ import annotations

import asyncio
import shutil
import sys
import tempfile
from pathlib import Path
from time import perf_counter
from typing import TYPE_CHECKING, Any

import psutil
from support.instance import HERE, Instance
from support.rows import Row, table

from governor.episodes.records.episode_file import EpisodeFile, path_of
from governor.episodes.rules.statistics import PhaseStatistics
from governor.index_ranges import IndexRanges
from governor.journal.journal import Journal
from governor.messages import EpisodeRecord, encode
from governor.run_file.load import parse
from governor.runs.assignment import Assignment

if TYPE_CHECKING:
    from collections.abc import Iterator

    from governor.messages import RunStatus

EPISODES = 10_000_000
PLAYED = 0.9
TOGETHER = 500
"""Episodes in a row of the journal: short ones that are played in process share a report."""
TAIL = 5_000
"""Episodes behind the last figures that were kept; up to 10,000 are."""
SECONDS = 5.0
"""How long it is watched after it has gone on."""
MEGABYTE = 1e6


def run_of(episodes: int) -> dict[str, Any]:
    simulate = {"environment": "world", "agents": ["agent"], "episodes": episodes, "max_steps": 5}
    return {
        "name": "growth",
        "conductors": {
            "environments": {"world": {"entry": "user_code.step_world:Endless"}},
            "agents": {"agent": {"entry": "user_code.step_agent:TrivialAgent"}},
        },
        "phases": [
            {
                "name": "train",
                "simulate": simulate | {"transport": "in_process"},
                "until": [{"metric": "return", "at_least": 99, "average_over": 100}],
            }
        ],
    }


async def measure(episodes: int = EPISODES) -> list[Row]:
    folder = Path(tempfile.mkdtemp(prefix="gb-"))
    try:
        uid = await begin(folder, episodes)
        played = await fill(folder, uid, episodes, int(episodes * PLAYED))
        return await _go_on(folder, uid, played)
    finally:
        shutil.rmtree(folder, ignore_errors=True)


async def begin(folder: Path, episodes: int) -> str:
    """Plays for a moment; returns the run's uid when nothing of its daemon is left."""
    async with Instance(folder=folder) as instance:
        uid = await instance.executor.submit(run_of(episodes), folder=HERE)
        async for event in instance.executor.watch(uid):
            if event.kind == "episode.ended":
                break
        await instance.kill()
    return uid


async def fill(folder: Path, uid: str, episodes: int, until: int) -> int:
    """Records what is missing up to episode `until`; returns the number of episodes on record."""
    assignment = Assignment(uid=uid, run=parse(run_of(episodes)), folder=str(HERE))
    journal = Journal(folder / "s" / "governor.db")
    statistics = PhaseStatistics(assignment.simulation(0))
    for record in journal.episodes(uid, 0):
        statistics.add(record)
    known = IndexRanges([*statistics.figures.ended.bounds])
    lines = path_of(folder / "s" / "runs" / uid, "train")
    with EpisodeFile(path=lines, phase="train", mode="train", reported=known) as file:
        for batch in _batches(known.missing(range(until))):
            for record in batch:
                statistics.add(record)
            file.append(*batch)
            figures = encode(statistics.figures) if until - batch[-1].index >= TAIL else None

            def change(tx: Any, batch: list[EpisodeRecord] = batch, figures: bytes | None = figures) -> None:
                for first in range(0, len(batch), TOGETHER):
                    tx.episodes(uid, 0, batch[first : first + TOGETHER])
                if figures is not None:
                    tx.figures(uid, 0, figures)

            await journal.write(change)
    await journal.close()
    return len(statistics.figures.ended)


def _batches(indices: Iterator[int]) -> Iterator[list[EpisodeRecord]]:
    batch = []
    for index in indices:
        record = EpisodeRecord(
            index=index,
            worker=0,
            seed=index,
            outcome="truncated",
            value=float(index % 7),
            steps=5,
            seconds=1e-4,
        )
        batch.append(record)
        if len(batch) == 20 * TOGETHER:
            yield batch
            batch = []
    if batch:
        yield batch


async def _go_on(folder: Path, uid: str, played: int) -> list[Row]:
    silence = longest = 0.0

    async def state() -> RunStatus:
        nonlocal silence, longest
        asked = perf_counter()
        report = await instance.executor.status(uid)
        silence = max(silence, perf_counter() - asked)
        assert report.loop is not None
        longest = report.loop.longest
        return report.runs[0]

    async with Instance(folder=folder, ready_seconds=300.0) as instance:
        while (await state()).episodes_ended <= played:
            pass
        resumed = perf_counter() - instance.logged["journal.checked"]
        until = perf_counter() + SECONDS
        while perf_counter() < until:
            await asyncio.sleep(0.01)
            status = await state()
        [simulation] = [each.pid for each in status.conductors if each.kind == "simulation"]
        daemon, controller = (
            psutil.Process(pid).memory_info().rss / MEGABYTE for pid in (instance.daemon_pid, simulation or 0)
        )
        await instance.executor.abort(uid)
        await instance.executor.wait(uid)
        asked = perf_counter()
        heir = await instance.executor.resume(uid)
        taken_over = perf_counter() - asked
        await instance.executor.abort(heir)
    what = f"kill -9 at episode {played:,}: from the check of the journal's file to the next episode"
    return [
        Row(what=what, figure=resumed, unit="s", at_most=2.0),
        Row(what="daemon meanwhile", figure=daemon, unit="MB RSS", at_most=100),
        Row(what="simulation meanwhile", figure=controller, unit="MB RSS", at_most=150),
        Row(
            what="longest block of the daemon's loop meanwhile",
            figure=longest * 1000,
            unit="ms",
            at_most=50,
            note=f"longest wait of a client for a status {silence * 1000:.0f} ms: the cores are also those of broker, "
            "simulation and client",
        ),
        Row(
            what="`resume` of it, until it is accepted",
            figure=taken_over,
            unit="s",
            note="lines of episodes are copied",
        ),
        Row(what=f"episodes in the next {SECONDS:g} s", figure=status.episodes_ended - played, unit=""),
    ]


def main() -> None:
    print(table(asyncio.run(measure(*map(int, sys.argv[1:])))))


if __name__ == "__main__":
    main()
