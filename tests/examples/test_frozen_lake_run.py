"""The example as a user runs it: one command, a whole process tree, a result; no process and no file is left."""

import json
import os
import signal
import subprocess
import sys
import tempfile
from pathlib import Path

import psutil
import pytest

from tests.support.living import first_child

REPOSITORY = Path(__file__).parents[2]
EXAMPLE = REPOSITORY / "examples" / "frozen_lake"
LONG = """\
name: long
conductors:
  environments: {lake: {entry: "gymnasium:FrozenLake-v1"}}
  agents: {walker: {entry: "q_learner:QLearner"}}
phases:
  - {name: train, simulate: {environment: lake, agents: [walker], episodes: 1000000}}
"""


@pytest.fixture
def governor(tmp_path):
    """Starts `governor`. Afterwards neither its processes nor its temporary files are left."""
    temporary = Path(tempfile.mkdtemp(prefix="gt-", dir="/tmp"))
    environ = {
        **os.environ,
        "XDG_STATE_HOME": str(tmp_path / "state"),
        "TMPDIR": str(temporary),
        "PYTHONPATH": str(REPOSITORY),
    }

    def start(*arguments):
        return subprocess.Popen(
            [sys.executable, "-m", "governor", *map(str, arguments)],
            cwd=tmp_path, env=environ, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
            preexec_fn=_receives_sighup,  # noqa: PLW1509  # no thread runs here
        )  # fmt: skip

    yield start
    of_this_test = f"TMPDIR={temporary}".encode()
    left = [path.parent.name for path in Path("/proc").glob("[0-9]*/environ") if of_this_test in _bytes(path)]
    assert left == []
    assert list(temporary.iterdir()) == []
    temporary.rmdir()


def _receives_sighup():
    """Restores the default handler, because the tests may run below nohup."""
    signal.signal(signal.SIGHUP, signal.SIG_DFL)


def _bytes(path):
    try:
        return path.read_bytes()
    except OSError:
        return b""


@pytest.mark.ray
@pytest.mark.system
def test_the_example_learns_and_prints_its_result(governor, tmp_path):
    process = governor("run", EXAMPLE / "run.yaml", "--json")
    out, err = process.communicate(timeout=120)
    assert process.returncode == 0, err
    rows = [json.loads(row) for row in out.splitlines()]
    result = rows[-1]
    assert (result["type"], result["outcome"]) == ("RunResult", "finished")
    train, evaluate, analyse = result["phases"]
    assert train["end"] == "until"
    assert evaluate["metrics"]["return_mean"] == 1.0
    assert {task["outcome"] for task in analyse["tasks"]} == {"succeeded"}
    assert len(analyse["tasks"]) == 10
    assert Path(result["folder"]).is_relative_to(tmp_path / "state")


@pytest.mark.system
@pytest.mark.parametrize(
    ("number", "interrupts", "code"),
    [
        (signal.SIGINT, 1, 1),
        (signal.SIGINT, 2, 130),
        pytest.param(signal.SIGHUP, 1, 1, marks=pytest.mark.long),
    ],
)
def test_one_signal_aborts_in_order_and_a_second_one_exits_at_once(
    governor, tmp_path, number, interrupts, code
):
    (tmp_path / "run.yaml").write_text(LONG)
    (tmp_path / "q_learner.py").write_text((EXAMPLE / "q_learner.py").read_text())
    process = governor("run", tmp_path / "run.yaml")
    for row in process.stdout:
        if row.startswith("run.transition") and "-> running" in row:
            break
    process.send_signal(number)
    if interrupts == 2:
        # This line is printed after the first signal was received.
        assert "aborting the run in order" in process.stderr.readline()
        process.send_signal(number)
    out, _ = process.communicate(timeout=30)
    assert process.returncode == code
    if interrupts == 1:
        assert f"aborted: {number.name}" in out


@pytest.mark.long
@pytest.mark.system
@pytest.mark.parametrize("victim", ["guard", "second guard", "daemon"])
def test_a_kill_leaves_no_process_and_the_run_can_be_resumed(governor, tmp_path, victim):
    (tmp_path / "run.yaml").write_text(LONG.replace("1000000", "400"))
    (tmp_path / "q_learner.py").write_text((EXAMPLE / "q_learner.py").read_text())
    process = governor("run", tmp_path / "run.yaml", "--json")
    uid = next(row["uid"] for row in map(json.loads, process.stdout) if row.get("kind") == "episode.ended")
    guard = psutil.Process(process.pid)
    [second_guard] = guard.children()
    daemon = first_child(second_guard)
    {"guard": guard, "second guard": second_guard, "daemon": daemon}[victim].kill()
    process.communicate(timeout=20)
    assert psutil.wait_procs([second_guard, daemon], timeout=20)[1] == []
    assert process.returncode == (-9 if victim == "guard" else 137)
    resumed = governor("run", "--resume", uid, "--json")
    out, err = resumed.communicate(timeout=60)
    assert resumed.returncode == 0, err
    assert sum(json.loads(out.splitlines()[-1])["phases"][0]["episodes"].values()) == 400


@pytest.mark.long
@pytest.mark.system
def test_a_closed_standard_output_does_not_end_the_run(governor, tmp_path):
    (tmp_path / "run.yaml").write_text(LONG.replace("1000000", "200"))
    (tmp_path / "q_learner.py").write_text((EXAMPLE / "q_learner.py").read_text())
    process = governor("run", tmp_path / "run.yaml")
    process.stdout.readline()
    process.stdout.close()
    assert process.wait(timeout=60) == 0, process.stderr.read()
    (result,) = (tmp_path / "state").rglob("result.json")
    assert json.loads(result.read_text())["outcome"] == "finished"
