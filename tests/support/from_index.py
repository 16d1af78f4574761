"""Packages from the index that the extra `test` does not have, in a folder for PYTHONPATH."""

from __future__ import annotations

import subprocess
import sys

import pytest


def install(folder, requirements, *, what, dependencies=False, seconds=240):
    """What the file `requirements` names. Skips the test where the index cannot be reached, or has nothing for this Python."""
    command = [sys.executable, "-m", "pip", "install", "--quiet", "--disable-pip-version-check"]
    command += [] if dependencies else ["--no-deps"]
    command += ["--no-compile", "--retries", "1", "--timeout", "20", "--target", folder, "-r", requirements]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=seconds, check=False)
    except subprocess.TimeoutExpired:
        pytest.skip(f"the package index did not answer within {seconds} s")
    if done.returncode:
        *_, reason = done.stderr.strip().splitlines() or [f"pip ended with {done.returncode}"]
        pytest.skip(f"{what} cannot be installed: {reason}")
