"""An agent is refused where several environments give it what it does not take, or not what it needs."""

import pytest

from governor.run_file import entry_check

MODULE = """
class World:
    observation_space = action_space = None
    def reset(self, *, seed=None): ...
    def step(self, action): ...
class Any:
    def __init__(self, observation_space, action_space, seed): ...
    def act(self, observation, *, explore): ...
    def learn(self, step): ...
class One(Any):
    streams = "one"
class Informed(Any):
    needs_info = True
class Masked(Any):
    def act(self, observation, *, explore, action_mask=None): ...
def make(**more): return One()
"""
SAID = (
    "agent 'One' learns from one stream of steps (streams = 'one'), and here those of several environments alternate: say "
    "workers: 1, and no vector"
)


@pytest.fixture
def faults(tmp_path):
    (tmp_path / "minds.py").write_text(MODULE)

    def faults(*phases, entry="minds:One"):
        together = {"num_envs": 4, "mode": "async"}
        conductors = {
            "environments": {
                "e": {"entry": "minds:World"},
                "v": {"entry": "minds:World", "vector": 4},
                "t": {"entry": "minds:World", "vector": together},
            },
            "agents": {"a": {"entry": entry}},
        }
        asked = entry_check.of_data({"conductors": conductors, "phases": [*phases]})
        return entry_check.faults(asked, folder=tmp_path)

    return faults


def phase(environment="e", *, mode="train", **simulate):
    return {"name": "p", "mode": mode, "simulate": {"environment": environment, "agents": ["a"], **simulate}}


@pytest.mark.parametrize(
    ("given", "key"),
    [
        (phase(workers=2), "workers"),
        (phase(workers=2, transport="in_process"), "workers"),
        (phase("v"), "environment"),
        (phase("v", workers=3), "workers"),
    ],
)
def test_it_is_refused_with_several_workers_or_a_vector(faults, given, key):
    assert faults(phase(), given) == [(("phases", 1, "simulate", key), SAID)]


@pytest.mark.parametrize(
    "given", [phase(), phase(workers=1), phase("v", mode="eval"), phase(workers=4, mode="eval")]
)
def test_it_may_act_in_many_and_learn_from_one(faults, given):
    assert faults(given) == []


@pytest.mark.parametrize("entry", ["minds:Any", "minds:make"])
def test_others_may_learn_from_many(faults, entry):
    assert faults(phase(workers=2), entry=entry) == []


@pytest.mark.parametrize(
    ("entry", "what"),
    [("minds:Informed", "it has needs_info"), ("minds:Masked", "act takes action_mask")],
)
def test_infos_and_masks_are_refused_where_environments_step_together(faults, entry, what):
    [(place, said)] = faults(phase("e"), phase("t", mode="eval", transport="in_process"), entry=entry)
    assert place == ("phases", 1, "simulate", "agents", 0)
    assert what in said
    assert "say mode: sync" in said
    assert faults(phase("e"), phase("v"), entry=entry) == []
    assert faults(phase("t", transport="in_process"), entry="minds:Any") == []


def test_what_does_not_import_is_reported_once(faults):
    found = faults(phase(workers=2), entry="nowhere:A")
    assert [place for place, _ in found] == [("conductors", "agents", "a", "entry")]
