"""Time, restarts and crashes of a run over all invocations, read from its events alone."""

from __future__ import annotations

import pytest

from governor.messages import RunEvent
from governor.runs.record.history import KINDS, History, read


def story(*events):
    return [
        RunEvent(uid="r", seq=number, at=0.0, kind=kind, data=data)
        for number, (kind, data) in enumerate(events, start=1)
    ]


def assigned(at):
    return ("run.assigned", {"at": at})


def exited(at, *, expected=False):
    return ("conductor.exited", {"at": at, "expected": expected})


def died(at=0.0):
    return ("run.interrupted", {"died": True, "at": at})


def paused(at):
    return ("run.pause_requested", {"at": at})


def went_on(at):
    return ("run.continue_requested", {"at": at})


QUEUED = (("run.pause_requested", {"by": "api"}), ("run.continue_requested", {"by": "api"}))
STOPPED = ("run.interrupted", {"reason": "going down"})


def test_a_run_that_has_not_begun_has_no_history():
    assert read(story(("run.accepted", {}))) == History()


def test_what_it_has_inherited_is_no_time_of_its_own():
    assert (
        read(story(("part.ended", {"at": 5e6}), assigned(10.0), ("part.ended", {"at": 12.0}))).worked == 2.0
    )


@pytest.mark.parametrize(
    ("events", "worked"),
    [
        ([assigned(10.0)], 0.0),
        ([assigned(10.0), exited(14.0)], 4.0),
        ([assigned(10.0), ("part.ended", {"at": 15.0}), ("traces.removed", {"at": 17.0}), STOPPED], 7.0),
        ([assigned(10.0), died(at=16.0)], 6.0),
        ([assigned(10.0), exited(14.0), died(at=3.0)], 4.0),  # a last beat before its last event
        ([assigned(10.0), died(at=16.0), assigned(900.0), exited(901.0)], 7.0),
        ([assigned(1000.0), died(at=1006.0), assigned(5.0), exited(6.0)], 7.0),  # after a reboot
        ([assigned(10.0), paused(12.0), went_on(20.0), exited(21.0)], 3.0),
        ([assigned(10.0), paused(12.0), exited(14.0), went_on(20.0), exited(21.0), paused(22.0)], 4.0),
        ([assigned(10.0), paused(12.0), exited(15.0)], 2.0),
        ([assigned(10.0), paused(12.0), died(at=16.0), QUEUED[1], assigned(5.0), exited(6.0)], 3.0),
        ([assigned(10.0), exited(12.0), STOPPED, *QUEUED, assigned(40.0)], 2.0),
    ],
)
def test_time_in_work_is_that_of_all_invocations_and_none_between_them(events, worked):
    assert read(story(*events)).worked == worked


def test_restarts_are_those_of_all_invocations_without_the_exits_of_a_stop():
    events = [assigned(0.0), exited(1.0), exited(2.0, expected=True), STOPPED, assigned(5.0), exited(6.0)]
    assert read(story(*events)).restarts == 2


def test_one_that_a_condition_asked_for_counts_once_for_all_its_conductors():
    asked = [("flow.requested", {"at": 11.0, "flow": flow}) for flow in ("RESET", "RESTART", "PAUSE")]
    exits = [exited(12.0, expected=True), exited(13.0, expected=True), exited(14.0)]
    assert read(story(assigned(10.0), *asked, *exits)).restarts == 2


def test_it_is_at_work_until_an_interruption_is_on_record():
    assert read(story(assigned(0.0))).at_work
    assert not read(story(assigned(0.0), died())).at_work
    assert read(story(assigned(0.0), died(), assigned(1.0))).at_work


def test_it_has_begun_unless_its_work_was_discarded():
    anew = [assigned(0.0), died(), ("run.restarted", {})]
    assert read(story(*anew[:2])).begun
    assert not read(story(*anew)).begun
    assert read(story(*anew, assigned(1.0))).begun


def test_consecutive_crashes_end_with_a_record_or_an_orderly_stop():
    row = [assigned(0.0), died(), assigned(1.0), died()]
    assert read(story(*row)).deaths == 2
    assert read(story(*row, assigned(2.0), STOPPED)).deaths == 0
    assert read(story(*row), last_record=3).deaths == 1
    assert read(story(*row), last_record=5).deaths == 0


def test_it_asks_for_the_kinds_that_it_reads():
    assert {"run.assigned", "run.interrupted", "run.restarted", "conductor.exited"} <= set(KINDS)
