from __future__ import annotations

import subprocess
import sys
from pathlib import Path

from states import TABLE
from states.table import diagram

ROOT = Path(__file__).parents[2]
PAGE = ROOT / "docs" / "state-machine.md"
BEGIN, END = "<!-- diagram: python -m states -->\n```mermaid\n", "```\n<!-- end of diagram -->"
ADVICE = f"{PAGE.relative_to(ROOT)} is out of date: put the print of `python -m states` between its markers"


def test_the_page_shows_the_table_that_runs():
    page = PAGE.read_text()
    assert page.count(BEGIN) == 1
    assert page.count(END) == 1
    assert page.partition(BEGIN)[2].partition(END)[0] == diagram(), ADVICE


def test_the_command_that_the_page_names_prints_the_diagram():
    done = subprocess.run(
        [sys.executable, "-m", "states"], cwd=ROOT, capture_output=True, text=True, check=True
    )
    assert (done.stdout, done.stderr) == (diagram(), "")


def test_the_diagram_draws_each_arrow_once():
    arrows = [line.partition(":")[0].split() for line in diagram().splitlines() if "-->" in line]
    assert arrows.pop(0) == ["[*]", "-->", "pristine"]
    assert len(arrows) == len({tuple(arrow) for arrow in arrows})
    assert {(source, target) for source, _, target in arrows} == {
        (source.name, target.name)
        for source, rules in TABLE.items()
        for rule in rules.values()
        for target in rule.to
    }


def test_the_page_tells_of_each_state():
    page = PAGE.read_text()
    for state in TABLE:
        assert f"| `{state.name}` |" in page
