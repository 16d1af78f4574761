import copy
import json

import jsonschema
import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st

from governor import run_check, run_file
from governor.assignment import Assignment
from governor.errors import ExitCode, RunFileError
from governor.messages import Made
from states.plan import ConductorPlan

GOOD = """\
name: frozen-lake
seed: 7
conductors:
  environments:
    lake: {entry: "gymnasium:FrozenLake-v1", params: {is_slippery: false}, pool: 4}
  agents:
    walker: {entry: "q_learner:QLearner", params: {alpha: 0.5}}
phases:
  - name: train
    simulate: {environment: lake, agents: [walker], episodes: 400, workers: 2, episode_timeout: 1min}
    until: [{metric: return, average_over: 50, at_least: 0.95}]
  - name: analyse
    on_failure: continue
    tasks:
      - {id: load, call: "analysis:load", timeout: 30s}
      - {id: fit, call: "analysis:fit", depends_on: [load], repeat: 8, timeout: 60s, retries: 1, resources: {cpus: 1}}
limits: {wall_clock: 15min}
"""


def faults_of(tmp_path, text):
    path = tmp_path / "run.yaml"
    path.write_text(text)
    with pytest.raises(RunFileError) as caught:
        run_file.load(path)
    assert caught.value.exit_code == ExitCode.BAD_CONFIGURATION
    return caught.value.faults


def test_a_good_file_is_a_run_and_its_folder(tmp_path):
    (tmp_path / "run.yaml").write_text(GOOD)
    run, folder = run_file.load(tmp_path / "run.yaml")
    assert folder == tmp_path
    assert run.limits.wall_clock == 900
    assert run.phases[0].simulate.episode_timeout == 60
    assert run.phases[1].tasks[1].resources == {"cpus": 1.0}


def test_raw_is_json_and_parses_to_an_equal_run():
    run = run_file.parse(yaml.safe_load(GOOD))
    assert run_file.parse(json.loads(json.dumps(run.raw()))) == run


def test_to_plan():
    plan = run_file.to_plan(run_file.parse(yaml.safe_load(GOOD)), "u1")
    assert plan.conductors == (
        ConductorPlan(name="environment.lake", kind="environment"),
        ConductorPlan(name="agent.walker", kind="agent"),
        ConductorPlan(name="simulation", kind="simulation"),
        ConductorPlan(name="tasks", kind="task"),
    )
    assert [(phase.name, phase.parts, phase.on_failure) for phase in plan.phases] == [
        ("train", {"simulation"}, "fail"),
        ("analyse", {"tasks"}, "continue"),
    ]
    assert (plan.uid, plan.restarts, plan.wall_clock, plan.deadlines.stop) == ("u1", 2, 900, 20)


IN_PROCESS = GOOD.replace("episodes: 400,", "episodes: 400, transport: in_process,")


def test_what_only_plays_in_process_has_no_conductor():
    run = run_file.parse(yaml.safe_load(IN_PROCESS))
    names = [conductor.name for conductor in run_file.to_plan(run, "u1").conductors]
    assert names == ["simulation", "tasks"]
    both = yaml.safe_load(IN_PROCESS)
    both["conductors"]["agents"]["other"] = both["conductors"]["agents"]["walker"]
    both["phases"].append({"name": "more", "simulate": {**SIMULATE, "agents": ["other"]}})
    names = [conductor.name for conductor in run_file.to_plan(run_file.parse(both), "u1").conductors]
    assert names == ["environment.lake", "agent.other", "simulation", "tasks"]


SIMULATE = {"environment": "lake", "agents": ["walker"], "episodes": 5}


def test_the_command_of_a_phase_in_process_says_what_to_build():
    run = run_file.parse(yaml.safe_load(IN_PROCESS))
    command = Assignment(uid="u1", run=run, folder=".").simulation(0, done=[])
    assert command.transport == "in_process"
    assert command.made_environment == Made(entry="gymnasium:FrozenLake-v1", params={"is_slippery": False})
    assert command.made_agents == (Made(entry="q_learner:QLearner", params={"alpha": 0.5}),)
    command = Assignment(uid="u1", run=run_file.parse(yaml.safe_load(GOOD)), folder=".").simulation(
        0, done=[]
    )
    assert (command.transport, command.made_environment, command.made_agents) == ("conductors", None, ())


ON_RAY = GOOD.replace("workers: 2,", "workers: 9, transport: ray, chunk: 5,").split("  - name: analyse")[0]


def test_a_simulation_on_ray_is_the_task_conductors_and_needs_no_other():
    data = yaml.safe_load(ON_RAY)
    assert run_check.faults(data) == []
    run = run_file.parse(data)
    plan = run_file.to_plan(run, "u1")
    assert plan.conductors == (ConductorPlan(name="tasks", kind="task"),)
    assert plan.phases[0].conductor_of("simulation") == "tasks"
    command = Assignment(uid="u1", run=run, folder=".").simulation(0, done=[])
    assert (command.transport, command.chunk) == ("ray", 5)
    assert command.made_environment == Made(entry="gymnasium:FrozenLake-v1", params={"is_slippery": False})
    assert command.made_agents == (Made(entry="q_learner:QLearner", params={"alpha": 0.5}),)


def test_an_agent_may_learn_elsewhere_and_play_on_ray():
    data = yaml.safe_load(GOOD)
    data["phases"].append(
        {"name": "evaluate", "mode": "eval", "simulate": {**SIMULATE, "transport": "ray", "workers": 100}}
    )
    assert run_check.faults(data) == []
    plan = run_file.to_plan(run_file.parse(data), "u1")
    assert [phase.conductor_of("simulation") for phase in plan.phases] == [
        "simulation",
        "simulation",
        "tasks",
    ]
    assert [conductor.name for conductor in plan.conductors] == [
        "environment.lake", "agent.walker", "simulation", "tasks",
    ]  # fmt: skip


def test_chunks_are_for_ray_and_a_vector_is_not():
    data = yaml.safe_load(ON_RAY.replace("transport: ray", "transport: in_process"))
    assert run_check.faults(data) == [
        (("phases", 0, "simulate", "chunk"), "has no meaning without 'transport: ray'")
    ]
    data = yaml.safe_load(ON_RAY.replace("pool: 4", "vector: 16"))
    [(path, said)] = run_check.faults(data)
    assert run_check.spell(path) == "phases[0].simulate.environment"
    assert said.endswith("which is not for transport: ray")


def test_workers_in_process_need_no_pool():
    many = yaml.safe_load(IN_PROCESS.replace("workers: 2", "workers: 9"))
    assert run_check.faults(many) == []
    many["phases"][0]["simulate"]["transport"] = "conductors"
    assert [run_check.spell(path) for path, _ in run_check.faults(many)] == ["phases[0].simulate.workers"]


def test_a_vector_plays_on_either_transport():
    many = yaml.safe_load(IN_PROCESS.replace("pool: 4", "vector: 16"))
    assert run_check.faults(many) == []
    command = Assignment(uid="u1", run=run_file.parse(many), folder=".").simulation(0, done=[])
    assert command.made_environment.vector == 16
    many["phases"][0]["simulate"] |= {"transport": "conductors", "workers": 1}
    many["phases"][0]["simulate"]["max_staleness"] = 3
    assert run_check.faults(many) == []
    command = Assignment(uid="u1", run=run_file.parse(many), folder=".").simulation(0, done=[])
    assert (command.vector, command.max_staleness, command.made_environment) == (16, 3, None)


PLAYERS = IN_PROCESS.replace("    walker:", "    runner: {entry: 'q_learner:QLearner'}\n    walker:").replace(
    "agents: [walker]", "agents: {red: walker, blue: runner, green: walker}"
)


def test_agents_may_be_said_for_each_player():
    run = run_file.parse(yaml.safe_load(PLAYERS))
    assert run_file.parse(run.raw()) == run
    command = Assignment(uid="u1", run=run, folder=".").simulation(0, done=[])
    assert command.agents == ("walker", "runner")
    assert command.players == {"red": "walker", "blue": "runner", "green": "walker"}
    assert [made.params for made in command.made_agents] == [{"alpha": 0.5}, {}]
    assert [one.name for one in run_file.to_plan(run, "u1").conductors] == ["simulation", "tasks"]


def test_several_agents_play_in_process():
    for agents in (["walker", "runner"], {"red": "walker"}):
        many = yaml.safe_load(PLAYERS)
        many["phases"][0]["simulate"]["agents"] = agents
        assert run_check.faults(many) == []
        many["phases"][0]["simulate"]["transport"] = "conductors"
        ((path, said),) = run_check.faults(many)
        assert run_check.spell(path) == "phases[0].simulate.agents"
        assert said == "are for several players: that needs transport: in_process"


def test_several_agents_and_a_vector_do_not_go_together():
    ((path, said),) = run_check.faults(yaml.safe_load(PLAYERS.replace("pool: 4", "vector: 4")))
    assert run_check.spell(path) == "phases[0].simulate.agents"
    assert said == "are for several players: their environment can have no 'vector'"


@pytest.mark.parametrize(
    ("agents", "path", "said"),
    [
        ({}, "agents", "must have at least 1 item"),
        ({"red": "wolker"}, "agents.red", "unknown agent 'wolker'; did you mean 'walker'?"),
        ({"red": 3}, "agents.red", "must be a text, not 3"),
        ({1: "walker"}, "agents[1]", "must be a text, not 1"),
        (["walker", 3], "agents[1]", "must be a text, not 3"),
        ("walker", "agents", "must be a list, not the text 'walker'"),
        (
            ["walker", "walker"],
            "agents[1]",
            "agent 'walker' stands twice; say whom it plays: {player: walker}",
        ),
    ],
)
def test_faults_of_agents(agents, path, said):
    many = yaml.safe_load(PLAYERS)
    many["phases"][0]["simulate"]["agents"] = agents
    found = [(run_check.spell(path), said) for path, said in run_check.faults(many)]
    assert found == [(f"phases[0].simulate.{path}", said)]


def test_an_agent_of_a_player_has_one_transport():
    both = yaml.safe_load(PLAYERS)
    both["phases"].append({"name": "more", "simulate": SIMULATE})
    ((path, said),) = run_check.faults(both)
    assert run_check.spell(path) == "phases[2].simulate.agents[0]"
    assert "it must be one" in said


def test_an_agent_has_one_transport():
    both = yaml.safe_load(IN_PROCESS)
    both["phases"].append({"name": "more", "simulate": SIMULATE})
    ((path, said),) = run_check.faults(both)
    assert run_check.spell(path) == "phases[2].simulate.agents[0]"
    assert said == (
        "agent 'walker' plays with transport: conductors here and with in_process in phases[0]; it must be one"
    )


@pytest.mark.parametrize(
    ("old", "new", "line", "path", "said"),
    [
        ("name: frozen-lake", "name: frozen lake", 1, "name", "must be letters"),
        ("seed: 7", "sede: 7", 2, "sede", "unknown key 'sede'; did you mean 'seed'?"),
        ("seed: 7", "seed: '7'", 2, "seed", "must be a whole number, not the text '7'"),
        ("seed: 7", "seed: true", 2, "seed", "must be a whole number, not true"),
        ("seed: 7", "seed: -1", 2, "seed", "greater than or equal to 0"),
        ("seed: 7", "seed: 7\nseed: 8", 3, "seed", "stands twice"),
        ("pool: 4", "pol: 4", 5, "conductors.environments.lake.pol", "did you mean 'pool'?"),
        ("    lake:", "    my lake:", 5, "conductors.environments.my lake", "must be letters"),
        ("pool: 4", "pool: 1", 10, "phases[0].simulate.workers", "need a pool of 2"),
        (
            'entry: "q_learner:QLearner"',
            "entry: q_learner",
            7,
            "conductors.agents.walker.entry",
            "module:attribute",
        ),
        ("    walker:", "    lake:", 7, "conductors.agents.lake", "already used by an environment"),
        ("alpha: 0.5", "alpha: 99999999999999999999", 7, "conductors.agents.walker.params", "64 bits"),
        (
            "environment: lake",
            "environment: laek",
            10,
            "phases[0].simulate.environment",
            "did you mean 'lake'?",
        ),
        ("agents: [walker]", "agents: [runner]", 10, "phases[0].simulate.agents[0]", "there is 'walker'"),
        ("agents: [walker]", "agents: [walker, walker]", 10, "phases[0].simulate.agents[1]", "stands twice"),
        ("agents: [walker]", "agents: []", 10, "phases[0].simulate.agents", "at least 1 item"),
        ("agents: [walker]", "agents: walker", 10, "phases[0].simulate.agents", "must be a list"),
        ("episodes: 400, ", "episods: 400, ", 10, "phases[0].simulate.episods", "did you mean 'episodes'?"),
        ("episodes: 400, ", "", 10, "phases[0].simulate.episodes", "'episodes' is missing"),
        ("episodes: 400", "episodes: 40", 11, "phases[0].until[0].average_over", "can never be met"),
        (
            "episode_timeout: 1min",
            "episode_timeout: soon",
            10,
            "phases[0].simulate.episode_timeout",
            "is no duration",
        ),
        ("metric: return", "metric: retrun", 11, "phases[0].until[0].metric", "did you mean 'return'?"),
        ("at_least: 0.95", "at_least: .nan", 11, "phases[0].until[0].at_least", "finite"),
        ("name: analyse", "name: train", 12, "phases[1].name", "already used by phases[0]"),
        (
            "    on_failure: continue",
            "    on_failure: ignore",
            13,
            "phases[1].on_failure",
            "must be one of fail, continue",
        ),
        (
            "    on_failure: continue",
            "    until: [{metric: return, at_least: 1}]",
            13,
            "phases[1].until",
            "without 'simulate'",
        ),
        (
            "depends_on: [load]",
            "depends_on: [laod]",
            16,
            "phases[1].tasks[1].depends_on[0]",
            "did you mean 'load'?",
        ),
        (
            "depends_on: [load]",
            "depends_on: [fit]",
            16,
            "phases[1].tasks[1].depends_on[0]",
            "depends on itself",
        ),
        ("id: fit", "id: load", 16, "phases[1].tasks[1].id", "already used"),
        ("timeout: 30s", "timeout: 30s, depends_on: [fit]", 15, "phases[1].tasks[0].depends_on[0]", "cycle"),
        ("timeout: 30s", "timeout: 0", 15, "phases[1].tasks[0].timeout", "longer than 0"),
        ("repeat: 8", "repeat: 0", 16, "phases[1].tasks[1].repeat", "greater than or equal to 1"),
        ("limits: {wall_clock: 15min}", "limits: 5", 17, "limits", "must be a mapping"),
    ],
)
def test_each_fault_has_its_place(tmp_path, old, new, line, path, said):  # noqa: PLR0917  # a row of the table
    assert GOOD.count(old) >= 1
    found = faults_of(tmp_path, GOOD.replace(old, new, 1))
    assert any(fault.line == line and fault.path == path and said in fault.message for fault in found), found


def test_all_faults_at_once_sorted_by_line(tmp_path):
    text = (
        GOOD.replace("seed: 7", "sede: 7")
        .replace("[walker]", "[runner]")
        .replace("[load]", "[x]")
        .replace("15min", "15 mins")
    )
    found = faults_of(tmp_path, text)
    assert [(fault.line, fault.path) for fault in found] == [
        (2, "sede"),
        (10, "phases[0].simulate.agents[0]"),
        (16, "phases[1].tasks[1].depends_on[0]"),
        (17, "limits.wall_clock"),
    ]


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("", "is empty"),
        ("# nothing\n", "is empty"),
        ("- a\n", "must be a mapping"),
        ("hello", "must be a mapping"),
        ("a: [", "is not YAML"),
        ("name: x\nphases: []\n", "at least 1 item"),
        ("name: x\nphases: [{name: a}]\n", "there is nothing to do"),
        ("name: x\nphases: [{name: a, tasks: []}]\n", "there is nothing to do"),
    ],
)
def test_what_is_no_run_at_all(tmp_path, text, said):
    (fault,) = faults_of(tmp_path, text)
    assert said in fault.message
    assert fault.line is not None


def test_a_phase_full_of_faults_is_not_called_missing(tmp_path):
    found = faults_of(tmp_path, "name: x\nphases: [{name: a, tsks: []}]\n")
    assert {fault.path for fault in found} == {"phases[0]", "phases[0].tsks"}


def test_files_that_can_not_be_read(tmp_path):
    (tmp_path / "latin.yaml").write_bytes(b"name: a\nx: \xff\n")
    for path, said in [("missing.yaml", "No such file"), (".", "directory"), ("latin.yaml", "not UTF-8")]:
        with pytest.raises(RunFileError, match=said):
            run_file.load(tmp_path / path)


def test_parse_names_places_without_lines():
    with pytest.raises(RunFileError) as caught:
        run_file.parse({"name": "x", "phases": [{"name": "a", "simulate": 5}]}, "submitted run")
    assert str(caught.value).startswith("submitted run: 1 fault")
    assert caught.value.faults[0].line is None


def test_the_schema_takes_what_the_models_take():
    schema = run_file.schema()
    jsonschema.Draft202012Validator.check_schema(schema)
    jsonschema.validate(yaml.safe_load(GOOD), schema)
    for old, new in [("seed: 7", "sede: 7"), ("30s", "30 parsecs"), ("episodes: 400", "episodes: many")]:
        with pytest.raises(jsonschema.ValidationError):
            jsonschema.validate(yaml.safe_load(GOOD.replace(old, new)), schema)


anything = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5) | st.binary(max_size=3),
    lambda inner: (
        st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5) | st.integers(), inner, max_size=3)
    ),
    max_leaves=8,
)


@given(anything)
def test_the_check_never_raises(data):
    run_check.faults(data)


@given(data=st.data(), inserted=anything)
def test_the_check_never_raises_near_a_good_run(data, inserted):
    """One value of a good run is replaced by anything: a fault or a sound run, never an exception."""
    raw = copy.deepcopy(yaml.safe_load(GOOD))
    place = raw
    while True:
        key = data.draw(
            st.sampled_from(list(place)) if isinstance(place, dict) else st.integers(0, len(place) - 1)
        )
        if not (isinstance(place[key], dict | list) and place[key]) or data.draw(st.booleans()):
            place[key] = inserted
            break
        place = place[key]
    if not run_check.faults(raw):
        run_file.parse(raw).to_plan("u")


BATCH = {"name": "b", "phases": [{"name": "p", "tasks": [{"id": name, "call": "m:f"} for name in "ab"]}]}
OF_TASKS = {
    "min_num": 1,
    "over_rollout": 0.5,
    "wait_after_min": 5,
    "max_repeat_per_runner": 4,
    "dynamic_timeout": {},
    "grace": 5,
}


def faults_of_batch(run=(), task=(), **phase):
    made = copy.deepcopy(BATCH) | dict(run)
    made["phases"][0] |= phase
    made["phases"][0]["tasks"][0] |= dict(task)
    return [(run_check.spell(path), said) for path, said in run_check.faults(made)]


@pytest.mark.parametrize(
    ("given", "path", "said"),
    [
        ({"min_num": 3}, "phases[0].min_num", "is 3, and there are only 2 tasks"),
        ({"min_num": 0}, "phases[0].min_num", "greater than or equal to 1"),
        ({"over_rollout": 1.0}, "phases[0].over_rollout", "less than 1"),
        ({"over_rollout": -0.1}, "phases[0].over_rollout", "greater than or equal to 0"),
        (
            {"wait_after_min": 5},
            "phases[0].wait_after_min",
            "has no meaning without 'min_num' or 'over_rollout'",
        ),
        ({"wait_after_min": "soon", "min_num": 1}, "phases[0].wait_after_min", "soon"),
        ({"max_repeat_per_runner": 0}, "phases[0].max_repeat_per_runner", "greater than or equal to 1"),
        ({"grace": -1}, "phases[0].grace", "-1"),
        ({"dynamic_timeout": {"ratio": 0.0}}, "phases[0].dynamic_timeout.ratio", "greater than 0"),
        (
            {"dynamic_timeout": {"percentile": 101.0}},
            "phases[0].dynamic_timeout.percentile",
            "less than or equal to 100",
        ),
        (
            {"dynamic_timeout": {"warmup_steps": 1}},
            "phases[0].dynamic_timeout.warmup_steps",
            "did you mean 'warmup_min_steps'?",
        ),
        ({"task": {"priority": "high"}}, "phases[0].tasks[0].priority", "must be a whole number"),
        ({"task": {"priority": 2_000_000}}, "phases[0].tasks[0].priority", "less than or equal to 1000000"),
        ({"run": {"models": "one"}}, "models", "must be a list"),
        ({"run": {"models": [""]}}, "models[0]", "at least 1"),
    ],
)
def test_faults_of_a_batch(given, path, said):
    assert [found for found in faults_of_batch(**given) if found[0].startswith(path) and said in found[1]]


def test_keys_of_a_batch_that_make_sense():
    assert faults_of_batch(**OF_TASKS, task={"priority": -3}, run={"models": ["a", {"url": "b"}]}) == []
    assert faults_of_batch(min_num=2, wait_after_min="1min", max_repeat_per_runner=None, grace=0) == []
    assert faults_of_batch(over_rollout=0.5, wait_after_min=1) == []


@pytest.mark.parametrize("key", OF_TASKS)
def test_keys_of_a_batch_mean_nothing_without_tasks(key):
    run = yaml.safe_load(GOOD)
    run["phases"][0] |= {key: OF_TASKS[key]}
    assert (f"phases[0].{key}", "has no meaning without 'tasks'") in [
        (run_check.spell(path), said) for path, said in run_check.faults(run)
    ]
