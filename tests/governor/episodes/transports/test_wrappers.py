"""Wrappers of the run file are built around an environment, on each transport."""

import pytest
import yaml

from governor.episodes.entries import make_environment
from governor.errors import ConductorError, RunFileError
from governor.messages import decode_simulation, encode
from governor.messages.commands import Wrapper
from governor.run_file import load
from governor.runs.assignment import Assignment

EACH = pytest.mark.parametrize("transport", ["conductors", "in_process", "vector", "rounds"])
LIMIT = Wrapper(entry="wrapper_world:Limited", params={"most": 4})
SHORTER = Wrapper(entry="wrapper_world:Limited", params={"most": 2})


@EACH
async def test_an_environment_is_played_through_its_wrappers(harness, transport):
    command = await harness.stage(transport, wrappers=[LIMIT, SHORTER], length=9)
    records, _ = await harness.play(episodes=3, **command)
    assert [(each.outcome, each.steps) for each in records] == [("truncated", 2)] * 3


def test_the_first_one_is_the_innermost():
    made = make_environment("walk_world:Walk", {}, None, [LIMIT, SHORTER])
    assert (made.most, made.inner.most, type(made.inner.inner).__name__) == (2, 4, "Walk")


@pytest.mark.parametrize(
    ("wrapper", "reason"),
    [
        ({"entry": "wrapper_world:Limited"}, "missing 1 required positional argument: 'most'"),
        ({"entry": "walk_world:Absent"}, "entry 'walk_world:Absent' does not load: AttributeError"),
        ({"entry": "nowhere:Wrapper"}, "entry 'nowhere:Wrapper' does not load: ModuleNotFoundError"),
    ],
)
def test_one_that_cannot_be_built_is_named(wrapper, reason):
    with pytest.raises(ConductorError) as raised:
        make_environment("walk_world:Walk", {}, None, [LIMIT, Wrapper(**wrapper)])
    place = f"environment 'walk_world:Walk': wrappers[1] '{wrapper['entry']}' does not start: "
    assert raised.value.reason.startswith(place)
    assert reason in raised.value.reason


def test_what_comes_out_must_be_an_environment():
    with pytest.raises(ConductorError, match="has no observation_space"):
        make_environment("walk_world:Walk", {}, None, [Wrapper(entry="builtins:id")])


FILE = """
name: wrapped
conductors:
  environments:
    walk:
      entry: "walk_world:Walk"
      wrappers:
        - walk_world:Plain
        - {entry: "wrapper_world:Limited", params: {most: 2}}
  agents: {a: {entry: "walk_world:Agent"}}
phases:
  - {name: p, simulate: {environment: walk, agents: [a], episodes: 3, transport: in_process}}
"""


def test_a_text_stands_for_an_entry_alone():
    run = load.parse(yaml.safe_load(FILE))
    assert load.parse(run.raw()) == run
    assignment = Assignment(uid="u", run=run, folder=".")
    expected = (
        Wrapper(entry="walk_world:Plain"),
        Wrapper(entry="wrapper_world:Limited", params={"most": 2}),
    )
    command = decode_simulation(encode(assignment.simulation(0)))
    assert command.made_environment.wrappers == expected
    sent = assignment.settings("environment.walk")["wrappers"]
    assert tuple(Wrapper.model_validate(each) for each in sent) == expected


@pytest.mark.parametrize(
    ("wrapper", "path", "message"),
    [
        ("plain", "wrappers[0].entry", "must look like 'module:attribute'"),
        ({"entry": "m:A", "param": {}}, "wrappers[0].param", "unknown key 'param'; did you mean 'params'?"),
        (5, "wrappers[0]", "must be a mapping"),
    ],
)
def test_a_fault_of_a_wrapper_has_its_place(wrapper, path, message):
    data = yaml.safe_load(FILE)
    data["conductors"]["environments"]["walk"]["wrappers"] = [wrapper]
    with pytest.raises(RunFileError) as raised:
        load.parse(data)
    [fault] = raised.value.faults
    assert fault.path == f"conductors.environments.walk.{path}"
    assert fault.message.startswith(message)
