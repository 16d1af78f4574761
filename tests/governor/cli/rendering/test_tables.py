import io

import msgspec
import pytest
from rich.console import Console

from governor.cli import ask
from governor.cli.rendering import display, tables
from governor.cli.rendering.lines import line, number, progress, time_left
from governor.cli.rendering.view import RunView
from governor.messages import ConductorStatus, FailureGroup, LimitUse, RunEvent, RunList, TaskRecord, TimeLeft
from governor.tasks.scheduling.batch import upstream_failed
from tests.governor.cli.recorded import EPISODE, EVENTS, REPORT, RESULT, RUNS, STATUS, Recorded


def told():
    view = RunView.of(STATUS)
    for event in EVENTS:
        view.on(event)
        yield line(event, view)


def printed(renderable, *, width=110):
    out = io.StringIO()
    Console(file=out, width=width, highlight=False).print(renderable)
    return [row.rstrip() for row in out.getvalue().splitlines()]


def test_lines():
    assert list(told()) == [
        "run.accepted       lake as u1",
        "run.transition     pristine -> starting (assigned)",
        "conductor.started  agent.walker, pid 7",
        "conductor.started  tasks, pid 8",
        "conductor.ready    agent.walker",
        "conductor.ready    tasks",
        "phase.started      train (1 of 2, train): 3 episodes",
        "run.transition     starting -> running (ready)",
        "episode.ended      train episode 0: return 1, 6 steps, 12ms, terminated",
        "episode.ended      train episode 1: return 0, 6 steps, 12ms, failed: ValueError: red",
        "part.ended         train simulation: max_episodes, 1 ended badly, return_mean 0.5: ValueError",
        "phase.ended        train: max_episodes",
        "phase.started      analyse (2 of 2): 2 tasks",
        "task.started       analyse fit[0] attempt 1",
        "task.started       analyse fit[1] attempt 1",
        "task.attempt_ended analyse fit[1] attempt 1: crashed: killed",
        "task.ended         analyse fit[0]: succeeded, 1 attempt, 500ms, gain 0.25",
        "task.ended         analyse fit[1]: timed_out, 2 attempts, 1min 0s: past its deadline",
        "conductor.exited   tasks, exit code -9",
        "news.of.tomorrow   x=0.1235",
        "run.transition     running -> finalizing (failed)",
        "run.ended          failed: a task timed out",
    ]


def test_lines_of_failures_that_a_run_has_from_the_one_that_it_resumes():
    view = RunView.of(STATUS)
    for event in EVENTS:
        view.on(event)
    episode, task = EVENTS[9].data["episode"], EVENTS[17].data["record"]
    attempt = {"task": "fit", "run": 1, "attempt": 1, "outcome": "crashed", "error": "killed"}
    told = [
        line(
            RunEvent(
                uid="u",
                seq=1,
                at=0.0,
                kind="failure.inherited",
                data={"kind": kind, "phase": phase, "item": item},
            ),
            view,
        ).split(maxsplit=1)[1]
        for kind, phase, item in (
            ("episode.ended", 0, episode),
            ("task.ended", 1, task),
            ("task.attempt_ended", 1, attempt),
        )
    ]
    assert [text.removeprefix("of the run before: ") for text in told] == [
        "train episode 1: return 0, 6 steps, 12ms, failed: ValueError: red",
        "analyse fit[1]: timed_out, 2 attempts, 1min 0s: past its deadline",
        "analyse fit[1] attempt 1: crashed: killed",
    ]


def test_lines_of_an_idle_daemon():
    told = [
        ("conductor.silent", {"conductor": "tasks", "incarnation": 1, "seconds": 12.34, "stopped": True}),
        ("run.stalled", {"since": 7.0, "seconds": 600.4, "waits_for": "phase train: simulation to end"}),
        ("run.moved", {"at": 8.0}),
    ]
    view = RunView(uid="u")
    events = [RunEvent(uid="u", seq=1, at=0.0, kind=kind, data=data) for kind, data in told]
    assert [line(event, view) for event in events] == [
        "conductor.silent   tasks, silent for 12.3s",
        "run.stalled        no progress for 10min 0s: phase train: simulation to end",
        "run.moved          it makes progress again",
    ]


def test_a_line_of_an_event_without_data():
    for event in EVENTS:
        assert line(RunEvent(uid="u", seq=1, at=0, kind=event.kind), RunView(uid="u"))


def test_numbers():
    assert [number(value) for value in (1, 1.0, 0.84482, 1540.3, 1e-9, float("nan"), True, "x\x1b")] == [
        "1", "1", "0.8448", "1540", "1e-09", "nan", "True", "x",
    ]  # fmt: skip


def test_result_table():
    rows = printed(tables.result(RESULT), width=140)
    assert rows[0] == "lake u1 failed in 12.4s: a task timed out"
    assert rows[2].split() == ["phase", "mode", "end", "episodes", "return", "steps", "tasks"]
    assert [row.split()[0] for row in rows[4:6] + rows[9:13]] == [
        "train",
        "analyse",
        "load",
        "fit[0]",
        "fit[1]",
        "show",
    ]
    text = "\n".join(rows)
    for said in (
        "0.5 ± 0.25 (0 to 1)",
        "2 of 4 succeeded",
        "gain 0.25",
        "past its deadline [red]now",
        "because of fit",
        "[1.0, 1.0",
        "/runs/u1",
    ):
        assert said in text
    assert max(map(len, rows)) <= 140


def test_a_cause_that_the_error_of_a_task_names_is_not_told_twice():
    record = upstream_failed("show", TaskRecord(task="fit", run=0, outcome="failed", error="no"))
    phase = msgspec.structs.replace(RESULT.phases[-1], tasks=(record,))
    [row] = [
        line
        for line in printed(tables.result(msgspec.structs.replace(RESULT, phases=(phase,))), width=140)
        if line.startswith("show")
    ]
    assert row.endswith('task "fit" did not succeed')


def test_a_result_says_which_processes_died():
    deaths = FailureGroup(
        kind="conductor", number=2, outcome="failed", reason="SIGKILL", first="conductor simulation", event=9
    )
    lines = printed(tables.result(msgspec.structs.replace(RESULT, deaths=(deaths,))))
    place = next(place for place, line in enumerate(lines) if line.split() == ["died", "process", "reason"])
    assert lines[place + 2].split() == ["2", "conductor", "simulation", "SIGKILL"]


def test_status_names_what_a_conductor_has_started():
    [run] = REPORT.runs
    [conductor] = run.conductors
    conductors = (
        msgspec.structs.replace(conductor, started=(8, 9)),
        msgspec.structs.replace(conductor, name="x"),
    )
    report = msgspec.structs.replace(REPORT, runs=(msgspec.structs.replace(run, conductors=conductors),))
    *_, first, second = printed(tables.status(report, conductors=True))
    assert first.split() == ["agent.walker", "agent", "ready", "7", "1", "8,", "9"]
    assert second.split() == ["x", "agent", "ready", "7", "1", "-"]


def test_status_and_list():
    rows = printed(tables.status(REPORT, conductors=True))
    assert rows[0] == "governor 1.2.3 serving, pid 5, up 1min 5s, 2 slots, Ray not started"
    assert rows[5].split() == [
        "u1",
        "lake",
        "running",
        "1/2",
        "train",
        "2",
        "of",
        "3",
        "-",
        "0.5",
        "episodes",
    ]
    assert rows[-1].split() == ["agent.walker", "agent", "ready", "7", "1"]
    assert "agent.walker" not in "\n".join(printed(tables.status(REPORT, conductors=False)))
    held = msgspec.structs.replace(
        REPORT, quarantined={"slot-0": "processes that could not be killed (pid 7)"}
    )
    rows = printed(tables.status(held, conductors=False))
    assert rows[2] == "slot-0 accepts no run, and waits for processes that could not be killed (pid 7)"
    assert printed(tables.runs(RunList(runs=()))) == ["no runs"]
    assert printed(tables.runs(RUNS))[2].split()[:3] == ["u1", "lake", "running"]


def test_a_run_with_limits_shows_what_it_has_used():
    limits = (LimitUse(limit="tasks", allowed=9, used=4), LimitUse(limit="disk", allowed=2**31, used=2**20))
    report = msgspec.structs.replace(REPORT, runs=(msgspec.structs.replace(STATUS, limits=limits),))
    said = "u1 has used: tasks 4 of 9, disk 1 MiB of 2 GiB"
    assert said in printed(tables.status(report, conductors=True))
    assert said not in printed(tables.status(report, conductors=False))


def test_a_run_that_resumes_another_names_it():
    status = msgspec.structs.replace(STATUS, parent="u0")
    report = msgspec.structs.replace(REPORT, runs=(status,))
    assert "u1 resumes u0" in printed(tables.status(report, conductors=True))
    head, _, row = printed(tables.runs(RunList(runs=(status,))))
    assert (head.split()[-2:], row.split()[-1]) == (["resumes", "reason"], "u0")
    assert printed(tables.result(msgspec.structs.replace(RESULT, parent="u0")))[1] == "resumes u0"
    kept = [{"phase": 0, "episodes": 5, "tasks": 2}, {"phase": 1, "episodes": 0, "tasks": 3}]
    event = RunEvent(uid="u1", seq=2, at=0, kind="run.inherited", data={"parent": "u0", "kept": kept})
    assert line(event, RunView(uid="u1")).endswith("5 episodes and 5 tasks of u0 are kept")


async def test_the_terminal_shows_a_panel_and_prints_failures():
    out = io.StringIO()
    shown = display.terminal(Console(file=out, force_terminal=True, width=100, color_system=None))
    await ask.follow(Recorded(), "u1", display=shown)
    panel = display.Panel(Console(file=out))
    assert printed(panel.of(view := RunView.of(STATUS)))[0] == display.headline(view) == "lake u1 · running"
    text = out.getvalue()
    assert "train episode 1: return 0" in text
    assert "part.ended         train simulation: max_episodes, 1 ended badly, return_mean 0.5" in text
    assert "train episode 0: return 1" not in text
    assert "\x1b[31m" not in text


async def test_follow_shows_only_what_is_new_but_knows_all(capsys):
    end = await ask.follow(Recorded(), "u1", display=display.lines(), after=10)
    rows = capsys.readouterr().out.splitlines()
    assert [row.split()[0] for row in rows] == [
        "part.ended",
        "phase.ended",
        "phase.started",
        "task.attempt_ended",
        "task.ended",
        "conductor.exited",
        "run.transition",
        "run.ended",
    ]
    assert rows[0].startswith("part.ended         train simulation")
    assert ask.exit_code(end) == 1


@pytest.mark.parametrize(
    ("outcome", "code"), [("finished", 0), ("failed", 1), ("aborted", 1), ("interrupted", 75)]
)
def test_exit_codes_of_a_run(outcome, code):
    from governor.messages import WatchEnd

    assert ask.exit_code(WatchEnd(outcome=outcome)) == code
    assert ask.exit_code(None) == 75


LEFT = TimeLeft(phase=185.2, run=720.0, at_most=True)
USED = (
    ConductorStatus(
        name="tasks", kind="tasks", state="ready", pid=8, incarnation=1, cpu=0.03, memory=85 * 2**20
    ),
    ConductorStatus(
        name="agent.walker", kind="agent", state="ready", pid=7, incarnation=1, cpu=0.98, memory=2**30
    ),
)


def view_of_metrics(*, episodes=500):
    view = RunView(uid="u1", name="lake", phases=2)
    events = [("run.transition", {"to": "running"})]
    events += [("phase.started", {"phase": "train", "index": 0, "mode": "train", "episodes": 1000})]
    for index in range(episodes):
        metrics = {
            "success": index % 2,
            "a\x1b[31m very long name of a metric that nobody reads": 1e9 / (index + 1),
        }
        metrics |= {f"m{number}": float(number) for number in range(20)}
        episode = {
            "index": index,
            "value": index / 10,
            "outcome": "terminated",
            "metrics": metrics,
            **EPISODE,
        }
        events.append(("episode.ended", {"episode": episode}))
    panel = display.Panel(Console(file=io.StringIO(), width=100))
    for seq, (kind, data) in enumerate(events, start=1):
        view.on(event := RunEvent(uid="u1", seq=seq, at=float(seq), kind=kind, data=data))
        panel.update(event, view)
    view.status = msgspec.structs.replace(STATUS, phase="train", left=LEFT, conductors=USED)
    return view, events


@pytest.mark.parametrize("width", [40, 60, 100, 200])
def test_the_panel_shows_metrics_time_and_conductors_in_the_width_of_the_terminal(width):
    view, events = view_of_metrics()
    console = Console(
        file=io.StringIO(), width=width, highlight=False, force_terminal=True, color_system=None
    )
    panel = display.Panel(console)
    panel.update(RunEvent(uid="u1", seq=2, at=0.0, kind=events[1][0], data=events[1][1]), view)
    with console.capture() as captured:
        console.print(panel.of(view))
    rows = captured.get().splitlines()
    assert max(map(len, rows)) <= width
    assert not any("\x1b[31m" in row for row in rows)
    [of_return] = [row for row in rows if row.startswith("return")]
    assert {"▁", "█"} <= {*of_return}
    assert of_return.endswith(" 47.45 (last 50)")
    assert sum("(last 50)" in row for row in rows) == 6, "of many metrics the first ones are shown"
    assert any(row.startswith("at most about 3min 5s left in train"[: width - 1]) for row in rows)
    assert any(row.startswith("agent.walker 98% CPU 1 GiB") for row in rows), "the busiest is first"
    assert len(rows) <= 12


def test_the_curves_of_a_view_are_those_of_its_phase():
    view, _ = view_of_metrics()
    assert [*view.curves][:2] == ["return", "success"]
    assert view.curves["return"].count == 500
    evaluated = {"index": 9, "value": 1.0, "outcome": "terminated", "evaluation": 1, **EPISODE}
    view.on(RunEvent(uid="u1", seq=900, at=0.0, kind="episode.ended", data={"episode": evaluated}))
    assert view.curves["return"].count == 500
    view.on(RunEvent(uid="u1", seq=901, at=0.0, kind="phase.started", data={"phase": "next", "index": 1}))
    assert (view.curves, view.recent) == ({}, {})
    assert time_left(view) == "", "what the daemon said of another phase"


def test_lines_and_status_tell_about_how_long_it_takes():
    view, _ = view_of_metrics()
    assert "; at most about 3min 5s left in train, 12min 0s in the run" in progress(view)
    run = msgspec.structs.replace(STATUS, phase="train", phases=2, left=LEFT, conductors=USED)
    rows = printed(tables.status(msgspec.structs.replace(REPORT, runs=(run,)), conductors=True))
    assert "at most about 3min 5s left in train, 12min 0s in the run" in rows
    assert rows[-1].split() == ["agent.walker", "agent", "ready", "7", "1", "98%", "1", "GiB"]


def test_a_long_array_in_a_row_is_shown_by_its_first_numbers():
    values = {"image": [*range(65)], "pair": [1, 2], "rows": [[0.5] * 1000]}
    assert printed(tables.of_rows([{"step": 1, "observation": values}], more=""))[-1] == (
        "1      {'image': [0, 1, 2, ... 65 in all], 'pair': [1, 2], 'rows': [[0.5, 0.5, 0.5, ... 1,000 in all]]}"
    )
