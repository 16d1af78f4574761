import msgspec
import pytest

from governor.episodes.rules.conditions import Goal, faults, strongest, wall_clock
from governor.episodes.rules.statistics import PhaseStatistics, summarize
from governor.messages import EpisodeRecord, Evaluate, Plateau, StartSimulation, Until, decode_command, encode

COMMAND = {
    "type": "StartSimulation", "phase": 0, "name": "p", "mode": "train", "environment": "e", "agents": ("a",),
    "episodes": 1, "workers": 1, "max_steps": None, "episode_timeout": None, "seed": 0,
}  # fmt: skip


def episode(value, outcome="terminated", steps=3):
    return EpisodeRecord(index=0, worker=0, seed=0, outcome=outcome, value=value, steps=steps, seconds=1.0)


def test_the_strongest_flow_wins():
    weakest_first = ["CONTINUE", "PAUSE", "RESET", "RESTART", "STOP_SIMULATION", "STOP_PHASE", "SHUTDOWN"]
    assert [strongest(weakest_first[: n + 1]) for n in range(7)] == weakest_first
    assert strongest([]) == "CONTINUE"
    assert strongest(["PAUSE", "CONTINUE", "RESET"]) == "RESET"
    assert strongest(["STOP_PHASE", "SHUTDOWN", "STOP_SIMULATION"]) == "SHUTDOWN"
    assert strongest(["RESTART", "STOP_SIMULATION"]) == "STOP_SIMULATION"


def test_a_goal_looks_at_the_last_n_complete_episodes():
    goal = Goal([Until(metric="return", at_least=1.0, average_over=2)])
    said = [goal.episode_flow_control(episode(value)) for value in (2.0, -1.0, 1.0, 1.0)]
    assert said == ["CONTINUE", "CONTINUE", "CONTINUE", "STOP_SIMULATION"]


@pytest.mark.parametrize("outcome", ["failed", "timed_out", "crashed", "cancelled"])
def test_an_episode_that_did_not_end_by_itself_says_nothing(outcome):
    goal = Goal([Until(metric="steps", at_least=3)])
    assert goal.episode_flow_control(episode(9.0, outcome)) == "CONTINUE"
    assert goal.episode_flow_control(episode(9.0, "truncated")) == "STOP_SIMULATION"


def test_several_goals_are_alternatives():
    goal = Goal([Until(metric="return", at_least=99), Until(metric="steps", at_least=3)])
    assert goal.episode_flow_control(episode(0.0)) == "STOP_SIMULATION"


def test_unknown_metrics_are_all_listed():
    known = "known: return, seconds, steps"
    until = [Until(metric=metric, at_least=0) for metric in ("return.", "return")]
    made = command(until=tuple(until), evaluate=Evaluate(every=1, metric="loss"))
    assert faults(made) == [f"unknown metric 'return.'; {known}", f"unknown metric 'loss'; {known}"]
    assert faults(command()) == []


def figures(*records):
    statistics = PhaseStatistics(command())
    for record in records:
        statistics.add(record)
    return statistics.figures


def test_figures_are_over_complete_episodes_counts_over_all():
    metrics = summarize(figures(episode(1.0), episode(3.0, steps=5), episode(9.0, "failed")))
    assert metrics == {
        "episodes_ended": 3, "episodes_terminated": 2, "episodes_failed": 1, "steps_total": 11,
        "return_mean": 2.0, "return_std": 1.0, "return_min": 1.0, "return_max": 3.0, "steps_mean": 4.0,
    }  # fmt: skip


def test_without_a_complete_episode_there_is_no_mean():
    assert "return_mean" not in summarize(figures(episode(1.0, "failed")), steps_per_second=1.0)


def outcome(goal, *values, **more):
    return [goal.episode_flow_control(episode(value, **more)) == "STOP_SIMULATION" for value in values]


def test_a_mean_may_be_bounded_from_above_and_of_any_metric():
    assert outcome(Goal([Until(metric="return", at_most=1.0)]), 2.0, 1.0) == [False, True]
    assert outcome(Goal([Until(metric="seconds", at_most=1.0)]), 5.0) == [True]


def test_a_player_has_a_return_of_its_own():
    goal = Goal([Until(metric="return.left", at_least=1.0, average_over=2)])
    played = ({"left": 1.0}, {"right": 9.0}, {"left": 1.0, "right": 0.0})
    said = [
        goal.episode_flow_control(msgspec.structs.replace(episode(9.0), values=values)) for values in played
    ]
    assert said == ["CONTINUE", "CONTINUE", "STOP_SIMULATION"], "who did not play says nothing"


def test_steps_count_those_of_all_training_episodes():
    goal = Goal([Until(steps=9)])
    assert goal.episode_flow_control(episode(0.0, "failed")) == "CONTINUE"
    assert (
        goal.episode_flow_control(msgspec.structs.replace(episode(0.0, steps=100), evaluation=1))
        == "CONTINUE"
    )
    assert goal.episode_flow_control(episode(0.0)) == "CONTINUE"
    assert goal.episode_flow_control(episode(0.0)) == "STOP_SIMULATION"


def test_an_evaluation_is_no_episode_of_a_training_goal():
    goal = Goal([Until(metric="return", at_least=1.0)])
    assert goal.episode_flow_control(msgspec.structs.replace(episode(5.0), evaluation=2)) == "CONTINUE"


def test_the_shortest_wall_clock_counts():
    assert wall_clock([Until(steps=5)]) is None
    assert wall_clock([Until(wall_clock=9.0), Until(wall_clock=5.0), Until(steps=1)]) == 5.0


@pytest.mark.parametrize(
    ("rule", "fault"),
    [
        ({"until": [{}]}, "must have one of 'metric', 'steps', 'wall_clock' and 'entry'"),
        (
            {"until": [{"steps": 1, "wall_clock": 1.0}]},
            "must have one of 'metric', 'steps', 'wall_clock' and 'entry'",
        ),
        ({"until": [{"metric": "return"}]}, "'at_least' or 'at_most' is missing"),
        ({"until": [{"metric": "return", "at_least": 1.0, "at_most": 2.0}]}, "not both"),
        ({"until": [{"metric": "return", "at_least": 1.0, "average_over": 0}]}, "greater than or equal to 1"),
        ({"evaluate": {"every": 0, "episodes": 1}}, "greater than or equal to 1"),
        ({"evaluate": {"every": 1, "episodes": 0}}, "greater than or equal to 1"),
        ({"checkpoint": {"every": 0}}, "greater than or equal to 1"),
    ],
)
def test_what_can_be_wrong_with_a_rule_is_refused_where_it_arrives(rule, fault):
    with pytest.raises(msgspec.ValidationError, match=fault):
        decode_command(encode({**COMMAND, **rule}))


def test_a_rule_arrives_as_it_was_sent():
    until = Until(metric="return", at_least=1, average_over=3)
    evaluate = Evaluate(every=2, episodes=1, plateau=Plateau(patience=2))
    sent = command(until=(until,), evaluate=evaluate)
    assert decode_command(encode(sent)) == sent


def command(**rules):
    return StartSimulation(**{key: value for key, value in COMMAND.items() if key != "type"}, **rules)
