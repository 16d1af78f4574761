"""What `run` and `watch` print in a pipe: states, phases, failures, and the progress each few seconds."""

import asyncio

import msgspec
import pytest

from governor.cli import ask
from governor.cli.rendering import display
from governor.cli.rendering.lines import progress
from governor.cli.rendering.view import RunView
from governor.messages import RunEvent
from tests.governor.cli.recorded import EVENTS, STATUS, Recorded


class Clock:
    """Seconds that a test sets."""

    now = 100.0

    def __call__(self):
        return self.now


def episode(number, outcome="terminated"):
    told = {"index": number, "value": 1.0, "outcome": outcome, "steps": 3, "seconds": 0.1, "reason": ""}
    return RunEvent(
        uid="u1", seq=10 + number, at=0.0, kind="episode.ended", data={"phase": 0, "episode": told}
    )


def in_training(episodes=400):
    view = RunView.of(msgspec.structs.replace(STATUS, state="running"))
    started = {"phase": "train", "index": 0, "mode": "train", "episodes": episodes, "tasks": 2}
    view.on(RunEvent(uid="u1", seq=1, at=0.0, kind="phase.started", data=started))
    return view


def test_a_run_has_a_line_for_each_state_and_phase_and_none_for_an_episode_that_is_well(capsys):
    view = RunView.of(STATUS)
    with display.lines(clock=Clock()) as show:
        for event in EVENTS:
            view.on(event)
            show(event, view)
    kinds = [row.split()[0] for row in capsys.readouterr().out.splitlines()]
    assert kinds == [
        "run.accepted",
        "run.transition",
        "phase.started",
        "run.transition",
        "episode.ended",
        "part.ended",
        "phase.ended",
        "phase.started",
        "task.attempt_ended",
        "task.ended",
        "conductor.exited",
        "run.transition",
        "run.ended",
    ]


def test_each_five_seconds_there_is_a_line_of_progress(capsys):
    clock, view = Clock(), in_training()
    with display.lines(clock=clock) as show:
        for number in range(100):
            event = episode(number)
            view.on(event)
            clock.now += 0.125
            show(event, view)
    assert capsys.readouterr().out.splitlines() == [
        f"progress           train: {done} of 400 episodes, return 1 (last {min(done, 50)}); 0 of 2 tasks; "
        "waits for tasks to start"
        for done in (40, 80)
    ]


def test_a_progress_that_has_not_changed_is_told_each_minute(capsys):
    clock, view = Clock(), in_training()
    with display.lines(clock=clock) as show:
        for _ in range(130):
            clock.now += 1
            show(None, view)
        view.outcome = "finished"
        clock.now += 90
        show(None, view)
    assert len(capsys.readouterr().out.splitlines()) == 3, "after 5, 65 and 125 seconds"


def test_a_phase_in_which_all_fails_has_five_lines_of_it(capsys):
    view = in_training()
    with display.lines(clock=Clock()) as show:
        for number in range(200):
            event = episode(number, "failed")
            view.on(event)
            show(event, view)
    rows = capsys.readouterr().out.splitlines()
    assert [row.split()[3] for row in rows] == ["0:", "1:", "2:", "3:", "4:"]
    assert [row.endswith("failed; further failures of this phase are only counted") for row in rows] == [
        *[False] * 4,
        True,
    ]
    assert "200 of 400 episodes, return 1 (last 50), 200 ended badly" in progress(view)


def test_progress_of_a_run_that_starts():
    view = RunView(uid="u", state="starting", starting={"tasks": None})
    assert progress(view) == "progress           starting; waits for tasks to be ready"


async def test_where_no_event_comes_the_display_is_told_of_the_time():
    gate, told = asyncio.Event(), []

    async def events():
        yield EVENTS[0]
        await gate.wait()
        yield EVENTS[1]

    async for event in ask._with_pauses(events(), seconds=0.001):
        told.append(event)
        if told.count(None) == 3:
            gate.set()
    assert [event for event in told if event] == EVENTS[:2]
    assert told[:4] == [EVENTS[0], None, None, None]


async def test_an_error_of_the_events_is_raised():
    async def events():
        yield EVENTS[0]
        raise OSError("gone")

    with pytest.raises(OSError, match="gone"):
        _ = [event async for event in ask._with_pauses(events())]


async def test_json_has_every_event_and_nothing_else(capsys):
    await ask.follow(Recorded(), "u1", display=display.choose(as_json=True))
    assert len(capsys.readouterr().out.splitlines()) == len(EVENTS)
