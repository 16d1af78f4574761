import pytest

from governor.episodes.conditions import Goal, faults, strongest
from governor.episodes.statistics import summarize
from governor.messages import EpisodeRecord, Until


def episode(value, outcome="terminated", steps=3):
    return EpisodeRecord(index=0, worker=0, seed=0, outcome=outcome, value=value, steps=steps, seconds=1.0)


def test_the_strongest_flow_wins():
    assert strongest([]) == "CONTINUE"
    assert strongest(["PAUSE", "CONTINUE", "RESET"]) == "RESET"
    assert strongest(["STOP_PHASE", "SHUTDOWN", "STOP_SIMULATION"]) == "SHUTDOWN"
    assert strongest(["RESTART", "STOP_SIMULATION"]) == "STOP_SIMULATION"


def test_a_goal_looks_at_the_last_n_complete_episodes():
    goal = Goal([Until(metric="return", at_least=1.0, average_over=2)])
    said = [goal.ended(episode(value)) for value in (2.0, -1.0, 1.0, 1.0)]
    assert said == ["CONTINUE", "CONTINUE", "CONTINUE", "STOP_SIMULATION"]


@pytest.mark.parametrize("outcome", ["failed", "timed_out", "crashed", "cancelled"])
def test_an_episode_that_did_not_end_by_itself_says_nothing(outcome):
    goal = Goal([Until(metric="steps", at_least=3)])
    assert goal.ended(episode(9.0, outcome)) == "CONTINUE"
    assert goal.ended(episode(9.0, "truncated")) == "STOP_SIMULATION"


def test_several_goals_are_alternatives():
    goal = Goal([Until(metric="return", at_least=99), Until(metric="steps", at_least=3)])
    assert goal.ended(episode(0.0)) == "STOP_SIMULATION"


def test_faults_are_all_listed():
    assert len(faults([Until(metric="loss", at_least=0, average_over=0)])) == 2
    assert faults([Until(metric="return", at_least=0)]) == []


def test_figures_are_over_complete_episodes_counts_over_all():
    metrics = summarize([episode(1.0), episode(3.0, steps=5), episode(9.0, "failed")], steps_per_second=None)
    assert metrics == {
        "episodes_ended": 3, "episodes_terminated": 2, "episodes_failed": 1, "steps_total": 11,
        "return_mean": 2.0, "return_std": 1.0, "return_min": 1.0, "return_max": 3.0, "steps_mean": 4.0,
    }  # fmt: skip


def test_without_a_complete_episode_there_is_no_mean():
    assert "return_mean" not in summarize([episode(1.0, "failed")], steps_per_second=1.0)
