from __future__ import annotations

import pytest

from states import Pristine, Stopping
from states.effects import EndRun, RemoveTraces, StopConductor, Wake
from tests.states.state_scenes import (
    LAKE,
    SIMULATION,
    TASKS,
    Slot,
    abort,
    assigned,
    ended,
    exited,
    failed_report,
    finalizing,
    not_written,
    passed,
    ready,
    removed,
    running,
    started,
    stop,
    stopping,
    stuck,
    written,
)

ALL_GONE = (exited(LAKE, code=0), exited(SIMULATION, code=0), exited(TASKS, code=0))


def test_traces_are_removed_when_the_last_process_is_seen_gone_and_then_the_run_ends():
    slot = stopping()
    assert slot.send_all(*ALL_GONE[:2]) == []
    assert slot.state.waits_for == "processes to be gone: tasks (pid 102)"
    assert slot.send(ALL_GONE[2]) == [RemoveTraces()]
    assert slot.state.waits_for == "sockets and temporary files to be removed"
    assert slot.send(removed()) == [EndRun(outcome="finished", reason="")]
    assert slot.state == Pristine()
    assert slot.cause == "nothing is left"


def test_what_could_not_be_removed_is_named():
    slot = stopping()
    slot.send_all(*ALL_GONE, removed("/run/a", "/run/b"))
    assert slot.cause == "left behind: /run/a, /run/b"


def test_conductors_that_are_gone_already_are_not_waited_for():
    slot = finalizing()
    slot.send_all(*ALL_GONE)
    assert slot.send(written("finished", at=5)) == [Wake(name="stop", at=25), RemoveTraces()]


def test_the_end_before_all_are_gone_is_none():
    stopping().drops(removed())


def test_after_a_stop_the_slot_is_shut_down_and_the_run_interrupted():
    slot = running()
    slot.send_all(stop("going down"), *ALL_GONE)
    assert slot.send(removed()) == [EndRun(outcome=None, reason="going down")]
    assert slot.state == Pristine(shutdown=True)


def test_a_stop_meanwhile_keeps_the_outcome_and_shuts_the_slot_down():
    slot = stopping()
    assert slot.send(stop()) == []
    slot.send_all(*ALL_GONE)
    assert slot.send(removed()) == [EndRun(outcome="finished", reason="")]
    assert slot.state == Pristine(shutdown=True)


def test_an_urgent_stop_takes_away_the_grace_of_those_that_live():
    slot = stopping()
    slot.send(ALL_GONE[0])
    assert slot.send(stop(urgent=True)) == [
        StopConductor(conductor=SIMULATION, incarnation=1, first="SIGKILL"),
        StopConductor(conductor=TASKS, incarnation=1, first="SIGKILL"),
    ]
    slot.send_all(*ALL_GONE[1:])
    assert slot.send(stop(urgent=True)) == []


def test_a_stuck_pid_quarantines_the_slot():
    slot = stopping()
    assert slot.send_all(*ALL_GONE[:2], stuck(TASKS, pid=102)) == [RemoveTraces()]
    assert slot.send(removed()) == [EndRun(outcome="finished", reason="", stuck=(102,))]
    assert slot.state == Pristine(stuck=(102,))
    assert slot.cause == "left behind: pid 102"
    slot.refuses(assigned())


def test_a_stuck_process_that_exits_after_all_quarantines_nothing():
    slot = stopping()
    slot.send_all(*ALL_GONE[:2], stuck(TASKS, pid=102), exited(TASKS))
    assert slot.send(removed()) == [EndRun(outcome="finished", reason="")]
    assert slot.state == Pristine()


def test_a_process_alive_past_the_deadline_is_named_with_its_pid():
    slot = stopping()
    slot.send(ALL_GONE[0])
    assert slot.send(passed("stop", at=20)) == [RemoveTraces()]
    slot.drops(passed("stop", at=20))
    slot.send(removed())
    assert slot.state == Pristine(stuck=(101, 102))


def test_one_that_was_stuck_before_is_named_and_not_stopped_again():
    slot = running()
    slot.send(stuck(LAKE, pid=7))
    slot.send(passed("close"))
    effects = slot.send(written("failed"))
    assert {e.conductor for e in effects if isinstance(e, StopConductor)} == {SIMULATION, TASKS}
    slot.send_all(*ALL_GONE[1:], removed())
    assert slot.state == Pristine(stuck=(7,))


def test_one_that_comes_up_meanwhile_is_waited_for():
    slot = Slot()
    slot.send_all(assigned(), stop(), exited(LAKE, code=None), exited(SIMULATION, code=None))
    assert slot.state.waits_for == "processes to be gone: tasks"
    assert slot.send(started(TASKS, pid=7)) == []
    slot.send_all(passed("stop"), removed())
    assert slot.state == Pristine(shutdown=True, stuck=(7,))


@pytest.mark.parametrize("moment", [(), ALL_GONE])
def test_a_result_that_is_durable_after_its_deadline_counts(moment):
    slot = finalizing()
    slot.send_all(passed("finalize"), passed("finalize"), *moment)
    assert slot.send(written("finished")) == []
    assert slot.state.outcome == "finished"
    slot.drops(written("failed"))


def test_the_outcome_is_on_record_once():
    slot = stopping()
    slot.drops(written("failed"))
    slot.drops(not_written())
    assert slot.state.outcome == "finished"


def test_what_comes_too_late_is_dropped():
    slot = stopping()
    slot.send(ALL_GONE[0])
    late = (
        ALL_GONE[0],
        stuck(LAKE),
        ready(TASKS),
        failed_report(TASKS, "bye"),
        ended("tasks", 2),
        passed("wall_clock"),
    )
    for event in late:
        slot.drops(event)


def test_commands_are_refused():
    slot = stopping()
    assert slot.refuses(abort()) == "the run is stopping already"
    assert slot.refuses(assigned()) == "run r1 is in work (stopping)"
    assert isinstance(slot.state, Stopping)
