"""A close that is cancelled is a close: no process, no descriptor is left when it returns."""

import asyncio
import gc
from pathlib import Path

import pytest

from governor.episodes.text.environments.process import TextProcess
from tests.support.living import lives
from tests.support.user_code.text_worlds import Corridor

SECONDS = 20


def descriptors():
    return len(list(Path("/proc/self/fd").iterdir()))


async def test_a_cancelled_close_leaves_no_process_and_no_descriptor():
    gc.collect()
    before = descriptors()
    world = await TextProcess.started(Corridor, timeout=SECONDS)
    pid = world.pid
    descendant = (await world.step("stranger", timeout=SECONDS)).info["child"]
    await world.step("stubborn", timeout=SECONDS)  # it takes all the time that it is given
    closing = asyncio.create_task(world.aclose())
    await asyncio.sleep(0)
    for _ in range(2):
        closing.cancel()
        await asyncio.sleep(0)
    with pytest.raises(asyncio.CancelledError):
        await asyncio.wait_for(closing, SECONDS)
    gc.collect()
    assert not lives(pid)
    assert not lives(descendant)
    assert descriptors() <= before
