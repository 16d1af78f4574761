"""`governor try`: what is left when it ends, however it ends, and where its output goes."""

import contextlib
import os
import re
import signal
import subprocess
import sys

import pytest

from governor.episodes.records import state_file
from tests.governor.cli.test_trial import Trial

CODE = '''
import asyncio, os, shutil, sys, threading, time
import gymnasium, numpy as np

class Threaded:
    """Its thread ends with `close`. `fault` is what goes wrong, and where."""
    observation_space = gymnasium.spaces.Box(-1.0, 1.0, (1,), np.float32)
    action_space = gymnasium.spaces.Discrete(2)

    def __init__(self, fault=""):
        self.fault, self.over = fault, threading.Event()
        threading.Thread(target=self.over.wait).start()

    def reset(self, *, seed=None):
        return np.zeros(1, np.float32), {}

    def step(self, action):
        if self.fault == "raise":
            raise ValueError("a wall")
        if self.fault == "hang":
            print("hanging", flush=True)
            while True:
                time.sleep(0.1)
        return np.zeros(1, np.float32), 1.0, True, False, {}

    def close(self):
        self.over.set()
        print("closed")
        if self.fault == "close":
            raise RuntimeError("it does not close")
        if self.fault == "interrupted":
            raise KeyboardInterrupt

class TwoPlayers(Threaded):
    possible_agents = agents = ["a", "b"]

class Walker:
    def __init__(self, observation_space, action_space, seed):
        if seed < 0:
            raise ValueError
    def act(self, observation, *, explore):
        return 1

class Unable(Walker):
    def __init__(self, observation_space, action_space, seed):
        raise RuntimeError("unable")

def removes(context):
    shutil.rmtree(context.run_folder)
    return 3

def removes_and_raises(context):
    shutil.rmtree(context.run_folder)
    raise ValueError(context.run_folder)

def forks(context):
    pid = os.fork()
    if not pid:
        raise ValueError("the child")
    os.waitpid(pid, 0)
    assert context.run_folder.exists()
    return "the parent"

def closes():
    print("printed")
    sys.stdout.close()
    return "closed it"

def takes_away():
    sys.stdout = None
    return "took it away"

def closes_descriptor():
    print("printed", flush=True)
    os.close(1)
    return "closed one"

def prints():
    for number in range(100_000):
        print(number)
    return "all of them"

def bare():
    raise ValueError("bare")

def exits():
    print("exits", flush=True)
    os._exit(5)

def waits():
    print("waiting", flush=True)
    while True:
        time.sleep(0.1)

def reads(context):
    return (context.run_folder / "absent").read_text()

def cannot_be_stored():
    return (number for number in range(3))
'''
TASKS = [
    "removes",
    "removes_and_raises",
    "forks",
    "closes",
    "takes_away",
    "closes_descriptor",
    "prints",
    "bare",
    "exits",
    "waits",
    "reads",
    "cannot_be_stored",
]
RUN = f"""\
name: ends
seed: 7
conductors:
  environments:
    one: {{entry: "ends_code:Threaded", params: {{fault: FAULT}}}}
    two: {{entry: "ends_code:TwoPlayers"}}
  agents:
    walker: {{entry: "ends_code:Walker"}}
    unable: {{entry: "ends_code:Unable"}}
    speaker: {{entry: "openai:model", params: {{base_url: "http://127.0.0.1:9"}}}}
phases:
  - {{name: play, mode: eval, simulate: {{environment: one, agents: [walker], episodes: 1, transport: in_process}}}}
  - {{name: unable, mode: eval, simulate: {{environment: one, agents: [unable], episodes: 1, transport: in_process}}}}
  - {{name: named, mode: eval, simulate: {{environment: two, agents: {{a: walker, z: walker}}, episodes: 1, transport: in_process}}}}
  - {{name: talk, mode: eval, simulate: {{environment: one, agents: [speaker], episodes: 1, transport: in_process}}}}
  - name: tasks
    tasks:
{"".join(f'      - {{id: {name}, call: "ends_code:{name}"}}{os.linesep}' for name in TASKS)}
"""


class Ends(Trial):
    def __init__(self, folder):
        super().__init__(folder)
        (self.folder / "ends_code.py").write_text(CODE)

    def fault(self, name):
        (self.folder / "run.yaml").write_text(RUN.replace("FAULT", name))

    def shell(self, *arguments, redirection):
        """Its exit code and standard error; `$@` stands for the verb."""
        command = [sys.executable, "-m", "governor", "try", "../code/run.yaml", *arguments]
        return subprocess.run(
            ["bash", "-c", f"{redirection}", "bash", *command],
            cwd=self.elsewhere, env=self.environ, check=False, capture_output=True, text=True, timeout=60,
        )  # fmt: skip


@pytest.fixture
def ends(tmp_path):
    with contextlib.closing(Ends(tmp_path)) as ends:
        yield ends


class TestClose:
    @pytest.mark.parametrize(("fault", "phase"), [("raise", "play"), ("''", "unable")])
    def test_an_environment_is_closed_after_what_is_raised(self, ends, fault, phase):
        ends.fault(fault)
        out, err = ends.governor("--phase", phase, code=1)
        assert out == "closed\n"
        assert "it raised" in err

    def test_after_ctrl_c(self, ends):
        ends.fault("hang")
        process = ends.start("--phase", "play", stdout=subprocess.PIPE, stderr=subprocess.PIPE)
        assert process.stdout.readline() == "hanging\n"
        process.send_signal(signal.SIGINT)
        out, err = process.communicate(timeout=30)
        assert (process.returncode, out) == (130, "closed\n")
        assert "environment.step: interrupted" in err

    def test_the_debugger_has_a_living_environment(self, ends):
        ends.fault("raise")
        said, code = ends.on_terminal("--phase", "play", "--pdb", typed="p self.over.is_set()\nq\n")
        assert code == 1
        assert re.search(r"\nFalse\n.*closed\n", said, re.DOTALL)

    def test_one_that_raises_has_no_effect(self, ends):
        ends.fault("close")
        out, err = ends.governor("--phase", "play")
        assert "terminated after 1 steps" in out
        assert "environment.close: it raised; in a run this has no effect\nTraceback" in err
        assert err.endswith("RuntimeError: it does not close\n")

    def test_ctrl_c_in_it(self, ends):
        ends.fault("interrupted")
        _, err = ends.governor("--phase", "play", code=130)
        assert "environment.close: interrupted" in err


class TestRunFolder:
    def test_a_task_may_remove_it(self, ends):
        out, _ = ends.governor("--task", "removes")
        assert out == "3\n"
        _, err = ends.governor("--task", "removes_and_raises", code=1)
        assert "ValueError: " in err
        assert list(ends.temporary.iterdir()) == []

    def test_a_forked_child_does_not_remove_it(self, ends):
        out, err = ends.governor("--task", "forks")
        assert "'the parent'" in out
        assert "ValueError: the child" in err
        assert list(ends.temporary.iterdir()) == []

    def test_one_that_is_given_is_not_said_to_be_new(self, ends):
        _, err = ends.governor("--task", "reads", code=1)
        assert "its run folder is new and empty here" in err
        _, err = ends.governor("--task", "reads", "--folder", ".", code=1)
        assert "is new and empty here" not in err

    def test_an_exit_leaves_one_folder(self, ends):
        ends.governor("--task", "exits", code=5)
        assert len(list(ends.temporary.iterdir())) == 1

    @pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGHUP])
    def test_a_signal_leaves_none(self, ends, number):
        def listen():
            signal.signal(number, signal.SIG_DFL)  # tests started by nohup inherit that SIGHUP is ignored

        pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
        process = ends.start("--task", "waits", **pipes, preexec_fn=listen)
        assert process.stdout.readline() == "waiting\n"
        process.send_signal(number)
        _, err = process.communicate(timeout=30)
        assert process.returncode == 128 + number
        assert f"task waits: {number.name}\n" in err
        assert "in waits" in err
        assert list(ends.temporary.iterdir()) == []


class TestOutput:
    @pytest.mark.parametrize(
        ("task", "said"),
        [
            ("closes", "printed\n'closed it'\n"),
            ("takes_away", "'took it away'\n"),
            ("closes_descriptor", "printed\n'closed one'\n"),
        ],
    )
    def test_a_task_may_close_it(self, ends, task, said):
        assert ends.governor("--task", task)[0] == said

    @pytest.mark.parametrize("task", ["prints", "takes_away"])
    def test_a_reader_that_is_gone(self, ends, task):
        done = ends.shell("--task", task, redirection='"$@" | head -1; exit ${PIPESTATUS[0]}')
        assert done.returncode == 0, done.stderr
        assert "Exception" not in done.stderr
        assert f"task {task} returned after" in done.stderr

    @pytest.mark.parametrize("missing", ["<&-", ">&-", "2>&-", "<&- >&- 2>&-", ">/dev/full"])
    def test_a_stream_that_is_missing(self, ends, missing):
        done = ends.shell("--task", "prints", redirection=f'"$@" {missing}')
        assert done.returncode == 0, done.stderr
        assert "Error" not in done.stderr

    def test_the_debugger_needs_input(self, ends):
        for redirection in ("<&-", "</dev/null"):
            done = ends.shell("--task", "bare", "--pdb", redirection=f'"$@" {redirection}')
            assert done.returncode == 2
            assert "--pdb: " in done.stderr

    def test_a_value_that_no_run_could_keep(self, ends):
        _, err = ends.governor("--task", "cannot_be_stored", code=1)
        assert err.startswith("governor: error: the returned generator cannot be serialised")
        assert "Traceback" not in err


class TestRefusals:
    def test_a_file_that_is_no_state(self, ends):
        (ends.elsewhere / "odd").write_text("odd")
        _, err = ends.governor("--phase", "play", "--state", "odd", code=2)
        assert f"--state: the agent's state {ends.elsewhere}/odd cannot be read" in err

    def test_a_language_model_has_no_state(self, ends):
        state_file.save(ends.elsewhere / "walker.state", {})
        _, err = ends.governor("--phase", "talk", "--state", "walker.state", code=2)
        assert "--state: a language model plays phase 'talk'" in err

    def test_more_than_is_shown(self, ends):
        _, err = ends.governor(code=2)
        assert err.endswith("  ... and 4 more\n")

    def test_the_environment_is_named(self, ends):
        _, err = ends.governor("--phase", "named", code=1)
        assert "governor: error: environment 'ends_code:TwoPlayers': it has no player 'z'" in err
