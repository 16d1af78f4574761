"""A command about one episode or one task of the phase at work."""

from __future__ import annotations

from states.effects import ChangeWork
from tests.states.state_scenes import (
    TASKS,
    Slot,
    begin,
    change,
    ended,
    exited,
    finalizing,
    go_on,
    pause,
    ready,
    running,
    starting,
)


def told(part, what="cancel", *, phase=1, episode=None, task=""):
    conductor = {"conductor": part, "incarnation": 1, "phase": phase, "part": part}
    return ChangeWork(**conductor, change=what, episode=episode, task=task, reason="by hand")


def test_the_conductor_of_the_part_is_told_and_the_state_stays():
    slot = running(phase=1)
    before = slot.state
    assert slot.send(change(episode=3)) == [told("simulation", episode=3)]
    assert slot.send(change("requeue", task="fit")) == [told("tasks", "requeue", task="fit")]
    assert slot.state == before


def test_what_is_not_at_work_is_refused():
    assert running().refuses(change(phase=0, task="fit")) == "tasks of phase 0 is not at work"
    assert running().refuses(change(phase=1, episode=3)) == "simulation of phase 1 is not at work"
    slot = running(phase=1)
    slot.send(ended("tasks", 1))
    assert slot.refuses(change(task="fit")) == "tasks of phase 1 is not at work"
    assert starting().refuses(change(phase=0, episode=3))
    assert finalizing().refuses(change(phase=0, episode=3))
    assert Slot().refuses(change(phase=0, episode=3)) == "no run is in work"


def test_a_part_that_is_to_begin_is_not_told_it_reads_the_record():
    slot = running(phase=1)
    slot.send(exited(TASKS))
    assert slot.send(change(task="fit")) == []
    assert slot.send(ready(TASKS, 2)) == [begin("tasks", 1, 2)]


def test_a_part_that_a_pause_keeps_from_beginning_is_not_told_either():
    slot = running()
    slot.send(pause())
    slot.send(ended("simulation"))
    assert slot.send(change(episode=3)) == []
    assert slot.send(go_on()) == [begin("simulation", 1), begin("tasks", 1)]
