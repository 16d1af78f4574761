"""What an event costs does not grow: with runners, with `repeat`, with what has ended."""

from __future__ import annotations

import time
import tracemalloc
from collections import deque

import pytest
from hypothesis import given
from hypothesis import strategies as st

from governor.index_ranges import IndexRanges
from governor.messages import EndedRuns, TaskRecord
from governor.tasks.protocol.wire import Begun, Input, Over
from governor.tasks.scheduling.core import Core
from governor.tasks.scheduling.events import (
    AttemptEnded,
    BatchEnded,
    BatchSpec,
    BatchSubmitted,
    Dispatch,
    Resized,
    RunEnded,
    RunnerReady,
    RunnerReported,
)
from governor.tasks.scheduling.outcomes import PORTION
from tests.support.tasks.core_world import GPU, Driver, task


def cost(*, runners, repeat, split=1, pinned=False):
    """CPU seconds of each run, while all runners are busy; or `pinned`: one does it, all others have work of their own,
    and more that waits for them.
    """
    core = Core(capacity={(): runners})
    for effect in core.warm(0.0):
        core.on(RunnerReady(0.0, effect.runner))
    for index in range(1, runners if pinned else 0):
        for name in (f"now {index}", f"then {index}"):
            core.on(BatchSubmitted(0.0, BatchSpec(id=name, tasks=(task("own"),), pin=index)))
    began = time.thread_time()
    batch = BatchSpec(id="b", tasks=(task("t", repeat=repeat),), split=split)
    busy = deque(each for each in core.on(BatchSubmitted(0.0, batch)) if isinstance(each, Dispatch))
    assert len(busy) == (1 if pinned or split is None else runners)
    while busy:
        sent = busy.popleft()
        for attempt in sent.attempts:
            for run in attempt.runs:
                news = [Begun(attempt.ticket, run, 0.0), Over(attempt.ticket, run, 0.0, 1.0)]
                new = core.on(RunnerReported(0.0, sent.runner, news))
                busy += [each for each in new if isinstance(each, Dispatch)]
    assert "b" not in core.batches
    return (time.thread_time() - began) / repeat


def ratio(small, large):
    """Of the least of some turns."""
    turns = [(cost(**small), cost(**large)) for _ in range(5)]
    return min(large for _, large in turns) / min(small for small, _ in turns)


def test_the_number_of_runners_does_not_matter():
    assert ratio({"runners": 4, "repeat": 3_000}, {"runners": 1_024, "repeat": 3_000}) < 2


def test_sub_tasks_that_wait_for_their_own_slots_do_not_matter():
    few = {"runners": 4, "repeat": 1_000, "pinned": True}
    assert ratio(few, {**few, "runners": 512}) < 2


def test_repeat_does_not_matter_in_one_sub_task():
    few = {"runners": 1, "repeat": 1_000, "split": None}
    assert ratio(few, {**few, "repeat": 16_000}) < 2


def test_repeat_does_not_matter_in_many_sub_tasks():
    assert ratio({"runners": 4, "repeat": 1_000}, {"runners": 4, "repeat": 32_000}) < 2


def memory(do):
    """Bytes that are kept after it, and that it has used at most."""
    tracemalloc.start()
    try:
        before = tracemalloc.get_traced_memory()[0]
        kept = do()
        now, most = tracemalloc.get_traced_memory()
        assert kept is not None
        return now - before, most - before
    finally:
        tracemalloc.stop()


def test_a_million_runs_that_wait_are_one_entry():
    driver = Driver(slots=0)
    _, most = memory(lambda: [driver.submit(task("t", repeat=1_000_000), split=1)])
    assert most < 10_000
    assert driver.core.ready.waiting(()) == 1_000_000


@pytest.mark.parametrize("split", [1, 100])
def test_what_has_ended_takes_no_record(split):
    core = Core(capacity={(): 1})
    [starting] = core.warm(0.0)
    core.on(RunnerReady(0.0, starting.runner))
    batch = BatchSpec(id="b", tasks=(task("t", repeat=10_001),), split=split)
    [first] = core.on(BatchSubmitted(0.0, batch))

    def play():
        sent = first
        for run in range(10_000):
            if run not in sent.attempts[0].runs:
                raise AssertionError(run)
            ticket = sent.attempts[0].ticket
            news = [Begun(ticket, run, 0.0), Over(ticket, run, 0.0, 1.0, value={"return": float(run)})]
            sent = next((e for e in core.on(RunnerReported(0.0, 0, news)) if isinstance(e, Dispatch)), sent)
        return core

    kept, _ = memory(play)
    assert kept < 8 * 10_000


def test_a_million_runs_are_cancelled_some_at_a_time():
    driver = Driver(task("t", repeat=1_000_000), task("after", "t"), slots=1, batch={"split": 1})
    sent = driver.ready(0)
    new, ended = driver.cancel(0.0), 0
    while driver.core.outcomes.has_followers:
        assert len(driver.of(RunEnded, new)) <= PORTION
        ended += len(driver.of(RunEnded, new))
        driver.effects.clear()
        assert driver.core.next_alarm() == 0.0
        new = driver.tick(0.0)
    assert ended + len(driver.of(RunEnded, new)) == 1_000_000, "all but the one at work"
    assert driver.core.outcomes.pending == 1
    *_, last, end = driver.gone(sent.runner, 0.0)
    assert (last.record.run, last.record.outcome) == (0, "cancelled")
    assert (end.end, end.failures) == ("stopped", 1_000_001)


def in_portions(driver, new):
    """Until no more ends follow from the event with these effects."""
    while True:
        assert len(driver.of(RunEnded, new)) + len(driver.of(AttemptEnded, new)) <= 2 * PORTION
        if not driver.core.outcomes.has_followers:
            return
        new = driver.tick(driver.core.next_alarm())


def its_runner_exits(driver, sent):
    driver.begin(sent, 1.0)
    return driver.gone(sent.runner, 2.0)


def it_is_too_late(driver, sent):
    driver.begin(sent, 1.0)
    driver.tick(50.0)
    return driver.gone(sent.runner, 51.0)


def it_is_cancelled(driver, sent):
    driver.begin(sent, 1.0)
    driver.cancel(2.0)
    return driver.gone(sent.runner, 3.0)


def it_is_cancelled_while_it_ends(driver, sent):
    driver.begin(sent, 1.0)
    driver.gone(sent.runner, 2.0)
    return driver.cancel(2.0)


def it_is_cancelled_while_it_waits_for_its_retry(driver, sent):
    driver.begin(sent, 1.0)
    driver.gone(sent.runner, 2.0, node_lost=True)
    return driver.cancel(2.0)


@pytest.mark.parametrize(
    "end",
    [
        its_runner_exits,
        it_is_too_late,
        it_is_cancelled,
        it_is_cancelled_while_it_ends,
        it_is_cancelled_while_it_waits_for_its_retry,
    ],
)
def test_a_sub_task_of_many_runs_ends_some_at_a_time(end):
    number = 20 * PORTION
    driver = Driver(task("t", repeat=number, timeout=30.0), task("after", "t"), slots=1)
    sent = driver.ready(0)
    in_portions(driver, end(driver, sent))
    assert len(driver.records()) == len(driver.of(RunEnded)) == number + 1
    assert driver.core.outcomes.pending == 0
    assert not driver.core.batches


def test_a_sub_task_of_many_runs_is_tried_again_when_all_of_them_are_noted():
    number = 20 * PORTION
    driver = Driver(task("t", repeat=number, retries=1), slots=1)
    sent = driver.ready(0)
    driver.begin(sent, 1.0)
    in_portions(driver, driver.gone(0, 2.0))
    assert len(driver.of(AttemptEnded)) == number
    again = driver.ready(1, 2.0)
    assert (again.attempts[0].number, len(again.attempts[0].runs)) == (2, number)


def test_many_tasks_for_which_there_is_no_runner_fail_some_at_a_time():
    driver = Driver(*(task(f"t{n}") for n in range(3 * PORTION)), slots=1)
    in_portions(driver, driver.on(Resized(1.0, {(): 0}, {(): "there is none"})))
    assert {record.error for record in driver.records().values()} == {"there is none"}
    assert len(driver.of(RunEnded)) == 3 * PORTION


@given(repeat=st.integers(2, 40), size=st.integers(1, 40), ended=st.sets(st.integers(0, 39)))
def test_parts_with_runs_left_are_counted_as_by_hand(repeat, size, ended):
    [node] = Driver(task("t", repeat=repeat)).core.batches["b"].nodes.values()
    for run in ended & {*range(repeat)}:
        node.end(run)
    left = {run // size for run in range(repeat) if run not in ended}
    assert node.unended_parts(size) == len(left)


def test_a_resumed_task_is_queued_at_about_the_same_cost_for_any_split():
    ended = {"t": EndedRuns(runs=IndexRanges([0, 10]))}

    def cost_of(split):
        began = time.thread_time()
        Driver(task("t", repeat=500_000), batch={"split": split, "ended": ended})
        return time.thread_time() - began

    assert min(cost_of(2) for _ in range(5)) < 20 * min(cost_of(500) for _ in range(5))


def test_a_cancellation_costs_less_than_the_start_of_what_it_cancels():
    def costs():
        driver = Driver(task("t", repeat=500_000), slots=1)
        began = time.thread_time()
        driver.begin(driver.ready(0), 1.0)
        started = time.thread_time()
        driver.cancel(2.0)
        return (time.thread_time() - started) / (started - began)

    assert min(costs() for _ in range(5)) < 1


def test_what_succeeds_while_its_batch_is_being_cancelled_readies_nothing():
    driver = Driver(slots=1, grace=1.0)
    driver.submit(task("a"), *(task(f"b{n}", "a", repeat=5_000) for n in range(2)), split=1)
    sent = driver.ready(0)
    driver.begin(sent, 0.0)
    driver.cancel(0.0)
    assert driver.core.outcomes.has_followers
    new = driver.end(sent, 0.0)
    assert not driver.of(Dispatch, new)
    assert driver.records()["a", 0].outcome == "succeeded"
    while driver.core.outcomes.has_followers:
        new = driver.tick(0.0)
    assert not driver.of(Dispatch)[1:]
    assert new[-1] == BatchEnded("b", "stopped", 10_000, 'task "b0" run 0 cancelled: enough')


def test_results_stay_as_long_as_a_task_with_runs_left_depends_on_them():
    driver = Driver(task("a"), task("alone"), task("b", "a"), task("c", "a"), slots=1)
    sent = driver.ready(0)
    nodes = driver.core.batches["b"].nodes
    for name in ("a", "alone", "b", "c"):
        assert sent.attempts[0].task.id == name
        assert (nodes["a"].results == {0: Input(value=7)}) == (name in ("alone", "b", "c"))
        assert nodes["alone"].results is None
        driver.begin(sent, 0.0)
        sent = next(iter(driver.of(Dispatch, driver.end(sent, 0.0, value=7))), None)
    assert nodes["a"].results is None


def test_what_ended_before_counts_by_ranges():
    failed = TaskRecord(task="bad", run=3, outcome="timed_out", error="late")
    ended = {
        "bad": EndedRuns(runs=IndexRanges.of(range(2, 9)), failures=4, failure=failed),
        "good": EndedRuns(runs=IndexRanges.of(range(1, 900))),
        "gone": EndedRuns(runs=IndexRanges.of([0])),
    }
    driver = Driver(slots=1)
    driver.ready(0)
    driver.submit(
        task("bad", repeat=9, resources={"gpus": 1.0}),
        task("good", repeat=900),
        task("all", "good"),
        task("none", "bad"),
        split=1,
        ended=ended,
        results={"good": {5: Input(value=5)}},
    )
    assert driver.core.outcomes.pending == 2 + 1 + 1
    assert driver.core.ready.waiting(GPU) == 2
    driver.ready(0)
    driver.ready(1)
    while sent := next((each for each in driver.of(Dispatch) if each.attempts[0].ticket > 0), None):
        driver.effects.remove(sent)
        if sent.attempts[0].task.id == "all":
            inputs = driver.core.batches["b"].inputs(sent.attempts[0].task)
            assert inputs["good"] == [Input(value=n if n in (0, 5) else None) for n in range(900)]
        driver.do(sent, 0.0, value=0)
    records = driver.records()
    assert {key for key, record in records.items() if record.outcome == "succeeded"} == {
        ("bad", 0),
        ("bad", 1),
        ("good", 0),
        ("all", 0),
    }
    assert records["none", 0].cause == "bad"
    [end] = driver.of(BatchEnded)
    assert (end.failures, end.first_failure) == (4, 'task "bad" run 3 timed_out: late')
    assert len(driver.of(RunEnded)) == 5


def test_a_fold_names_the_first_failures_in_their_order():
    records = [
        TaskRecord(task="a", run=1, outcome="succeeded"),
        TaskRecord(task="c", run=0, outcome="failed", error="1"),
        TaskRecord(task="b", run=5, outcome="crashed", error="2"),
        TaskRecord(task="c", run=2, outcome="failed", error="3"),
        TaskRecord(task="a", run=0, outcome="succeeded"),
        TaskRecord(task="d", run=0, outcome="upstream_failed", cause="c"),
    ]
    found = EndedRuns.fold(records)
    assert [*found] == ["c", "b", "d", "a"]
    assert (found["d"].failures, found["d"].failure.cause) == (0, "c")
    assert found["a"] == EndedRuns(runs=IndexRanges(bounds=[0, 2]))
    assert (found["c"].failures, found["c"].failure.error) == (2, "1")
