"""Pages of reports as Chromium prints them."""

from __future__ import annotations

import msgspec
import pytest

from governor.report.compare import compare
from governor.report.document import Column, Failure, Table
from tests.support.pages.report_documents import document, many, run_document

pytestmark = [pytest.mark.long, pytest.mark.timeout(400)]
PRINT = """
        page.evaluate(f"addEventListener('beforeprint', () => (window.printed = ({look})()))")
        found["before"] = page.evaluate(look)
        page.pdf(width="210mm", height="297mm")
        found["printed"] = page.evaluate("window.printed")
        """
"""What `look` finds before, and on paper."""


def test_a_page_that_is_printed_is_light_as_wide_as_paper_and_has_what_is_folded(visit):
    failures = [
        Failure(phase="train", kind="episode", number=1, outcome="failed", reason=f"bad {n}", first="episode 3", traceback=f"Traceback {n}")
        for n in range(3)
    ]  # fmt: skip
    texts = [Column(name=f"text {n}", kind="text", values=["[0.25,-1.5]" * 15] * 3) for n in range(4)]
    long = Table(columns=texts, total=3, shown=3)
    found = visit(
        document(msgspec.structs.replace(many(), failures=failures, tasks=long)),
        """
        page.emulate_media(color_scheme="dark")
        scrolled(page)
        page.evaluate("scrollTo(0, 700)")
        look = '''() => ({
            colour: getComputedStyle(document.body).backgroundColor,
            tracebacks: [...document.querySelectorAll("#failures pre")].filter((each) => each.checkVisibility()).length,
            rows: document.querySelectorAll("#episodes tbody tr").length,
            last: document.querySelector("#episodes tbody tr:last-child").innerText,
            charts: document.querySelectorAll("#curves canvas, #usage canvas").length,
            right: Math.max(...[...document.querySelectorAll("canvas, table")].map((each) => each.getBoundingClientRect().right)) - document.querySelector("main").getBoundingClientRect().left,
            legend: document.querySelector("#curves .u-legend").innerText.split(/\\s+/).join(" ").trim(),
            scrolled: scrollY,
            buttons: document.querySelectorAll("#episodes th button").length,
        })'''
        """
        + PRINT
        + """
        page.wait_for_timeout(100)
        found["after"] = page.evaluate(look)
        """,
    )
    before, printed, after = found["before"], found["printed"], found["after"]
    assert before["tracebacks"] == after["tracebacks"] == 1
    assert after == before | {"rows": after["rows"]}
    assert before["colour"] != "rgb(255, 255, 255)"
    assert (printed["colour"], printed["tracebacks"], printed["charts"]) == ("rgb(255, 255, 255)", 3, 4)
    assert (printed["rows"], printed["last"]) == (101, "and 9,900 rows more")
    assert printed["legend"] == "mean"
    assert (before["buttons"] > 0, printed["buttons"]) == (
        True,
        0,
    )  # a header with buttons is not repeated on each page
    assert printed["right"] < 690  # A4 is 718 pixels wide within Chromium's margins


def test_no_column_is_cut_on_paper(visit):
    """Of the metrics of many phases and of many runs."""
    runs = []
    for seed in range(12):
        run = run_document(f"4wq7n2k{seed:02}", seed=seed)
        [phase] = run.summary.phases
        phases = [
            msgspec.structs.replace(
                phase,
                name=f"phase-{n:02}-with-a-long-name",
                metrics={"loss/actor_mean": -0.004265 - n - seed},
            )
            for n in range(20)
        ]
        runs.append(msgspec.structs.replace(run, summary=msgspec.structs.replace(run.summary, phases=phases)))
    found = visit(
        document(*runs, comparison=compare(runs)),
        """
        scrolled(page)
        look = '''() => ({
            right: Math.max(...[...document.querySelectorAll("table")].map((each) => each.getBoundingClientRect().right)) - document.querySelector("main").getBoundingClientRect().left,
            metrics: [...document.querySelectorAll("#summary .scroll:last-child table")].map((each) => [...each.rows[1].cells].map((cell) => cell.innerText)),
            comparison: document.querySelector("#comparison").innerText,
        })'''
        """
        + PRINT,
    )
    before, printed = found["before"], found["printed"]
    assert printed["right"] < 690
    assert [len(row) for row in before["metrics"]] == [21]
    assert [len(row) for row in printed["metrics"]] == [7, 7, 7, 3]
    assert {row[0] for row in printed["metrics"]} == {"loss/actor_mean"}
    assert [cell for row in printed["metrics"] for cell in row[1:]] == before["metrics"][0][1:]
    assert "n = 12" in printed["comparison"]
