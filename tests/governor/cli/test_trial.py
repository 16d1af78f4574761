"""`governor try`: one task or one episode in the foreground, in a process of its own, as a person starts it."""

import contextlib
import os
import pty
import re
import signal
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from click.testing import CliRunner

from governor.cli import cli

REPOSITORY = Path(__file__).parents[3]
CODE = '''
import os, sys
from pathlib import Path
import gymnasium, numpy as np
from governor.tasks import TaskResult

class Corridor:
    """Walk to the right; `fault` is what goes wrong in the third step."""
    observation_space = gymnasium.spaces.Box(-1.0, 1.0, (2,), np.float32)
    action_space = gymnasium.spaces.Discrete(2)

    def __init__(self, fault=""):
        if fault == "build":
            raise RuntimeError("no corridor")
        self.fault = fault

    def reset(self, *, seed=None):
        print("seed", seed)
        self.at = 0
        return self._seen(), {}

    def step(self, action):
        self.at += 1
        if self.at == 3:
            self.go_wrong()
        return self._seen(), 1.0, self.at == 4, False, {}

    def go_wrong(self):
        if self.fault == "raise":
            raise ValueError("a wall")
        if self.fault == "break":
            place = self.at
            breakpoint()
            print("went on from", place)
        if self.fault == "hang":
            print("hanging", flush=True)
            while True:
                pass
        if self.fault == "exit":
            sys.exit(3)

    def _seen(self):
        return np.array([self.at / 4, np.nan if self.fault == "nan" and self.at == 3 else 0.0], np.float32)

class Walker:
    def __init__(self, observation_space, action_space, seed):
        self.steps = 0
    def act(self, observation, *, explore):
        return 1
    def learn(self, transition):
        self.steps += 1
    def state_dict(self):
        return {"steps": self.steps}
    def load_state_dict(self, state):
        self.steps = state["steps"]
        print("begins at", self.steps)

def load(name, context):
    context.log.info("reads %s", name)
    return {"rows": (1, 2), "text": Path(name).read_text()}

def fit(inputs, context):
    return TaskResult({"rows": inputs["load"]["rows"], "run": context.run_id}, {"loss": 0.5})

async def report(inputs, context):
    print("cwd", os.getcwd())
    (context.run_folder / "report.txt").write_text("x")
    return [inputs["fit"], context.deadline is not None, context.model]

def raises(depth=2):
    if depth:
        raises(depth - 1)
    raise KeyError("no key")

def asks():
    answer = 6
    breakpoint()
    return answer * 7

def cannot_be_stored():
    return (number for number in range(3))
'''
RUN = """\
name: trial
seed: 7
models: ["http://one", "http://two"]
conductors:
  environments:
    corridor: {entry: "trial_code:Corridor", params: {fault: FAULT}, vector: 2, pool: 4}
    inside: {entry: "trial_code:Corridor"}
  agents:
    walker: {entry: "trial_code:Walker"}
    other: {entry: "trial_code:Walker"}
phases:
  - name: train
    simulate: {environment: corridor, agents: [walker], episodes: 20, workers: 2, max_steps: 9, episode_timeout: 30s}
    evaluate: {every: 10, episodes: 5}
  - name: play
    mode: eval
    simulate: {environment: inside, agents: [other], episodes: 1, transport: in_process}
  - name: analyse
    tasks:
      - {id: load, call: "trial_code:load", args: {name: data.txt}}
      - {id: fit, call: "trial_code:fit", depends_on: [load], repeat: 3}
      - {id: report, call: "trial_code:report", depends_on: [fit], timeout: 60s}
      - {id: raises, call: "trial_code:raises"}
      - {id: asks, call: "trial_code:asks"}
      - {id: absent, call: "no_such_module:f"}
      - {id: broken, call: "broken_code:f"}
      - {id: odd, call: "trial_code:cannot_be_stored"}
"""


class Trial:
    """A run file and its code in a folder; `governor` starts the verb from another one."""

    def __init__(self, folder):
        self.folder, self.elsewhere = folder / "code", folder / "elsewhere"
        self.temporary = folder / "tmp"
        self.started = []
        for each in (self.folder, self.elsewhere, self.temporary):
            each.mkdir()
        (self.folder / "trial_code.py").write_text(CODE)
        (self.folder / "broken_code.py").write_text("import trial_code\n\nvalue = 1 / 0\n")
        (self.folder / "data.txt").write_text("hello")
        self.fault("''")
        self.environ = {
            **os.environ,
            "PYTHONPATH": str(REPOSITORY),
            "TMPDIR": str(self.temporary),
            "COLUMNS": "80",
        }

    def fault(self, name):
        (self.folder / "run.yaml").write_text(RUN.replace("FAULT", name))

    def start(self, *arguments, **streams):
        command = [sys.executable, "-m", "governor", "try", "../code/run.yaml", *map(str, arguments)]
        process = subprocess.Popen(command, cwd=self.elsewhere, env=self.environ, text=True, **streams)
        self.started.append(process)
        return process

    def close(self):
        """Ends what a test that failed has left."""
        for process in self.started:
            process.kill()
            process.wait()

    def governor(self, *arguments, code=0):
        """What it prints: standard output, standard error."""
        process = self.start(
            *arguments, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE
        )
        out, err = process.communicate(timeout=60)
        assert process.returncode == code, (out, err)
        return out, err

    def on_terminal(self, *arguments, typed):
        """What it prints on a terminal, and its exit code; `typed` is typed ahead."""
        ours, theirs = pty.openpty()
        process = self.start(*arguments, stdin=theirs, stdout=theirs, stderr=theirs)
        os.close(theirs)
        os.write(ours, typed.encode())
        said = bytearray()
        try:
            while piece := os.read(ours, 4096):
                said += piece
        except OSError:  # the other end is closed
            pass
        os.close(ours)
        return said.decode().replace("\r\n", "\n"), process.wait(timeout=60)


@pytest.fixture
def trial(tmp_path):
    with contextlib.closing(Trial(tmp_path)) as trial:
        yield trial


class TestTask:
    def test_it_gets_what_it_depends_on_in_the_form_of_a_run(self, trial):
        out, err = trial.governor("--task", "fit", "--run", "2")
        assert "{'rows': [1, 2], 'run': 2}\nmetrics: loss 0.5\n" in out  # a tuple comes as a list
        assert "INFO: reads data.txt" in err
        assert err.index("task load, on which fit depends") < err.index("task fit, run 2 returned after")
        assert list(trial.temporary.iterdir()) == []

    def test_repeated_tasks_come_as_a_list_and_a_folder_that_is_written_to_stays(self, trial):
        out, err = trial.governor("--task", "report")
        assert f"cwd {trial.folder}\n" in out
        every = re.findall(r"'run': (\d)", out)
        assert every == ["0", "1", "2"]
        assert "True" in out
        assert "'http://one'" in out
        [kept] = trial.temporary.iterdir()
        assert f"the task has written to its run folder, {kept}" in err
        assert (kept / "report.txt").exists()

    def test_a_folder_can_be_given(self, trial):
        trial.governor("--task", "report", "--folder", ".")
        assert (trial.elsewhere / "report.txt").exists()
        assert list(trial.temporary.iterdir()) == []

    def test_the_traceback_is_the_users(self, trial):
        out, err = trial.governor("--task", "raises", code=1)
        assert out == ""
        assert "governor: task raises: it raised\nTraceback (most recent call last):\n" in err
        assert err.count("in raises\n") == 3
        assert err.endswith("KeyError: 'no key'\n")
        assert "governor/" not in err

    def test_import_errors(self, trial):
        _, err = trial.governor("--task", "absent", code=1)
        assert err.endswith("ModuleNotFoundError: No module named 'no_such_module'\n")
        _, err = trial.governor("--task", "broken", code=1)
        assert 'broken_code.py", line 3' in err
        assert err.endswith("ZeroDivisionError: division by zero\n")
        assert "frozen" not in err

    def test_a_value_that_no_run_could_keep(self, trial):
        _, err = trial.governor("--task", "odd", code=1)
        assert "the returned generator cannot be serialised" in err

    @pytest.mark.parametrize("debugger", ["", "ray.util.rpdb.set_trace"])
    def test_a_breakpoint(self, trial, monkeypatch, debugger):
        monkeypatch.setenv("PYTHONBREAKPOINT", debugger)  # Ray sets it for what its user starts later
        said, code = trial.on_terminal("--task", "asks", typed="p answer\nanswer = 7\nc\n")
        assert code == 0
        assert "(Pdb) " in said
        assert "\n6\n" in said
        assert "\n49\n" in said

    def test_post_mortem(self, trial):
        said, code = trial.on_terminal("--task", "raises", "--pdb", typed="p depth\nup\np depth\nq\n")
        assert code == 1
        assert re.search(r"\n0\n.*\n1\n", said, re.DOTALL)


class TestEpisode:
    def test_it_has_the_seed_of_the_run_and_shows_its_steps(self, trial):
        from governor.episodes.rules.seeds import episode_seed

        out, err = trial.governor("--phase", "train", "--episode", "3", "--steps")
        seed = episode_seed(7, 0, 3)
        assert f"episode 3 of phase train: seed {seed}, the agent learns" in err
        lines = out.splitlines()
        assert lines[0] == f"seed {seed}"
        assert lines[1].split() == ["step", "observation", "action", "reward"]
        assert lines[2].split() == ["1", "[0", "0]", "1", "1"]
        assert lines[5].split() == ["4", "[0.75", "0]", "1", "1", "terminated"]
        assert lines[6].startswith("terminated after 4 steps, return 4, ")
        assert max(map(len, lines)) <= 80
        assert list(trial.temporary.iterdir()) == []

    def test_values_with_parts_are_on_one_line(self):
        from governor.cli.trial.command import _in_a_line

        view = np.zeros((2, 2), np.uint8)
        assert _in_a_line({"view": view, "words": ("a\nb", 3, np.array([0.5, 1]), np.zeros((0, 2)))}) == (
            "{view: uint8[2, 2], mean 0, words: (a\\nb, 3, [0.5 1], float64[0, 2])}"
        )

    def test_an_evaluation_and_a_phase_in_process(self, trial):
        _, err = trial.governor("--phase", "train", "--episode", "20")
        assert "an evaluation, seed " in err
        assert "the agent does not learn" in err
        out, _ = trial.governor("--phase", "play")
        assert "terminated after 4 steps" in out

    def test_an_agent_begins_from_a_state(self, trial):
        from governor.episodes.records import state_file

        state_file.save(trial.elsewhere / "walker.state", {"steps": 41})
        for given in ("walker.state", "other=walker.state"):
            out, _ = trial.governor("--phase", "play", "--state", given)
            assert "begins at 41" in out

    @pytest.mark.parametrize(
        ("fault", "said"),
        [
            ("raise", "governor: episode 0, step 3, environment.step: it raised\nTraceback"),
            ("build", "environment 'trial_code:Corridor' does not start: it raised\nTraceback"),
            ("exit", "SystemExit: 3"),
            ("nan", "ValueError: observation: it holds NaN"),
        ],
    )
    def test_faults_of_the_environment(self, trial, fault, said):
        trial.fault(fault)
        _, err = trial.governor("--phase", "train", code=1)
        assert said in err
        assert "governor/episodes" not in err
        if fault == "raise":
            assert err.endswith('raise ValueError("a wall")\nValueError: a wall\n')

    def test_a_breakpoint_in_a_step(self, trial):
        trial.fault("break")
        said, code = trial.on_terminal("--phase", "train", typed="p place\nn\nc\n")
        assert code == 0
        assert "\n3\n" in said
        assert "went on from 3" in said
        assert "terminated after 4 steps" in said

    def test_the_debugger_is_left(self, trial):
        trial.fault("break")
        said, code = trial.on_terminal("--phase", "train", typed="q\n")
        assert code == 130
        assert "the debugger was left" in said

    def test_ctrl_c_shows_where_it_was(self, trial):
        trial.fault("hang")
        process = trial.start("--phase", "train", stdout=subprocess.PIPE, stderr=subprocess.PIPE)
        while process.stdout.readline() != "hanging\n":
            assert process.poll() is None
        process.send_signal(signal.SIGINT)
        _, err = process.communicate(timeout=30)
        assert process.returncode == 130
        assert "episode 0, step 3, environment.step: interrupted" in err
        assert "in go_wrong" in err


@pytest.mark.parametrize(
    ("arguments", "code", "said"),
    [
        ((), 2, "--phase train --episode N   (episodes 0 to 29)"),
        ((), 2, "--task fit --run N   (runs 0 to 2)"),
        (("--task", "fitt"), 2, "no task 'fitt'; did you mean 'fit'?"),
        (("--task", "fit", "--phase", "train"), 2, "no task 'fit' in phase 'train'"),
        (("--task", "fit", "--run", "3"), 2, "task 'fit' has runs 0 to 2, not 3"),
        (("--phase", "trian"), 2, "no phase 'trian'; did you mean 'train'?"),
        (("--phase", "train", "--episode", "30"), 2, "phase 'train' has episodes 0 to 29, not 30"),
        (("--phase", "analyse"), 2, "phase 'analyse' has no episodes, it has tasks: --task load"),
        (("--phase", "play", "--state", "gone"), 2, "--state: there is no file "),
        (("--task", "fit", "--steps"), 2, "are for episodes"),
        (("--phase", "train", "--run", "1"), 2, "are for a --task"),
    ],
)
def test_what_is_not_there(trial, arguments, code, said):
    done = CliRunner().invoke(cli, ["try", str(trial.folder / "run.yaml"), *arguments])
    assert (done.exit_code, done.stdout) == (code, "")
    assert said in done.stderr


def test_faults_of_the_run_file_are_those_of_check(trial):
    (trial.folder / "run.yaml").write_text("name: x\nsede: 1\nphases: []\n")
    _, err = trial.governor("--task", "x", code=78)
    assert "run.yaml:2: sede: " in err


def test_secrets_are_those_of_the_user(trial):
    (trial.folder / "run.yaml").write_text("secrets: {PATH_OF_DATA: mine}\n" + RUN.replace("FAULT", "''"))
    folder = trial.folder / "config" / "run-governor" / "secrets"
    folder.mkdir(parents=True)
    trial.environ |= {"XDG_CONFIG_HOME": str(trial.folder / "config"), "CREDENTIALS_DIRECTORY": ""}
    _, err = trial.governor("--task", "load", code=2)
    assert "there is no secret 'mine': no file" in err
    (folder / "mine").write_text("data/of/mine")
    (folder / "mine").chmod(0o600)
    with (trial.folder / "trial_code.py").open("a") as file:
        file.write("\n\ndef load(name, context):\n    return os.environ['PATH_OF_DATA']\n")
    out, _ = trial.governor("--task", "load")
    assert "data/of/mine" in out
