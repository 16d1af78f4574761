"""The steps of a phase become one Parquet file: time and memory, as the number of steps, episodes and workers grows.

Short episodes as those of FrozenLake are recorded by `StepRecorder`, without an environment between them, and converted in a
process of its own with the modules of a simulation controller. `python benchmarks/bench_finalizing.py` takes about 20 s;
`--steps 100000000` converts so many (with `--workers`, `--length` of an episode) and needs 6 GB of disk and some minutes.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import subprocess
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path
from time import perf_counter, process_time
from typing import TYPE_CHECKING

import psutil
from support.rows import Row, table

if TYPE_CHECKING:
    from collections.abc import Callable

HERE = Path(__file__).parent
STEPS = 1_000_000
TIMES = 4
"""The larger phase has so many times the steps."""
LENGTH = 8
FLUSHED = 500
"""Episodes that share a write, as those do that end within a moment."""
PICTURES = 6_000
"""Steps whose observations are screens of 84 x 84 x 4 bytes."""


@dataclass(frozen=True, kw_only=True)
class Converted:
    """Bytes of memory are RSS: `before` the conversion, and at its `peak`. `cpu` are seconds, too, which others at work change less."""

    steps: int
    seconds: float
    cpu: float
    before: int
    peak: int
    streams: int
    parquet: int

    @property
    def rate(self) -> float:
        return self.steps / self.seconds


def fill(
    folder: Path,
    steps: int,
    *,
    workers: int,
    length: int = LENGTH,
    written: Callable[[int], object] = lambda _: None,
) -> None:
    """Records so many steps; the workers take turns, as threads do that play at the same pace. `written` gets the episodes."""
    from governor.episodes.records.recording import Columns, StepRecorder
    from governor.episodes.spaces import Discrete

    columns = Columns.of(Discrete(n=16, start=0), Discrete(n=4, start=0))
    recorders = [
        StepRecorder(folder, phase="train", worker=worker, columns=columns) for worker in range(workers)
    ]
    episodes = [
        [
            value
            for at in range(length)
            for value in (
                (first + at) * 7 % 16,
                (first + at) * 3 % 4,
                float(at + 1 == length),
                at + 1 == length,
                False,
                first,
            )
        ]
        for first in range(97)
    ]
    for index in range(steps // length):
        recorder = recorders[index % workers]
        recorder.begin(episode=index, seed=index * 2_654_435_761 % 2**32)
        recorder.steps.extend(episodes[index % 97])
        full = len(recorder.steps) >= FLUSHED * LENGTH * columns.width
        recorder.end(outcome="terminated", flush=full)
        if full:
            written(index)
    for recorder in recorders:
        recorder.flush()
        recorder.close()


def fill_pictures(folder: Path, steps: int) -> None:
    """Four sprites move over a still picture, each step by a place; a random one is the worst that compression meets."""
    import gymnasium.spaces as gym
    import numpy as np

    from governor.episodes.records.recording import Columns, StepRecorder
    from governor.episodes.spaces import Discrete, describe

    generator = np.random.default_rng(0)
    background = np.repeat(generator.integers(0, 4, (12, 12, 4), dtype=np.uint8) * 40, 7, 0).repeat(7, 1)
    screen = gym.Box(0, 255, background.shape, np.uint8)
    columns = Columns.of(describe(screen, role="observation_space"), Discrete(n=4, start=0))
    recorder = StepRecorder(folder, phase="train", worker=0, columns=columns)
    for index in range(steps // FLUSHED):
        recorder.begin(episode=index, seed=index)
        for step in range(FLUSHED):
            picture = background.copy()
            for sprite in range(4):
                top, left = (step * (sprite + 1)) % 76, (step * 3 + 19 * sprite) % 76
                picture[top : top + 8, left : left + 8] = 255 - 20 * sprite
            recorder.step(picture, step % 4, 0.0, step + 1 == FLUSHED, False)
        recorder.end(outcome="terminated")
    recorder.close()


def convert(folder: Path) -> dict[str, float]:
    import governor.conductors.simulation  # noqa: F401  # its memory counts
    from governor.episodes import trajectories

    before = psutil.Process().memory_info().rss
    began, cpu = perf_counter(), process_time()
    path = trajectories.finalize(folder, "train")
    seconds, cpu = perf_counter() - began, process_time() - cpu
    if path is None:
        raise RuntimeError("nothing was recorded")
    peak = next(line for line in Path("/proc/self/status").read_text().splitlines() if "VmHWM" in line)
    kibibytes = int(peak.split()[1])
    return {
        "seconds": seconds,
        "cpu": cpu,
        "before": before,
        "peak": kibibytes * 1024,
        "parquet": path.stat().st_size,
    }


def converted(
    steps: int, *, workers: int = 1, length: int = LENGTH, with_pictures: bool = False
) -> Converted:
    with tempfile.TemporaryDirectory(prefix="gr-") as folder:
        if with_pictures:
            fill_pictures(Path(folder), steps)
        else:
            fill(Path(folder), steps, workers=workers, length=length)
        streams = sum(path.stat().st_size for path in (Path(folder) / "episodes").iterdir())
        command = [sys.executable, __file__, "--convert", folder]
        found = subprocess.run(command, capture_output=True, check=True, cwd=HERE.parent).stdout
        return Converted(steps=steps, streams=streams, **json.loads(found))


async def ahead(steps: int) -> float:
    """Seconds from the last episode to the file, of a phase whose steps are converted while they are recorded."""
    from governor.episodes.finalizer import Finalizer
    from governor.index_ranges import IndexRanges
    from governor.messages import ConductorSpec, StartSimulation
    from governor.messages.link import RecordingLink
    from transport.access import Secret

    with tempfile.TemporaryDirectory(prefix="gr-") as folder:
        command = StartSimulation(
            phase=0, name="train", mode="train", environment="lake", agents=("walker",),
            episodes=steps // LENGTH, workers=1, max_steps=None, episode_timeout=None, seed=0,
        )  # fmt: skip
        spec = ConductorSpec(
            uid="u1", name="simulation", kind="simulation", incarnation=1, client_endpoint="", worker_endpoint="",
            secret=Secret.new(), run_folder=folder, socket_folder=folder, import_folder=folder, seed=0,
        )  # fmt: skip
        finalizer, recorded = Finalizer(command, spec=spec, link=RecordingLink()), IndexRanges()
        finalizer.begin()

        def written(index: int) -> None:
            recorded.bounds[:] = [0, index + 1]
            finalizer.ended(recorded, (index + 1) * LENGTH)

        await asyncio.to_thread(fill, Path(folder), steps, workers=1, written=written)
        recorded.bounds[:] = [0, steps // LENGTH]
        began = perf_counter()
        if fault := await finalizer.finish(lambda _: recorded):
            raise RuntimeError(fault)
        return perf_counter() - began


def measure() -> list[Row]:
    few, many = converted(STEPS), converted(STEPS * TIMES)
    workers = converted(STEPS * TIMES, workers=8)
    waited = asyncio.run(ahead(STEPS * TIMES))
    screens = converted(PICTURES, with_pictures=True)
    what = f"{many.steps / 1e6:g} million steps of episodes of {LENGTH}"
    return [
        Row(
            what=f"{what}, converted",
            figure=many.rate,
            unit="steps/s",
            note=f"{many.seconds:.1f} s; {many.streams / many.steps:.1f} bytes/step become {many.parquet / many.steps:.1f}",
        ),
        Row(
            what=f"a step of them, beside one of {few.steps / 1e6:g} million",
            figure=many.cpu / many.steps / (few.cpu / few.steps),
            unit="times the CPU time",
            at_most=1.2,
            note=f"{many.cpu / many.steps * 1e6:.2f} µs",
        ),
        Row(
            what="memory of that process, at its peak",
            figure=many.peak / 1e6,
            unit="MB",
            at_most=150,
            note=f"{many.before / 1e6:.0f} MB before it began; with {few.steps / 1e6:g} million {few.peak / 1e6:.0f} MB",
        ),
        Row(
            what=f"{what}, of 8 workers that took turns",
            figure=workers.rate,
            unit="steps/s",
            note=f"{workers.cpu / many.cpu:.2f} times the CPU time of one worker's; {workers.peak / 1e6:.0f} MB",
        ),
        Row(
            what=f"{what}, converted while they are recorded: the wait at the end",
            figure=waited,
            unit="s",
            at_most=2,
            note=f"about a million steps are left, where there were {many.seconds:.1f} s",
        ),
        Row(
            what=f"{PICTURES:,} steps with pictures of 84 x 84 x 4, converted",
            figure=screens.rate,
            unit="steps/s",
            at_least=2_000,
            note=f"28,224 bytes each; {screens.streams / screens.steps:.0f} in the stream become {screens.parquet / screens.steps:.0f}; "
            f"{screens.cpu / screens.steps * 1e6:.0f} µs of CPU a step",
        ),
    ]


if __name__ == "__main__":
    sys.path.insert(0, str(HERE.parent))
    options = argparse.ArgumentParser()
    options.add_argument("--steps", type=int)
    options.add_argument("--workers", type=int, default=1)
    options.add_argument("--length", type=int, default=LENGTH)
    options.add_argument("--convert", type=Path)
    chosen = options.parse_args()
    if chosen.convert is not None:
        print(json.dumps(convert(chosen.convert)))
    elif chosen.steps is not None:
        print(converted(chosen.steps, workers=chosen.workers, length=chosen.length))
    else:
        print(table(measure()))
