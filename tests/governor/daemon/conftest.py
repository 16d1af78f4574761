from __future__ import annotations

import psutil
import pytest

from tests.support.daemon.serving_script import SECONDS, Script, processes


@pytest.fixture
def play(short_path):
    """Starts a script. When the test is over nothing of it is left, also not in the folder of temporary files."""
    started = []

    def start(body):
        started.append(Script(short_path, body))
        return started[-1]

    yield start
    for script in started:
        script.process.kill()
        script.process.communicate()
    left = list(processes(short_path))
    _, alive = psutil.wait_procs(left, timeout=SECONDS)  # the sweeper itself may be about to end
    assert [process.cmdline() for process in alive] == []
    assert list(short_path.glob("governor-*")) == []
