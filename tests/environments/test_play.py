"""The environments of the index, installed and played: all that can be built plays, on record as it was."""

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
    ("group", "least"),
    [("gymnasium", 38), ("minigrid", 171), ("ALE/B", 10), ("pettingzoo", 19)],
)
def test_all_that_its_package_builds_plays(packages, tmp_path, group, least):
    """Of Atari a tenth: each reset loads a ROM, which takes 0.15 s. `play.py ale-py` plays all."""
    done = subprocess.run(
        [sys.executable, HERE / "play.py", group],
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": str(packages)},
        capture_output=True,
        text=True,
        timeout=SECONDS,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr[-4000:]
    found = re.search(r"^(\d+) of \d+ games play", done.stdout, re.MULTILINE)
    assert int(found.group(1)) >= least, done.stdout
