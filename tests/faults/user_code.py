"""User code of the campaign's runs. Each start of a task writes a line to `marks`, in one write.

Tasks, environment and agent start children in other sessions, with our environment and with an empty one, as a game server
may be started. Each child writes a line to the run's register before it does anything else, and so does each runner.
"""

import itertools
import os
import subprocess
import time
from pathlib import Path

CHILD = 'read -r stat < /proc/$$/stat; printf "%s %s;\\n" "$1" "$stat" >> "$2"; exec sleep 600'
"""One write; `exec` keeps the pid."""
RESETS = 30
"""Resets of the environment between two pairs of children."""


def _append(path, line):
    file = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)
    try:
        os.write(file, line.encode())
    finally:
        os.close(file)


def _start_children(whose, register):
    for environ in (None, {}):
        subprocess.Popen(
            ["/bin/sh", "-c", CHILD, "sh", f"child-of-{whose}", register],
            env=environ,
            start_new_session=True,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )


def _mark(context, register):
    _append(register, f"runner {Path('/proc/self/stat').read_text().strip()};\n")
    _append(Path(context.run_folder) / "marks", f"{context.task} {context.run} {os.getpid()}\n")
    _start_children("task", register)


def _starts(context):
    """Number of starts of this run of the task."""
    wanted = f"{context.task} {context.run} "
    return sum(
        line.startswith(wanted) for line in (Path(context.run_folder) / "marks").read_text().splitlines()
    )


def nap(context, seconds, register):
    _mark(context, register)
    time.sleep(seconds)
    return {"seconds": seconds}


def flaky(context, seconds, register):
    """Raises at its first start."""
    _mark(context, register)
    time.sleep(seconds)
    if _starts(context) == 1:
        raise ConnectionError("the first time it never works")
    return {"starts": float(_starts(context))}


def crash(context, seconds, register):
    """Ends its process at its first start."""
    _mark(context, register)
    time.sleep(seconds)
    if _starts(context) == 1:
        os._exit(7)
    return "came through"


def large(context, seconds, register):
    """A value larger than a record: it is stored as a file of the run."""
    _mark(context, register)
    time.sleep(seconds)
    return {"numbers": [float(number) for number in range(20_000)]}


def lake(*, register):
    """A frozen lake that starts children when it is made, and in some episodes."""
    import gymnasium  # task runners do not need it

    class Lake(gymnasium.Wrapper):
        def __init__(self):
            super().__init__(gymnasium.make("FrozenLake-v1"))
            self._resets = itertools.count()

        def reset(self, **options):
            if next(self._resets) % RESETS == 0:
                _start_children("environment", register)
            return super().reset(**options)

    return Lake()


class Walker:
    """Acts at random; its state is the number of its steps. `pace`: seconds for each action."""

    def __init__(self, *, observation_space, action_space, seed, register, pace=0.0):
        action_space.seed(seed)
        _start_children("agent", register)
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
