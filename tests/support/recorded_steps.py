"""Steps of episodes, recorded and read back."""

import os
import subprocess
import sys
from pathlib import Path

import gymnasium.spaces as gym

from governor.episodes import spaces, trajectories
from governor.episodes.records.recording import Columns, StepRecorder

REPOSITORY = Path(__file__).parents[2]


def columns(observation, action):
    return Columns.of(
        spaces.describe(observation, role="observation_space"), spaces.describe(action, role="action_space")
    )


COLUMNS = columns(gym.Discrete(1000), gym.Discrete(2))


def recorder(folder, *, worker=0, made=COLUMNS, phase="train"):
    return StepRecorder(folder, phase=phase, worker=worker, columns=made)


def play(recorder, episode, *, steps, outcome="terminated", first=0):
    recorder.begin(episode=episode, seed=episode + 100)
    for step in range(steps):
        recorder.step(first + step, step % 2, 0.5, step + 1 == steps, False, weight_version=episode)
    recorder.end(outcome=outcome)


def rows(folder, *names, phase="train"):
    table = trajectories.read(folder, phase)
    return list(zip(*(table[name].to_pylist() for name in names), strict=True))


def run_code(code, *arguments):
    """Runs `code` in a new Python process that can import what tests import. Returns its exit code."""
    done = subprocess.run(
        [sys.executable, "-c", code, *map(str, arguments)],
        cwd=REPOSITORY,
        env={**os.environ, "PYTHONPATH": str(REPOSITORY)},
        check=False,
    )
    return done.returncode
