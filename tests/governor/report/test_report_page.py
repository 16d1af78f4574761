"""The page of a report: one file, and texts of users stay texts."""

import json
import math
import os
import re
from concurrent.futures import ThreadPoolExecutor

import msgspec
import pytest

from governor.cli.report import write
from governor.errors import UsageError
from governor.report import page
from governor.report.document import Column, Table
from tests.support.pages.report_documents import HOSTILE, Page, document, hostile_run, run_document


def of(*runs, **more):
    html = page.render(document(*runs), **more)
    return html, Page(html)


def test_a_page_has_the_document_and_says_the_outcome_without_scripts():
    run = run_document(outcome="failed", reason="the disk is full")
    _, found = of(run)
    assert found.data["runs"][0] == json.loads(msgspec.json.encode(run))
    text = "".join(found.texts)
    assert "lake: failed" in text
    assert "the disk is full" in text


def test_texts_of_users_are_no_elements():
    html, found = of(hostile_run())
    _, harmless = of(run_document())
    assert [tag for tag, _ in found.elements if tag in ("script", "img", "iframe", "a")] == [
        tag for tag, _ in harmless.elements if tag in ("script", "img", "iframe", "a")
    ]
    assert "<img" not in html
    assert found.data["runs"][0]["failures"][0]["traceback"] == HOSTILE
    assert found.data["runs"][0]["summary"]["name"] == f"lake{HOSTILE}"


def test_it_asks_for_nothing_elsewhere_and_runs_only_its_own_scripts():
    html, found = of(run_document())
    assert not [each for _, each in found.elements if "src" in each]
    assert {each["href"] for _, each in found.elements if "href" in each} == {"#content", "data:,"}
    [policy] = [each["content"] for _, each in found.elements if each.get("http-equiv")]
    assert "default-src 'none'" in policy
    [nonce] = re.findall(r"script-src 'nonce-([^']+)'", policy)
    assert [each.get("nonce") for tag, each in found.elements if tag == "script"] == [None, nonce]
    assert "connect-src data:" in policy
    assert nonce not in of(run_document())[0]
    assert not re.search(
        r"\beval\(|new Function|innerHTML", html.split("uPlot=", 1)[-1].split('"use strict";\n', 1)[1]
    )


def test_a_live_page_may_reach_its_stream():
    _, found = of(run_document(), stream="events?run=u1")
    [body] = [each for tag, each in found.elements if tag == "body"]
    assert body["data-stream"] == "events?run=u1"
    [policy] = [each["content"] for _, each in found.elements if each.get("http-equiv")]
    assert "connect-src 'self'" in policy


def test_large_documents_are_compressed():
    values = [index / 7 for index in range(40_000)]
    table = Table(columns=[Column(name="return", kind="number", values=values)], total=40_000, shown=40_000)
    run = run_document(episodes=table)
    html, found = of(run)
    assert found.data["runs"][0]["episodes"]["columns"][0]["values"] == values
    assert len(html) < len(msgspec.json.encode(run))


@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf])
def test_what_is_not_finite_is_null(value):
    _, found = of(run_document(metrics={"loss": value}))
    assert found.data["runs"][0]["summary"]["phases"][0]["metrics"] == {"loss": None}


def test_a_text_that_is_no_unicode_is_shown():
    _, found = of(run_document(reason="\udcff!"))
    assert found.data["runs"][0]["summary"]["reason"] == "?!"


def test_it_is_written_through_a_users_link_in_the_place_of_a_runs_and_into_a_pipe(tmp_path):
    given = document(run_document())
    target, link = tmp_path / "page.html", tmp_path / "link.html"
    link.symlink_to(target)
    assert write(given, link, through_links=True) == target.stat().st_size
    assert link.is_symlink()
    target.write_text("of the user")
    write(given, link)
    assert not link.is_symlink()
    assert target.read_text() == "of the user"
    os.mkfifo(pipe := tmp_path / "pipe")
    with ThreadPoolExecutor(1) as reader:
        read = reader.submit(pipe.read_bytes)
        size = write(given, pipe, through_links=True)
        assert len(read.result(10)) == size
    with pytest.raises(UsageError, match=r"can't be written to .*absent/x: there is no folder .*absent"):
        write(given, tmp_path / "absent" / "x", through_links=True)
