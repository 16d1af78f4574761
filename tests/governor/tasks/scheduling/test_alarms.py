"""Alarms come in their order, and those of runners that have exited do not pile up."""

from __future__ import annotations

from governor.tasks.scheduling.alarms import Alarms
from governor.tasks.scheduling.runner_slots import RunnerSlot


def slot(runner):
    return RunnerSlot(runner=runner, shape=(), state="working", alarm_at=1.0)


def test_alarms_of_runners_that_have_exited_do_not_pile_up_and_the_others_stay_in_their_order():
    alarms, kept = Alarms(), [slot(n) for n in range(3)]
    for at, one in zip((3.0, 1.0, 2.0), kept, strict=True):
        alarms.set(at, one)
    alarms.set(36_000.0, None)
    for number in range(1_000):
        gone = slot(number)
        alarms.set(36_000.0, gone)
        gone.alarm_at = None
        alarms.runner_gone()
    assert len(alarms._heap) < 20
    assert alarms.next() == 1.0
    assert list(alarms.due(10.0)) == [kept[1], kept[2], kept[0]]
    assert None in alarms.due(36_000.0)
