"""The example of a language model, as a user runs it."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pandas as pd
import pytest

REPOSITORY = Path(__file__).parents[2]
EXAMPLE = REPOSITORY / "examples" / "text_game"


@pytest.fixture
def environ(tmp_path):
    """The environment of the processes under test. Afterwards no process has it."""
    made = {**os.environ, "XDG_STATE_HOME": str(tmp_path / "state"), "PYTHONPATH": str(REPOSITORY)}
    yield made
    mark = f"XDG_STATE_HOME={tmp_path}/state".encode()
    assert [path.parent.name for path in Path("/proc").glob("[0-9]*/environ") if mark in _bytes(path)] == []


def _bytes(path):
    try:
        return path.read_bytes()
    except OSError:
        return b""


@pytest.mark.system
def test_the_model_wins_every_game(environ, tmp_path):
    program = [sys.executable, "-m", "governor", "run", str(EXAMPLE / "run.yaml"), "--json"]
    done = subprocess.run(
        program, env=environ, cwd=tmp_path, capture_output=True, text=True, timeout=120, check=False
    )
    assert done.returncode == 0, done.stderr
    result = json.loads(done.stdout.splitlines()[-1])
    (phase,) = result["phases"]
    assert (result["outcome"], phase["end"], phase["episodes"]) == (
        "finished",
        "max_episodes",
        {"terminated": 40},
    )
    metrics = phase["metrics"]
    assert metrics["return_mean"] == 1.0
    assert metrics["steps_mean"] <= 7  # bisection of 100
    assert metrics["llm_requests"] == metrics["tokens_completion"] == metrics["steps_total"]
    steps = pd.read_parquet(f"{result['folder']}/episodes/guess.parquet")
    assert len(steps) == metrics["steps_total"]
    assert steps.groupby("episode").step_reward.sum().tolist() == [1.0] * 40
    played = steps.groupby("env_id").response.apply(lambda column: column.iloc[-1])
    assert len(played) == 20
