"""`governor check --build`: what is built, and where each fault stands."""

import json
import os
import re
import signal
import subprocess
import sys
import time

import psutil
import pytest
from click.testing import CliRunner

from governor.cli import cli

SLEEP = f"98764.{os.getpid()}"
"""Nobody else's."""
ROOM = f"""
import gymnasium, os, subprocess, sys, threading, time
from gymnasium.spaces import Discrete


class Room(gymnasium.Env):
    def __init__(self, bad="", size=5):
        self.bad = bad
        self.observation_space, self.action_space = Discrete(size), Discrete(2)

    def reset(self, *, seed=None, options=None):
        assert threading.current_thread() is not threading.main_thread(), "as in a run"
        if self.bad == "old":
            return 3
        return (99 if self.bad == "space" else 3), {{}}

    def step(self, action):
        match self.bad:
            case "raise":
                raise RuntimeError("no step")
            case "hang":
                subprocess.Popen(["sleep", "{SLEEP}"], start_new_session=True)
                open("begun", "w").close()
                time.sleep(1000)
            case "exit":
                os._exit(3)
            case "die":
                print("a last word", flush=True)
                os.kill(os.getpid(), 9)
            case "four":
                return 3, 0.0, False, {{}}
            case "leave" if os.fork() == 0:
                time.sleep(1000)
        return 3, 0.0, False, False, {{}}


class Once(gymnasium.Wrapper):
    def __init__(self, env, fails=False):
        super().__init__(env)
        if fails:
            raise OSError("no wrapper")


class Agent:
    def __init__(self, observation_space, action_space, seed, bad=""):
        self.learned, self.bad = 0, bad

    def act(self, observation, *, explore):
        return 7 if self.bad == "act" else 1

    def learn(self, transition):
        if self.bad == "learn":
            raise ValueError("no learning")
        self.learned += 1

    def state_dict(self):
        return {{"learned": object() if self.bad == "save" else self.learned}}

    def load_state_dict(self, state):
        if self.bad == "load":
            raise KeyError("missing")
        assert state["learned"] == 1


class Fixed:
    def __init__(self, **given): ...
    def act(self, observation, *, explore):
        return 0
"""
TURNS = """
from gymnasium.spaces import Discrete


class Game:
    possible_agents = ["a", "b"]

    def __init__(self, actions=2):
        self.actions = actions

    def observation_space(self, agent):
        return Discrete(3)

    def action_space(self, agent):
        return Discrete(2)

    def reset(self, seed=None, options=None):
        self.agents, self.agent_selection = ["a", "b"], "a"
        self.rewards = {"a": 0.0, "b": 0.0}
        self.infos = dict.fromkeys("ab", {"action_mask": [0] * (self.actions - 1) + [1]})

    def agent_iter(self): ...

    def observe(self, agent):
        return 2

    def last(self):
        return 2, 0.0, False, False, self.infos["a"]

    def step(self, action):
        assert action == 1
        self.agent_selection = "b"


class Legal:
    needs_info = True

    def __init__(self, observation_space, action_space, seed): ...

    def act(self, observation, *, explore, worker, player, action_mask):
        return int(action_mask.argmax()), {"of": (worker, player)}

    def learn(self, transition, worker, player):
        assert (transition.extras["of"], transition.step) == ((worker, player), 0)
        assert transition.info["action_mask"]
"""
PLAY = """
name: t
conductors:
  environments: {game: {entry: "turns:Game", params: {actions: ACTIONS}}}
  agents: {legal: {entry: "turns:Legal"}}
phases:
  - {name: play, simulate: {environment: game, agents: [legal], episodes: 3}}
"""
ROOMS = """
from room import Agent
import numpy as np
from gymnasium.spaces import Discrete


class Rooms:
    single_observation_space, single_action_space = Discrete(5), Discrete(2)
    observation_space = action_space = None

    def __init__(self, num_envs, bad=""):
        self.num_envs, self.bad = num_envs, bad

    def reset(self, *, seed=None, options=None):
        return np.array([3]), {}

    def step(self, actions):
        assert actions.tolist() == [1]
        if self.bad == "raise":
            raise RuntimeError("no step")
        return np.array([9 if self.bad == "space" else 3]), np.zeros(1), np.zeros(1, bool), np.zeros(1, bool), {}

    def close(self):
        if self.bad == "close":
            raise OSError("no end")
"""
TOGETHER = """
name: t
conductors:
  environments: {rooms: {entry: "rooms:Rooms", params: {bad: "BAD"}, vector: {num_envs: 8, mode: native}}}
  agents: {learner: {entry: "rooms:Agent"}}
phases:
  - {name: play, simulate: {environment: rooms, agents: [learner], episodes: 3, transport: in_process}}
"""
TEXT = """
class Talk:
    def __init__(self, bad=""):
        self.bad = bad
    def reset(self, seed):
        if self.bad == "reset":
            raise RuntimeError("no reset")
    def get_task_prompt(self):
        return {"prompt": [{"role": 5}], "text": "hello"}.get(self.bad) or [{"role": "user", "content": "hello"}]
    def step(self, action): ...
"""
TALK = """
name: t
conductors:
  environments: {talk: {entry: "talk:Talk", params: {bad: "BAD"}}}
  agents: {model: {entry: "openai:m", params: {base_url: "http://127.0.0.1:9/v1"}}}
phases:
  - {name: play, simulate: {environment: talk, agents: [model], episodes: 3, transport: in_process}}
"""
FILE = """\
name: built
conductors:
  environments:
    room:
      entry: "room:Room"
      params: {bad: "%(room)s"}
      wrappers:
        - "room:Once"
        - {entry: "room:Once", params: {fails: %(wrapper)s}}
    large: {entry: "room:Room", params: {size: 9}}
  agents:
    learner:
      entry: "room:Agent"
      params: {bad: "%(agent)s"}
    fixed: {entry: "room:Fixed"}
phases:
  - {name: first, simulate: {environment: room, agents: [learner], episodes: 3}}
  - {name: second, simulate: {environment: room, agents: [learner], episodes: 9}}
  - {name: third, mode: eval, simulate: {environment: %(third)s, agents: [fixed], episodes: 9}}
"""
GOOD = {"room": "", "wrapper": "false", "agent": "", "third": "room"}


@pytest.fixture
def folder(tmp_path):
    (tmp_path / "room.py").write_text(ROOM)
    (tmp_path / "talk.py").write_text(TEXT)
    return tmp_path


def check(folder, *options, code=78, **changed):
    (folder / "run.yaml").write_text(FILE % {**GOOD, **changed})
    done = CliRunner().invoke(
        cli, ["check", str(folder / "run.yaml"), "--build", *options], prog_name="governor"
    )
    assert done.exit_code == code, done.output
    return done


def test_what_is_built_plays_a_step_and_keeps_what_it_learned(folder):
    done = check(folder, code=0)
    lines = [re.sub(r"[\d.]+m?s$", "1s", line) for line in done.output.splitlines()]
    assert lines[:2] + lines[3:5] + lines[6:] == [
        "phases first, second: environment room, agent learner: good, 1s",
        "  observations Discrete(n=5, start=0), actions Discrete(n=2, start=0)",
        "phase third: environment room, agent fixed: good, 1s",
        "  observations Discrete(n=5, start=0), actions Discrete(n=2, start=0)",
        f"{folder}/run.yaml: no faults; 3 phases, 5 conductors",
    ]
    assert lines[2] == "  built, played a step, learned, saved and loaded its state, closed"
    assert lines[5] == "  built, played a step, closed"


@pytest.mark.parametrize(
    ("changed", "path", "line", "message"),
    [
        ({"room": "old"}, "room.entry", 5, "environment.reset: ValueError: it did not return (observation, info)"),
        ({"room": "space"}, "room.entry", 5, "environment.reset: ValueError: observation: 99 is not in Discrete(5)"),
        ({"room": "raise"}, "room.entry", 5, "environment.step: RuntimeError: no step (room.py:20)"),
        ({"room": "four"}, "room.entry", 5, "environment.step: ValueError: it did not return (observation, reward, "),
        ({"room": "exit"}, "room.entry", 5, "os._exit(3) in environment.step (room.py:26)"),
        ({"room": "die"}, "room.entry", 5, "user code crashes Python (SIGKILL)"),
        ({"wrapper": "true"}, "room.wrappers[1]", 9, "environment 'room:Room': wrappers[1] 'room:Once' does not start: OSE"),
        ({"agent": "act"}, "learner.entry", 13, "agent.act: ValueError: 7 is not in Discrete(2)"),
        ({"agent": "learn"}, "learner.entry", 13, "agent.learn: ValueError: no learning (room.py:53)"),
        ({"agent": "save"}, "learner.entry", 13, "agent.state_dict: TypeError: state_dict()['learned'] is a object, whi"),
        ({"agent": "load"}, "learner.entry", 13, "agent 'room:Agent': load_state_dict: KeyError: 'missing' (room.py:"),
    ],
)  # fmt: skip
def test_a_fault_stands_at_its_line(folder, changed, path, line, message):
    done = check(folder, "--json", **changed)
    document = json.loads(done.stdout)
    assert document["ok"] is False
    found = document["faults"][0]
    assert found["path"].endswith(path)
    assert found["line"] == line
    assert found["message"].startswith(f"phase first: {message}")
    assert document["built"][0]["fault"] in found["message"]
    if changed == {"room": "die"}:
        assert found["traceback"] == "a last word"


@pytest.mark.parametrize(
    ("actions", "code", "said"),
    [
        (2, 0, "  built, played a step, learned, closed\n"),
        (
            3,
            78,
            "environment.reset: ValueError: player 'a': action_mask: shape (3,) where there are 2 actions",
        ),
    ],
)
def test_players_that_take_turns(folder, actions, code, said):
    (folder / "turns.py").write_text(TURNS)
    (folder / "run.yaml").write_text(PLAY.replace("ACTIONS", str(actions)))
    done = CliRunner().invoke(cli, ["check", str(folder / "run.yaml"), "--build"], prog_name="governor")
    assert done.exit_code == code, done.output
    assert said in done.output
    assert "  player b: observations Discrete(n=3, start=0), actions Discrete(n=2, start=0)\n" in done.output


@pytest.mark.parametrize(
    ("bad", "said"),
    [
        ("", "  built, played a step, learned, saved and loaded its state, closed"),
        ("raise", "environment.step: RuntimeError: no step (rooms.py:"),
        ("space", "environment.step: ValueError: observation: 9 is not in Discrete(5)"),
        ("close", "environment.close: OSError: no end (rooms.py:"),
    ],
)
def test_a_vector_that_steps_by_itself_is_built_with_one_environment(folder, bad, said):
    (folder / "rooms.py").write_text(ROOMS)
    (folder / "run.yaml").write_text(TOGETHER.replace("BAD", bad))
    done = CliRunner().invoke(cli, ["check", str(folder / "run.yaml"), "--build"], prog_name="governor")
    assert done.exit_code == (78 if bad else 0), done.output
    assert said in done.output


def test_a_traceback_is_shown_once(folder):
    done = check(folder, room="raise")
    assert done.stderr.count('raise RuntimeError("no step")') == 1
    assert "2 faults in the run file" in done.stderr


def test_an_agent_that_gets_other_spaces_in_a_later_phase_is_refused(folder):
    (folder / "run.yaml").write_text(
        (FILE % {**GOOD, "third": "large"})
        .replace("agents: [fixed]", "agents: [learner]")
        .replace("mode: eval, ", "")
    )
    done = CliRunner().invoke(cli, ["check", str(folder / "run.yaml"), "--build", "--json"])
    [fault] = json.loads(done.stdout)["faults"]
    assert fault["path"] == "conductors.agents.learner.entry"
    assert fault["message"] == (
        "phase third: agent 'learner' was built for other spaces in phase first: observations Discrete(n=5, start=0) and "
        "actions Discrete(n=2, start=0), and now gets Discrete(n=9, start=0) and Discrete(n=2, start=0)"
    )


def sleepers():
    return [each for each in psutil.process_iter(["cmdline"]) if each.info["cmdline"] == ["sleep", SLEEP]]


def test_a_hang_ends_at_its_limit_and_leaves_no_process(folder):
    done = check(folder, "--seconds", "2", room="hang")
    assert "phase first: environment.step does not end within 2 s (room.py:24)" in done.stderr
    assert "time.sleep(1000)" in done.stderr
    assert (folder / "begun").exists()
    assert sleepers() == []


def test_what_is_left_behind_is_killed(folder):
    check(folder, code=0, room="leave")
    left = [each for each in psutil.process_iter(["cwd"]) if each.info["cwd"] == str(folder)]
    assert left == []


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGINT])
def test_nothing_is_left_when_the_check_is_killed(folder, number):
    (folder / "run.yaml").write_text(FILE % {**GOOD, "room": "hang"})
    (folder / "tmp").mkdir()
    checking = subprocess.Popen(
        [sys.executable, "-m", "governor", "check", "run.yaml", "--build"],
        cwd=folder,
        env={**os.environ, "TMPDIR": str(folder / "tmp")},
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    while not (folder / "begun").exists():
        assert checking.poll() is None
        time.sleep(0.02)  # a file appears without an event
    below = [*psutil.Process(checking.pid).children(recursive=True), *sleepers()]
    assert len(below) >= 3
    checking.send_signal(number)
    checking.wait()
    _, alive = psutil.wait_procs(below, timeout=30)
    assert alive == []
    assert [*(folder / "tmp").iterdir()] == []


def test_a_text_environment_is_reset_and_no_model_is_asked(folder):
    def said(bad, code):
        (folder / "run.yaml").write_text(TALK.replace("BAD", bad))
        done = CliRunner().invoke(cli, ["check", str(folder / "run.yaml"), "--build"])
        assert done.exit_code == code, done.output
        return done.output

    assert "made the client of the model, which was not asked, built, reset, gave a prompt\n" in said("", 0)
    assert "environments.talk.entry: phase play: environment.reset: RuntimeError: no reset (talk.py:" in said(
        "reset", 78
    )
    assert "environments.talk.entry: phase play: get_task_prompt: message 0, " in said("prompt", 78)
    assert "get_task_prompt: 'hello' is no list of messages" in said("text", 78)


def test_nothing_is_built_while_there_are_faults(folder):
    done = check(folder, third="rom")
    assert "did you mean 'room'?" in done.stderr
    assert done.stdout == ""


def test_seconds_are_for_build(folder):
    done = CliRunner().invoke(cli, ["check", str(folder / "run.yaml"), "--seconds", "3"])
    assert done.exit_code == 2
