"""The bounds of failures, without episodes and tasks."""

import pytest

from governor.episodes.rules.failures import CountedTasks, FailureBounds, Retries, allowed
from governor.failures import kind_of
from governor.messages import EpisodeRecord, Failures, TaskRecord


@pytest.mark.parametrize(
    ("failures", "planned", "bound"),
    [
        (None, 100, None),
        (Failures(), 100, 0),
        (Failures(retry=2), 100, 0),
        (Failures(consecutive=3), 100, None),
        (Failures(consecutive=3, at_most=4), 100, 4),
        (Failures(at_most=7), 3, 7),
        (Failures(at_most="1%"), 200, 2),
        (Failures(at_most="1%"), 199, 1),
        (Failures(at_most="0.1%"), 10_000_000, 10_000),
        (Failures(at_most="29%"), 100, 29),
        (Failures(at_most="100%"), 5, 5),
        (Failures(at_most="0%"), 5, 0),
    ],
)
def test_the_bound_is_of_the_plan(failures, planned, bound):
    assert allowed(failures, planned) == bound


def passed_at(failures, outcomes):
    """After how many of these outcomes a bound is passed; None: never."""
    bounds = FailureBounds(failures, len(outcomes), "episodes")
    return next((n for n, outcome in enumerate(outcomes, 1) if bounds.add(outcome)), None)


def test_all_bad_outcomes_count_and_no_other_one():
    every = ["failed", "timed_out", "crashed"]
    assert passed_at(Failures(at_most=2), every) == 3
    good = ["terminated", "truncated", "cancelled", "succeeded", "upstream_failed"] * 5
    assert passed_at(Failures(at_most=0, consecutive=1), good) is None
    assert passed_at(None, every * 100) is None


def test_what_was_cancelled_does_not_end_a_sequence_and_what_is_complete_does():
    assert passed_at(Failures(consecutive=2), ["failed", "cancelled", "upstream_failed", "crashed"]) == 4
    for end in ("terminated", "truncated", "succeeded"):
        assert passed_at(Failures(consecutive=2), ["failed", end, "failed", end, "failed"]) is None


def test_the_first_bound_that_is_passed_is_named():
    bounds = FailureBounds(Failures(at_most=3, consecutive=2), 10, "episodes")
    for _ in range(9):
        bounds.add("failed")
    assert (bounds.exceeded, bounds.failed) == ("failures.consecutive of 2", 9)
    assert FailureBounds(Failures(at_most=3), 10, "tasks", failed=4).exceeded == "failures.at_most of 3"


def test_records_are_counted_on_their_way():
    ends = ["failed", "succeeded", "failed", "upstream_failed", "timed_out"]
    counted = CountedTasks(TaskRecord(task="t", run=n, outcome=end) for n, end in enumerate(ends))
    assert ([record.outcome for record in counted], counted.failed, counted.in_a_row) == (ends, 3, 2)


def ended(outcome="failed", reason="environment.step: ValueError: x", index=4):
    return EpisodeRecord(
        index=index, worker=0, seed=0, outcome=outcome, value=0.0, steps=0, seconds=0.0, reason=reason
    )


def test_each_kind_has_its_own_retries_and_what_ended_is_forgotten():
    retries = Retries(Failures(retry={"user": 1, "time": 2}).retries)
    assert not retries.is_due(ended("crashed"))
    assert not retries.is_due(ended("terminated"))
    for outcome, due in [("failed", True), ("timed_out", True), ("failed", False), ("timed_out", True)]:
        assert retries.is_due(ended(outcome)) == due
        retries.failed(ended(outcome))
    assert (retries.of(4), retries.of(5)) == (4, 0)
    retries.ended(4)
    assert (retries.of(4), retries.is_due(ended())) == (0, True)


@pytest.mark.parametrize(
    ("outcome", "reason", "kind"),
    [
        ("failed", "environment.step: ValueError: no", "user"),
        ("failed", "agent.learn: RuntimeError: model: no", "user"),
        ("failed", "ValueError: no", "user"),
        ("timed_out", "longer than 1 s", "time"),
        ("timed_out", "not done within 5 s, at work: the model", "time"),
        ("crashed", "the conductor of environment 'lake' exited", "infrastructure"),
        ("crashed", "the runner's process 3 ended by os._exit(1)", "infrastructure"),
        ("crashed", "the runner's process 3 was killed by Ray: it had too little memory", "limit"),
        ("failed", "no runner can be started: no", "infrastructure"),
        ("failed", "cannot record its steps: OSError: no", "infrastructure"),
        ("failed", "its result cannot be written: OSError: no", "infrastructure"),
        ("failed", "environment: POST http://h:1/step: HTTP 503: busy", "infrastructure"),
        ("failed", "environment: POST http://h:1/step: ClientConnectorError: no", "infrastructure"),
        ("failed", "environment: POST http://h:1/step: HTTP 404: none", "user"),
        ("failed", "model: ModelFault: no answer of the model, asked 3 times: HTTP 500", "model"),
    ],
)
def test_the_kind_of_a_failure_follows_from_outcome_and_reason(outcome, reason, kind):
    assert kind_of(outcome, reason) == kind
