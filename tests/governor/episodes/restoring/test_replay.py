"""An agent that was built anew learns again what is on record, and says where that is not exact."""

import numpy as np
import pytest

from governor.episodes import learned as learning
from governor.episodes.agent_calls import AgentCalls
from governor.episodes.learned import Learned
from governor.episodes.records import state_file
from governor.episodes.records.recording import Columns, StepRecorder
from governor.episodes.restoring.replay import OUT_OF_ORDER, enter, restore
from governor.episodes.restoring.so_far import PhaseSoFar
from governor.episodes.rollouts import rollouts_of
from governor.episodes.spaces import Box, Discrete, OneOf
from governor.episodes.transition import Transition

SPACES = (Box(shape=(2,), dtype="<f4", low=bytes(8), high=bytes(8)), Discrete(n=4, start=0))
EVALUATED = 100
"""Training episodes of the phase: those behind them are of evaluations."""


class Draws:
    """Draws its actions, and keeps all that it is told."""

    def __init__(self):
        self.random = np.random.default_rng(3)
        self.told = []

    def act(self, observation, *, explore):
        if not explore:
            return 0
        action = int(self.random.integers(4))
        return action, {"drawn": action + 10}

    def begin(self, episode):
        self.told.append(["begin", episode.number, episode.seed, episode.explore])

    def learn(self, transition):
        last = bool(transition.terminated or transition.truncated)
        seen = [*transition.observation.tolist(), *transition.next_observation.tolist()]
        numbers = [transition.action, transition.reward, transition.step, transition.extras["drawn"]]
        self.told.append(["learn", *seen, *numbers, last])

    def end(self, episode):
        if episode.explore:
            self.told.append(["end", episode.number, episode.outcome, episode.value, episode.steps])

    def metrics(self):
        self.told.append(["metrics"])
        return {}

    def state_dict(self):
        return {"random": self.random.bit_generator.state, "told": self.told}

    def load_state_dict(self, state):
        self.random.bit_generator.state = state["random"]
        self.told = state["told"]


class Forgetful(Draws):
    """Its state lacks the generator."""

    def state_dict(self):
        return {"told": self.told}

    def load_state_dict(self, state):
        self.told = state["told"]


class Batches(Draws):
    """Learns from rollouts of four steps, which do not end with episodes."""

    learn = None
    rollout_steps = 4

    def learn_batch(self, rollout):
        drawn = rollout.extras["drawn"][:, 0].tolist()
        self.told.append(["batch", *rollout.action[:, 0].tolist(), *drawn, *rollout.starts[:, 0].tolist()])


class Life:
    """An agent of a process, which plays episodes of three steps as a worker would: recorded, and reported when they end."""

    def __init__(self, folder, kind, *, ended=(), known=None, **phase):
        self.folder = folder
        path = folder / "agents" / "a.state"
        self.agent = kind()
        if path.exists():
            self.agent.load_state_dict(state_file.load(path))
        self.learned = Learned(
            self.agent, path, rollouts=rollouts_of(self.agent, SPACES, entry="") if kind is Batches else None
        )
        self.calls = AgentCalls(self.agent, SPACES[1])
        given = {"name": "train", "trains": True, "episodes": EVALUATED, "of_evaluation": 5, "bounds": ended}
        self.so_far = PhaseSoFar(**{**given, **phase})
        enter(self.learned, self.calls, self.so_far)
        self.recorder = StepRecorder(folder, phase="train", worker=0, columns=Columns.of(*SPACES))
        self.recorder.keeps_last = True
        self.tickets = 0

    def restore(self):
        return restore(self.learned, self.calls, self.so_far, known=SPACES, run_folder=self.folder)

    def play(self, *indices, outcome="terminated", settled=False, flushed=True):
        for index in indices:
            told = self.so_far.told_of(index, 1000 + index)
            self.recorder.begin(episode=index, seed=told.seed)
            if told.explore:
                self.learned.begin(told)
            self.calls.begin(told)
            act = self.calls.act_of(explore=told.explore, worker=0)
            observation = np.array([index, 0], np.float32)
            for step in range(3):
                action, extras = act(observation)
                following = np.array([index, step + 1], np.float32)
                self.recorder.step(observation, action, step / 2, step == 2, False, self.learned.version)
                if told.explore:
                    self.learned.learn(
                        Transition(
                            observation=observation, action=action, reward=step / 2, next_observation=following,
                            terminated=step == 2, truncated=False, episode=index, step=step, seed=told.seed, extras=extras,
                        )
                    )  # fmt: skip
                observation = following
            self.recorder.note_last(observation)
            over = type(told)(
                number=index,
                phase="train",
                seed=told.seed,
                explore=told.explore,
                outcome=outcome,
                value=1.5,
                steps=3,
            )
            self.calls.end(over)
            if told.explore:
                self.learned.metrics()
                self.tickets += 1
                self.learned.episode_ended(index, ticket=self.tickets)
            else:
                self.learned.end_told(index)
            self.recorder.end(outcome=outcome, flush=flushed)
            if settled:
                self.learned.settle(self.tickets)

    @property
    def state(self):
        return self.learned.state(), self.learned.version


@pytest.fixture(autouse=True)
def saves_once(monkeypatch):
    """The first state that may be saved is the only one."""
    monkeypatch.setattr(learning, "SPARING", 10**9)


@pytest.mark.parametrize("kind", [Draws, Batches])
def test_what_came_after_the_saved_state_is_learned_again(tmp_path, kind):
    before = Life(tmp_path, kind)
    before.play(0, settled=True)
    before.play(1, 2, 3, 4)
    after = Life(tmp_path, kind, ended=(0, 5))
    assert len(after.agent.told) < len(before.agent.told)
    assert after.restore() == ("", 4, 12)
    assert after.state == before.state
    for life in (before, after):
        life.play(5)
    assert after.state == before.state, "and it goes on the same"


def test_a_phase_of_which_nothing_was_learned_begins_exactly_whatever_hinders_a_replay(tmp_path):
    workers = "4 workers"
    assert Life(tmp_path, Draws, obstacle=workers).restore() == ("", 0, 0)
    Life(tmp_path, Draws, obstacle=workers).play(0)
    assert Life(tmp_path, Draws, obstacle=workers).restore() == (workers, 0, 0), "an unrecorded episode"
    assert Life(tmp_path, Draws, obstacle=workers, ended=(0, 1)).restore() == (workers, 0, 0)
    assert Life(tmp_path, Draws, name="next", obstacle=workers).restore() == (workers, 0, 0)
    Life(tmp_path, Draws, obstacle=workers, ended=(0, 1)).learned.save(over=True)
    assert Life(tmp_path, Draws, name="next", obstacle=workers).restore() == ("", 0, 0)


def test_without_a_saved_state_all_of_the_phase_is_learned_again(tmp_path):
    before = Life(tmp_path, Draws)
    before.play(0, 1)
    after = Life(tmp_path, Draws, ended=(0, 2))
    assert after.restore() == ("", 2, 6)
    assert after.state == before.state


def test_a_state_is_written_when_its_episode_is_on_record_and_not_before(tmp_path):
    life = Life(tmp_path, Draws)
    life.play(0, 1)
    assert life.learned.saved() is None
    life.learned.settle(0)
    assert life.learned.saved() is None
    life.learned.settle(1)
    assert life.learned.saved()["ended"] == [0, 1], "as it was then"
    assert ["end", 1, "terminated", 1.5, 3] not in state_file.load(tmp_path / "agents" / "a.state")["told"]


def test_what_was_played_again_is_learned_once_as_it_was_played_last(tmp_path):
    first = Life(tmp_path, Draws)
    first.play(0, settled=True)
    first.play(1)  # never reported
    second = Life(tmp_path, Draws, ended=(0, 1))
    assert second.restore() == ("", 0, 0)
    second.play(1, 2)
    third = Life(tmp_path, Draws, ended=(0, 3))
    assert third.restore() == ("", 2, 6)
    assert third.state == second.state


def test_a_state_without_the_generator_is_found_out(tmp_path):
    before = Life(tmp_path, Forgetful)
    before.play(0, settled=True)
    before.play(1, 2)
    after = Life(tmp_path, Forgetful, ended=(0, 3))
    found = after.restore()
    assert found.reason.startswith("the replayed action of episode 1, step ")
    assert "the state_dict lacks the agent's generator" in found.reason
    learned = [[told[5:8] for told in life.agent.told if told[0] == "learn"] for life in (before, after)]
    assert learned[0] == learned[1], "the recorded actions are learned"


def test_evaluations_that_change_nothing_are_left_out_but_for_the_first(tmp_path):
    class Counts(Draws):
        acted = 0

        def begin(self, episode): ...

        def act(self, observation, *, explore):
            Counts.acted += not explore
            return super().act(observation, explore=explore)

    before = Life(tmp_path, Counts)
    before.play(0, 1, *range(EVALUATED, EVALUATED + 5), 2)
    after = Life(tmp_path, Counts, ended=(0, 3, EVALUATED, EVALUATED + 5))
    Counts.acted = 0
    assert after.restore().reason == ""
    assert Counts.acted == 3
    assert after.state == before.state


def test_evaluations_that_change_the_agent_are_played_again_in_their_order(tmp_path):
    before = Life(tmp_path, Draws)  # it keeps that they begin
    before.play(0, EVALUATED, EVALUATED + 1, 1)
    after = Life(tmp_path, Draws, ended=(0, 2, EVALUATED, EVALUATED + 2))
    assert after.restore() == ("", 4, 12)
    assert after.state == before.state


@pytest.mark.parametrize(
    ("kind", "phase", "reason"),
    [
        (type("Stateless", (Draws,), {"state_dict": None, "load_state_dict": None}), {}, "the agent has no state_dict"),
        (type("Informed", (Draws,), {"needs_info": True}), {}, "the agent has needs_info, and infos are not on record"),
        (type("Says", (Draws,), {"not_exact": "a buffer is left out"}), {}, "a buffer is left out"),
        (Draws, {"obstacle": "4 workers: the order"}, "4 workers: the order"),
    ],
)  # fmt: skip
def test_what_cannot_be_replayed_says_why(tmp_path, kind, phase, reason):
    before = Life(tmp_path, kind, **phase)
    before.play(0)
    after = Life(tmp_path, kind, ended=(0, 1), **phase)
    assert after.restore() == (reason, 0, 0)


def test_an_episode_that_has_failed_cannot_be_replayed(tmp_path):
    before = Life(tmp_path, Draws)
    before.play(0)
    before.play(1, outcome="failed")
    after = Life(tmp_path, Draws, ended=(0, 2))
    assert after.restore() == ("episode 1 is failed: how far the agent had come is not on record", 1, 3)


def test_a_state_that_is_ahead_of_the_record_says_so(tmp_path):
    before = Life(tmp_path, Draws)
    before.play(0, 1)
    before.learned.save(over=True)
    after = Life(tmp_path, Draws, ended=(0, 1))
    assert after.restore().reason == "its state has learned of episodes that are played again"


def test_the_next_phase_goes_on_where_the_last_one_was_over(tmp_path):
    before = Life(tmp_path, Draws)
    before.play(0, 1)
    before.learned.save(over=True)
    assert Life(tmp_path, Draws, name="more").restore() == ("", 0, 0)


def test_a_phase_whose_end_was_not_saved_is_missed_in_the_next_one(tmp_path):
    before = Life(tmp_path, Draws)
    before.play(0, settled=True)
    before.play(1)
    found = Life(tmp_path, Draws, name="more").restore()
    assert found.reason == "what the agent learned at the end of phase 'train' was not saved"


def test_what_was_learned_of_a_later_phase_is_not_learned_again_when_it_goes_on(tmp_path):
    """A resumed run goes back to an episode of the phase before that failed."""
    Life(tmp_path, Draws, name="more").play(0, 1, settled=True)
    again = Life(tmp_path, Draws, ended=(0, 2))
    again.restore()
    again.play(2, settled=True)
    again.learned.save(over=True)
    more = Life(tmp_path, Draws, name="more", ended=(0, 2))
    assert more.restore() == (OUT_OF_ORDER, 0, 0)
    assert more.state == again.state
    more.play(2, settled=True)
    assert Life(tmp_path, Draws, name="more", ended=(0, 3)).restore() == ("", 0, 0), "from here on it is"


def test_a_phase_that_was_over_is_not_learned_again_when_a_run_goes_back_to_it(tmp_path):
    first = Life(tmp_path, Draws)
    first.play(0, 1, settled=True)
    first.learned.save(over=True)
    more = Life(tmp_path, Draws, name="more")
    more.learned.save(over=True)
    assert Life(tmp_path, Draws, ended=(0, 2)).restore() == (OUT_OF_ORDER, 0, 0)


def test_steps_that_cannot_be_read_are_a_reason_and_no_failure(tmp_path, monkeypatch):
    before = Life(tmp_path, Draws)
    before.play(0)
    after = Life(tmp_path, Draws, ended=(0, 1))
    monkeypatch.setitem(globals(), "SPACES", (SPACES[0], OneOf(spaces=(SPACES[1],))))
    assert after.restore().reason == "values of a OneOf are not read back from the record"


def test_an_error_of_the_agent_ends_the_replay_with_its_reason(tmp_path):
    before = Life(tmp_path, Draws)
    before.play(0, 1)
    after = Life(tmp_path, Draws, ended=(0, 2))
    after.agent.learn = lambda transition: 1 / 0
    found = after.restore()
    assert found.reason.startswith("replay of episode 0: ZeroDivisionError")
