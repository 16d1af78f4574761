"""`governor results RUN --curve METRIC`: the plot, JSON, CSV, and what is refused."""

from __future__ import annotations

import csv
import io
import json

import pytest
from click.testing import CliRunner
from rich.console import Console

from governor.cli import ask, cli
from governor.cli.rendering import tables
from governor.errors import ExitCode
from governor.messages import PhaseCurve, RunCurves
from governor.messages.curves import Curve

NAMES = ("evaluation.return", "loss", "return", "steps")


def curve(values, *, by_step=False):
    made = Curve()
    for index, value in enumerate(values):
        made.add(value, episode=None if by_step else index, step=index * 5, at=index / 2)
    return made


def results(monkeypatch, found, *arguments):
    monkeypatch.setattr(ask, "ask", lambda broker, question: found)
    return CliRunner().invoke(cli, ["results", "u1", *arguments], prog_name="governor")


def of(metric, *phases, ended=True):
    return RunCurves(uid="u1", name="lake", metric=metric, ended=ended, phases=phases)


def train(made=None):
    return PhaseCurve(phase="train", mode="train", metrics=NAMES, curve=made)


RETURN = of("return", train(curve([*range(10), float("nan")])), PhaseCurve(phase="idle", mode="train"))


def test_the_plot(monkeypatch):
    rows = results(monkeypatch, RETURN, "--curve", "return").stdout.splitlines()
    assert rows[0] == "lake u1"
    assert rows[2] == "train: return by episode, 10 values in 10 windows"
    assert "idle" not in "\n".join(rows)
    assert rows[-1] == (
        "• mean: 0 at first, 9 at last   ░ 10 % to 90 %   all values: 0 to 9; "
        "1 more were NaN, infinite or beyond ±1e290"
    )
    by_time = results(monkeypatch, RETURN, "--curve", "return", "--by", "time").stdout
    assert by_time.splitlines()[-2].split() == ["0ms", "time", "4.5s"]


def test_no_line_is_cut_at_the_width_of_the_terminal(monkeypatch):
    monkeypatch.setattr(tables, "console", lambda: Console(width=40))
    shown = results(monkeypatch, RETURN, "--curve", "return").stdout
    assert "train: return by episode, 10 values in 10 windows" in shown
    assert "all values: 0 to 9" in shown


def test_a_metric_without_values_that_a_curve_takes(monkeypatch):
    found = of("loss", train(curve([float("inf"), 1e300])))
    shown = results(monkeypatch, found, "--curve", "loss").stdout
    assert "train: all of its 2 values are NaN, infinite or beyond ±1e290" in shown


def test_json(monkeypatch):
    document = json.loads(results(monkeypatch, RETURN, "--curve", "return", "--json").stdout)
    assert {key: document[key] for key in ("run", "metric", "ended")} == {
        "run": "u1",
        "metric": "return",
        "ended": True,
    }
    [phase] = document["phases"]
    assert (phase["phase"], phase["count"], phase["unusable"], phase["width"]) == ("train", 10, 1, 1)
    assert phase["windows"][3] == {
        "episode": [3, 3], "step": [15, 15], "seconds": [1.5, 1.5], "count": 1, "mean": 3.0,
        "min": 3.0, "p10": 3.0, "p25": 3.0, "p50": 3.0, "p75": 3.0, "p90": 3.0, "max": 3.0,
    }  # fmt: skip


def test_csv_has_a_row_for_each_window(monkeypatch):
    rows = [
        *csv.DictReader(
            io.StringIO(results(monkeypatch, RETURN, "--curve", "return", "--format", "csv").stdout)
        )
    ]
    assert len(rows) == 10
    assert (rows[3]["phase"], rows[3]["episode_first"], rows[3]["step_last"], rows[3]["mean"]) == (
        "train",
        "3",
        "15",
        "3.0",
    )


def test_evaluations_are_along_their_number(monkeypatch):
    found = of("evaluation.return", train(curve([1.0, 2.0])))
    document = json.loads(results(monkeypatch, found, "--curve", "evaluation.return", "--json").stdout)
    assert document["phases"][0]["windows"][1]["evaluation"] == [1, 1]
    rows = results(monkeypatch, found, "--curve", "evaluation.return").stdout.splitlines()
    assert "by evaluation" in rows[2]
    assert rows[3].count("•") > 40, "no gap between the few windows"
    assert rows[-2].split() == ["0", "evaluation", "1"]


def test_values_of_no_episode_are_by_step(monkeypatch):
    found = of("loss", train(curve([3.0, 2.0, 1.0], by_step=True)))
    assert "loss by step" in results(monkeypatch, found, "--curve", "loss").stdout
    assert "episode" not in json.loads(results(monkeypatch, found, "--curve", "loss", "--json").stdout)["phases"][0]["windows"][0]  # fmt: skip
    refused = results(monkeypatch, found, "--curve", "loss", "--by", "episode")
    assert "belong to no episode" in refused.stderr


@pytest.mark.parametrize(
    ("found", "arguments", "code", "said"),
    [
        (of("retrun", train()), ["--curve", "retrun"], ExitCode.USAGE, "did you mean 'return'? It has: evaluation.return, loss, return, steps"),
        (of("q", train()), ["--curve", "q"], ExitCode.USAGE, "no curve of 'q'; it has"),
        (of("return", ended=False), ["--curve", "return"], ExitCode.TRY_AGAIN, "none of its tasks has reported a number yet"),
        (of("return"), ["--curve", "return"], ExitCode.USAGE, "has no curves"),
        (RETURN, ["--curve", "return", "--of", "steps"], ExitCode.USAGE, "without --of"),
        (RETURN, ["--curve", "return", "--format", "parquet"], ExitCode.USAGE, "table, json or csv"),
        (RETURN, ["--by", "time"], ExitCode.USAGE, "--by goes with --curve"),
    ],
)  # fmt: skip
def test_what_is_refused(monkeypatch, found, arguments, code, said):
    refused = results(monkeypatch, found, *arguments)
    assert refused.exit_code == code
    assert said in refused.stderr


def test_text_of_users_does_not_reach_the_terminal_raw(monkeypatch):
    hostile = PhaseCurve(phase="tr\x1b[31main", mode="train", metrics=NAMES, curve=curve([1.0]))
    shown = results(monkeypatch, of("a\x1b[2Jb", hostile), "--curve", "a\x1b[2Jb").stdout
    assert "\x1b" not in shown
