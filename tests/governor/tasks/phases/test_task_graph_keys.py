"""Keys of a phase on a real Ray: when there is enough, how runs are split, who goes first, and learned limits."""

from __future__ import annotations

import asyncio
import threading
import time

import pytest

from governor.conductors.task import TaskConductor
from governor.index_ranges import IndexRanges
from governor.messages import (
    Done,
    DynamicTimeoutSpec,
    EndedRuns,
    PartEndedReport,
    StartTasks,
    StopPartCommand,
    TaskEnded,
)
from governor.messages.link import RecordingLink
from governor.tasks.protocol.wire import Input
from tests.support.reasons import without_place

pytestmark = [pytest.mark.ray, pytest.mark.asyncio(loop_scope="session")]


class Phase:
    """A phase at work; it is over when the test is."""

    def __init__(self, harness, tasks, fields):
        self.work, self.link = harness.phase(*tasks, **fields)

    async def __aenter__(self):
        self.work.begin()
        self.running = asyncio.create_task(self.work.run())
        return self

    async def __aexit__(self, *_):
        self.work.stop("the test is over")
        await self.running

    async def end(self):
        """Its end, and the outcomes by task and run."""
        async with asyncio.timeout(20):
            await self.running
        assert isinstance(self.link.events[-1], PartEndedReport)
        records = [event.record for event in self.link.events if isinstance(event, TaskEnded)]
        return self.link.events[-1], {(record.task, record.run): record for record in records}


@pytest.fixture
def begin(harness):
    return lambda *tasks, **fields: Phase(harness, tasks, fields)


@pytest.fixture
def visit(task, gate):
    return lambda name, *needs, **fields: task(
        name, "batch_deeds:visit", *needs, args={"gate": gate.path}, **fields
    )


def outcomes(records):
    return {task: record.outcome for (task, _), record in records.items()}


async def test_min_num_counts_what_succeeded_and_cancels_the_rest(begin, task, visit, gate):
    tasks = [task("bad", "fail"), task("good", "nothing"), visit("chosen"), visit("rest")]
    async with begin(*tasks, min_num=2) as phase:
        visits = await gate.visits(2)
        visits["chosen", 0].tell("go")
        end, records = await phase.end()
    assert outcomes(records) == {
        "bad": "failed",
        "good": "succeeded",
        "chosen": "succeeded",
        "rest": "cancelled",
    }
    assert (end.end, end.failures) == ("enough", 1)
    await visits["rest", 0].gone()


@pytest.mark.parametrize(
    "fields",
    [{"over_rollout": 0.5}, {"over_rollout": 0.5, "min_num": 2}, {"over_rollout": 0.1, "min_num": 1}],
)
async def test_over_rollout_is_enough_as_well_whichever_is_less(begin, visit, gate, fields):
    async with begin(visit("a"), visit("b"), **fields) as phase:
        (await gate.visits(2))["b", 0].tell("go")
        end, records = await phase.end()
    assert outcomes(records) == {"a": "cancelled", "b": "succeeded"}
    assert (end.end, end.failures) == ("enough", 0)


async def test_wait_after_min_is_time_for_the_rest(begin, visit, gate):
    async with begin(visit("a"), visit("b"), min_num=1, wait_after_min=20.0) as phase:
        visits = await gate.visits(2)
        visits["a", 0].tell("go")
        await phase.link.next(TaskEnded)
        visits["b", 0].tell("go")
        end, records = await phase.end()
    assert outcomes(records) == {"a": "succeeded", "b": "succeeded"}
    assert end.end == "tasks_done"
    async with begin(visit("a"), visit("b"), min_num=1, wait_after_min=0.3) as phase:
        visits = await gate.visits(2)
        told = time.monotonic()
        visits["a", 0].tell("go")
        end, records = await phase.end()
        assert time.monotonic() - told >= 0.3
    assert outcomes(records) == {"a": "succeeded", "b": "cancelled"}
    assert end.end == "enough"


async def test_so_many_runs_go_to_one_runner_in_a_row(begin, visit, gate):
    async with begin(visit("v", repeat=4), max_repeat_per_runner=2) as phase:
        first = await gate.visits(2)
        assert set(first) == {("v", 0), ("v", 2)}
        for each in first.values():
            each.tell("go")
        second = await gate.visits(2)
        assert set(second) == {("v", 1), ("v", 3)}
        for (name, run), each in second.items():
            assert each.pid == first[name, run - 1].pid
            each.tell("go")
        _, records = await phase.end()
    assert [records["v", run].outcome for run in range(4)] == ["succeeded"] * 4


async def test_without_a_split_one_runner_has_them_all(begin, visit, gate):
    async with begin(visit("v", repeat=3), visit("w"), max_repeat_per_runner=None) as phase:
        visits = await gate.visits(2)
        assert set(visits) == {("v", 0), ("w", 0)}
        visits["w", 0].tell("go")
        pids = [visits["v", 0].pid]
        visits["v", 0].tell("go")
        for run in (1, 2):
            each = await gate.visit()
            assert (each.task, each.run) == ("v", run)
            pids.append(each.pid)
            each.tell("go")
        await phase.end()
    assert len(set(pids)) == 1


async def test_what_has_priority_goes_first_also_before_earlier_phases(harness, begin, visit, gate):
    harness.engine._core.attempts.bundles._means.clear()  # what took milliseconds in other tests would travel together
    tasks = [visit("low", priority=-1), visit("plain"), visit("high", priority=5)]
    async with begin(visit("x", priority=9), visit("y", priority=9), *tasks) as phase:
        at_work = await gate.visits(2)
        assert {name for name, _ in at_work} == {"x", "y"}
        async with begin(visit("urgent", priority=7)) as later:
            at_work["x", 0].tell("go")
            order = []
            for _ in range(4):
                each = await gate.visit()
                order.append(each.task)
                each.tell("go")
            assert order == ["urgent", "high", "plain", "low"]
            at_work["y", 0].tell("go")
            await later.end()
        await phase.end()


async def test_a_limit_is_learned_by_phases_with_the_same_settings(harness, task):
    """Through the conductor: it keeps what phases learn together."""
    link = RecordingLink()
    conductor = TaskConductor(spec=harness.spec, link=link)
    conductor._engine, conductor._cluster = harness.engine, harness.cluster
    learned = DynamicTimeoutSpec(ratio=2.0, warmup_min_steps=1, floor=0.3)

    async def run(*tasks, dynamic):
        number = next(harness.phases)
        command = StartTasks(
            phase=number, name=f"keys {number}", tasks=tasks, seed=0, dynamic_timeout=dynamic, grace=0.1
        )
        seen = len(link.events)
        assert await conductor.perform(command) == Done()
        async with asyncio.timeout(20):
            await link.next(PartEndedReport, after=seen)
        return [event.record for event in link.events[seen:] if isinstance(event, TaskEnded)]

    quick = await run(task("quick", "nothing", repeat=4), dynamic=learned)
    assert {record.outcome for record in quick} == {"succeeded"}
    [late] = await run(task("late", "sleep", timeout=20.0), dynamic=learned)
    assert (late.outcome, without_place(late.error)) == ("timed_out", "ran longer than its timeout of 0.3 s")
    other = DynamicTimeoutSpec(ratio=2.0, warmup_min_steps=2, floor=0.3)
    for dynamic in (other, None):
        [free] = await run(task("free", "tell", timeout=20.0), dynamic=dynamic)
        assert 19 < free.value[4] <= 20, "it had not seen enough, or none was asked for"


async def test_a_stop_while_results_are_read_holds(harness, task, monkeypatch):
    """The command is answered before they are read."""
    link, may_end = RecordingLink(), threading.Event()
    conductor = TaskConductor(spec=harness.spec, link=link)
    conductor._engine, conductor._cluster = harness.engine, harness.cluster

    def read(*_):
        assert may_end.wait(20)
        return {"a": {0: Input(value=1)}}

    monkeypatch.setattr("governor.conductors.task.results_needed", read)
    number = next(harness.phases)
    done = {"a": EndedRuns(runs=IndexRanges.of([0]))}
    tasks = (task("a", "nothing"), task("b", "sleep", "a"))
    command = StartTasks(phase=number, name=f"keys {number}", tasks=tasks, seed=0, done=done)
    try:
        async with asyncio.timeout(20):
            assert await conductor.perform(command) == Done()
            assert await conductor.perform(StopPartCommand(phase=number, reason="enough")) == Done()
            may_end.set()
            end = await link.next(PartEndedReport)
    finally:
        may_end.set()
    assert end.end == "stopped"
    [record] = [event.record for event in link.events if isinstance(event, TaskEnded)]
    assert (record.task, record.outcome, record.error) == ("b", "cancelled", "enough")
