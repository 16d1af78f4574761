"""The example of programs and a service, as a user runs it."""

import json

import pytest

from tests.support.pages.example_runs import examples_path

pytestmark = [pytest.mark.system, pytest.mark.ray]


def test_scripts_run_as_they_are_beside_a_file_server(governor):
    result = json.loads(governor("run", examples_path("programs") / "run.yaml", "--json").splitlines()[-1])
    prepared, trained = result["phases"]
    assert result["outcome"] == "finished"
    [made] = prepared["tasks"]
    assert made["metrics"] == {"rows": 4.0, "holes": 4.0}
    assert [(each["run"], each["outcome"]) for each in trained["tasks"]] == [
        (run, "succeeded") for run in range(3)
    ]
    assert all(each["metrics"]["return_mean"] > 0.8 for each in trained["tasks"])
    lines = governor("logs", result["uid"], "--task", "q_learning", "--run", "1", "--json")
    shown = [json.loads(line)["text"] for line in lines.splitlines()]
    assert any("global_step=20000" in line for line in shown)
    assert "100% of 20000 steps" in shown
