"""An agent and a benchmark as AgentLab's users write them: three steps without a browser, and what goes wrong once."""

import os
import signal
import time
from dataclasses import dataclass
from pathlib import Path

import gymnasium as gym
from agentlab.agents.agent_args import AgentArgs
from agentlab.benchmarks.abstract_env import AbstractBenchmark, AbstractEnvArgs
from bgym import Agent, HighLevelActionSet

ONCE = Path(os.environ.get("ONCE", "."))
"""Has a line for each episode, in a file by the name of its task."""


class Env(gym.Env):
    def __init__(self, task, folder):
        self.task, self.steps, self.folder = task, 0, folder

    def reset(self, seed=None):
        with (ONCE / self.task).open("a") as file:
            file.write(f"{os.getpid()}\n")
        return {"steps": 0}, {}

    def step(self, action):
        self.steps += 1
        if len((ONCE / self.task).read_text().splitlines()) == 1:
            match self.task:
                case "errs":
                    raise ValueError("bad page")
                case "dies":
                    os.kill(os.getpid(), signal.SIGKILL)
                case "cut":
                    (self.folder / "summary_info.json").write_text('{"n_steps": 3, "err')
                    os.kill(os.getpid(), signal.SIGKILL)
                case "hangs":
                    time.sleep(600)
        now = time.time()
        info = {"action_exec_start": now, "action_exec_stop": now, "action_exec_timeout": 0}
        return {"steps": self.steps}, 1.0, self.steps == 3, False, info


@dataclass
class EnvArgs(AbstractEnvArgs):
    task_name: str
    task_seed: int = 0
    max_steps: int = 3

    def make_env(self, action_mapping, exp_dir, **more):
        return Env(self.task_name, exp_dir)


class Player(Agent):
    action_set = HighLevelActionSet(["chat"])

    def obs_preprocessor(self, obs):
        return obs

    def get_action(self, obs):
        return "noop()", {}


@dataclass
class PlayerArgs(AgentArgs):
    agent_name: str = "player"

    def make_agent(self):
        return Player()


class Benchmark(AbstractBenchmark):
    name: str = "tiny"
    needs: dict[str, list[str]]

    def dependency_graph_over_tasks(self):
        return self.needs


def benchmark(**needs):
    """Tasks with those that they depend on."""
    return Benchmark(env_args_list=[EnvArgs(name) for name in needs], needs=needs)


AGENT = PlayerArgs()
BENCHMARK = benchmark(one=[], two=["one"])


def meet():
    """Returns once it runs in four processes."""
    (ONCE / f"met_{os.getpid()}").touch()
    while len(list(ONCE.glob("met_*"))) < 4:
        time.sleep(0.01)
