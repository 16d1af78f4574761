"""What the runs of the campaign are made of. Each start of a task leaves a line in `marks`, in one write."""

import os
import time
from pathlib import Path


def _mark(context):
    line = f"{context.task} {context.run} {os.getpid()}\n".encode()
    file = os.open(Path(context.run_folder) / "marks", os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)
    try:
        os.write(file, line)
    finally:
        os.close(file)


def _starts(context):
    """How often this run of the task has been started."""
    wanted = f"{context.task} {context.run} "
    return sum(
        line.startswith(wanted) for line in (Path(context.run_folder) / "marks").read_text().splitlines()
    )


def nap(context, seconds):
    _mark(context)
    time.sleep(seconds)
    return {"seconds": seconds}


def flaky(context, seconds):
    """Raises when it is started for the first time."""
    _mark(context)
    time.sleep(seconds)
    if _starts(context) == 1:
        raise ConnectionError("the first time it never works")
    return {"starts": float(_starts(context))}


def crash(context, seconds):
    """Takes its process along when it is started for the first time."""
    _mark(context)
    time.sleep(seconds)
    if _starts(context) == 1:
        os._exit(7)
    return "came through"


def large(context, seconds):
    """More than fits a record: the value is a file of the run."""
    _mark(context)
    time.sleep(seconds)
    return {"numbers": [float(number) for number in range(20_000)]}


class Walker:
    """Walks at random; what it has learned is how many steps it took. `pace` is seconds for each action."""

    def __init__(self, *, observation_space, action_space, seed, pace=0.0):
        action_space.seed(seed)
        self._space = action_space
        self._pace = pace
        self.steps = 0

    def act(self, observation, *, explore):
        time.sleep(self._pace)
        return int(self._space.sample())

    def learn(self, transition):
        self.steps += 1

    def state_dict(self):
        return {"steps": self.steps}

    def load_state_dict(self, state):
        self.steps = state["steps"]
