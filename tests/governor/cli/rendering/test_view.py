from governor.cli.rendering.lines import line
from governor.cli.rendering.view import RunView
from governor.messages import RunEvent
from tests.governor.cli.recorded import EVENTS, STATUS


def after(count):
    view = RunView.of(STATUS)
    view.state = "pristine"
    for event in EVENTS[:count]:
        view.on(event)
    return view


def test_it_shows_what_the_run_waits_for():
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


def test_the_number_of_phases_is_told_when_the_run_is_accepted():
    view = RunView(uid="u1")
    for seq, kind, data in (
        (1, "run.accepted", {"name": "small", "phases": 3}),
        (2, "phase.started", {"phase": "train", "index": 0, "mode": "train", "episodes": 9, "tasks": 0}),
    ):
        event = RunEvent(uid="u1", seq=seq, at=0.0, kind=kind, data=data)
        view.on(event)
    assert line(event, view).split(maxsplit=1)[1] == "train (1 of 3, train): 9 episodes"


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


def test_a_task_that_failed_with_another_one_is_not_counted_beside_it():
    view = after(13)
    for run, outcome in enumerate(("failed", "upstream_failed", "cancelled")):
        data = {"phase": 1, "record": {"task": "fit", "run": run, "outcome": outcome}}
        view.on(RunEvent(uid="u1", seq=20 + run, at=0.0, kind="task.ended", data=data))
    assert (view.tasks_ended, view.tasks_bad) == (3, 2)


def test_what_was_on_record_when_a_phase_begins_again_counts():
    """In a later invocation of the daemon, or in a run that resumes another."""
    view = RunView(uid="u")
    started = {"phase": "train", "index": 0, "mode": "train", "episodes": 9, "tasks": 4}
    kept = [{"phase": 0, "episodes": 5, "tasks": 2}]
    told = [
        ("run.inherited", {"parent": "p", "kept": kept}),
        ("phase.started", started),
        ("episode.ended", {"phase": 0, "episode": {"outcome": "terminated", "value": 1.0}}),
        ("task.ended", {"phase": 0, "record": {"task": "t", "run": 0, "outcome": "succeeded"}}),
        ("phase.started", started),
    ]
    counts = []
    for number, (kind, data) in enumerate(told, 1):
        view.on(RunEvent(uid="u", seq=number, at=0, kind=kind, data=data))
        counts.append((view.episodes_ended, view.tasks_ended))
    assert counts == [(0, 0), (5, 2), (6, 2), (6, 3), (6, 3)]


def test_a_run_that_the_daemon_died_with_waits_for_a_slot_and_counts_from_nothing_where_it_begins_anew():
    view = RunView(uid="u")
    started = {"phase": "train", "index": 0, "mode": "train", "episodes": 9, "tasks": 4}
    told = [
        ("run.transition", {"to": "starting"}),
        ("conductor.started", {"conductor": "tasks"}),
        ("phase.started", started),
        ("task.started", {"task": "t", "run": 0}),
        ("task.ended", {"phase": 0, "record": {"task": "t", "run": 1, "outcome": "succeeded"}}),
        ("run.interrupted", {"reason": "the daemon died", "died": True}),
        ("run.restarted", {"discarded": {"episodes": 0, "tasks": 1}}),
        ("phase.started", started),
    ]
    said = []
    for number, (kind, data) in enumerate(told, 1):
        event = RunEvent(uid="u", seq=number, at=0, kind=kind, data=data)
        view.on(event)
        said.append((line(event, view), view.waits_for, view.tasks_ended))
    assert said[4][1:] == ("tasks to be ready", 1)
    assert said[5] == ("run.interrupted    the daemon died", "a free slot", 1)
    assert said[6][0] == "run.restarted      anew: 0 episodes and 1 tasks are discarded"
    assert said[7][2] == 0


def test_episodes_of_an_evaluation_do_not_count_but_their_faults_do():
    view = RunView(uid="u")
    kept = [{"phase": 0, "episodes": 9, "evaluated": 4, "tasks": 0}]
    told = [
        ("run.inherited", {"parent": "p", "kept": kept}),
        ("phase.started", {"phase": "train", "index": 0, "mode": "train", "episodes": 9, "tasks": 0}),
        ("episode.ended", {"phase": 0, "episode": {"outcome": "failed", "value": 9.0, "evaluation": 1}}),
    ]
    for number, (kind, data) in enumerate(told, 1):
        view.on(RunEvent(uid="u", seq=number, at=0, kind=kind, data=data))
    assert (view.episodes_ended, view.episodes_bad, view.mean_return) == (5, 1, None)
    assert "train evaluation 1, episode None" in line(
        RunEvent(uid="u", seq=4, at=0, kind="episode.ended", data=told[-1][1]), view
    )


def test_it_shows_a_stall_until_the_run_makes_progress():
    view = RunView(uid="u", state="running", episodes=9)
    kinds = ["run.stalled", "run.moved", "run.stalled", "phase.started", "run.stalled", "run.transition"]
    said = []
    for seq, kind in enumerate(kinds, start=1):
        view.on(RunEvent(uid="u", seq=seq, at=0.0, kind=kind, data={"episodes": 9}))
        said.append(view.waits_for)
    assert said == ["episodes; no progress", "episodes"] * 3


def test_it_shows_how_far_the_file_of_the_steps_is_until_the_part_ends():
    view = after(8)
    data = {"phase": 0, "part": "simulation", "steps": 4096, "total": 10**8}
    event = RunEvent(uid="u", seq=99, at=0.0, kind="part.finalizing", data=data)
    view.on(event)
    assert view.waits_for == "the file of its steps: 4,096 of 100,000,000 steps are in it"
    assert line(event, view).split(maxsplit=1)[1] == (
        "train simulation, the file of its steps: 4,096 of 100,000,000 steps are in it"
    )
    view.on(RunEvent(uid="u", seq=100, at=0.0, kind="part.ended", data={"phase": 0, "part": "simulation"}))
    assert view.waits_for == "episodes"


def test_many_names_are_cut():
    view = RunView(uid="u", state="starting", starting=dict.fromkeys("abcde"))
    assert view.waits_for == "a, b, c and 2 more to be ready"


def test_events_without_data_change_nothing_else():
    """A daemon of another version may leave out what this client would like to know."""
    view = RunView(uid="u")
    for number, kind in enumerate(sorted({event.kind for event in EVENTS}), 1):
        view.on(RunEvent(uid="u", seq=number, at=0, kind=kind))
        assert isinstance(view.waits_for, str)
