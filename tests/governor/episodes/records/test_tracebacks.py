"""Tracebacks are reported once; what has failed has their digests."""

from __future__ import annotations

from governor.episodes.records import tracebacks
from governor.episodes.records.tracebacks import Tracebacks
from governor.messages import TaskRecord


def failed(text, error="KeyError"):
    return TaskRecord(task="t", run=0, outcome="failed", error=error, traceback=text)


def test_a_text_is_reported_once_and_before_the_record():
    found = Tracebacks()
    digests = [found.take(failed(text)).traceback for text in ("one", "two", "one")]
    assert digests[0] == digests[2] != digests[1]
    assert [(each.digest, each.text, each.first) for each in found.texts()] == [
        (digests[0], "one", True),
        (digests[1], "two", False),
    ]
    assert found.texts() == []
    assert found.take(failed("")).traceback == ""


def test_texts_without_end_are_bounded_and_a_new_cause_still_has_its_own(monkeypatch):
    monkeypatch.setattr(tracebacks, "MOST", 3)
    found = Tracebacks()
    for number in range(10):
        found.take(failed(f"text {number}"))
    assert len(found.texts()) == 3
    found.take(failed("another", error="ValueError"))
    assert [each.text for each in found.texts()] == ["another"]
