"""Idle runners between two calls: when they are ended, and who waits for that."""

from __future__ import annotations

import threading
import time

from governor.tasks.cluster import warm_runners


class Kept:
    worker = "ray"

    def __init__(self, pid):
        self.pid = pid


def test_one_that_cannot_be_ended_does_not_keep_the_others(monkeypatch):
    ended = threading.Event()

    def end_all(runners):
        if runners[0].pid == 1:
            raise OSError("too many open files")
        ended.set()

    monkeypatch.setattr(warm_runners, "end_all", end_all)
    warm = warm_runners.WarmRunners()
    assert warm.keep(Kept(1), seconds=0)
    first = warm._thread
    assert warm.keep(Kept(2), seconds=0.5)
    assert ended.wait(20)
    if first is not None:
        first.join(20)
    assert warm._thread is None


def test_a_release_does_not_wait_for_what_another_call_keeps_meanwhile(monkeypatch):
    warm = warm_runners.WarmRunners()
    monkeypatch.setattr(warm_runners, "end_all", lambda some: some and warm.keep(Kept(2), seconds=600))
    assert warm.keep(Kept(1), seconds=600)
    releasing = threading.Thread(target=warm.end, daemon=True)
    releasing.start()
    releasing.join(20)
    assert not releasing.is_alive()
    assert [each.pid for each in warm._until] == [2]
    monkeypatch.setattr(warm_runners, "end_all", lambda _: None)
    warm.end()


def test_a_release_waits_for_those_whose_time_is_over(monkeypatch):
    warm, ending, may_end = warm_runners.WarmRunners(), threading.Event(), threading.Event()

    def end_all(runners):
        if runners:
            ending.set()
            assert may_end.wait(20)

    monkeypatch.setattr(warm_runners, "end_all", end_all)
    assert warm.keep(Kept(1), seconds=0)
    assert ending.wait(20)
    releasing = threading.Thread(target=warm.end)
    releasing.start()
    releasing.join(0.1)
    assert releasing.is_alive()
    may_end.set()
    releasing.join(20)
    assert not releasing.is_alive()


def test_one_with_a_shorter_idle_time_ends_in_its_own(monkeypatch):
    ended = threading.Event()
    monkeypatch.setattr(
        warm_runners, "end_all", lambda some: [each.pid for each in some] == [2] and ended.set()
    )
    warm = warm_runners.WarmRunners()
    assert warm.keep(Kept(1), seconds=600)
    end = time.monotonic() + 20
    while not warm._looks_at:  # it waits for the first one
        assert time.monotonic() < end
    assert warm.keep(Kept(2), seconds=0.05)
    assert ended.wait(20)
    assert [each.pid for each in warm._until] == [1]
    warm.end()
