"""Runs an example as a user does, `governor run FILE --json`, and reads the result from the last line."""

import json
import os
import subprocess
import sys
from pathlib import Path

REPOSITORY = Path(__file__).parents[3]


def result_of(example, folder, *, seconds=300):
    """The result of ``examples/<example>/run.yaml``, with its state below `folder`."""
    path = os.pathsep.join(filter(None, [str(REPOSITORY), os.environ.get("PYTHONPATH")]))
    done = subprocess.run(
        [
            sys.executable,
            "-m",
            "governor",
            "run",
            str(REPOSITORY / "examples" / example / "run.yaml"),
            "--json",
        ],
        cwd=folder,
        env={**os.environ, "XDG_STATE_HOME": str(folder), "PYTHONPATH": path},
        capture_output=True,
        text=True,
        timeout=seconds,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout.splitlines()[-1])


def examples_path(example):
    return REPOSITORY / "examples" / example
