"""Ray was shut down by its owner while the engine still uses it: no second Ray is started, and the end is quick."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[3]

SCRIPT = """
import asyncio, sys, time
import ray
from governor.tasks.cluster.joining import keep_loopback_address

keep_loopback_address()
ray.init(address=sys.argv[1], log_to_driver=False, configure_logging=False)

from governor.tasks import SchedulerConfig
from governor.tasks.driver import Driver
import ray._private.worker as worker

async def main():
    driver = await Driver.open(SchedulerConfig(), capacity=1)
    ray.shutdown()
    started = []
    worker.init = ray.init = lambda *_, **__: started.append(1)
    begun = time.monotonic()
    await driver.close(seconds=20)
    print("STARTED", len(started), "SECONDS", time.monotonic() - begun, flush=True)

asyncio.run(main())
"""


@pytest.mark.ray
@pytest.mark.asyncio(loop_scope="session")
async def test_the_engine_ends_and_starts_no_ray_of_its_own(ray_head):
    environment = {
        **os.environ,
        "PYTHONPATH": str(ROOT),
        "RAY_AUTH_MODE": "token",
        "RAY_AUTH_TOKEN_PATH": str(ray_head.token_path),
        "RAY_USAGE_STATS_ENABLED": "0",
    }
    begun = time.monotonic()
    done = subprocess.run(  # noqa: ASYNC221  # nothing else is in this loop
        [sys.executable, "-c", SCRIPT, ray_head.address],
        env=environment,
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-2000:]
    (told,) = [line.split() for line in done.stdout.splitlines() if line.startswith("STARTED")]
    assert told[1] == "0"
    assert float(told[3]) < 10
    assert time.monotonic() - begun < 30
