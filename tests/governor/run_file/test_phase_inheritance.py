"""Phases that inherit what they do not say from an earlier one."""

import json

import jsonschema
import pytest
import yaml

from governor import Run
from governor.errors import RunFileError
from governor.messages import Failures
from governor.run_file import load
from governor.run_file.phase_model import Phase, Simulate
from tests.support.run_files import faults_in

CONDUCTORS = """\
name: r
conductors:
  environments: {lake: {entry: "m:E", pool: 4}, pond: {entry: "m:E", pool: 1}}
  agents: {a: {entry: "m:A"}, b: {entry: "m:A"}}
phases:
"""
TRAIN = """\
  - name: train
    simulate: {environment: lake, agents: [a], episodes: 400, workers: 2, max_steps: 100}
    until: [{metric: return, at_least: 0.9}, {steps: 1000}]
    evaluate: {every: 10, episodes: 5, plateau: {patience: 3, window: 2}}
    checkpoint: {every: 50, keep: 3}
    on_failure: continue
"""


def phases(text, head=TRAIN):
    return load.parse(yaml.safe_load(CONDUCTORS + head + text)).phases


def faults(tmp_path, text, head=TRAIN):
    path = tmp_path / "run.yaml"
    path.write_text(CONDUCTORS + head + text)
    with pytest.raises(RunFileError) as caught:
        load.load(path)
    return [(fault.line, fault.path, fault.message) for fault in caught.value.faults]


def test_missing_keys_are_taken_from_the_named_phase():
    train, more = phases("  - {name: more, inherits: train}")
    assert more == train.model_copy(update={"name": "more"})


def test_mappings_are_merged_lists_are_replaced_and_null_takes_back():
    train, more = phases("""\
  - name: more
    inherits: train
    mode: eval
    simulate: {episodes: 50, agents: [b], max_steps: null}
    until: [{wall_clock: 5min}]
    evaluate: null
    checkpoint: {every: null, keep: null, last: true}
""")
    assert more.mode == "eval"
    assert more.simulate == train.simulate.model_copy(
        update={"episodes": 50, "agents": ("b",), "max_steps": None}
    )
    assert [condition.wall_clock for condition in more.until] == [300.0]
    assert more.evaluate is None
    assert (more.checkpoint.every, more.checkpoint.keep, more.checkpoint.last) == (None, None, True)
    assert more.on_failure == "continue"


def test_who_says_one_of_failures_and_on_failure_does_not_inherit_the_other():
    train, more, last = phases("""\
  - {name: more, inherits: train, failures: {at_most: 1%}}
  - {name: last, inherits: more, on_failure: fail}
""")
    assert train.policy is None
    assert (more.on_failure, more.policy) == (None, Failures(at_most="1%"))
    assert (last.failures, last.policy) == (None, Failures(at_most=0))
    _, _, back = phases("""\
  - {name: more, inherits: train, failures: {at_most: 1%, consecutive: 5}}
  - {name: back, inherits: more, failures: {at_most: null}}
""")
    assert back.policy == Failures(consecutive=5)


def test_deep_mappings_are_merged_too():
    _, more = phases("  - {name: more, inherits: train, evaluate: {plateau: {patience: 9}}}")
    assert (more.evaluate.every, more.evaluate.plateau.patience, more.evaluate.plateau.window) == (10, 9, 2)


def test_a_phase_may_inherit_from_one_that_inherits_and_skip_others():
    *_, last = phases("""\
  - {name: second, inherits: train, simulate: {episodes: 50, workers: 1}}
  - {name: tasks, tasks: [{id: t, call: "m:f"}]}
  - {name: last, inherits: second, simulate: {workers: 3}}
""")
    assert (last.simulate.episodes, last.simulate.workers, last.tasks) == (50, 3, ())


def test_null_where_it_is_a_value_stays_one():
    tasks = '  - {name: t, tasks: [{id: t, call: "m:f"}], max_repeat_per_runner: 5}\n'
    *_, more = phases("  - {name: more, inherits: t, max_repeat_per_runner: null}", head=tasks)
    assert more.max_repeat_per_runner is None


def test_a_file_without_the_word_is_read_as_before():
    train, more = phases("  - {name: more, simulate: {environment: lake, agents: [a], episodes: 1}}")
    assert (more.until, more.policy, more.simulate.max_steps) == ((), Failures(at_most=0), None)
    assert train.simulate.max_steps == 100


def test_a_run_that_travels_has_it_resolved():
    run = load.parse(yaml.safe_load(CONDUCTORS + TRAIN + "  - {name: more, inherits: train, evaluate: null}"))
    assert run.phases[1].inherits is None
    assert load.parse(json.loads(json.dumps(run.raw()))) == run


def test_in_python_a_run_is_built_the_same_way():
    conductors = yaml.safe_load(CONDUCTORS)["conductors"]
    simulate = Simulate(environment="lake", agents=("a",), episodes=400, max_steps=100)
    run = Run(
        name="r",
        conductors=conductors,
        phases=[
            Phase(name="train", simulate=simulate, until=({"steps": 9},)),
            Phase(name="evaluate", mode="eval", inherits="train", until=()),
            {"name": "more", "inherits": "train", "simulate": {"episodes": 7}},
        ],
    )
    assert run.phases[1] == Phase(name="evaluate", mode="eval", simulate=simulate)
    assert run.phases[2].simulate == simulate.model_copy(update={"episodes": 7})
    assert run.phases[2].until == run.phases[0].until
    assert load.parse(run.raw()) == run
    with pytest.raises(
        ValueError, match=r"phases\[0\].inherits: unknown phase 'x'; no phase is before this one"
    ):
        Run(name="r", conductors=conductors, phases=[Phase(name="p", inherits="x", simulate=simulate)])


@pytest.mark.parametrize(
    ("word", "said"),
    [
        ("trian", "unknown phase 'trian'; did you mean 'train'?"),
        ("other", "unknown phase 'other'; before this one there is 'train'"),
        ("later", "phase 'later' does not come before this one: a phase inherits from an earlier one"),
        ("more", "phase 'more' does not come before this one: a phase inherits from an earlier one"),
        ("true", "must be the name of an earlier phase"),
        ("[train]", "must be the name of an earlier phase"),
    ],
)
def test_a_word_that_leads_nowhere_is_one_fault(tmp_path, word, said):
    text = f"""\
  - name: more
    inherits: {word}
    simulate: {{episodes: 50}}
  - {{name: later, inherits: train}}
"""
    assert faults(tmp_path, text) == [(13, "phases[1].inherits", said)]


def test_a_name_is_not_inherited(tmp_path):
    assert faults(tmp_path, "  - {inherits: train}") == [(12, "phases[1].name", "'name' is missing")]


def test_the_first_phase_has_nothing_to_inherit_and_its_other_faults_are_reported(tmp_path):
    found = faults(tmp_path, "", head="  - {name: p, inherits: q, colour: red}\n")
    assert [said for _, _, said in found] == [
        "unknown phase 'q'; no phase is before this one",
        "unknown key 'colour'",
        "has neither 'simulate' nor 'tasks': there is nothing to do",
    ]


def test_an_inherited_fault_is_reported_at_its_origin(tmp_path):
    head = "  - {name: train, simulate: {environment: leak, agents: [a], episodes: 0}}\n"
    text = """\
  - {name: more, inherits: train}
  - {name: third, inherits: more, simulate: {episodes: 0}}
"""
    found = faults(tmp_path, text, head=head)
    assert [(line, path) for line, path, _ in found] == [
        (6, "phases[0].simulate.episodes"),
        (6, "phases[0].simulate.environment"),
        (8, "phases[2].simulate.episodes"),
    ]


def test_a_fault_of_the_combination_is_reported_at_the_derived_phase(tmp_path):
    found = faults(tmp_path, "  - name: more\n    inherits: train\n    simulate: {environment: pond}\n")
    assert [(line, path) for line, path, _ in found] == [(14, "phases[1].simulate.workers")]


def test_the_schema_knows_phases_that_inherit():
    schema = load.schema()
    jsonschema.Draft202012Validator.check_schema(schema)

    def is_valid(text):
        return jsonschema.Draft202012Validator(schema).is_valid(yaml.safe_load(CONDUCTORS + TRAIN + text))

    assert is_valid("  - {name: more, inherits: train}")
    assert is_valid(
        "  - {name: more, inherits: train, simulate: {episodes: 5, max_steps: null}, until: null}"
    )
    assert is_valid("  - {name: more, inherits: train, evaluate: {every: 5}}")
    assert not is_valid("  - {name: more, inherits: train, simulate: {episodes: 0}}")
    assert not is_valid("  - {name: more, inherits: train, colour: red}")
    assert not is_valid("  - {name: more, simulate: {episodes: 5}}")
    assert not is_valid("  - {inherits: train}")


@pytest.mark.parametrize(
    "phases", [None, 5, "x", [5], [None], {"inherits": 1}, [{"inherits": {}}], [[], {"inherits": "x"}]]
)
def test_nothing_makes_the_check_raise(phases):
    assert faults_in({"name": "r", "phases": phases})
