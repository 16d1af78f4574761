"""Agents of which a phase takes checkpoints must have a state, and `check` says so before anything is played."""

import pytest

from governor.run_file import entry_check

MODULE = """
class Fixed:
    def __init__(self, **params): ...
    def act(self, observation, *, explore): ...
class Keeps(Fixed):
    def state_dict(self): ...
class Wraps:
    def __init__(self, **params): ...
    def __getattr__(self, name): ...
def make(**more): return Keeps()
"""


@pytest.fixture
def folder(tmp_path):
    (tmp_path / "minds.py").write_text(MODULE)
    return tmp_path


def run(entry, *phases):
    agents = {"a": {"entry": entry}, "b": {"entry": "minds:Keeps"}}
    return {"conductors": {"agents": agents}, "phases": [*phases]}


def phase(**more):
    return {"name": "p", "simulate": {"agents": ["a"]}, **more}


KEEPS = {"checkpoint": {"last": True}}


@pytest.mark.parametrize("entry", ["minds:Fixed", "minds:Keeps", "minds:Wraps", "minds:make", "openai:any"])
def test_an_agent_class_without_a_state_is_refused_where_checkpoints_are_taken(folder, entry):
    asked = entry_check.of_data(run(entry, phase(), phase(**KEEPS), phase(**KEEPS)))
    said = "agent 'Fixed' has no state_dict(): no checkpoint of it can be taken"
    expected = [(("phases", 1, "checkpoint"), said)] if entry == "minds:Fixed" else []
    assert entry_check.faults(asked, folder=folder) == expected


@pytest.mark.parametrize(
    ("derived", "place"),
    [
        ({"inherits": "p", **KEEPS}, [("phases", 1, "checkpoint")]),
        ({"inherits": "p", "simulate": {"agents": ["b"]}, **KEEPS}, []),
        ({"inherits": "p", "checkpoint": None}, []),
    ],
)
def test_the_agents_of_a_derived_phase_are_checked(folder, derived, place):
    asked = entry_check.of_data(run("minds:Fixed", phase(), {"name": "q", **derived}))
    assert [found for found, _ in entry_check.faults(asked, folder=folder)] == place


def test_an_agent_that_does_not_import_is_reported_once(folder):
    asked = entry_check.of_data(run("nowhere:A", phase(**KEEPS)))
    assert [found for found, _ in entry_check.faults(asked, folder=folder)] == [
        ("conductors", "agents", "a", "entry")
    ]
