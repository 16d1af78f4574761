from collections import Counter

import numpy as np
import pytest

from governor.episodes.rollouts import Rollouts
from governor.episodes.spaces import Box, Dict, Discrete, Text, Tuple
from governor.episodes.transition import Episode, Transition

NUMBER = Discrete(n=100, start=0)
PAIR = Box(shape=(2,), dtype="<f4", low=bytes(8), high=bytes(8))


def rollouts(steps=3, *, workers=2, spaces=(NUMBER, NUMBER)):
    made = Rollouts(steps, spaces)
    made.begin(Episode(number=0, phase="train", seed=0, workers=workers))
    return made


def step(worker, number, **more):
    """The step with this `number` in the stream of the worker."""
    given = {
        "observation": number, "action": worker, "reward": float(number), "next_observation": number + 1,
        "terminated": False, "truncated": False, "worker": worker, "episode": 0, "step": number,
    }  # fmt: skip
    return Transition(**{**given, **more})


class Streams:
    """Rollouts of 3 steps of workers whose streams of steps are numbered."""

    def __init__(self, workers=2):
        self.rollouts = rollouts(workers=workers)
        self.numbers = Counter()

    def play(self, *workers):
        """The rollouts that come of a step of each of these workers, in this order."""
        found = []
        for worker in workers:
            found.append(self.rollouts.add(step(worker, self.numbers[worker])))
            self.numbers[worker] += 1
        return [rollout for rollout in found if rollout is not None]


@pytest.fixture
def pair():
    return Streams()


def columns(rollout):
    return dict(zip(rollout.workers.tolist(), rollout.observation.T.tolist(), strict=True))


def test_a_rollout_has_n_steps_of_all_workers_in_their_order(pair):
    assert pair.play(1, 0, 1, 0, 1) == []
    (rollout,) = pair.play(0)
    assert (rollout.n, rollout.m, rollout.workers.tolist()) == (3, 2, [0, 1])
    assert rollout.observation.tolist() == [[0, 0], [1, 1], [2, 2]]
    assert rollout.next_observation.tolist() == [[1, 1], [2, 2], [3, 3]]
    assert rollout.action.tolist() == [[0, 1]] * 3
    assert rollout.reward.tolist() == [[0.0, 0.0], [1.0, 1.0], [2.0, 2.0]]
    assert [one.dtype for one in (rollout.observation, rollout.reward, rollout.terminated)] == [
        np.int64,
        np.float64,
        np.bool_,
    ]


def test_the_steps_of_a_worker_that_is_ahead_count_for_the_next_rollout(pair):
    assert pair.play(0, 0, 0, 0, 0, 1, 1) == []
    (rollout,) = pair.play(1)
    assert columns(rollout) == {0: [0, 1, 2], 1: [0, 1, 2]}
    (rollout,) = pair.play(1, 1, 1, 0)
    assert columns(rollout) == {0: [3, 4, 5], 1: [3, 4, 5]}


def test_a_worker_that_is_two_rollouts_ahead_waits_no_longer(pair):
    assert pair.play(1, 0, 0, 0, 0, 0) == []
    (rollout,) = pair.play(0)
    assert columns(rollout) == {0: [0, 1, 2]}
    assert pair.play(0, 1) == []
    (rollout,) = pair.play(1)
    assert columns(rollout) == {0: [3, 4, 5], 1: [0, 1, 2]}, "no step is lost, or learned twice"


def test_a_worker_without_a_step_since_the_last_rollout_is_not_awaited(pair):
    assert pair.play(1, 0, 1, 0, 1, 0) != []
    assert len(pair.play(0, 0, 0, 0, 0, 0)) == 1, "it is, for one rollout"
    assert len(pair.play(0, 0, 0)) == 2
    assert pair.play(0, 1, 0, 0) == [], "with its next step it is awaited again"
    (rollout,) = pair.play(1, 1)
    assert rollout.m == 2


def test_a_worker_that_never_begins_delays_one_rollout():
    three = Streams(workers=3)
    assert three.play(*[0, 1] * 5) == []
    assert [rollout.m for rollout in three.play(*[0, 1] * 10)] == [2] * 5


def test_nothing_grows_without_bound(pair):
    for _ in range(1000):
        pair.play(0)
    assert max(map(len, pair.rollouts._columns.values())) <= 2 * 3


def test_another_phase_begins_with_none(pair):
    pair.play(0, 1, 0, 1)
    pair.rollouts.begin(Episode(number=0, phase="train", seed=0, workers=2))
    assert len(pair.play(0, 1)) == 1
    pair.play(0, 1)
    pair.rollouts.begin(Episode(number=0, phase="more", seed=0, workers=1))
    assert pair.play(0, 0) == []
    (rollout,) = pair.play(0)
    assert columns(rollout) == {0: [4, 5, 6]}


def test_ends_are_those_of_episodes_that_failed_too():
    made = rollouts(4, workers=1)
    made.add(step(0, 0, truncated=True))
    made.add(step(0, 0, episode=1))
    made.add(step(0, 0, episode=2))
    rollout = made.add(step(0, 1, episode=2))
    assert rollout.starts.T.tolist() == [[True, True, True, False]]
    assert rollout.ends.T.tolist() == [[True, True, False, False]]
    assert rollout.truncated.T.tolist() == [[True, False, False, False]]
    assert rollout.episode.T.tolist() == [[0, 1, 2, 2]]


def test_players_of_one_worker_have_columns_of_their_own():
    made = rollouts(2, workers=1)
    assert made.add(step(0, 0, player="red")) is None
    assert made.add(step(0, 0, player="blue")) is None
    assert made.add(step(0, 1, player="red")) is None
    rollout = made.add(step(0, 1, player="blue"))
    assert (rollout.players, rollout.workers.tolist()) == (("blue", "red"), [0, 0])


def test_extras_become_arrays():
    made = rollouts(2, workers=1)
    made.add(step(0, 0, extras={"value": 0.5, "state": (np.zeros(3), {"cell": 1})}))
    rollout = made.add(step(0, 1, extras={"value": 1.5, "state": (np.ones(3), {"cell": 2})}))
    assert rollout.extras["value"].tolist() == [[0.5], [1.5]]
    hidden, rest = rollout.extras["state"]
    assert hidden.shape == (2, 1, 3)
    assert rest["cell"].tolist() == [[1], [2]]


@pytest.mark.parametrize(
    ("second", "message"),
    [({}, "extras: 'value' is missing"), ({"value": np.zeros(2)}, "extras: 'value': all input arrays")],
)
def test_extras_that_do_not_fit_are_named(second, message):
    made = rollouts(2, workers=1)
    made.add(step(0, 0, extras={"value": 0.5}))
    rollout = made.add(step(0, 1, extras=second))
    with pytest.raises(ValueError, match=message):
        rollout.extras  # noqa: B018  # it is made when it is read


def test_values_with_parts_are_stacked_part_by_part():
    space = Dict(
        keys=("at", "of"),
        spaces=(PAIR, Tuple(spaces=(NUMBER, Text(min_length=1, max_length=9, characters="abc")))),
    )
    made = rollouts(2, workers=2, spaces=(space, NUMBER))
    seen = [{"at": np.full(2, n, np.float32), "of": (n, "abc"[n])} for n in range(3)]
    for number in range(2):
        for worker in range(2):
            values = {"observation": seen[number], "next_observation": seen[number + 1]}
            rollout = made.add(step(worker, number, **values))
    assert rollout.observation["at"].tolist() == [[[0, 0], [0, 0]], [[1, 1], [1, 1]]]
    numbers, texts = rollout.next_observation["of"]
    assert numbers.tolist() == [[1, 1], [2, 2]]
    assert texts == (("b", "b"), ("c", "c"))
