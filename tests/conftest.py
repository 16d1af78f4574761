"""Configuration of all tests.

* Log lines go to standard error, because tests of the command line read standard output.
* Processes that tests start receive SIGINT, even if a shell's `&` has set it to be ignored.
* Modules that share a Ray head of the session run one after the other in `RAY_HEADS` worker processes, and start first. Tests of
  one module run in one worker too, except those with a whole process tree or a Ray head of their own: they run in any free
  worker, before the rest, because they take longest.
* Ray's workers have the priority of all other processes. By default their niceness is 15: beside eight busy processes a runner
  then takes minutes to start.
* The hypothesis profile `long` has 20 times as many examples: `HYPOTHESIS_PROFILE=long`.
"""

import os
import shutil
import signal
import sys
import tempfile
from pathlib import Path

import pytest
import structlog
from hypothesis import settings

from governor.logs import TolerantStream
from tests.support.xdist_scheduling import CrashProofScheduling

RAY_HEADS = 2
os.environ["RAY_worker_niceness"] = "0"  # noqa: SIM112  # as Ray spells it; read by each raylet that a test starts

if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)
settings.register_profile("default", deadline=None, max_examples=100)
settings.register_profile("long", deadline=None, max_examples=2000)
settings.load_profile(os.environ.get("HYPOTHESIS_PROFILE", "default"))
structlog.configure(logger_factory=structlog.PrintLoggerFactory(file=TolerantStream(sys.stderr)))


@pytest.fixture
def short_path():
    """A folder like `tmp_path`, but with a path short enough for sockets."""
    folder = Path(tempfile.mkdtemp(prefix="gt-", dir="/tmp"))
    yield folder
    shutil.rmtree(folder)


@pytest.hookimpl(tryfirst=True)  # before xdist, which reads the groups in the same hook
def pytest_collection_modifyitems(items):
    sharing = sorted({item.location[0] for item in items if "ray_head" in item.fixturenames})
    for item in items:
        if item.location[0] in sharing:
            item.add_marker(pytest.mark.xdist_group(f"ray {sharing.index(item.location[0]) % RAY_HEADS}"))
        elif not _stands_alone(item):
            item.add_marker(pytest.mark.xdist_group(item.location[0]))
    items.sort(key=lambda item: 0 if item.location[0] in sharing else 1 if _stands_alone(item) else 2)


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config, log):
    return CrashProofScheduling(config, log)


def _stands_alone(item):
    return any(item.iter_markers("ray")) or any(item.iter_markers("system"))
