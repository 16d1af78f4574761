"""Runners that come by TCP and see nothing of the run's folder, as from another machine: files, cancellations, deaths."""

from __future__ import annotations

import asyncio
import contextlib
import time
from functools import partial

import numpy as np
import psutil
import pytest
import pytest_asyncio

from governor.files import write_whole
from governor.tasks.protocol.wire import Begun, Input, Loading, Over, StateUpdate
from governor.tasks.runners.process import RemoteProcess
from tests.support.living import lives
from tests.support.tasks.runner_world import open_world

pytestmark = [pytest.mark.ray, pytest.mark.asyncio(loop_scope="session")]


async def until(condition):
    """For what nobody tells us: the state of processes."""
    async with asyncio.timeout(10):
        while not condition():  # noqa: ASYNC110  # as said
            await asyncio.sleep(0.01)


@pytest_asyncio.fixture(scope="module", loop_scope="session")
async def far(harness, tmp_path_factory):
    """Runners that come by TCP and see nothing of the run's folder."""
    async with open_world(harness.cluster, tmp_path_factory.mktemp("run"), unix=False) as world:
        unshare(world.runners)
        yield world


def unshare(runners):
    """Takes the marker away by which runners know that they share the folder."""
    (runners._folder / runners._marker).unlink()


async def agent_of(cluster, node_id):
    """The agent of a node; the runner there has asked it too, and is answered."""
    await cluster.ask_agent(node_id, "ready")
    return cluster._agents[node_id]


def kill_and_see(ray, actor):
    """Returns when no call is answered any more."""
    ray.kill(actor)
    with contextlib.suppress(ray.exceptions.RayActorError):
        while True:
            ray.get(actor.ready.remote())


async def test_far_runners_work_as_near_ones_do(far):
    runner = await far.ready()
    assert isinstance(far.runners._handles[runner].process, RemoteProcess)
    work_items = [far.work("give", args={"value": n}, runs=(0, 1)) for n in range(200)]
    begin = time.monotonic()
    far.runners.send(runner, work_items)
    await far.over(runner, work_items[-1])
    told = far.heard.all(runner, Begun | Over)
    wanted = [(work.ticket, run, kind) for work in work_items for run in work.runs for kind in (Begun, Over)]
    assert [(each.ticket, each.run, type(each)) for each in told] == wanted
    assert begin <= told[0].at <= told[-1].at <= time.monotonic()
    far.give_back(runner)


async def test_files_of_far_runners_are_written_here_before_their_end_is_told(far):
    folder = far.runners._folder
    (over,) = await far.run("far_deeds:give_array", args={"size": 200_000})
    assert over.value_file.endswith(".npy")
    assert np.array_equal(np.load(folder / over.value_file), np.arange(200_000))
    (over,) = await far.run("far_deeds:give_payload", args={"size": 100_000})
    assert [path.stat().st_size for path in folder.rglob("*.payload")] == [100_000]
    ends = await far.run("far_deeds:give_array", args={"size": 100_000}, runs=(0, 1, 2))
    assert [over.run for over in ends] == [0, 1, 2]
    assert all((folder / over.value_file).is_file() for over in ends)


async def test_inputs_in_files_travel_with_the_work(far):
    write_whole(far.runners._folder / "results/old.json", b'["x"]')
    inputs = {"a": [Input(file="results/old.json")], "b": [Input(value=2)]}
    (over,) = await far.run("far_deeds:give_inputs", inputs=inputs)
    assert over.value == {"a": ["x"], "b": 2}
    (over,) = await far.run("far_deeds:give_inputs", inputs={"a": [Input(file="results/none.json")]})
    assert over.error.startswith("RuntimeError: the task could not be sent to its runner: FileNotFoundError")


async def test_a_result_that_cannot_be_written_fails_its_run_alone(far):
    blocked = far.runners._folder / "blocked"
    blocked.write_text("a file where a folder is to be")
    runner = await far.ready()
    bad = far.work("far_deeds:give_array", args={"size": 9}, stem="blocked/t")
    good = far.work("far_deeds:give_array", args={"size": 9})
    far.runners.send(runner, [bad, good])
    assert (await far.over(runner, bad))[0].error.startswith("its result cannot be written: ")
    assert not (await far.over(runner, good))[0].error
    far.give_back(runner)


async def test_what_cannot_be_encoded_fails_and_what_is_beside_it_works(far):
    runner = await far.ready()
    good, bad, last = (
        far.work("nothing"),
        far.work("nothing", model=object()),
        far.work("nothing", task="\udc80"),
    )
    far.runners.send(runner, [good, bad, last])
    assert not (await far.over(runner, good))[0].error
    assert "could not be sent to its runner: TypeError" in (await far.over(runner, bad))[0].error
    assert "could not be sent to its runner: UnicodeEncodeError" in (await far.over(runner, last))[0].error
    far.give_back(runner)


async def test_work_is_taken_back_and_a_task_is_cancelled_by_the_nodes_agent(far):
    runner = await far.ready()
    first, *rest = work_items = [far.work("sleep"), *(far.work("nothing") for _ in range(9))]
    far.runners.send(runner, work_items)
    await far.begun(runner, first)
    far.runners.cancel(runner, first.ticket)
    (over,) = await far.over(runner, first)
    assert over.error == "the task was cancelled"
    taken = await far.heard.until(lambda: [each for each in far.heard.of[runner] if isinstance(each, tuple)])
    assert taken == [tuple(work.ticket for work in rest)]
    assert not far.heard.all(runner, Over | Begun | Loading, rest[0].ticket)
    far.give_back(runner)


async def test_a_signal_that_was_lost_is_sent_again_by_the_nodes_agent(far, tmp_path):
    runner, note = await far.ready(), tmp_path / "note"
    work, after = far.work("deaf_until", args={"note": str(note)}), far.work("nothing")
    far.runners.send(runner, [work, after])
    await far.said(runner, StateUpdate, work.ticket)
    far.runners.cancel(runner, work.ticket)
    await far.heard.until(lambda: (after.ticket,) in far.heard.of[runner])
    note.touch()
    assert (await far.over(runner, work))[0].error == "the task was cancelled"
    far.give_back(runner)


async def test_a_far_tree_is_seen_dead_when_its_end_is_told(far):
    runner = await far.ready(fresh=True)
    process = psutil.Process(far.runners.pid(runner))
    work = far.work("fork_many")
    far.runners.send(runner, [work])
    await far.begun(runner, work)
    await until(lambda: len(process.children(recursive=True)) == 6)
    family = process.children(recursive=True)
    far.runners.kill(runner, "enough")
    gone = await far.gone(runner)
    assert not any(lives(each.pid) for each in [process, *family])
    assert gone.reason == "enough"


@pytest.mark.parametrize(("call", "reason"), [("shoot", "killed by a signal"), ("drop_dead", "os._exit(3)")])
async def test_the_death_of_a_far_runner_is_told_with_its_reason(far, call, reason):
    runner = await far.ready(fresh=True)
    work = far.work(call)
    far.runners.send(runner, [work, far.work("nothing")])
    gone = await far.gone(runner, seconds=5)
    assert reason in gone.reason
    assert far.heard.all(runner, Begun, work.ticket)


async def test_a_far_runner_that_has_lost_its_stream_is_killed_before_its_end_is_told(far):
    runner = await far.ready(fresh=True)
    pid = far.runners.pid(runner)
    far.runners.send(runner, [far.work("far_deeds:close_sockets")])
    await far.gone(runner, seconds=10)
    assert not lives(pid)


async def test_nothing_of_a_crashed_far_runner_lives_when_its_end_is_told(far, tmp_path):
    runner = await far.ready(fresh=True)
    far.runners.send(runner, [far.work("leave_behind", args={"note": str(tmp_path / "note")})])
    await far.gone(runner)
    left = [int(pid) for pid in (tmp_path / "note").read_text().split()]
    assert len(left) == 2
    assert not any(map(lives, left))


async def test_a_far_runner_dies_when_nobody_knows_what_was_taken_back(far, harness):
    runner = await far.ready(fresh=True)
    pid = far.runners.pid(runner)
    first = far.work("sleep")
    far.runners.send(runner, [first, far.work("nothing")])
    await far.begun(runner, first)
    agent = await agent_of(harness.cluster, far.node_of(runner))
    await harness.cluster.call(partial(kill_and_see, harness.cluster.ray, agent))
    far.runners.revoke(runner)
    gone = await far.gone(runner)
    assert gone.reason == "its node did not report which attempts it has taken back"
    assert not lives(pid)
    assert far.heard.of[runner][-1] is gone
    assert not [each for each in far.heard.of[runner] if isinstance(each, tuple)]


async def test_an_agent_that_died_is_replaced(far, harness):
    runner = await far.ready(fresh=True)
    pid = far.runners.pid(runner)
    agent = await agent_of(harness.cluster, far.node_of(runner))
    await harness.cluster.call(lambda: harness.cluster.ray.kill(agent))
    far.runners.kill(runner, "enough")
    await far.gone(runner)
    assert not lives(pid)
