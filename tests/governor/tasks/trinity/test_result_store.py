"""Results of a scheduler that outlive its process: kill -9, a second process, and what is given back."""

from __future__ import annotations

import asyncio
import os
import shutil
import signal
import subprocess
import sys
import tempfile
from dataclasses import replace
from pathlib import Path

import pytest
import pytest_asyncio

from governor.errors import TryAgain
from governor.tasks import RolloutCoordinator, Scheduler, Task
from governor.tasks.trinity.result_store import ResultStore
from tests.support.tasks.scheduling import BASE, Pipeline, visitor, within

pytestmark = [pytest.mark.ray, pytest.mark.asyncio(loop_scope="session")]
ROOT = Path(__file__).parents[4]

PROGRAM = """
import asyncio, os, sys
from dataclasses import replace
from types import SimpleNamespace
from tests.support.tasks.scheduling import BASE, visitor
from governor.tasks import Scheduler

async def main(folder, gate):
    gate = SimpleNamespace(path=gate)
    async with Scheduler(replace(BASE, address=os.environ["RAY"]), folder=folder) as scheduler:
        scheduler.schedule([visitor(gate, id="a", repeat_times=2), visitor(gate, id="b")], 7)
        await scheduler.get_statuses(7, min_num=1, clear_timeout_tasks=False)
        print("a was handed out", flush=True)
        await scheduler.wait_all(timeout=600)

asyncio.run(main(*sys.argv[1:]))
"""


@pytest_asyncio.fixture(loop_scope="session")
async def stored(harness, tmp_path):
    """Starts schedulers that keep their results; another one each time."""
    started = []

    async def start(kind=Scheduler, **fields):
        made = kind(replace(BASE, max_repeat_times_per_runner=1), folder=tmp_path / "stored", **fields)
        await (made.start() if kind is Scheduler else made.prepare())
        started.append(made)
        return made

    yield start
    for made in started:
        await (made.stop() if isinstance(made, Scheduler) else made.shutdown())


def tasks(gate):
    return [visitor(gate, id="a", repeat_times=2), visitor(gate, id="b")]


async def killed_after_a(folder, gate):
    """Another process that has results of `a` and is killed while `b` is at work."""
    import ray

    scratch = tempfile.mkdtemp(prefix="gk-")
    env = {
        **os.environ,
        "TMPDIR": scratch,
        "RAY": ray.get_runtime_context().gcs_address,
        "PYTHONPATH": str(ROOT),
    }
    command = [sys.executable, "-c", PROGRAM, str(folder), gate.path]
    caller = await asyncio.create_subprocess_exec(*command, env=env, stdout=subprocess.PIPE, limit=2**20)
    try:
        for _ in range(3):
            visit = await within(40, gate.visit())
            if visit.task == "a":
                visit.tell("go")
            else:
                at_work = visit
        while b"a was handed out" not in await within(40, caller.stdout.readline()):
            pass
    finally:
        caller.send_signal(signal.SIGKILL)
        await caller.wait()
        shutil.rmtree(scratch)
    await within(20, at_work.gone())


async def test_after_kill_9_a_batch_that_is_scheduled_again_has_what_was_done(stored, gate, tmp_path):
    await killed_after_a(tmp_path / "stored", gate)
    scheduler = await stored()
    scheduler.schedule(tasks(gate), 7)
    visit = await within(20, gate.visit())
    assert visit.task == "b"
    visit.tell("go")
    statuses, payloads = await within(20, scheduler.get_payload_results(7))
    assert sorted(status.task_id for status in statuses) == ["a", "b"]
    assert all(status.ok for status in statuses)
    assert sorted(payloads) == [b"a/0", b"a/1", b"b/0"]


async def test_what_failed_runs_again_and_what_was_handed_out_is_given_again_until_it_is_forgotten(
    stored, gate
):
    scheduler = await stored()
    scheduler.schedule([visitor(gate, id="good"), visitor(gate, id="bad")], "7")
    visits = await gate.visits(2)
    visits["good", 0].tell("go")
    visits["bad", 0].tell("fail")
    await within(20, scheduler.get_statuses("7"))
    scheduler.schedule([visitor(gate, id="good"), visitor(gate, id="bad")], "7")
    visit = await within(20, gate.visit())
    assert visit.task == "bad"
    with pytest.raises(ValueError, match="active"):
        scheduler.forget("7")
    visit.tell("go")
    statuses, payloads = await within(20, scheduler.get_payload_results("7"))
    assert (sorted(status.task_id for status in statuses), sorted(payloads)) == (
        ["bad", "good"],
        [b"bad/0", b"good/0"],
    )
    scheduler.schedule([visitor(gate, id="good")], "7")
    assert (await within(5, scheduler.get_payload_results("7")))[1] == [b"good/0"], "nobody ran"
    scheduler.forget("7")
    scheduler.schedule([visitor(gate, id="good")], "7")
    (await within(20, gate.visit())).tell("go")
    await within(20, scheduler.get_statuses("7"))


async def test_a_batch_has_one_process_at_a_time_and_numbers_are_no_texts(stored, gate, tmp_path):
    scheduler = await stored()
    scheduler.schedule([visitor(gate, id="a")], 7)
    visit = await within(20, gate.visit())
    other = ResultStore(tmp_path / "stored")
    with pytest.raises(TryAgain):
        other.batch(7)
    assert other.batch("7").succeeded({"a"}) == []
    await other.close()
    visit.tell("go")
    await within(20, scheduler.get_statuses(7))
    await scheduler.stop()
    assert [record.task for record in other.batch(7).succeeded({"a", "b"})] == ["a"]
    other.leave(7)


async def test_dependants_find_the_values_of_what_was_kept(stored, gate):
    large = Task("batch_deeds:large", id="large")
    uses = Task("batch_deeds:size", id="uses", depends_on=("large",))
    scheduler = await stored()
    scheduler.schedule([large], 1)
    await within(20, scheduler.get_statuses(1))
    await scheduler.stop()
    scheduler = await stored()
    scheduler.schedule([large, uses], 1)
    statuses, _ = await within(20, scheduler.get_payload_results(1))
    assert {status.task_id: status.ok for status in statuses} == {"large": True, "uses": True}


async def test_a_coordinator_finalizes_what_an_earlier_one_had_done(stored, gate):
    first = await stored(RolloutCoordinator, pipeline=Pipeline())
    await first.submit_batch(batch_id=3, tasks=tasks(gate), batch_type="train")
    visits = await gate.visits(2)
    for visit in visits.values():
        visit.tell("go")
    (await within(20, gate.visit())).tell("go")
    await within(20, first.scheduler.wait_for(3))
    await first.shutdown()
    pipeline = Pipeline()
    second = await stored(RolloutCoordinator, pipeline=pipeline)
    await second.submit_batch(batch_id=3, tasks=tasks(gate), batch_type="train")
    result = await within(5, second.finalize_train_batch(3))
    assert result["finished_task_count"] == 2
    assert sorted(payload for given in pipeline.taken for payload in given) == [b"a/0", b"a/1", b"b/0"]
