"""What a study has achieved outlives its caller, and is found again."""

from __future__ import annotations

import math
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import pytest

from governor.errors import TryAgain
from governor.messages import TaskRecord
from governor.tasks import SchedulerConfig, execute_task_graph
from governor.tasks.agentlab.study import NAME, Study
from tests.support.user_code.experiments import Exp, story_of

QUICK = SchedulerConfig(grace=0.2)


def record(task, outcome="succeeded", **fields):
    return TaskRecord(task=task, run=0, outcome=outcome, attempts=1, seconds=0.5, **fields)


# -- the file -----------------------------------------------------------------------------------------------


def test_what_was_entered_is_found_again(tmp_path):
    kept = [
        record("plain", value={"reward": 1.5, "text": "ä\ud800\n"}),
        record("odd", value=[math.inf, -math.inf], metrics={"loss": math.inf}),
    ]
    with Study(tmp_path) as study:
        for each in [*kept, record("failed", "failed", error="bad"), record("late", "timed_out")]:
            study.enter(each)
    with Study(tmp_path) as study:
        assert study.succeeded({"plain", "odd", "failed", "late", "never"}) == kept
        assert study.succeeded({"odd"}) == kept[1:]


def test_nan_comes_back_as_nan(tmp_path):
    with Study(tmp_path) as study:
        study.enter(record("a", value=math.nan, metrics={"loss": math.nan}))
        (found,) = study.succeeded({"a"})
    assert math.isnan(found.value)
    assert math.isnan(found.metrics["loss"])


def test_a_half_written_line_is_ignored_and_no_later_one_is_lost(tmp_path):
    with Study(tmp_path) as study:
        study.enter(record("a"))
        study.enter(record("b"))
    path = tmp_path / NAME
    path.write_bytes(path.read_bytes()[:-20])
    with Study(tmp_path) as study:
        assert study.succeeded({"a", "b"}) == [record("a")]
        study.enter(record("c"))
    with Study(tmp_path) as study:
        assert study.succeeded({"a", "b", "c"}) == [record("a"), record("c")]


def test_a_lost_value_is_not_done(tmp_path):
    (tmp_path / "a.pkl").touch()
    with Study(tmp_path) as study:
        study.enter(record("a", value_file="a.pkl"))
        study.enter(record("b", value_file="b.pkl"))
        assert [each.task for each in study.succeeded({"a", "b"})] == ["a"]


def test_the_latest_success_counts(tmp_path):
    with Study(tmp_path) as study:
        study.enter(record("a", value=1))
        study.enter(record("a", "failed"))
        study.enter(record("a", value=2))
        assert study.succeeded({"a"}) == [record("a", value=2)]


def test_a_folder_has_one_user(tmp_path):
    with Study(tmp_path), pytest.raises(TryAgain, match=r"is being worked on by another call"):
        Study(tmp_path).__enter__()
    with Study(tmp_path):
        pass


def test_thousands_of_entries_share_their_syncs(tmp_path, monkeypatch):
    syncs = []
    monkeypatch.setattr(os, "fsync", syncs.append)
    with Study(tmp_path) as study:
        for number in range(1000):
            study.enter(record(str(number)))
        assert len(study.succeeded({str(number) for number in range(1000)})) == 1000
        study.sync()
        study.sync()
    assert len(syncs) == 1


# -- relaunch, against real Ray -----------------------------------------------------------------------------


def launch(folder, *exps):
    return execute_task_graph(list(exps), folder=folder, config=QUICK)


def begun(story):
    return [line["exp"] for line in story_of(story) if line["what"] == "begun"]


def test_started_again_it_keeps_what_is_done(harness, tmp_path):
    folder, story, there = tmp_path / "study", tmp_path / "story", tmp_path / "there"

    def exps():
        return [
            Exp("done", "give", {"loss": math.nan}, story=story),
            Exp("object", "itself", story=story),
            Exp("lost", "itself", story=story),
            Exp("fails", "exist", str(there), story=story),
            Exp("late", "sleep", 0 if there.exists() else 60, episode_timeout=0.4, story=story),
            Exp("after", "give", 3, depends_on=["fails", "done"], story=story),
        ]

    first = launch(folder, *exps())
    assert {name: getattr(each, "outcome", "succeeded") for name, each in first.items()} == {
        "done": "succeeded",
        "object": "succeeded",
        "lost": "succeeded",
        "fails": "failed",
        "late": "timed_out",
        "after": "upstream_failed",
    }
    there.write_text("now")
    story.unlink()
    (lost,) = (folder / "results").glob("lost*")
    lost.unlink()
    (folder / NAME).open("a").write('{"task": "half')
    second = launch(folder, *exps(), Exp("new", "give", 5, depends_on=["object"], story=story))
    assert sorted(begun(story)) == ["after", "fails", "late", "lost", "new"]
    assert math.isnan(second["done"]["loss"])
    assert second["object"] == exps()[1]
    assert (second["fails"], second["after"], second["new"]) == ("now", 3, 5)
    story.unlink()
    third = launch(folder, *exps())
    assert begun(story) == []
    assert third["fails"] == "now"


def test_two_calls_cannot_share_a_folder(harness, tmp_path):
    with Study(tmp_path / "study"), pytest.raises(TryAgain, match="another call"):
        launch(tmp_path / "study", Exp("a"))


def test_a_result_is_on_the_disk_before_a_dependant_runs(harness, tmp_path, monkeypatch):
    folder, entered = tmp_path / "study", tmp_path / "entered"
    synced = []
    fsync = os.fsync

    def noted(fd):
        fsync(fd)
        if Path(f"/proc/self/fd/{fd}").readlink().name == NAME:
            entered.write_bytes((folder / NAME).read_bytes())
            synced.append(fd)

    monkeypatch.setattr(os, "fsync", noted)
    leaves = [Exp(f"leaf {number}", depends_on=["b"]) for number in range(200)]
    results = launch(
        folder, Exp("a", "give", "of a"), Exp("b", "exist", str(entered), depends_on=["a"]), *leaves
    )
    assert "of a" in results["b"]
    assert 3 <= len(synced) < 50


def test_a_study_that_cannot_be_written_ends_with_the_reason(harness, tmp_path, monkeypatch):
    def full(self, record):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(Study, "enter", full)
    began = time.monotonic()
    with pytest.raises(OSError, match="No space left"):
        launch(tmp_path, Exp("a"), Exp("b", "sleep", 60))
    assert time.monotonic() - began < 15


PROGRAM = """
import os, sys
from pathlib import Path
from tests.support.user_code.experiments import Exp
from governor.tasks import SchedulerConfig, execute_task_graph
exps = [Exp(n, story=Path(sys.argv[2])) for n in range(10)]
exps.append(Exp("hangs", "sleep", 600, depends_on=list(range(10)), story=Path(sys.argv[2])))
execute_task_graph(exps, folder=sys.argv[1], config=SchedulerConfig(address=os.environ["RAY"]))
"""


@pytest.mark.long
def test_after_kill_9_of_the_caller_the_rest_is_done(harness, tmp_path):
    import ray

    folder, story = tmp_path / "study", tmp_path / "story"
    scratch = tempfile.mkdtemp(prefix="gk-")  # what it leaves behind goes with the test
    env = {
        **os.environ,
        "TMPDIR": scratch,
        "RAY": ray.get_runtime_context().gcs_address,
        "PYTHONPATH": str(Path.cwd()),
    }
    caller = subprocess.Popen(
        [sys.executable, "-c", PROGRAM, folder, story], env=env, stdout=subprocess.DEVNULL
    )
    try:
        until = time.monotonic() + 40
        while "hangs" not in begun(story):
            assert time.monotonic() < until
            assert caller.poll() is None
            time.sleep(0.02)
    finally:
        caller.send_signal(signal.SIGKILL)
        caller.wait()
        shutil.rmtree(scratch)
    story.unlink()
    results = launch(folder, *(Exp(n, story=story) for n in range(10)), Exp("hangs", "give", 1, story=story))
    assert begun(story) == ["hangs"]
    assert results == {**dict.fromkeys(range(10)), "hangs": 1}
