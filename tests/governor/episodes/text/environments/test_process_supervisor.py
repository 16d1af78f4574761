"""What user code has started dies with its environment, in sessions of its own too: whoever is killed, and however."""

import asyncio
import os
import signal
import subprocess
import sys
import textwrap
from pathlib import Path

import psutil
import pytest

from governor.episodes.text.environments.environment import EnvironmentCrashed, EnvironmentHung
from governor.episodes.text.environments.process import TextProcess
from tests.support.living import gone

SECONDS = 20
ROOT = Path(__file__).parents[5]


@pytest.fixture
async def world():
    made = await TextProcess.started("tests.support.user_code.text_worlds:Corridor", timeout=SECONDS)
    yield made
    await made.aclose()


@pytest.mark.parametrize(
    ("number", "name"),
    [
        (signal.SIGKILL, "SIGKILL"),
        (signal.SIGTERM, "SIGTERM"),
        (signal.SIGABRT, "SIGABRT"),
        (40, "signal 40"),
    ],
)
async def test_one_that_is_killed_is_told_as_killed_and_leaves_no_stranger(world, number, name):
    stranger = (await world.step("stranger", timeout=SECONDS)).info["child"]
    os.kill((await world.step("a", timeout=SECONDS)).info["pid"], number)
    with pytest.raises(EnvironmentCrashed, match=f"its process ended with {name}"):
        await world.step("a", timeout=SECONDS)
    await gone(stranger)


async def test_a_supervisor_that_is_killed_takes_user_code_along(world):
    pid = (await world.step("a", timeout=SECONDS)).info["pid"]
    os.kill(world.pid, signal.SIGKILL)
    await gone(pid)


async def test_orphans_are_reaped_while_it_lives(world):
    pid = (await world.step("orphan", timeout=SECONDS)).info["child"]
    await gone(pid)
    async with asyncio.timeout(SECONDS):
        while psutil.pid_exists(pid):  # noqa: ASYNC110  # dead; that a zombie is reaped is no event for strangers
            await asyncio.sleep(0)
    assert (await world.step("a", timeout=SECONDS)).reward == 1.0


@pytest.mark.parametrize("action", ["gil", "stop"])
async def test_a_hang_is_killed_with_all_that_it_has_started(world, action):
    stranger = (await world.step("stranger", timeout=SECONDS)).info["child"]
    pid = (await world.step("a", timeout=SECONDS)).info["pid"]
    with pytest.raises(EnvironmentHung):
        await world.step(action, timeout=0.3)
    await gone(pid)
    await gone(stranger)


@pytest.mark.parametrize("action", ["child", "stranger"])
async def test_the_kill_of_its_parent_leaves_nothing_at_all(action):
    code = f"""
    import asyncio
    from governor.episodes.text.environments.process import TextProcess

    async def play():
        world = await TextProcess.started("tests.support.user_code.text_worlds:Corridor", timeout={SECONDS})
        child = (await world.step("{action}", timeout={SECONDS})).info["child"]
        user = (await world.step("a", timeout={SECONDS})).info["pid"]
        print(world.pid, user, child, flush=True)
        await world.step("gil", timeout=1000)

    asyncio.run(play())
    """
    environ = {**os.environ, "PYTHONPATH": str(ROOT)}
    with subprocess.Popen(  # noqa: ASYNC220 - it starts at once
        [sys.executable, "-c", textwrap.dedent(code)], env=environ, stdout=subprocess.PIPE, text=True
    ) as parent:
        pids = [int(word) for word in parent.stdout.readline().split()]
        parent.kill()
    assert len(pids) == 3
    for pid in pids:
        await gone(pid)
