from recorded import EVENTS, STATUS

from governor.cli.view import RunView
from governor.messages import RunEvent


def after(count):
    view = RunView.of(STATUS)
    view.state = "pristine"
    for event in EVENTS[:count]:
        view.on(event)
    return view


def test_it_says_what_the_run_waits_for():
    assert [after(n).waits_for for n in (1, 4, 5, 8, 10, 13, 15, 21, 22)] == [
        "a free slot",
        "agent.walker, tasks to be ready",
        "tasks to be ready",
        "episodes",
        "episodes",
        "tasks to start",
        "fit[0], fit[1]",
        "the result",
        "",
    ]


def test_counts_belong_to_the_phase():
    view = after(10)
    assert (view.phase, view.episodes_ended, view.episodes, view.episodes_bad, view.mean_return) == (
        "train",
        2,
        3,
        1,
        0.5,
    )
    view = after(18)
    assert (view.phase, view.episodes_ended, view.mean_return) == ("analyse", 0, None)
    assert (view.tasks_ended, view.tasks, view.tasks_bad, view.running) == (2, 2, 1, {})


def test_many_names_are_cut():
    view = RunView(uid="u", state="starting", starting=dict.fromkeys("abcde"))
    assert view.waits_for == "a, b, c and 2 more to be ready"


def test_events_without_data_change_nothing_else():
    """A daemon of another version may leave out what this client would like to know."""
    view = RunView(uid="u")
    for number, kind in enumerate(sorted({event.kind for event in EVENTS}), 1):
        view.on(RunEvent(uid="u", seq=number, at=0, kind=kind))
        assert isinstance(view.waits_for, str)
