"""`governor.run` as scripts and notebooks call it: real runs, and nothing of them is left however the caller ends."""

import asyncio
import contextlib
import errno
import json
import math
import os
import re
import signal
import subprocess
import sys
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import click
import psutil
import pytest

import governor
from governor import script, script_process
from governor.errors import AlreadyEnded, GovernorError, NoSuchRun, RunEndedBadly, RunFileError, UsageError
from governor.message_stream import framed
from governor.messages import RunEvent, encode

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
        try:
            while "phase.started" not in process.stdout.readline():
                assert process.poll() is None
            yield process
        finally:
            process.kill()


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
    assert (result.run_folder / "report.html").read_text().startswith("<!doctype html>")
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


TELLS_NO_JSON = """\
from governor.cli.rendering import display
from governor.messages import PhaseResult
from tests.support.run_results import run_result
metrics = {"loss": float("nan"), "gain": float("inf")}
phase = PhaseResult(name="fit", mode="train", end="completed", episodes={}, metrics=metrics, tasks=())
display.show_result(run_result(phases=(phase,)), as_json=False, framed=True)
"""


def test_numbers_that_json_does_not_have(monkeypatch):
    monkeypatch.setattr(script, "_started", lambda _: telling(TELLS_NO_JSON))
    result = governor.run("run.yaml", progress=False)
    metrics = result.phases["fit"].metrics
    assert (result.outcome, metrics["gain"], math.isnan(metrics["loss"])) == ("finished", math.inf, True)


def telling(code):
    """A process that stands for that of a run."""
    return subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, cwd=REPOSITORY)


class Unread:
    """A standard output without a descriptor, whose reader goes away after the first line."""

    written = ""

    def write(self, text):
        if self.written:
            raise BrokenPipeError
        self.written += text
        return len(text)

    def flush(self):
        pass


def test_a_reader_that_goes_away_does_not_end_the_run(project, monkeypatch):
    monkeypatch.setattr(sys, "stdout", Unread())
    assert governor.run("run.yaml").outcome == "finished"
    assert sys.stdout.written.startswith("run.accepted")


def test_a_terminal_that_goes_away_does_not_end_the_run(project, monkeypatch):
    class Display(contextlib.ExitStack):
        def __enter__(self):
            return self.show

        def show(self, *_):
            raise OSError(errno.EIO, "Input/output error")

        def __exit__(self, *_):
            raise OSError(errno.EIO, "Input/output error")

    monkeypatch.setattr(script.display, "choose", lambda **_: Display())
    assert governor.run("run.yaml").outcome == "finished"


def test_a_run_that_fails_is_a_result_and_is_resumed(project, capsys):
    (project / "broken").touch()
    result = governor.run(project / "run.yaml", state_dir="state", progress=False)
    assert result.outcome == "failed"
    assert "the world is broken" in result.reason
    assert repr(result).startswith(f"Result('small', uid='{result.uid}', outcome='failed', reason=")
    with pytest.raises(RunEndedBadly, match=f"run {result.uid} failed: .*the world is broken"):
        result.raise_for_outcome()
    (project / "broken").unlink()
    with pytest.raises(
        NoSuchRun, match=rf"^no run 'absent' in {project}/state; --state-dir names another folder$"
    ):
        governor.run(resume="absent", state_dir="state")
    with pytest.raises(
        NoSuchRun,
        match=rf"^no run '{result.uid}' in {project}/stat, which has no governor.db; --state-dir names another folder$",
    ):
        governor.run(resume=result.uid, state_dir="stat")
    assert not (project / "stat").exists()
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


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        ({"file": ""}, "file must be a path, not ''$"),
        (
            {"file": {"name": "small"}},
            "file must be a path, not {'name': 'small'}; governor.submit takes a run that",
        ),
        ({"file": 3}, "file must be a path, not 3"),
        ({"resume": ""}, "resume must be the id of an earlier run, not ''"),
        ({"file": "run.yaml", "ray_cpus": 2.0}, "ray_cpus must be a whole number above 0, not 2.0"),
        ({"file": "run.yaml", "ray_cpus": 0}, "ray_cpus must be a whole number above 0, not 0"),
        ({"file": "run.yaml", "state_dir": ""}, "state_dir must be a path, not ''"),
        (
            {"file": "run.yaml", "state_dir": "~nobody-here/y"},
            "state_dir '~nobody-here/y': no user of that name",
        ),
    ],
)
def test_an_argument_that_makes_no_sense(arguments, told, monkeypatch):
    monkeypatch.setattr(script.sys, "executable", "/bin/false")
    with pytest.raises(UsageError, match=told) as caught:
        governor.run(**arguments)
    assert caught.value.exit_code == 2


def test_what_the_verb_does_not_understand_is_an_error_of_the_caller(project, monkeypatch):
    monkeypatch.setattr(script, "_arguments", lambda *_: ["--ray-cpus=2.0", "run.yaml"])
    with pytest.raises(UsageError, match=r"Invalid value for '--ray-cpus': '2\.0' is not a valid"):
        governor.run("run.yaml")


@pytest.fixture
def in_this_process(monkeypatch):
    """`script_process.main` is called here: without guard and signals."""
    monkeypatch.setattr(script_process.prctl, "die_with_parent", lambda **_: None)
    monkeypatch.setattr(script_process, "start_guard", lambda **_: None)
    monkeypatch.setattr(script_process.signal, "signal", lambda *_: None)
    monkeypatch.setattr(sys, "argv", ["script_process", "1"])


def test_ctrl_c_while_the_process_closes_is_no_traceback(in_this_process, monkeypatch):
    def closes(*_, **__):
        raise click.Abort

    monkeypatch.setattr(click.Command, "main", closes)
    with pytest.raises(SystemExit) as caught:
        script_process.main()
    assert caught.value.code == 130


EVENT = RunEvent(uid="u1", seq=1, at=0.0, kind="run.accepted", data={"name": "small"})


def test_a_process_that_dies_tells_how_to_go_on(monkeypatch):
    code = f"import os; os.write(1, {framed(encode(EVENT))!r}); os._exit(3)"
    monkeypatch.setattr(script, "_started", lambda _: telling(code))
    for options, told in [({}, "resume='u1'"), ({"state_dir": Path("s")}, "resume='u1', state_dir='s'")]:
        with pytest.raises(
            GovernorError, match=re.escape(f"exit code 3, before the run had ended; governor.run({told}) ")
        ):
            governor.run("run.yaml", progress=False, **options)


def test_progress_is_shown_while_no_event_comes(monkeypatch):
    monkeypatch.setattr(script, "PAUSE_MS", 10)
    shown = []
    with subprocess.Popen(["cat"], stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:

        def show(event, view):
            shown.append((event, view.name))
            if event is None and view.name:
                process.stdin.close()

        process.stdin.write(framed(encode(EVENT)))
        process.stdin.flush()
        assert script._follow(process, show) == ("u1", None)
    assert (EVENT, "small") in shown
    assert shown[-1] == (None, "small")


def test_ctrl_c_while_the_process_starts_leaves_no_process(monkeypatch):
    made = []

    def started(_):
        signal.raise_signal(signal.SIGINT)
        made.append(subprocess.Popen(["cat"], stdin=subprocess.PIPE, stdout=subprocess.PIPE))
        signal.raise_signal(signal.SIGINT)
        return made[0]

    monkeypatch.setattr(script, "_started", started)
    with pytest.raises(KeyboardInterrupt):
        governor.run("run.yaml", progress=False)
    assert made[0].poll() == -signal.SIGINT
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler
    made[0].stdin.close()


def test_ctrl_c_while_python_starts_there_shows_no_traceback(capfd):
    with script._started(["--", "run.yaml"]) as process:
        status, bit = Path(f"/proc/{process.pid}/status"), 1 << (signal.SIGINT - 1)
        while not int(re.search(r"SigCgt:\s*(\w+)", status.read_text())[1], 16) & bit:
            assert process.poll() is None  # Python's own handler is not there yet
        process.send_signal(signal.SIGINT)
        assert process.wait(30) == -signal.SIGINT
    assert capfd.readouterr().err == ""
    assert signal.SIGINT not in signal.pthread_sigmask(signal.SIG_BLOCK, ())


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


@pytest.mark.parametrize("wakes", [True, False])
def test_ctrl_c_ends_a_question_to_a_daemon(wakes):
    """It does not wake the main thread if it comes just before that waits: the same as if another thread takes the signal."""

    async def asked(_):
        signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGINT})
        os.kill(os.getpid(), signal.SIGINT)
        await asyncio.Event().wait()

    if not wakes:
        signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    try:
        with pytest.raises(KeyboardInterrupt):
            script._ask("tcp://127.0.0.1:9", asked)
    finally:
        signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGINT})


def test_ctrl_c_before_the_question_is_asked(monkeypatch):
    left, run = threading.Event(), asyncio.run

    class Pool(ThreadPoolExecutor):
        def __exit__(self, *args):
            left.set()
            return super().__exit__(*args)

    def late(question):
        os.kill(os.getpid(), signal.SIGINT)
        assert left.wait(60)
        return run(question)

    monkeypatch.setattr(script, "ThreadPoolExecutor", Pool)
    monkeypatch.setattr(script.asyncio, "run", late)
    with pytest.raises(KeyboardInterrupt):
        script._ask("tcp://127.0.0.1:9", lambda _: asyncio.Event().wait())
