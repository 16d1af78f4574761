"""`governor.run` as scripts and notebooks call it: real runs, and nothing of them is left however the caller ends."""

import asyncio
import contextlib
import json
import os
import signal
import subprocess
import sys
import threading
from pathlib import Path

import psutil
import pytest

import governor
from governor import script
from governor.errors import AlreadyEnded, GovernorError, RunEndedBadly, RunFileError, UsageError

REPOSITORY = Path(__file__).parents[2]
pytestmark = pytest.mark.system

CODE = """\
import os
from gymnasium.spaces import Discrete

class World:
    observation_space = action_space = Discrete(2)
    def reset(self, *, seed=None, options=None):
        if os.path.exists(os.path.join(os.path.dirname(__file__), "broken")):
            raise RuntimeError("the world is broken")
        return 0, {}
    def step(self, action):
        return 1, 0.5, True, False, {}

class Agent:
    def __init__(self, observation_space, action_space, seed):
        pass
    def act(self, observation, *, explore):
        return 1
"""
RUN = """\
name: small
conductors:
  environments: {world: {entry: "small_world:World"}}
  agents: {walker: {entry: "small_world:Agent"}}
phases:
  - name: play
    mode: eval
    simulate: {environment: world, agents: [walker], episodes: EPISODES, transport: in_process}
"""
CALLER = """\
import governor
try:
    print(governor.run("run.yaml", state_dir="state").outcome)
except KeyboardInterrupt:
    print("interrupted")
"""


@pytest.fixture
def project(tmp_path, monkeypatch):
    """The current folder, with a run of three episodes. No process that has its name in the environment is left."""
    (tmp_path / "small_world.py").write_text(CODE)
    (tmp_path / "run.yaml").write_text(RUN.replace("EPISODES", "3"))
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "home"))
    monkeypatch.setenv("GOVERNOR_TEST_INSTANCE", str(tmp_path))
    monkeypatch.setenv("PYTHONPATH", str(REPOSITORY))
    yield tmp_path
    assert processes(tmp_path) == []


def processes(folder):
    """Pid and command of each process that was started in the folder."""
    found = []
    for process in psutil.process_iter():
        with contextlib.suppress(psutil.Error):
            if process.environ().get("GOVERNOR_TEST_INSTANCE") == str(folder) and process.pid != os.getpid():
                found.append((process.pid, process.cmdline()))
    return found


@pytest.fixture
def caller(project):
    """A script that calls `governor.run` with a run that does not end, in which episodes have been played."""
    (project / "run.yaml").write_text(RUN.replace("EPISODES", "10000000"))
    with subprocess.Popen(
        [sys.executable, "-c", CALLER], stdout=subprocess.PIPE, text=True, start_new_session=True
    ) as process:
        while "phase.started" not in process.stdout.readline():
            assert process.poll() is None
        yield process


def outcome_of(project):
    [result] = (project / "state" / "runs").glob("*/result.json")
    found = json.loads(result.read_text())
    return found["outcome"], found["reason"]


async def test_a_run_in_a_cell_of_a_notebook_where_an_event_loop_is_running(project, capsys):
    result = governor.run("run.yaml")
    assert (result.outcome, result.reason, result.name) == ("finished", "", "small")
    assert result.raise_for_outcome() is result
    assert result.phases["play"].metrics["return_mean"] == 0.5
    assert result.run_folder.is_relative_to(project / "home")
    assert result.episodes()["value"].to_pylist() == [0.5] * 3
    assert result.steps("play")["action"].to_pylist() == [1] * 3
    assert result.tasks().num_rows == 0
    with pytest.raises(UsageError, match="has no phase 'train': 'play'"):
        result.episodes("train")
    with pytest.raises(UsageError, match="has no phase 'train': 'play'"):
        result.steps("train")
    assert "phase.ended" in capsys.readouterr().out
    with pytest.raises(AlreadyEnded):
        governor.run(resume=result.uid)


def test_a_run_that_fails_is_a_result_and_is_resumed(project, capsys):
    (project / "broken").touch()
    result = governor.run(project / "run.yaml", state_dir="state", progress=False)
    assert result.outcome == "failed"
    assert "the world is broken" in result.reason
    assert repr(result).startswith(f"Result('small', uid='{result.uid}', outcome='failed', reason=")
    with pytest.raises(RunEndedBadly, match=f"run {result.uid} failed: .*the world is broken"):
        result.raise_for_outcome()
    (project / "broken").unlink()
    resumed = governor.run(resume=result.uid, state_dir="state", progress=False)
    assert (resumed.outcome, resumed.parent) == ("finished", result.uid)
    assert capsys.readouterr().out == ""


def test_every_fault_of_a_run_file_is_in_the_error(project):
    (project / "run.yaml").write_text(RUN.replace("EPISODES", "0").replace("World", "Wrld"))
    with pytest.raises(RunFileError) as caught:
        governor.run("run.yaml")
    assert [fault.line for fault in caught.value.faults] == [3, 8]
    assert "run.yaml:3: conductors.environments.world.entry: " in str(caught.value)
    with pytest.raises(RunFileError, match=r"absent.yaml: \(top\): can't be read"):
        governor.run("absent.yaml")


@pytest.mark.parametrize("options", [{}, {"file": "run.yaml", "resume": "u"}])
def test_a_run_needs_a_file_or_a_run_to_resume(options):
    with pytest.raises(UsageError, match="give a run file, or resume=UID"):
        governor.run(**options)


def test_a_process_that_dies_early_is_an_error(monkeypatch):
    monkeypatch.setattr(script.sys, "executable", "/bin/false")
    with pytest.raises(GovernorError, match="has ended with exit code 1, before the run had ended"):
        governor.run("run.yaml")


def test_ctrl_c_aborts_the_run_in_order(project, caller):
    os.killpg(caller.pid, signal.SIGINT)  # as a terminal does
    out, _ = caller.communicate(timeout=60)
    assert out.splitlines()[-1] == "interrupted"
    assert outcome_of(project) == ("aborted", "SIGINT at `governor run`")


def test_kill_9_of_the_caller_leaves_no_process(project, caller):
    started = [psutil.Process(pid) for pid, _ in processes(project)]
    assert len(started) > 3
    caller.kill()
    _, alive = psutil.wait_procs(started, timeout=60)
    assert alive == []
    assert outcome_of(project) == ("aborted", "SIGTERM at `governor run`")


def test_ctrl_c_ends_a_question_to_a_daemon():
    threading.Timer(0.2, os.kill, (os.getpid(), signal.SIGINT)).start()
    with pytest.raises(KeyboardInterrupt):
        script._ask("tcp://127.0.0.1:9", lambda _: asyncio.Event().wait())


def test_the_import_of_governor_loads_nothing_else():
    code = "import sys, governor; print([n for n in sys.modules if n.split('.')[0] in ('asyncio', 'msgspec', 'click')])"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout == "[]\n"
