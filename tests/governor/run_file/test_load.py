"""A run file: what is read, each fault at its place, the plan, the schema; and nothing makes the check raise."""

import copy
import json
import subprocess
import sys

import jsonschema
import msgspec
import numpy as np
import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st

from governor.errors import ExitCode, RunFileError
from governor.run_file import load
from states.plan import ConductorPlan
from tests.support.run_files import GOOD, faults_in


def faults_of(tmp_path, text):
    path = tmp_path / "run.yaml"
    path.write_text(text)
    with pytest.raises(RunFileError) as caught:
        load.load(path)
    assert caught.value.exit_code == ExitCode.BAD_CONFIGURATION
    return caught.value.faults


def test_a_good_file_is_a_run_and_its_folder(tmp_path):
    (tmp_path / "run.yaml").write_text(GOOD)
    run, folder = load.load(tmp_path / "run.yaml")
    assert folder == tmp_path
    assert run.limits.wall_clock == 900
    assert run.phases[0].simulate.episode_timeout == 60
    assert run.phases[1].tasks[1].resources == {"cpus": 1.0}


def test_raw_is_json_and_parses_to_an_equal_run():
    run = load.parse(yaml.safe_load(GOOD))
    assert load.parse(json.loads(json.dumps(run.raw()))) == run


def test_to_plan():
    plan = load.parse(yaml.safe_load(GOOD)).to_plan("u1")
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


def test_silence_and_stalls():
    plan = load.parse(yaml.safe_load(GOOD)).to_plan("u1")
    assert (plan.stall_timeout, plan.on_stall) == (600, "report")
    said = {"limits": {"stall_timeout": "1h", "on_stall": "restart"}, "deadlines": {"liveness": "30s"}}
    run = load.parse({**yaml.safe_load(GOOD), **said})
    assert run.deadlines.liveness == 30
    assert (run.to_plan("u1").stall_timeout, run.to_plan("u1").on_stall) == (3600, "restart")
    run = load.parse({**yaml.safe_load(GOOD), "limits": {"stall_timeout": None}})
    assert run.to_plan("u1").stall_timeout is None
    assert faults_in({**yaml.safe_load(GOOD), "deadlines": {"liveness": "2s"}}) == [
        (("deadlines", "liveness"), "must be greater than or equal to 5, not the text '2s'")
    ]


@pytest.mark.parametrize(
    ("old", "new", "line", "path", "said"),
    [
        ("name: frozen-lake", "name: frozen lake", 1, "name", "must be letters"),
        ("seed: 7", "sede: 7", 2, "sede", "unknown key 'sede'; did you mean 'seed'?"),
        ("seed: 7", "seed: '7'", 2, "seed", "must be a whole number, not the text '7'"),
        ("seed: 7", "seed: true", 2, "seed", "must be a whole number, not true"),
        ("seed: 7", "seed: -1", 2, "seed", "greater than or equal to 0"),
        ("seed: 7", "seed: 7\nseed: 8", 3, "seed", "stands twice"),
        ("seed: 7", "resume: no", 2, "resume", "must be one of continue, restart, never"),
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
            "alpha: 0.5",
            "alpha: [1, -.inf]",
            7,
            "conductors.agents.walker.params",
            "alpha[1]: -inf is no number",
        ),
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
        ("400, ", "400, info: [a b], ", 10, "phases[0].simulate.info[0]", "_ . / : - and begin with"),
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
            "    on_failure: continue\n    failures: {at_most: 3}",
            12,
            "phases[1]",
            "'on_failure' is short for 'failures': leave one of them out",
        ),
        (
            "    on_failure: continue",
            "    failures: {at_most: 0.01}",
            13,
            "phases[1].failures.at_most",
            "a number, as 20, or a percentage from 0% to 100%, as 1%, not 0.01",
        ),
        (
            "    on_failure: continue",
            "    failures: {at_most: 101%}",
            13,
            "phases[1].failures.at_most",
            "not '101%'",
        ),
        (
            "    on_failure: continue",
            "    failures: {retry: {users: 1}}",
            13,
            "phases[1].failures.retry.users",
            "did you mean 'user'?",
        ),
        (
            "    on_failure: continue",
            "    failures: {retry: -1}",
            13,
            "phases[1].failures.retry",
            "greater than or equal to 0",
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
        (
            "wall_clock: 15min",
            "memory: 2 GiB of it",
            17,
            "limits.memory",
            "is no size: write a number of bytes, or",
        ),
        ("wall_clock: 15min", "disk: 2", 17, "limits.disk", "is 2 bytes, and must be at least 1MiB: write a"),
        ("wall_clock: 15min", "memroy: 2GiB", 17, "limits.memroy", "did you mean 'memory'?"),
        ("wall_clock: 15min", "tasks: 0", 17, "limits.tasks", "greater than or equal to 1"),
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
def test_data_that_is_no_run(tmp_path, text, said):
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
            load.load(tmp_path / path)


def test_numbers_of_numpy_are_numbers():
    def made(number, whole, yes, some):
        return {
            "name": "x",
            "seed": whole(7),
            "conductors": {
                "environments": {
                    "e": {"entry": "m:E", "pool": whole(2), "params": {"slip": yes, "map": some}}
                },
                "agents": {
                    "a": {
                        "entry": "m:A",
                        "params": {"alpha": number(0.5), "sizes": [whole(4), {"x": whole(5)}]},
                    }
                },
            },
            "phases": [
                {
                    "name": "p",
                    "simulate": {
                        "environment": "e",
                        "agents": ["a"],
                        "episodes": whole(5),
                        "workers": whole(2),
                    },
                    "until": [{"metric": "return", "average_over": whole(3), "at_least": number(0.25)}],
                },
                {
                    "name": "q",
                    "tasks": [{"id": "t", "call": "m:f", "args": {"x": number(0.5)}, "timeout": number(2)}],
                },
            ],
            "limits": {"wall_clock": number(60), "memory": whole(2**30)},
        }

    plain = load.parse(made(float, int, True, [[1, 2]]))
    given = made(np.float64, np.int64, np.bool_(True), np.array([[1, 2]]))
    for found in (
        load.parse(given),
        load.Run(**given),
        load.parse(made(np.float32, np.uint32, np.bool_(True), np.array([[1, 2]]))),
    ):
        assert found == plain
        assert msgspec.msgpack.encode(found.raw()) == msgspec.msgpack.encode(plain.raw())
    assert type(given["conductors"]["agents"]["a"]["params"]["alpha"]) is np.float64, "the caller's own stays"
    assert load.parse(plain.raw() | {"seed": np.int64(3)}).seed == 3
    given["conductors"]["environments"]["e"]["pool"] = np.int64(1)
    with pytest.raises(RunFileError, match="2 workers need a pool of 2; environment 'e' has pool: 1"):
        load.parse(given)


def test_a_run_without_numpy_does_not_import_it():
    code = "import sys; from governor.run_file.load import parse; parse({'name': 'x', 'phases': [{'name': 'p', 'tasks': [{'id': 't', 'call': 'm:f'}]}]}); sys.exit('numpy' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


def test_parse_names_places_without_lines():
    with pytest.raises(RunFileError) as caught:
        load.parse({"name": "x", "phases": [{"name": "a", "simulate": 5}]}, "submitted run")
    assert str(caught.value).startswith("submitted run: 1 fault")
    assert caught.value.faults[0].line is None


def test_sizes_of_limits_are_bytes(tmp_path):
    file = tmp_path / "run.yaml"
    sized = "limits: {wall_clock: 15min, tasks: 100, memory: 1.5GiB, disk: 2000000}"
    file.write_text(GOOD.replace("limits: {wall_clock: 15min}", sized))
    run, _ = load.load(file)
    assert run.limits.amounts == [("tasks", 100), ("memory", 3 * 2**29), ("disk", 2_000_000)]
    assert load.parse(run.raw(), "again") == run
    jsonschema.validate(yaml.safe_load(file.read_text()), load.schema())
    with pytest.raises(jsonschema.ValidationError):
        jsonschema.validate(yaml.safe_load(file.read_text().replace("1.5GiB", "1.5 gigs")), load.schema())


ANCHORS = """\
name: anchors
x-task: &task {timeout: 10s, retries: soon}
x-notes: anything
phases:
  - name: one
    tasks:
      - {<<: *task, id: a, call: "json:dumps", retries: 1}
      - <<: *task
        id: b
        call: "json:dumps"
"""


def test_keys_that_begin_with_x_are_ignored_and_hold_anchors(tmp_path):
    [fault] = faults_of(tmp_path, ANCHORS)
    assert (fault.path, fault.line) == ("phases[0].tasks[1].retries", 2), "the line of the anchor"
    text = ANCHORS.replace("soon", "3")
    (tmp_path / "run.yaml").write_text(text)
    run, _ = load.load(tmp_path / "run.yaml")
    assert [(task.timeout, task.retries) for task in run.phases[0].tasks] == [(10, 1), (10, 3)]
    assert not [key for key in run.raw() if key.startswith("x-")]
    jsonschema.validate(yaml.safe_load(text), load.schema())
    [fault] = faults_of(tmp_path, text.replace("    tasks:", "    x-b: 1\n    tasks:"))
    assert (fault.path, fault.line) == ("phases[0].x-b", 6), "only at the top level"


def test_the_schema_takes_what_the_models_take():
    schema = load.schema()
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
    faults_in(data)


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
    if not faults_in(raw):
        load.parse(raw).to_plan("u")
