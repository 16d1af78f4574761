"""Ten million steps of CartPole, recorded and made a table: time, bytes, memory.

The steps are real ones of a trivial agent, played once and recorded over and over, so that the loop that is timed does
nothing but record. `python benchmarks/bench_recording.py [steps]` takes about a minute.
"""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
from pathlib import Path
from time import perf_counter
from typing import Any

import gymnasium
import psutil
from support.rows import Row, table
from user_code.step_agent import TrivialAgent

HERE = Path(__file__).parent
STEPS = 10_000_000
PLAYED = 20_000
AIM = 100_000.0
STEP_AIM = 1.5
CALLS = 500_000


def played() -> list[list[tuple[Any, ...]]]:
    """Episodes as the arguments of `StepRecorder.step`."""
    environment = gymnasium.make("CartPole-v1")
    agent = TrivialAgent(
        observation_space=environment.observation_space, action_space=environment.action_space, seed=0
    )
    episodes: list[list[tuple[Any, ...]]] = []
    while sum(map(len, episodes)) < PLAYED:
        observation, _ = environment.reset(seed=len(episodes))
        episode: list[tuple[Any, ...]] = []
        ended = False
        while not ended:
            action = int(agent.act(observation, explore=True))
            following, reward, terminated, truncated, _ = environment.step(action)
            episode.append((observation, action, float(reward), terminated, truncated))
            observation, ended = following, terminated or truncated
        episodes.append(episode)
    return episodes


def worker(folder: Path, steps: int) -> dict[str, float]:
    """In a process of its own, so that memory is that of recording alone."""
    from governor.episodes import trajectories
    from governor.episodes.records.recording import Columns, StepRecorder
    from governor.episodes.spaces import describe

    environment = gymnasium.make("CartPole-v1")
    columns = Columns.of(
        describe(environment.observation_space, role="observation_space"),
        describe(environment.action_space, role="action_space"),
    )
    episodes = played()
    found = one_step(StepRecorder(folder / "step", phase="x", worker=0, columns=columns), episodes)
    recorder = StepRecorder(folder, phase="train", worker=0, columns=columns)
    process = psutil.Process()
    recorded = index = 0
    early = 0
    began = perf_counter()
    while recorded < steps:
        episode = episodes[index % len(episodes)]
        recorder.begin(episode=index, seed=index)
        step = recorder.step
        for observation, action, reward, terminated, truncated in episode:
            step(observation, action, reward, terminated, truncated)
        recorder.end(outcome="terminated")
        recorded += len(episode)
        index += 1
        if not early and recorded > steps // 10:
            early = process.memory_info().rss
    seconds = perf_counter() - began
    recorder.close()
    before = process.memory_info().rss
    stream = sum(path.stat().st_size for path in (folder / "episodes").iterdir())
    began = perf_counter()
    path = trajectories.finalize(folder, "train")
    finalizing = perf_counter() - began
    if path is None:
        raise RuntimeError("nothing was recorded")
    peak = next(line for line in Path("/proc/self/status").read_text().splitlines() if "VmHWM" in line)
    return found | {
        "steps": recorded,
        "episodes": index,
        "rate": recorded / seconds,
        "grown": before - early,
        "stream": stream / recorded,
        "parquet": path.stat().st_size / recorded,
        "finalizing": recorded / finalizing,
        "peak": int(peak.split()[1]) * 1024 - before,
    }


def one_step(recorder: Any, episodes: list[list[tuple[Any, ...]]]) -> dict[str, float]:
    """Microseconds of one step without its episode's end, and of appending the same values to a list; the better of five."""
    observation, action, reward, terminated, truncated = episodes[0][0]
    kept: list[tuple[Any, ...]] = []
    append, step = kept.append, recorder.step
    ours, plain = [], []
    for _ in range(5):
        recorder.begin(episode=0, seed=0)
        began = perf_counter()
        for _ in range(CALLS // 5):
            step(observation, action, reward, terminated, truncated)
        ours.append(perf_counter() - began)
        recorder.end(outcome="truncated")
        kept.clear()
        began = perf_counter()
        for _ in range(CALLS // 5):
            append((observation, action, reward, terminated, truncated))
        plain.append(perf_counter() - began)
    recorder.close()
    return {"step": min(ours) / (CALLS // 5) * 1e6, "append": min(plain) / (CALLS // 5) * 1e6}


def measure(steps: int = STEPS) -> list[Row]:
    with tempfile.TemporaryDirectory(prefix="gr-") as folder:
        command = [sys.executable, __file__, "--worker", folder, str(steps)]
        found = json.loads(subprocess.run(command, capture_output=True, check=True, cwd=HERE.parent).stdout)
    length = found["steps"] / found["episodes"]
    return [
        Row(
            what="a CartPole step, recorded",
            figure=found["step"],
            unit="µs",
            at_most=STEP_AIM,
            note=f"appending the same values to a list: {found['append']:.2f} µs; pieces on disk included",
        ),
        Row(
            what=f"{found['steps'] / 1e6:,.0f} million CartPole steps, recorded",
            figure=found["rate"],
            unit="steps/s",
            at_least=AIM,
            note=f"each of {found['episodes']:,} episodes of {length:.1f} steps on disk when it ends",
        ),
        Row(
            what="on disk while running",
            figure=found["stream"],
            unit="bytes/step",
            note="40 of them are the numbers of a step",
        ),
        Row(what="on disk when finalized", figure=found["parquet"], unit="bytes/step", note="Parquet, zstd"),
        Row(
            what="memory grown over the last nine tenths",
            figure=found["grown"] / 1e6,
            unit="MB",
            at_most=1,
        ),
        Row(
            what="finalizing",
            figure=found["finalizing"],
            unit="steps/s",
            note=f"{found['steps'] / found['finalizing']:.1f} s in all",
        ),
        Row(
            what="memory of finalizing, at its peak",
            figure=found["peak"] / 1e6,
            unit="MB",
            note="a row group, and 60 bytes each to sort some ten thousand episodes",
        ),
    ]


if __name__ == "__main__":
    sys.path.insert(0, str(HERE.parent))
    if sys.argv[1:2] == ["--worker"]:
        print(json.dumps(worker(Path(sys.argv[2]), int(sys.argv[3]))))
    else:
        print(table(measure(int(sys.argv[1]) if len(sys.argv) > 1 else STEPS)))
