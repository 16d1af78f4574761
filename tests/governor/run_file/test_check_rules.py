"""What `governor check` says of the rules of a phase."""

import pytest

from governor.messages import Checkpoint, Evaluate, Made, Plateau, Until
from governor.run_file.load import parse
from governor.runs.assignment import Assignment
from governor.units.sections import spell
from tests.support.run_files import faults_in


def run(phase, **simulate):
    made = {"environment": "e", "agents": ["a"], "episodes": 100, **simulate}
    return {
        "name": "r",
        "conductors": {"environments": {"e": {"entry": "m:E"}}, "agents": {"a": {"entry": "m:A", "state": "x/y.state"}}},
        "phases": [{"name": "p", "simulate": made, **phase}],
    }  # fmt: skip


GOOD = {
    "until": [
        {"metric": "return.left", "at_most": 1.5, "average_over": 3},
        {"steps": 10_000},
        {"wall_clock": "5min"},
    ],
    "evaluate": {
        "every": 10, "episodes": 5, "metric": "steps", "at_most": 9.0, "consecutive": 2,
        "plateau": {"patience": 3, "min_delta": 0.5, "direction": "min", "window": 2},
    },
    "checkpoint": {"every": 50, "keep": 3, "best": True, "last": True},
}  # fmt: skip


@pytest.mark.parametrize("transport", ["conductors", "in_process"])
def test_every_rule_reaches_the_simulation(transport):
    made = Assignment(uid="u", run=parse(run(GOOD, transport=transport)), folder="/f")
    command = made.simulation(0)
    assert command.until == (
        Until(metric="return.left", at_most=1.5, average_over=3), Until(steps=10_000), Until(wall_clock=300.0),
    )  # fmt: skip
    assert command.evaluate == Evaluate(
        every=10, episodes=5, metric="steps", at_most=9.0, consecutive=2,
        plateau=Plateau(patience=3, min_delta=0.5, direction="min", window=2),
    )  # fmt: skip
    assert command.checkpoint == Checkpoint(every=50, keep=3, best=True, last=True)
    if transport == "in_process":
        assert command.made_agents == (Made(entry="m:A", state="/f/x/y.state"),)
    else:
        assert made.settings("agent.a")["state"] == "/f/x/y.state"
    assert parse(made.run.raw()) == made.run


@pytest.mark.parametrize(
    ("phase", "place", "said"),
    [
        ({"until": [{}]}, "until[0]", "must have one of 'metric', 'steps', 'wall_clock' and 'entry'"),
        ({"until": [{"steps": 5, "wall_clock": 5}]}, "until[0]", "must have one of 'metric', 'steps', 'wall_clock' and 'entry'"),
        ({"until": [{"metric": "return"}]}, "until[0]", "'at_least' or 'at_most' is missing"),
        (
            {"until": [{"metric": "return", "at_least": 1.0, "at_most": 2.0}]},
            "until[0]",
            "must have one of 'at_least' and 'at_most', not both",
        ),
        ({"until": [{"steps": 5, "at_least": 1.0}]}, "until[0]", "'at_least' has no meaning without 'metric'"),
        ({"until": [{"steps": 5, "average_over": 2}]}, "until[0]", "'average_over' has no meaning without 'metric'"),
        ({"until": [{"steps": 0}]}, "until[0].steps", "must be greater than or equal to 1, not 0"),
        (
            {"until": [{"metric": "retrun", "at_least": 1.0}]},
            "until[0].metric",
            "unknown metric 'retrun'; there are return, steps, seconds, and return.PLAYER; did you mean 'return'?",
        ),
        (
            {"until": [{"metric": "sucess", "at_least": 1.0}]},
            "until[0].metric",
            (
                "unknown metric 'sucess'; there are return, steps, seconds, and return.PLAYER; a key of info must stand in "
                "simulate.info, a reported name in simulate.reports"
            ),
        ),
        (
            {"checkpoint": {"every": 5, "metric": "steps"}},
            "checkpoint.metric",
            "has no meaning without 'best: true'",
        ),
        (
            {"checkpoint": {"best": True, "direction": "min"}, "evaluate": {"every": 5}},
            "checkpoint.direction",
            "has no meaning with 'evaluate', whose metric counts",
        ),
        ({"evaluate": {"episodes": 5}}, "evaluate.every", "'every' is missing"),
        ({"evaluate": {"every": 101}}, "evaluate.every", "never comes: the phase has only 100 episodes"),
        ({"evaluate": {"every": 10, "consecutive": 2}}, "evaluate", "'at_least' or 'at_most' is missing"),
        (
            {"evaluate": {"every": 40, "at_least": 1.0, "consecutive": 3}},
            "evaluate.consecutive",
            "can never be met: there are 2 evaluations in 100 episodes",
        ),
        (
            {"evaluate": {"every": 10, "at_least": 1.0, "plateau": {"patience": 1, "direction": "min"}}},
            "evaluate",
            "the plateau's direction must be max, as that of the bound",
        ),
        (
            {"mode": "eval", "evaluate": {"every": 10}},
            "evaluate",
            "has no meaning with mode: eval (if it is inherited, say 'evaluate: null')",
        ),
        ({"checkpoint": {}}, "checkpoint", "asks for nothing: say 'every', 'best: true' or 'last: true'"),
        ({"checkpoint": {"every": 101}}, "checkpoint.every", "never comes: the phase has only 100 episodes"),
        ({"checkpoint": {"last": True, "keep": 5}}, "checkpoint.keep", "has no meaning without 'every'"),
        (
            {"checkpoint": {"best": True}},
            "checkpoint.best",
            "nothing says which is the best: say 'evaluate', or 'every'",
        ),
    ],
)  # fmt: skip
def test_a_fault_is_reported_with_its_place(phase, place, said):
    found = [(spell(path), message) for path, message in faults_in(run(phase))]
    assert found == [(f"phases[0].{place}", said)]


@pytest.mark.parametrize("key", ["until", "evaluate", "checkpoint"])
def test_rules_are_about_a_simulation(key):
    data = run({key: GOOD[key]})
    del data["phases"][0]["simulate"]
    data["phases"][0]["tasks"] = [{"id": "t", "call": "m:f"}]
    assert faults_in(data) == [(("phases", 0, key), "has no meaning without 'simulate'")]


@pytest.mark.parametrize("limits", [{"steps": 0}, {"episodes": 0}, {"steps": 1.5}])
def test_limits_are_whole_numbers_from_1(limits):
    [(path, _)] = faults_in({**run({}), "limits": limits})
    assert path[:1] == ("limits",)


TOLD = {"info": ["success", "episode.r"], "reports": ["loss"]}


@pytest.mark.parametrize(
    "metric", ["success", "episode.r", "loss", "loss.nonfinite", "red.success", "return.red", "steps"]
)
def test_rules_may_stand_on_keys_of_info_and_on_reports(metric):
    phase = {
        "until": [{"metric": metric, "at_least": 1.0}],
        "checkpoint": {"every": 5, "best": True, "metric": metric, "direction": "min"},
    }
    command = Assignment(uid="u", run=parse(run(phase, **TOLD)), folder="/f").simulation(0)
    assert (command.info, command.reports) == ({"success": "last", "episode.r": "last"}, ("loss",))
    assert (command.checkpoint.metric, command.checkpoint.direction) == (metric, "min")


def test_with_all_keys_any_metric_may_be_one():
    phase = {"evaluate": {"every": 5, "metric": "anything", "at_least": 1.0}}
    assert Assignment(uid="u", run=parse(run(phase, info="all")), folder="/f").simulation(0).info == "all"


@pytest.mark.parametrize("key", ["until", "evaluate", "checkpoint"])
def test_a_misspelled_metric_gets_the_nearest_word(key):
    phase = {
        "until": {"until": [{"metric": "sucess", "at_least": 1.0}]},
        "evaluate": {"evaluate": {"every": 5, "metric": "sucess"}},
        "checkpoint": {"checkpoint": {"every": 5, "best": True, "metric": "sucess"}},
    }[key]
    place = "until[0]" if key == "until" else key
    said = "unknown metric 'sucess'; there are return, steps, seconds, success, episode.r, loss, and return.PLAYER; did you mean 'success'?"
    assert [(spell(path), text) for path, text in faults_in(run(phase, **TOLD))] == [
        (f"phases[0].{place}.metric", said)
    ]


@pytest.mark.parametrize(
    ("simulate", "place", "said"),
    [
        ({"info": "al"}, "info", "must be one of all, not the text 'al'; did you mean 'all'?"),
        ({"info": True}, "info", "must be one of all, not true"),
        ({"info": ["ok", 5]}, "info[1]", "must be a text, not 5"),
        (
            {"info": {"speed": "average"}},
            "info.speed",
            "must be one of last, mean, sum, min, max, not the text 'average'",
        ),
        (
            {"info": ["return"]},
            "info[0]",
            "'return' is a metric of every episode already: give yours another name",
        ),
        ({"info": ["a", "a"]}, "info[1]", "'a' stands twice"),
        (
            {"reports": ["steps"]},
            "reports[0]",
            "'steps' is a metric of every episode already: give yours another name",
        ),
    ],
)
def test_faults_of_info_and_reports(simulate, place, said):
    found = [(spell(path), text) for path, text in faults_in(run({}, **simulate))]
    assert found == [(f"phases[0].simulate.{place}", said)]
