"""Reports of user code, and who gets a context."""

import copy
import math
import pickle
import threading
from pathlib import Path

import gymnasium
import pytest

from governor.episodes.context import Context, reports, with_context
from governor.episodes.entries import load
from governor.episodes.metrics import MOST, Reported


@pytest.fixture
def context():
    reports.take()
    return Context(run_id="u1", run_folder=Path("/run"), name="agent.walker")


def test_a_report_belongs_to_the_episodes_of_its_thread(context):
    first, second = Reported(), Reported()
    found = []

    def work():
        reports.bind(lambda: [(4, first), (5, second)][: len(found) + 1])
        context.report(loss=1)
        found.append(context.episode)
        context.report(loss=3.0)
        found.append(context.episode)

    thread = threading.Thread(target=work)
    thread.start()
    thread.join()
    assert first.figures() == {"loss": 2.0}
    assert second.figures() == {"loss": 3.0}
    assert found == [4, None], "there is no one episode of several"
    assert reports.take() is None


def test_what_another_thread_reports_belongs_to_the_episode_that_ends_next(context):
    reported = Reported()
    reported.add({"loss": 1.0})
    thread = threading.Thread(target=context.report, kwargs={"loss": 3.0, "kl": 1})
    thread.start()
    thread.join()
    reports.finish(reported)
    assert reported.figures() == {"loss": 2.0, "kl": 1.0}
    reports.finish(later := Reported())
    assert later.figures() == {}


def test_no_report_is_lost_between_threads(context):
    reported = Reported()

    def work():
        reports.bind(lambda: [(0, reported)])
        for _ in range(2000):
            context.report(loss=1)

    threads = [threading.Thread(target=work) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert reported.sums == {"loss": [8000, 8000.0, 0]}


def test_nan_and_infinities_are_counted_and_break_nothing(context):
    reported = Reported()
    for value in (math.nan, 2.0, math.inf, -math.inf, 10**400):
        reported.add({"loss": float("inf") if value == 10**400 else value})
    reported.add({"huge": 1.7e308})
    reported.add({"huge": 1.7e308})
    assert reported.figures() == {"loss": 2.0, "loss.nonfinite": 4.0, "huge.nonfinite": 1.0}
    context.report(loss=10**400)
    assert reports.take() == {"loss": [0, 0.0, 1]}


@pytest.mark.parametrize("value", ["high", None, [1], {"a": 1}, object()])
def test_a_report_that_is_no_number_is_the_fault_of_its_caller(context, value):
    with pytest.raises(TypeError, match=r"context\.report: 'loss' is of type"):
        context.report(entropy=1, loss=value)
    assert reports.take() is None, "all of it, or nothing"


def test_a_name_that_is_none_is_refused_with_what_a_name_is(context):
    with pytest.raises(
        ValueError, match=r"'two words' cannot be the name of a metric: that is at most 64 of a-z"
    ):
        context.report(**{"two words": 0.5})


def test_an_episode_has_a_bounded_number_of_names():
    reported = Reported()
    for number in range(5 * MOST):
        reported.add({f"k{number}": 1.0})
    assert len(reported.figures()) == MOST


def test_an_environment_with_a_context_can_be_copied(context):
    assert copy.deepcopy({"context": context})["context"].run_id == "u1"
    other = pickle.loads(pickle.dumps(context))
    assert (other.run_id, other.run_folder, other.log.name) == ("u1", Path("/run"), "agent.walker")
    other.report(loss=1)


class Takes:
    def __init__(self, *, context=None):
        self.context = context


class TakesAnything:
    def __init__(self, **params):
        self.params = params


class Registered(gymnasium.Env):
    def __init__(self, *, size=1, context=None):
        self.size, self.context = size, context


def test_a_constructor_that_has_the_parameter_gets_it(context):
    assert with_context(Takes, {}, context) == {"context": context}
    assert with_context(TakesAnything, {"a": 1}, context) == {"a": 1}
    assert with_context(Takes, {"context": "mine"}, context) == {"context": "mine"}, "the run file wins"
    assert with_context(Takes, {}, None) == {}
    assert with_context(int, {}, context) == {}, "it has no signature"


def test_so_does_an_environment_of_gymnasium(context):
    gymnasium.register("Registered-v0", entry_point=Registered)
    gymnasium.register("ByName-v0", entry_point=f"{__name__}:Registered")
    try:
        made = load("gymnasium:Registered-v0")
        environment = made(**with_context(made, {"size": 3}, context))
        assert (environment.unwrapped.size, environment.unwrapped.context) == (3, context)
        assert with_context(load("gymnasium:CartPole-v1"), {}, context) == {}
        assert with_context(load("gymnasium:Nowhere-v1"), {}, context) == {}
    finally:
        del gymnasium.registry["Registered-v0"], gymnasium.registry["ByName-v0"]
