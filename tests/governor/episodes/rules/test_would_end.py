"""What the end of an episode would mean is asked before it comes, and changes nothing."""

import pytest

from governor.episodes.rules.conditions import Goal
from governor.messages import EpisodeRecord, Until


def episode(value, steps=5):
    return EpisodeRecord(
        index=0, worker=0, seed=0, outcome="terminated", value=value, steps=steps, seconds=0.1
    )


@pytest.mark.parametrize(
    ("until", "enough", "short"),
    [
        (Until(steps=15), [episode(0.0), episode(0.0)], [episode(0.0)]),
        (Until(metric="return", at_least=2.0, average_over=2), [episode(3.0)], [episode(2.9)]),
    ],
)
def test_what_is_foreseen_is_what_is_said_then_and_nothing_has_ended(until, enough, short):
    goal = Goal([until])
    assert goal.episode_flow_control(episode(1.0)) == "CONTINUE"
    for _ in range(3):
        assert goal.would_be(short) == "CONTINUE"
        assert goal.would_be(enough) == "STOP_SIMULATION"
    assert [goal.episode_flow_control(record) for record in enough][-1] == "STOP_SIMULATION"


def test_nothing_is_foreseen_of_no_episode():
    assert Goal([Until(steps=1)]).would_be([]) == "CONTINUE"
