"""The names that `governor check` knows without the packages are theirs."""

import inspect

import pytest

pytest.importorskip("stable_baselines3")
import sb3_contrib
import stable_baselines3
from stable_baselines3.common.base_class import BaseAlgorithm

from governor.episodes.sb3 import Agent, model
from governor.run_file import check_sb3

pytestmark = pytest.mark.long
OF_THE_RUN = {"env", "seed", "observation_space", "action_space", "_init_setup_model", "params", "self"}


def classes(package):
    return {
        name
        for name, value in vars(package).items()
        if isinstance(value, type) and issubclass(value, BaseAlgorithm)
    }


def test_they_are_those_of_the_packages():
    own, contributed = classes(stable_baselines3), classes(sb3_contrib)
    named = {*own, *(f"sb3_contrib.{name}" for name in contributed - {*check_sb3.WITHOUT})}
    assert named == {*check_sb3.ALGORITHMS.values()}
    assert contributed >= {*check_sb3.WITHOUT}


@pytest.mark.parametrize("name", check_sb3.WITHOUT)
def test_some_are_refused_by_the_agent_too(name):
    with pytest.raises(ValueError, match=name):
        model._algorithm(f"sb3_contrib.{name}")


def test_the_params_are_those_of_the_algorithms_and_of_the_agent():
    made = [Agent.__init__, *map(model._algorithm, check_sb3.ALGORITHMS.values())]
    names = {name for each in made for name in inspect.signature(each).parameters}
    assert names - OF_THE_RUN == check_sb3.PARAMS
