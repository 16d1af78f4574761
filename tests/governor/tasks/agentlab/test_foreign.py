"""`poll_for_timeout` and `get_elapsed_time`, for tasks of Ray's own and for ours; Ray has no dashboard here."""

from __future__ import annotations

import os
import sys
import time
from pathlib import Path

import pytest
from structlog.testing import capture_logs

from governor.tasks import TaskFailed, get_elapsed_time, poll_for_timeout, run_exp
from governor.tasks.agentlab import foreign
from governor.tasks.agentlab.session import GraphSession
from tests.support.living import lives
from tests.support.user_code.experiments import Exp, story_of


@pytest.fixture(scope="module", autouse=True)
def _shared(harness):
    yield
    if GraphSession._shared is not None:
        GraphSession._shared.close()


def give(value):
    return value


def fail():
    raise ValueError("theirs")


def sleep(path, seconds):
    Path(path).write_text(str(os.getpid()))
    time.sleep(seconds)
    return "slept"


def hold_gil(path):
    Path(path).write_text(str(os.getpid()))
    sum(range(10**15))


class Actor:
    def sleep(self, seconds):
        time.sleep(seconds)
        return "woke"


@pytest.fixture
def remote(harness):
    import ray
    from ray import cloudpickle

    cloudpickle.register_pickle_by_value(sys.modules[__name__])  # Ray's workers do not know this module

    def build(function):
        return ray.remote(num_cpus=0)(function)

    return build


def test_what_ends_comes_back_with_its_result_or_exception(remote):
    tasks = {"good": remote(give).remote([1]), "bad": remote(fail).remote(), "same": None}
    tasks["same"] = tasks["good"]
    found = poll_for_timeout(tasks, 30)
    assert list(found) == ["good", "bad", "same"]
    assert found["good"] == found["same"] == [1]
    assert isinstance(found["bad"], ValueError)
    assert not isinstance(found["bad"], TaskFailed)


def wait_for(reference):
    """On a cold machine the first call of a worker may take longer than the limits here."""
    import ray

    ray.wait([reference], timeout=30)


def test_nothing_to_wait_for():
    assert poll_for_timeout({}, 1) == {}


NEVER = 3600
"""Seconds. A test that waits for so long fails by its own limit, whatever else the machine does."""


def test_what_hangs_is_dead_soon_after_its_limit(remote, tmp_path, monkeypatch):
    monkeypatch.setattr(foreign, "GIVEN_UP_SECONDS", NEVER)
    pids = [str(tmp_path / name) for name in ("sleep", "gil")]
    tasks = {
        "sleep": remote(sleep).remote(pids[0], 600),
        "gil": remote(hold_gil).remote(pids[1]),
        "good": remote(give).remote(1),
    }
    until = time.monotonic() + 20
    while not all(Path(pid).exists() for pid in pids):
        assert time.monotonic() < until
        time.sleep(0.01)
    wait_for(tasks["good"])
    found = poll_for_timeout(tasks, 0.5, poll_interval=NEVER)
    assert found["good"] == 1
    for name, pid in zip(("sleep", "gil"), pids, strict=True):
        assert found[name].outcome == "timed_out"
        assert found[name].record.seconds >= 0.5
        assert "longer than its timeout of 0.5 s" in str(found[name])
        _gone(int(Path(pid).read_text()))


def _gone(pid):
    until = time.monotonic() + 5
    while lives(pid):
        assert time.monotonic() < until
        time.sleep(0.01)


def test_a_method_of_an_actor_is_given_up(remote, monkeypatch):
    import ray

    monkeypatch.setattr(foreign, "GIVEN_UP_SECONDS", 0.5)
    actor = remote(Actor).remote()
    ray.get(actor.sleep.remote(0))
    began = time.monotonic()
    found = poll_for_timeout({"a": actor.sleep.remote(600)}, 0.3)
    assert time.monotonic() - began < 5
    assert found["a"].outcome == "timed_out"
    assert "can't be ended: it may run on" in str(found["a"])
    ray.kill(actor)


def test_ours_beside_theirs(remote, tmp_path):
    story = tmp_path / "story"
    tasks = {
        "ours late": run_exp.remote(Exp("late", "hold_gil", story=story)),
        "theirs": remote(give).remote(2),
        "ours": run_exp.remote(Exp("good", "give", 1)),
        "ours bad": run_exp.remote(Exp("bad", "fail")),
    }
    wait_for(tasks["theirs"])
    found = poll_for_timeout(tasks, 0.5, poll_interval=NEVER)
    assert (found["theirs"], found["ours"]) == (2, 1)
    assert found["ours bad"].outcome == "failed"
    late = found["ours late"]
    assert late.outcome == "timed_out"
    assert late.record.seconds >= 0.5
    assert "longer than its timeout of 0.5 s" in str(late)
    assert not lives(story_of(story)[0]["pid"])


def test_elapsed_time_of_ours(tmp_path):
    story = tmp_path / "story"
    first = run_exp.remote(Exp("first", "sleep", 0.7, story=story))
    second = run_exp.remote(Exp("second"), first)
    assert get_elapsed_time(second) is None
    until = time.monotonic() + 20
    while get_elapsed_time(first) is None:
        assert time.monotonic() < until
        time.sleep(0.01)
    assert get_elapsed_time(first) >= 0
    assert get_elapsed_time(second) is None, "its wait is no running time"
    assert first.outcome() is None
    assert get_elapsed_time(first) >= 0.7
    assert second.outcome() is None
    assert get_elapsed_time(second) < get_elapsed_time(first)


def after(before, path, seconds):
    """A task of Ray that does not begin before another one has ended."""
    return sleep(path, seconds)


def test_what_waits_is_not_late_and_what_began_late_is_counted_from_then(remote, tmp_path):
    tasks = {0: remote(sleep).remote(str(tmp_path / "0"), 0.5)}
    for number in range(1, 6):
        tasks[number] = remote(after).remote(tasks[number - 1], str(tmp_path / str(number)), 0.5)
    tasks[6] = remote(after).remote(tasks[5], str(tmp_path / "6"), 600)
    found = poll_for_timeout(tasks, 1.7, poll_interval=0.2)
    assert [found.pop(number) for number in range(6)] == ["slept"] * 6
    assert found[6].outcome == "timed_out"
    assert 1.7 <= found[6].record.seconds < 5, "its wait of three seconds is not in it"
    assert "ran longer than its timeout of 1.7 s" in str(found[6])


def test_ray_tells_a_start_without_a_dashboard(remote, tmp_path):
    """Fails where Ray has renamed what `starts_of` asks, which is private."""
    first = remote(sleep).remote(str(tmp_path / "pid"), 600)
    second = remote(after).remote(first, str(tmp_path / "never"), 0)
    began = time.time()
    until = time.monotonic() + 20
    while len(starts := foreign.starts_of([first, second])) < 2 or starts[first] is None:
        assert time.monotonic() < until
        time.sleep(0.05)
    assert starts[second] is None
    assert began - 1 < starts[first] <= time.time()
    assert 0 <= get_elapsed_time(first) < 25
    assert get_elapsed_time(second) is None
    poll_for_timeout({"first": first}, 0)


@pytest.mark.parametrize("answers", [False, True])
def test_where_nobody_knows_the_start_the_error_says_so(remote, monkeypatch, tmp_path, answers):
    def unknown(_references):
        if not answers:
            raise AttributeError("_get_all_task_events")
        return {}

    monkeypatch.setattr(foreign, "starts_of", unknown)
    monkeypatch.setattr(foreign, "UNKNOWN_SECONDS", 0.2)
    reference = remote(sleep).remote(str(tmp_path / "pid"), 600)
    with capture_logs() as logged:
        [late] = poll_for_timeout({"late": reference}, 0.3, poll_interval=0.05).values()
    warned = [
        line["reason"]
        for line in logged
        if (line["event"], line["log_level"]) == ("ray.starts_unknown", "warning")
    ]
    assert warned == ([] if answers else ["AttributeError: _get_all_task_events"])
    assert late.outcome == "timed_out"
    assert (
        "did not end within its timeout of 0.3 s after it was waited for; Ray does not tell when it began"
        in str(late)
    )
    assert 0.5 <= late.record.seconds < 5
