"""The sweep of the ten-armed testbed: twenty runs from one file, and exploring in one step of ten is best."""

from __future__ import annotations

import json
import re

import pytest

from tests.support.pages.example_pages import served
from tests.support.pages.example_runs import examples_path

pytestmark = pytest.mark.system


def test_its_results_are_those_of_the_book(governor, folder):
    with served(governor):
        said = governor("submit", examples_path("sweep") / "run.yaml", "--wait")
        group = re.search(r"group (g-\w+): 20 runs", said)[1]
        found = json.loads(governor("results", group, "--metric", "return_mean", "--json"))
        page = folder / "page.html"
        governor("report", group, "--output", page)
    assert {cell["state"] for cell in found["cells"]} == {"finished"}
    assert found["best"]["params"] == {"agents.player.params.epsilon": 0.1}
    assert [line["metrics"]["return_mean"]["n"] for line in found["lines"]] == [5] * 4
    best = {
        line["params"]["agents.player.params.epsilon"]: line["metrics"]["best_mean"]
        for line in found["lines"]
    }
    assert best[0.1]["mean"] > max(best[0.0]["mean"], best[0.5]["mean"])
    assert page.read_text().count("ten-arms") > 20
