import numpy as np
import pytest

from governor.episodes.agent_calls import AgentCalls
from governor.episodes.spaces import Box, Dict, Discrete, Sequence, Tuple, conformer
from governor.episodes.transition import Episode

TWO = Discrete(n=2, start=0)
PART = Dict(keys=("a",), spaces=(TWO,))
PAIR = Tuple(spaces=(TWO, PART))
PARTS = Sequence(feature=PART, stack=False)
BOX = Box(shape=(2,), dtype="<f4", low=bytes(8), high=bytes(8))


class Returns:
    def __init__(self, value):
        self.value = value

    def act(self, observation, *, explore):
        return self.value

    def act_many(self, observations, *, explore):
        return self.value


@pytest.mark.parametrize(
    ("space", "returned", "action", "extras"),
    [
        (TWO, 1, 1, {}),
        (TWO, (1, {"value": 0.5}), 1, {"value": 0.5}),
        (TWO, (1, {}), 1, {}),
        (PART, ({"a": 1}, {"value": 0.5}), {"a": 1}, {"value": 0.5}),
        (PART, {"a": 1}, {"a": 1}, {}),
        (PAIR, (1, {"a": 0}), (1, {"a": 0}), {}),
        (PAIR, ((1, {"a": 0}), {"value": 0.5}), (1, {"a": 0}), {"value": 0.5}),
        (PARTS, ({"a": 0}, {"a": 1}), ({"a": 0}, {"a": 1}), {}),
        (PARTS, (({"a": 0},), {"value": 0.5}), ({"a": 0},), {"value": 0.5}),
    ],
)
def test_extras_are_what_act_returns_beside_the_action(space, returned, action, extras):
    act = AgentCalls(Returns(returned), space).act_of(explore=True, worker=0)
    assert act(0) == (action, extras)


@pytest.mark.parametrize("returned", [3, 4, np.int8(4), np.array([4]), 2, 5, True, 3.0, None])
def test_a_discrete_action_is_a_whole_number_of_its_space(returned):
    space = Discrete(n=2, start=3)

    def outcome(call):
        try:
            return type(call()), call()
        except ValueError as error:
            return str(error)

    act = AgentCalls(Returns(returned), space).act_of(explore=True, worker=0)
    assert outcome(lambda: act(0)[0]) == outcome(lambda: conformer(space)(returned))


def test_a_tuple_may_be_an_action():
    act = AgentCalls(Returns((0.5, 1)), BOX).act_of(explore=True, worker=0)
    action, extras = act(0)
    assert (action.tolist(), extras) == ([0.5, 1.0], {})


@pytest.mark.parametrize(
    ("space", "returned", "actions", "extras"),
    [
        (TWO, [0, 1], [0, 1], [{}, {}]),
        (TWO, (0, 1), [0, 1], [{}, {}]),
        (TWO, ([0, 1], {"value": np.array([0.5, 1.5])}), [0, 1], [{"value": 0.5}, {"value": 1.5}]),
        (TWO, (np.array([0, 1]), [{"value": 0.5}, {"value": 1.5}]), [0, 1], [{"value": 0.5}, {"value": 1.5}]),
        (PART, {"a": np.array([0, 1])}, [{"a": 0}, {"a": 1}], [{}, {}]),
        (PART, ({"a": np.array([0, 1])}, {"b": [3, 4]}), [{"a": 0}, {"a": 1}], [{"b": 3}, {"b": 4}]),
        (PAIR, (np.array([0, 1]), {"a": [1, 0]}), [(0, {"a": 1}), (1, {"a": 0})], [{}, {}]),
        (PAIR, ([(0, {"a": 1})] * 2, {"b": [3, 4]}), [(0, {"a": 1})] * 2, [{"b": 3}, {"b": 4}]),
    ],
)
def test_so_it_is_with_many(space, returned, actions, extras):
    found = AgentCalls(Returns(returned), space).act_many(np.zeros(2), [0, 1], explore=True)
    assert [action for action, _ in found] == actions
    assert [beside for _, beside in found] == extras


@pytest.mark.parametrize(
    ("returned", "message"),
    [
        (([0, 1], {"value": [0.5]}), "extras: 1 rows of 'value' for 2 observations"),
        (([0, 1], [{}]), "extras: 1 rows for 2 observations"),
        (([0], {"value": [0.5, 1]}), "1 actions for 2 observations"),
    ],
)
def test_rows_that_are_missing_are_the_fault_of_all(returned, message):
    found = AgentCalls(Returns(returned), TWO).act_many(np.zeros(2), [0, 1], explore=True)
    assert [str(fault) for fault in found] == [message] * 2


class Asks:
    """It has what parameters may be there."""

    def act(self, observation, *, explore, worker, player="nobody"):
        return 0, {"worker": worker, "player": player}

    def act_many(self, observations, worker, *, explore):
        return np.zeros(2, int), {"worker": worker}


def test_parameters_are_passed_to_a_method_that_has_them():
    calls = AgentCalls(Asks(), TWO)
    assert calls.act_of(explore=True, worker=3)(0) == (0, {"worker": 3, "player": "nobody"})
    assert calls.act_of(explore=True, worker=4, player="red")(0) == (0, {"worker": 4, "player": "red"})
    found = calls.act_many(np.zeros(2), [5, 7], explore=True)
    assert [extras["worker"] for _, extras in found] == [5, 7]


def test_states_are_reset_after_the_begin_by_the_object_that_acts():
    class Hears(Returns):
        heard = []  # noqa: RUF012  # of its only object

        def begin(self, episode):
            self.heard.append(episode.number)

        def reset_states(self, worker):
            self.heard.append(f"worker {worker}")

    calls = AgentCalls(Hears(0), TWO)
    calls.begin(Episode(number=1, phase="train", seed=0, worker=2))
    calls.begin(Episode(number=3, phase="train", seed=0, worker=4), acts=False)
    assert Hears.heard == [1, "worker 2", 3]
    assert (calls.hears, calls.hears_ends) == (True, False)
