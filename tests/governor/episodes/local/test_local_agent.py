import pytest

from governor.episodes import learned
from governor.episodes.local.local_agent import LocalAgent
from governor.episodes.records import state_file
from governor.episodes.restoring.replay import OUT_OF_ORDER, Restored
from governor.episodes.restoring.so_far import PhaseSoFar
from governor.episodes.spaces import Discrete
from governor.errors import ConductorError
from governor.messages import Made
from tests.support.in_process_commands import WORLDS

TWO = Discrete(n=2, start=0)


@pytest.fixture
def agent(tmp_path, monkeypatch):
    monkeypatch.syspath_prepend(WORLDS)
    made = LocalAgent(
        name="walker", made=Made(entry="walk_world:Agent"), seed=7, state_path=tmp_path / "walker.state"
    )
    made.join(0, TWO, TWO)
    return made


@pytest.fixture
def saves(monkeypatch):
    """Each save takes 2 ms of a clock that nothing else moves; whether it was synced."""
    clock = Clock()

    def save(path, state, *, sync=True, **more):
        clock.now += 0.002
        clock.saves.append(sync)
        plain(path, state, sync=sync, **more)

    plain = state_file.save
    monkeypatch.setattr(state_file, "save", save)
    monkeypatch.setattr(learned, "monotonic", lambda: clock.now)
    return clock


class Clock:
    def __init__(self):
        self.now, self.saves = 100.0, []


def test_saving_takes_a_fiftieth_of_the_time_and_syncs_once_a_second(agent, saves):
    for _ in range(2000):
        agent.episode_ended()
        saves.now += 0.001
    assert 18 <= len(saves.saves) <= 21
    assert sum(saves.saves) == 2
    agent.save()
    assert saves.saves[-1]


def test_what_is_synced_is_not_saved_again(agent, saves):
    agent.episode_ended()
    agent.save()
    assert saves.saves == [True]


def test_it_has_one_pair_of_spaces(agent):
    agent.join(1, TWO, TWO)
    with pytest.raises(ConductorError, match="was built for other spaces"):
        agent.join(1, Discrete(n=3, start=0), TWO)
    assert agent.holder is None


def test_a_worker_that_is_with_it_is_known_where_there_are_several(agent):
    seen = []
    agent._learned.agent.act = lambda _, *, explore: seen.append(agent.holder) or 1
    assert agent.calls(3, alone=False).act(0) == (1, {})
    assert (seen, agent.holder) == ([3], None)


@pytest.mark.parametrize(
    ("trains", "ended", "told"),
    [(True, (0, 2), [Restored(OUT_OF_ORDER)]), (True, (), []), (False, (0, 2), [])],
    ids=["goes on", "begins", "acts only"],
)
def test_a_phase_that_goes_on_behind_another_one_is_told_as_not_exact_once(agent, trains, ended, told):
    def phase(name, *, trains=True, ended=()):
        return PhaseSoFar(name=name, trains=trains, episodes=9, of_evaluation=0, bounds=ended)

    found = []
    agent.enter(phase("train"), restored=found.append, check=lambda: None)
    agent.join(0, TWO, TWO)
    assert found == []
    agent.enter(phase("more", trains=trains, ended=ended), restored=found.append, check=lambda: None)
    agent.join(0, TWO, TWO)
    agent.join(1, TWO, TWO)
    assert found == told
