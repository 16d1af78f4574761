"""The scheduler core, step by step: one rule, one test. Random sequences are in test_core_stories.py."""

from __future__ import annotations

import pytest

from governor.messages import TaskRecord
from governor.tasks.protocol.wire import Begun, Over
from governor.tasks.scheduling.attempts import IMPORT_LIMIT, MISFIRES, START_PRESUMED_AFTER
from governor.tasks.scheduling.events import (
    AttemptEnded,
    AttemptStarted,
    BatchEnded,
    CancelAttempt,
    Cancelled,
    Dispatch,
    KillRunner,
    Replaced,
    Revoked,
    RunEnded,
    RunnerGone,
    RunnerReady,
    RunnerReported,
    StartRunner,
    Tick,
)
from governor.tasks.scheduling.outcomes import PORTION
from tests.support.tasks.core_world import GPU, Driver, task


def test_a_task_runs_and_its_value_is_the_input_of_the_next():
    driver = Driver(task("a"), task("b", "a"))
    assert driver.effects == [StartRunner(0, ())]
    [after] = driver.of(Dispatch, driver.do(driver.ready(0), 1.0, value=5))
    assert after.attempts[0].task.id == "b"
    assert driver.core.batches["b"].inputs(after.attempts[0].task)["a"][0].value == 5
    assert driver.do(after, 2.0)[-1] == BatchEnded("b", "tasks_done", 0, "")


def test_the_deadline_counts_from_the_start_not_from_the_dispatch():
    driver = Driver(task("a", timeout=5.0))
    sent = driver.ready(0, 10.0)
    driver.import_(sent, 10.0)
    driver.begin(sent, 40.0)
    assert not driver.of(KillRunner, driver.tick(44.9))
    assert driver.core.next_alarm() == 45.0
    assert driver.tick(45.0) == [KillRunner(0, "ran longer than its timeout of 5 s")]
    assert driver.records() == {}, "timed out only when the runner is seen dead"
    assert driver.end(sent, 45.01) == [], "a decision stands"
    driver.gone(0, 45.1)
    record = driver.records()["a", 0]
    assert (record.outcome, record.seconds) == ("timed_out", 5.0)


def test_what_ended_before_its_deadline_counts_however_late_it_is_heard():
    driver = Driver(task("a", timeout=5.0))
    sent = driver.ready(0)
    driver.begin(sent, 0.0)
    driver.tick(5.0)
    driver.on(RunnerReported(5.1, 0, [Over(sent.attempts[0].ticket, 0, 4.99, 4.99, value=7)]))
    driver.gone(0, 5.2)
    assert (driver.records()["a", 0].outcome, driver.records()["a", 0].value) == ("succeeded", 7)


def test_an_attempt_has_its_grace_to_end_and_is_killed_after_it():
    driver = Driver(task("a", timeout=5.0), grace=2.0)
    driver.begin(driver.ready(0), 0.0)
    assert driver.tick(5.0) == [CancelAttempt(0, 1)]
    assert driver.core.next_alarm() == 7.0
    assert not driver.of(KillRunner, driver.tick(6.9))
    assert driver.of(KillRunner, driver.tick(7.0))
    driver.gone(0, 7.1)
    assert driver.records()["a", 0].outcome == "timed_out"


def test_who_obeys_within_the_grace_is_timed_out_all_the_same_and_its_runner_is_cleared_away_at_once():
    driver = Driver(task("a", timeout=5.0), grace=2.0)
    sent = driver.ready(0)
    driver.begin(sent, 0.0)
    driver.tick(5.0)
    assert driver.of(KillRunner, driver.end(sent, 5.3, value=1))
    assert driver.records() == {}
    driver.gone(0, 5.4)
    assert driver.records()["a", 0].outcome == "timed_out"


def test_silence_after_a_dispatch_counts_as_running():
    driver = Driver(task("a", timeout=5.0))
    sent = driver.ready(0, 10.0)
    assert driver.tick(10.0 + START_PRESUMED_AFTER) == [AttemptStarted(sent.attempts[0], 0, 0, 10.0)]
    assert driver.core.next_alarm() == 13.0
    driver.tick(13.0)
    assert driver.of(KillRunner, driver.tick(15.0))


def test_an_import_heard_late_is_no_running_time():
    driver = Driver(task("a", timeout=2.0), slots=1)
    sent = driver.ready(0)
    driver.tick(1.0)
    assert driver.core.slots.get(0).jobs[0].started_at == 0.0
    driver.import_(sent, 1.5)
    assert not driver.of(KillRunner, driver.tick(2.5))
    driver.begin(sent, 3.0)
    assert not driver.of(KillRunner, driver.tick(4.9))
    assert driver.of(KillRunner, driver.tick(5.0))


def test_silence_of_what_waited_behind_counts_as_running_too():
    """The runner has lost it: nothing else would ever end it."""
    driver = Driver(task("first"), slots=1)
    driver.do(driver.ready(0), 0.0, seconds=0.001)
    [sent] = driver.of(Dispatch, driver.submit(task("a"), task("b", timeout=3.0), batch="c", now=5.0))
    assert [each.task.id for each in sent.attempts] == ["a", "b"]
    driver.begin(sent, 5.0)
    while (alarm := driver.core.next_alarm()) is not None and alarm < 50.0:
        driver.tick(alarm)
    driver.revoked(sent, 50.0)
    driver.end(sent, 60.0)
    while (alarm := driver.core.next_alarm()) is not None and not driver.of(KillRunner):
        driver.tick(alarm)
    assert driver.of(KillRunner)[-1].reason == "ran longer than its timeout of 3 s"


def test_an_import_that_hangs_is_a_failure_and_its_time_is_not_running_time():
    driver = Driver(task("a", timeout=1.0))
    sent = driver.ready(0, 0.0)
    driver.import_(sent, 0.5)
    assert not driver.of(KillRunner, driver.tick(START_PRESUMED_AFTER))
    assert not driver.of(KillRunner, driver.tick(IMPORT_LIMIT))
    assert driver.of(KillRunner, driver.tick(0.5 + IMPORT_LIMIT))
    driver.gone(0, 200.0)
    assert driver.records()["a", 0].outcome == "failed"
    assert "import" in driver.records()["a", 0].error


def test_a_spare_is_warmed_before_a_deadline_and_takes_the_place():
    driver = Driver(task("a", timeout=10.0), task("b"), slots=1)
    driver.begin(driver.ready(0), 0.0)
    driver.tick(START_PRESUMED_AFTER)
    assert driver.tick(8.0) == [StartRunner(1, ())]
    assert driver.ready(1, 9.0) is None, "one place is one task at once"
    driver.tick(10.0)
    [sent] = driver.of(Dispatch, driver.gone(0, 10.1))
    assert (sent.runner, sent.slot_index, sent.attempts[0].task.id) == (1, 0, "b")


# -- retries --------------------------------------------------------------------------------------------------


def test_a_retry_is_an_attempt_of_its_own():
    driver = Driver(task("a", retries=1))
    sent = driver.ready(0)
    driver.begin(sent, 0.5)
    effects = driver.end(sent, 1.0, error="bad")
    assert effects[0] == AttemptEnded(sent.attempts[0], 0, "failed", "bad", 0.1)
    retry_missing = effects[1]
    assert (
        retry_missing.attempts[0].number,
        retry_missing.attempts[0].ticket != sent.attempts[0].ticket,
    ) == (2, True)
    assert driver.end(sent, 1.5) == [], "news of the first attempt"
    driver.do(retry_missing, 2.0, error="worse")
    assert (driver.records()["a", 0].attempts, driver.records()["a", 0].error) == (2, "worse")


def test_only_the_missing_runs_of_a_sub_task_are_tried_again():
    driver = Driver(task("a", repeat=4, retries=1))
    sent = driver.ready(0)
    assert sent.attempts[0].runs == (0, 1, 2, 3)
    for run in range(4):
        driver.do(sent, 1.0 + run, run=run, error="bad" if run == 1 else "", value=run)
    retry_missing = driver.of(Dispatch)[-1]
    assert (retry_missing.attempts[0].runs, retry_missing.attempts[0].number) == ((1,), 2)
    driver.do(retry_missing, 9.0, value=9)
    assert [driver.records()["a", run].value for run in range(4)] == [0, 9, 2, 3]
    assert [driver.records()["a", run].attempts for run in range(4)] == [1, 2, 1, 1]


@pytest.mark.parametrize(
    ("repeat", "split", "expected"),
    [(5, 2, [(0, 1), (2, 3), (4,)]), (5, None, [(0, 1, 2, 3, 4)]), (3, 1, [(0,), (1,), (2,)])],
)
def test_the_runs_of_a_task_are_split_into_sub_tasks(repeat, split, expected):
    driver = Driver(task("a", repeat=repeat), slots=5, batch={"split": split})
    sent = [driver.ready(runner) for runner in range(len(expected))]
    assert [each.attempts[0].runs for each in sent] == expected


def test_a_crash_takes_the_runs_that_are_missing_and_is_retried_as_retries_say():
    driver = Driver(task("a", repeat=3, retries=1), slots=1)
    sent = driver.ready(0)
    driver.do(sent, 1.0, run=0)
    driver.begin(sent, 2.0, run=1)
    driver.gone(0, 3.0, "killed by a signal")
    assert [(e.run, e.outcome) for e in driver.of(AttemptEnded)] == [(1, "crashed"), (2, "crashed")]
    retry_missing = driver.ready(1, 4.0)
    driver.begin(retry_missing, 4.0, run=1)
    driver.gone(1, 5.0, "killed again")
    outcomes = [driver.records()["a", run].outcome for run in range(3)]
    assert outcomes == ["succeeded", "crashed", "crashed"]
    assert driver.records()["a", 1].error == "killed again"


def test_a_runner_that_dies_before_it_took_the_work_costs_no_attempt():
    driver = Driver(task("a"), slots=1)
    for runner in range(MISFIRES):
        driver.ready(runner)
        assert driver.gone(runner, 1.0) == [StartRunner(runner + 1, ())]
    driver.ready(MISFIRES)
    driver.gone(MISFIRES, 1.0)
    assert driver.records()["a", 0].outcome == "crashed"


# -- the graph ------------------------------------------------------------------------------------------------


def test_the_cause_of_upstream_failed_is_the_root_also_ten_thousand_tasks_away():
    chain = [task("t0"), *(task(f"t{n}", f"t{n - 1}") for n in range(1, 10_000))]
    driver = Driver(*chain)
    driver.do(driver.ready(0), 1.0, error="bad")
    while driver.core.outcomes.has_followers:
        assert driver.core.next_alarm() == 1.0
        assert len(driver.tick(1.0)) <= PORTION + 1
    records = driver.records()
    assert len(records) == 10_000
    assert (records["t9999", 0].outcome, records["t9999", 0].cause) == ("upstream_failed", "t0")
    assert driver.effects[-1] == BatchEnded("b", "tasks_done", 1, 'task "t0" run 0 failed: bad')


def test_what_was_done_earlier_counts_and_is_not_run_again():
    done = (
        TaskRecord(task="a", run=0, outcome="succeeded", attempts=1, seconds=1, value=3),
        TaskRecord(task="b", run=1, outcome="succeeded", attempts=1, seconds=1),
    )
    driver = Driver(task("a"), task("b", "a", repeat=3), batch={"done": done})
    sent = driver.ready(0)
    assert (sent.attempts[0].task.id, sent.attempts[0].runs) == ("b", (0, 2))
    assert driver.core.outcomes.pending == 2


def test_the_root_cause_is_kept_from_what_was_done_earlier():
    done = (
        TaskRecord(task="a", run=0, outcome="upstream_failed", attempts=0, seconds=0, error="", cause="root"),
    )
    driver = Driver(task("a"), task("b", "a"), batch={"done": done})
    assert driver.records()["b", 0].cause == "root"


def test_an_empty_batch_ends_at_once():
    driver = Driver()
    assert driver.submit() == [BatchEnded("b", "tasks_done", 0, "")]


# -- what is told -----------------------------------------------------------------------------------------------


def test_a_start_is_told_unless_its_end_came_with_it():
    driver = Driver(task("a"), task("b"), slots=1)
    sent = driver.ready(0)
    ticket = sent.attempts[0].ticket
    driver.on(RunnerReported(0.7, 0, [Begun(ticket, 0, 0.5), Over(ticket, 0, 0.6, 0.1)]))
    assert not driver.of(AttemptStarted)
    driver.begin(driver.of(Dispatch)[-1], 1.0)
    assert [(e.attempt.task.id, e.at) for e in driver.of(AttemptStarted)] == [("b", 1.0)]


def test_the_start_of_a_run_that_fails_at_once_stands_before_its_end():
    driver = Driver(task("a"))
    ticket = driver.ready(0).attempts[0].ticket
    started, ended, *_ = driver.on(
        RunnerReported(0.7, 0, [Begun(ticket, 0, 0.5), Over(ticket, 0, 0.6, 0.1, error="ValueError: no")])
    )
    assert (type(started), started.run, started.runner, started.at) == (AttemptStarted, 0, 0, 0.5)
    assert ended.record.outcome == "failed"


@pytest.mark.parametrize(
    "event",
    [
        RunnerReady(1.0, 99),
        RunnerGone(1.0, 99, ""),
        RunnerReported(1.0, 99, [Begun(1, 0, 1.0)]),
        Revoked(1.0, 99, (1,)),
        Replaced(1.0, 99),
        Cancelled(1.0, "nothing", ""),
        Tick(1.0),
    ],
)
def test_news_of_strangers_changes_nothing(event):
    assert Driver(task("a")).on(event) == []


def test_a_thousand_pending_tasks_cost_less_than_two_kilobytes_each():
    import tracemalloc

    tasks = [task(f"t{n}", timeout=5.0) for n in range(1000)]
    driver = Driver()
    tracemalloc.start()
    before, _ = tracemalloc.get_traced_memory()
    driver.submit(*tasks)
    after, _ = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert (after - before) / 1000 < 2000
    assert GPU in driver.core.slots.shapes()
    assert not driver.of(RunEnded)
