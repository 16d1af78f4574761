"""AgentLab from the index, for scripts in processes of their own."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

REQUIREMENTS = Path(__file__).parent / "agentlab_requirements.txt"
STAND_INS = {
    # Episodes without a browser and a web site
    "playwright/__init__.py": "",
    "playwright/sync_api.py": "def __getattr__(name):\n    return type(name, (), {})\n",
    "playwright-0.dist-info/METADATA": "Metadata-Version: 2.1\nName: playwright\nVersion: 0\n",
    "browsergym/webarena/__init__.py": "",
    "browsergym/webarena/instance.py": "class WebArenaInstance: ...\n",
}


def install(folder):
    """Into a folder for PYTHONPATH. Skips the test where the index cannot be reached, or has nothing for this Python."""
    command = [sys.executable, "-m", "pip", "install", "--quiet", "--disable-pip-version-check", "--no-deps"]
    command += ["--no-compile", "--retries", "1", "--timeout", "20", "--target", folder, "-r", REQUIREMENTS]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=240, check=False)
    except subprocess.TimeoutExpired:
        pytest.skip("the package index did not answer within 240 s")
    if done.returncode:
        *_, reason = done.stderr.strip().splitlines() or [f"pip ended with {done.returncode}"]
        pytest.skip(f"AgentLab cannot be installed: {reason}")
    for name, text in STAND_INS.items():
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
