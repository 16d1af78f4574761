"""Which keys of a run file may change when, and what is told of them."""

from __future__ import annotations

import pytest

from governor.errors import RunFileError, UsageError
from governor.run_file.load import parse
from governor.runs.assignment import Assignment
from governor.runs.run_changes import NEXT_EPISODES, NOW, accept, changed_run, require_possible

SIMULATE = {"environment": "lake", "agents": ["walker"], "episodes": 20}


def run_of(transport="conductors"):
    simulate = {**SIMULATE, "transport": transport}
    return parse(
        {
            "name": "r",
            "seed": 3,
            "conductors": {
                "environments": {"lake": {"entry": "m:E", "pool": 4}},
                "agents": {"walker": {"entry": "m:A", "params": {"alpha": 0.5}}, "other": {"entry": "m:A"}},
            },
            "phases": [
                {"name": "train", "simulate": simulate},
                {"name": "fit", "tasks": [{"id": "load", "call": "m:f"}, {"id": "fit", "call": "m:f"}]},
                {"name": "last", "mode": "eval", "simulate": simulate},
            ],
            "limits": {"wall_clock": "1h"},
            "labels": {"team": "rl"},
        }
    )


def accepted(phase, transport="conductors", **values):
    run = run_of(transport)
    values = {key.replace("__", "."): value for key, value in values.items()}
    return accept(changed_run(run, values), Assignment(uid="r1", run=run, folder="/"), params={}, phase=phase)


def test_the_values_that_differ_are_told_with_both():
    change = changed_run(run_of(), {"limits.wall_clock": "2h", "seed": 3, "train.simulate.workers": 2})
    assert [(each.key, each.before, each.after) for each in change.told()] == [
        ("limits.wall_clock", 3600.0, 7200.0),
        ("train.simulate.workers", 1, 2),
    ]
    assert change.run.phases[0].simulate.workers == 2


def test_a_path_that_leads_nowhere_and_a_run_with_faults_are_refused():
    with pytest.raises(UsageError, match=r"trian.simulate.workers: .*did you mean 'train'"):
        changed_run(run_of(), {"trian.simulate.workers": 2})
    with pytest.raises(RunFileError, match="9 workers need a pool of 9") as refused:
        changed_run(run_of(), {"train.simulate.workers": 9, "limits.wall_clock": "soon"})
    assert len(refused.value.faults) == 2


@pytest.mark.parametrize(
    ("values", "since"),
    [
        ({"limits__wall_clock": "2h", "limits__steps": 10, "restart__conductors": 9, "resume": "never"}, NOW),
        ({"labels__team": "ops", "labels__run": "1", "deadlines__finalize": 99}, NOW),
        ({"fit__tasks__load__timeout": "1h", "fit__tasks__fit__retries": 2}, "when phase fit begins"),
        ({"last__simulate__episodes": 5}, "when phase last begins"),
        ({"train__simulate__workers": 4, "train__simulate__episode_timeout": "9s"}, NEXT_EPISODES),
        ({"train__until": [{"metric": "return", "at_least": 1}], "train__failures": {"at_most": 3}}, NEXT_EPISODES),
    ],
)  # fmt: skip
def test_what_may_change_in_the_first_phase_and_from_when_on(values, since):
    found = accepted(0, **values)
    assert {each.since for each in found.values} == {since}
    assert len(found.values) == len(values)
    assert found.renews == (since == NEXT_EPISODES)
    assert found.tasks == ()


@pytest.mark.parametrize(
    "values",
    [
        {"seed": 9},
        {"name": "other"},
        {"deadlines__start": 9},
        {"agents__walker__params__alpha": 0.1},
        {"lake__pool": 9},
        {"train__simulate__agents": ["other"]},
        {"train__simulate__transport": "in_process", "last__simulate__transport": "in_process"},
        {"train__mode": "eval"},
        {"phases": [{"name": "train", "tasks": [{"id": "a", "call": "m:f"}]}]},
    ],
)
def test_what_is_in_use_is_refused_with_what_to_do(values):
    key = next(iter(values))
    values = {"environments__lake__pool": 9} if key == "lake__pool" else values
    with pytest.raises(
        UsageError,
        match=r"can't be set now: .*`governor pause --hard r1`, set it, then `governor continue r1`",
    ):
        accepted(0, **values)


def test_processes_that_the_run_does_not_have_are_not_started():
    whole = run_of()
    run = whole.model_copy(update={"phases": (whole.phases[0], whole.phases[2])})
    change = changed_run(run, {"last.tasks": [{"id": "t", "call": "m:f"}]})
    with pytest.raises(UsageError, match=r"last.tasks can't be set now: the run would need other processes"):
        accept(change, Assignment(uid="r1", run=run, folder="/"), params={}, phase=0)
    assert accepted(0, last__simulate__agents=["other"]).values, "that agent has its process"


def test_in_process_the_simulation_builds_agents_and_environments_anew():
    found = accepted(0, "in_process", agents__walker__params__alpha=0.1)
    assert (found.renews, found.values[0].since) == (True, NEXT_EPISODES)
    assert found.assignment.simulation(0).made_agents[0].params == {"alpha": 0.1}
    with pytest.raises(UsageError, match="what runs uses it"):
        accepted(1, "in_process", agents__walker__params__alpha=0.1)


def test_of_tasks_at_work_time_outs_and_retries_change():
    found = accepted(1, fit__tasks__load__timeout="1h", fit__tasks__fit__retries=2, limits__tasks=9)
    assert (found.renews, found.tasks) == (False, ("load", "fit"))
    told = found.assignment.limits_of(1, found.tasks)
    assert [(task.id, task.timeout, task.retries) for task in told.tasks] == [
        ("load", 3600.0, 0),
        ("fit", None, 2),
    ]
    for values in ({"fit__tasks__load__call": "m:g"}, {"fit__grace": "9s"}, {"fit__tasks": []}):
        with pytest.raises((UsageError, RunFileError)):
            accepted(1, **values)


def test_a_phase_that_has_ended_stays():
    with pytest.raises(UsageError, match="phase train has ended"):
        accepted(1, train__simulate__episodes=50)
    change = changed_run(run_of(), {"train.simulate.episodes": 50})
    require_possible(change, first_phase=0, begun=True, resumes=False)
    with pytest.raises(UsageError, match="phase train has ended"):
        require_possible(change, first_phase=1, begun=True, resumes=False)
    whole = changed_run(run_of(), {"phases": run_of().raw()["phases"][:1]})
    require_possible(whole, first_phase=0, begun=True, resumes=False)
    with pytest.raises(UsageError, match="some of them have ended"):
        require_possible(whole, first_phase=1, begun=True, resumes=False)


@pytest.mark.parametrize(
    "values",
    [
        {"train.simulate.episodes": 24},
        {"train.evaluate.every": 5},
        {"train.evaluate": None},
        {"train.simulate": {**SIMULATE, "episodes": 24}},
    ],
)
def test_evaluations_of_a_phase_that_has_begun_keep_their_numbers(values):
    run = changed_run(run_of(), {"train.evaluate": {"every": 10, "episodes": 2}}).run
    change = changed_run(run, values)
    match = f"{next(iter(values))} can't be set: evaluations may be on record"
    with pytest.raises(UsageError, match=match):
        accept(change, Assignment(uid="r1", run=run, folder="/"), params={}, phase=0)
    with pytest.raises(UsageError, match=match):
        require_possible(change, first_phase=0, begun=True, resumes=False)
    require_possible(change, first_phase=0, begun=False, resumes=False)
    others = changed_run(
        run, {"train.evaluate.at_least": 3, "train.simulate.max_steps": 9, "last.simulate.episodes": 3}
    )
    assert accept(others, Assignment(uid="r1", run=run, folder="/"), params={}, phase=0).renews


def test_the_values_that_a_run_is_found_by_follow():
    change = changed_run(run_of(), {"agents.walker.params": {"alpha": 0.1}, "seed": 9})
    params = {"agents.walker.params.alpha": 0.5, "seed": 3, "limits.wall_clock": "1h"}
    assert change.params(params) == {"agents.walker.params.alpha": 0.1, "seed": 9, "limits.wall_clock": "1h"}


def test_attempts_that_were_not_counted_can_not_be_limited_while_the_run_works():
    run = run_of()
    at_work = Assignment(uid="r1", run=run, folder="/")
    change = changed_run(run, {"limits.tasks": 9})
    with pytest.raises(UsageError, match=r"limits.tasks can't be set now"):
        accept(change, at_work, params={}, phase=0, knows_tasks=False)
    accept(changed_run(run, {"limits.steps": 9}), at_work, params={}, phase=0, knows_tasks=False)
    assert accept(change, at_work, params={}, phase=0).values
