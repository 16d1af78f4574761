"""What a run was made with, and which of its code has changed since it was submitted, or since it began."""

import json
import os
import sys

import pytest

from governor.messages import RunEvent
from governor.runs.record import code, environment
from governor.runs.record.code import Submission
from governor.version import __version__


@pytest.fixture
def home(tmp_path):
    """A folder with code, and an empty one of a run."""
    folder = tmp_path / "home"
    (folder / "agents").mkdir(parents=True)
    (folder / "agents" / "walker.py").write_text("x = 1\n")
    (folder / "run.yaml").write_text("name: r\n")
    (tmp_path / "run").mkdir()
    return folder


def submitted(home, **more):
    now = max(path.stat().st_ctime for path in home.rglob("*"))
    return Submission(at=now, digest=code.digest(home), **more)


def test_versions_code_and_machine_are_on_record_once(home, tmp_path):
    run = tmp_path / "run"
    assert environment.record(run, home, submitted(home)) is None
    found = json.loads((run / environment.FILE).read_text())
    assert found["run_governor"] == __version__
    assert found["python"] == ".".join(map(str, sys.version_info[:3]))
    assert found["packages"]["pyzmq"]
    assert "(2 files)" in found["code"]
    assert (found["commit"], found["clean"]) == (None, None)
    (home / "run.yaml").write_text("name: s\n")
    environment.record(run, home, submitted(home))
    assert environment.of_run(run) == found
    assert environment.of_machine(home)["code"] != found["code"]


def test_what_has_changed_since_the_submit_is_named(home, tmp_path):
    before = submitted(home)
    os.utime(home / "run.yaml")  # its content has not
    assert environment.record(tmp_path / "run", home, before) is None
    (tmp_path / "run" / environment.FILE).unlink()
    before = submitted(home)
    while (
        home / "agents" / "walker.py"
    ).stat().st_ctime <= before.at:  # the clock of a file system is coarse
        (home / "agents" / "walker.py").write_text("x = 2\n")
    found = environment.record(tmp_path / "run", home, before)
    assert (found["files"], found["more"]) == (["agents/walker.py"], 0)
    assert code.sentence(found) == "agents/walker.py has changed since it was submitted"


def test_what_has_changed_since_the_run_began_is_named_when_it_goes_on(home, tmp_path):
    run = tmp_path / "run"
    environment.record(run, home, submitted(home))
    assert environment.record(run, home, Submission()) is None
    os.utime(run / environment.FILE, (1.0, 1.0))  # it began then
    (home / "new.py").write_text("")
    found = environment.record(run, home, Submission())
    assert code.sentence(found) == "new.py, run.yaml, agents/walker.py have changed since it began"


def test_a_work_tree_of_a_copy_is_that_of_the_submit(home, tmp_path):
    then = {
        "copied_from": "/home/me",
        "commit": "c" * 40,
        "branch": "main",
        "clean": False,
        "uncommitted": ["agents/walker.py"],
    }
    environment.record(tmp_path / "run", home, submitted(home, copied=then))
    assert then.items() <= environment.of_run(tmp_path / "run").items()


def test_a_file_that_cannot_be_read_tells_nothing(tmp_path):
    assert environment.of_run(tmp_path) == {}
    for content in ("{", "[]"):
        (tmp_path / environment.FILE).write_text(content)
        assert environment.of_run(tmp_path) == {}


def test_gpus_are_those_of_the_driver(tmp_path, monkeypatch):
    monkeypatch.setattr(environment, "_GPUS", tmp_path / "gpus")
    assert environment.of_machine(tmp_path)["gpus"] == []
    for bus, model in (("0000:3b:00.0", "NVIDIA L4"), ("0000:18:00.0", "NVIDIA A100-SXM4-80GB")):
        (tmp_path / "gpus" / bus).mkdir(parents=True)
        text = f"Model: \t\t {model}\nIRQ:   \t\t 42\nBus Location: \t {bus}\n"
        (tmp_path / "gpus" / bus / "information").write_text(text)
    assert environment.of_machine(tmp_path)["gpus"] == ["NVIDIA A100-SXM4-80GB", "NVIDIA L4"]


def test_what_is_recorded_of_a_submit_is_read_again():
    made = Submission(at=5.0, digest="d", copied={"copied_from": "/home/me", "clean": True})
    event = RunEvent(uid="u", seq=1, at=5.0, kind="run.accepted", data={code.KEY: made.data})
    assert Submission.of(event) == made
    older = RunEvent(uid="u", seq=1, at=5.0, kind="run.accepted", data={"name": "n"})
    assert Submission.of(older) == Submission(at=5.0)
    assert Submission.of(None) == Submission()
