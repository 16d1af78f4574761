"""How runners on a real Ray end: killed, crashed, closed while they start; and that nothing of them is left."""

from __future__ import annotations

import asyncio
import os
import resource
import signal
import time
from functools import partial

import msgspec
import psutil
import pytest
from ray.experimental import internal_kv
from structlog.testing import capture_logs

from governor.processes import kill_tree
from governor.tasks.protocol.wire import (
    Begun,
    Input,
    Over,
)
from governor.tasks.runner_process import settings
from governor.tasks.scheduling.events import RunnerGone
from tests.support.living import lives
from tests.support.tasks.runner_world import SECONDS, open_world

pytestmark = [pytest.mark.ray, pytest.mark.asyncio(loop_scope="session")]


# -- deaths -------------------------------------------------------------------------------------------------


async def test_all_that_a_killed_runner_has_written_comes_before_its_end(world):
    for _ in range(5):
        runner = await world.ready()
        work_items = [world.work("burst", args={"seconds": 1e-4}) for _ in range(2000)]
        world.runners.send(runner, work_items)
        await world.said(runner, Over, work_items[19].ticket)
        os.kill(world.runners.pid(runner), signal.SIGKILL)
        time.sleep(0.05)  # what it has written lies in the kernel, and it is dead  # noqa: ASYNC251
        await world.gone(runner)
        news = world.heard.of[runner]
        assert isinstance(news[-1], RunnerGone)
        tickets = [work.ticket for work in work_items]
        told = [(type(e), e.ticket) for e in news if isinstance(e, Begun | Over) and e.ticket >= tickets[0]]
        wanted = [(kind, ticket) for ticket in tickets for kind in (Begun, Over)]
        assert told == wanted[: len(told)]
        assert told[-1][0] is Begun  # Over and the next Begun are one write


@pytest.mark.parametrize(
    ("call", "reason"),
    [
        ("shoot", "was killed by a signal or crashed in native code"),
        ("drop_dead", r"ended by os._exit(3)"),
        ("close_all", "was killed by a signal or crashed in native code"),
    ],
)
async def test_a_runner_that_is_dead_is_told_once_with_the_reason(world, call, reason):
    runner = await world.ready(fresh=True)
    pid = world.runners.pid(runner)
    work, after = world.work(call), world.work("nothing")
    world.runners.send(runner, [work, after])
    gone = await world.gone(runner)
    assert reason in gone.reason or "connection was closed" in gone.reason
    assert not lives(pid)
    assert not world.heard.all(runner, Over, after.ticket)
    world.runners.kill(runner, "again")
    world.runners.revoke(runner)
    world.runners.cancel(runner, work.ticket)
    world.runners.send(runner, [after])
    await world.ready()
    assert len(world.heard.all(runner, RunnerGone)) == 1


async def test_descriptors_that_user_code_takes_over_are_a_crash_not_a_hang(world, tmp_path):
    runner = await world.ready(fresh=True)
    world.runners.send(
        runner, [world.work("close_all_and_open", args={"folder": str(tmp_path)}), world.work("nothing")]
    )
    await world.gone(runner, seconds=5)


async def test_children_that_keep_the_stream_open_do_not_hide_a_death(world, tmp_path):
    runner = await world.ready(fresh=True)
    work = world.work("fork_and_die", args={"note": str(tmp_path / "note")})
    sent = time.monotonic()
    world.runners.send(runner, [work])
    gone = await world.gone(runner)
    assert gone.now - sent < 3
    assert world.heard.all(runner, Begun, work.ticket)


async def test_a_kill_takes_the_whole_tree(world):
    runner = await world.ready(fresh=True)
    process = psutil.Process(world.runners.pid(runner))
    work = world.work("fork_many")
    world.runners.send(runner, [work])
    await world.begun(runner, work)
    while len(process.children(recursive=True)) < 6:  # noqa: ASYNC110  # the kernel tells nobody
        await asyncio.sleep(0)
    family = process.children(recursive=True)
    world.runners.kill(runner, "enough")
    await world.gone(runner)
    assert not any(lives(child.pid) for child in [process, *family])


async def test_nothing_of_a_crashed_runner_lives_when_its_end_is_told(world, tmp_path):
    runner = await world.ready(fresh=True)
    world.runners.send(runner, [world.work("leave_behind", args={"note": str(tmp_path / "note")})])
    gone = await world.gone(runner)
    assert "was killed by a signal" in gone.reason
    left = [int(pid) for pid in (tmp_path / "note").read_text().split()]
    assert len(left) == 2
    assert not any(map(lives, left))


async def test_a_close_while_runners_start_waits_for_nobody_and_nothing_is_started_after_it(
    harness, tmp_path
):
    async with open_world(harness.cluster, tmp_path) as world:
        busy = asyncio.create_task(harness.cluster.call(partial(time.sleep, 0.3)))
        await asyncio.sleep(0)
        first, second = next(world.runners.ids), next(world.runners.ids)
        world.runners.start(first, ())
        begun = time.monotonic()
        asyncio.get_running_loop().call_soon(
            world.runners.start, second, ()
        )  # runs while the world is closed
    assert time.monotonic() - begun < 3
    assert [event.reason for event in world.heard.all(first, RunnerGone)] == ["the scheduler ends"]
    assert not world.heard.of[second]
    await busy


async def test_a_task_of_ours_that_fails_ends_the_runner_that_it_was_for(world, monkeypatch):
    def fails(*_, **__):
        raise MemoryError("no room")

    runner = await world.ready(fresh=True)
    pid = world.runners.pid(runner)
    process = world.runners._handles[runner].process
    process.hello = msgspec.structs.replace(process.hello, shares_folder=False)
    work = world.work("nothing", inputs={"a": [Input(file="results/none.json")]})
    with capture_logs() as lines, monkeypatch.context() as patch:
        patch.setattr("governor.tasks.runners.remote_files.with_files", fails)
        world.runners.send(runner, [work])
        gone = await world.gone(runner)
    assert "MemoryError: no room" in gone.reason
    assert not lives(pid)
    assert [line["step"] for line in lines if line["event"] == "runner.failed"] == [f"runner.{runner}.inputs"]


async def test_runners_that_live_have_marks_of_their_own_and_those_of_dead_ones_come_again(world):
    def mark(runner):
        return resource.prlimit(world.runners.pid(runner), kill_tree.MARK_LIMIT)[0]

    runners = [await world.ready(fresh=True) for _ in range(3)]
    freed = mark(runners[0])
    world.runners.kill(runners[0], "enough")
    await world.gone(runners[0])
    runners[0] = await world.ready(fresh=True)
    marks = {mark(runner) for runner in runners}
    assert len(marks) == 3
    assert freed in marks
    for runner in runners:
        world.runners.kill(runner, "enough")
        await world.gone(runner)


async def test_a_runner_that_is_killed_while_it_starts_is_told_once(world):
    started = [next(world.runners.ids) for _ in range(3)]
    for runner in started:
        world.runners.start(runner, ())
        world.runners.kill(runner, "not wanted")
        await asyncio.sleep(0.15)
    for runner in started:
        assert (await world.gone(runner)).reason == "not wanted"
        assert len(world.heard.all(runner, RunnerGone)) == 1


def settings_in_store():
    return set(internal_kv._internal_kv_list("", namespace=settings.NAMESPACE))


async def test_a_runner_that_is_gone_before_it_started_leaves_no_settings_in_the_store_of_ray(world):
    before = settings_in_store()
    runner = next(world.runners.ids)
    world.runners.start(runner, (("CPU", 10_000.0),))  # it waits in Ray's queue
    await asyncio.wait(world.runners._tasks, timeout=SECONDS)
    assert len(settings_in_store()) == len(before) + 1
    world.runners.kill(runner, "not wanted")
    await world.gone(runner)
    assert settings_in_store() == before


async def test_a_runner_that_ray_refuses_leaves_no_settings_in_the_store_of_ray(world, monkeypatch):
    before = settings_in_store()
    runner = next(world.runners.ids)

    def refuses():
        raise ValueError("no actors today")

    with monkeypatch.context() as patch:
        patch.setattr("governor.tasks.runners.pool._actor_class", refuses)
        world.runners.start(runner, ())
        assert "no actors today" in (await world.gone(runner)).reason
    await asyncio.wait(world.runners._tasks, timeout=SECONDS)
    assert settings_in_store() == before


async def test_no_descriptor_is_left_of_runners_that_are_gone(world):
    await world.ready()
    before = psutil.Process().num_fds()
    for _ in range(3):
        runner = await world.ready(fresh=True)
        world.runners.kill(runner, "enough")
        await world.gone(runner)
    assert psutil.Process().num_fds() <= before + 1
