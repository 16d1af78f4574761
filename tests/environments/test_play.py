"""Environments of the index, installed and played: what can be built plays, on record as it was."""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from tests.support import from_index

HERE = Path(__file__).parent
SECONDS = 1750
pytestmark = [pytest.mark.long, pytest.mark.system, pytest.mark.timeout(SECONDS + 50)]


@pytest.fixture(scope="module")
def packages(tmp_path_factory):
    folder = tmp_path_factory.mktemp("packages")
    from_index.install(folder, HERE / "requirements.txt", what="environments")
    return folder


@pytest.mark.parametrize(
    ("word", "every", "least"),
    [("gymnasium", 4, 8), ("minigrid", 16, 11), ("pettingzoo", 2, 9), ("ALE/", 16, 7)],
)
def test_what_its_package_builds_plays(packages, tmp_path, word, every, least):
    """One of so many of each group; docs/environments-played.md has them all."""
    assert play([word, "--every", str(every), "--episodes", "5"], tmp_path, packages) >= least


def test_algorithms_of_stable_baselines3_play(packages, tmp_path_factory, tmp_path):
    learners = tmp_path_factory.mktemp("learners")
    from_index.install(learners, HERE / "requirements_sb3.txt", what="Stable-Baselines3")
    assert play(["stable-baselines3"], tmp_path, learners, packages) == 4


def play(words, folder, *packages):
    """How many games play."""
    done = subprocess.run(
        [sys.executable, HERE / "play.py", *words],
        cwd=folder,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(map(str, packages))},
        capture_output=True,
        text=True,
        timeout=SECONDS,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr[-4000:]
    found = re.search(r"^(\d+) of \d+ games play", done.stdout, re.MULTILINE)
    return int(found.group(1))
