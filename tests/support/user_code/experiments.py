"""Experiments as users of AgentLab write them, good and bad. Runners import this module too."""

import asyncio
import json
import os
import signal
import subprocess
import sys
import threading
import time
from dataclasses import dataclass, field
from importlib import import_module
from pathlib import Path
from typing import Any


@dataclass
class EnvArgs:
    max_steps: int | None = 10


@dataclass
class Exp:
    """Calls the method with this name; each execution writes a line to `story`."""

    exp_id: Any
    deed: str = "give"
    arg: Any = None
    depends_on: Any = ()
    story: Path | None = None
    env_args: EnvArgs | None = field(default_factory=EnvArgs)
    episode_timeout: float | None = None

    def run(self):
        self.tell("begun", pid=os.getpid())
        result = getattr(self, self.deed)()
        self.tell("ended")
        return result

    def tell(self, what, **more):
        if self.story is not None:
            with self.story.open("a") as file:
                file.write(json.dumps({"exp": self.exp_id, "what": what, "at": time.time(), **more}) + "\n")

    def give(self):
        return self.arg

    def pid(self):
        """That of its runner."""
        return os.getpid()

    def meet(self):
        """That of its runner, once so many that meet in a folder are there: each has a runner of its own."""
        folder, number = self.arg
        (folder / str(self.exp_id)).touch()
        while len(list(folder.iterdir())) < number:
            time.sleep(0.01)
        return os.getpid()

    def leave_child(self):
        """Returns the pid of a process in a session of its own, which goes on."""
        return subprocess.Popen(["sleep", "600"], start_new_session=True).pid

    def call(self):
        """What the function ``module:name`` returns."""
        module, name = self.arg.split(":")
        return getattr(import_module(module), name)()

    def itself(self):
        return self

    def fail(self):
        raise ValueError(self.arg or "bad luck")

    def sleep(self):
        time.sleep(self.arg)

    def hold_gil(self):
        """Holds the GIL in C for years; no signal is handled."""
        sum(range(10**15))

    def killed(self):
        os.kill(os.getpid(), signal.SIGKILL)

    def leave(self):
        sys.exit(3)

    def exist(self):
        """Succeeds when the file exists."""
        return Path(self.arg).read_text()

    def make(self):
        """Returns an object that can be made on a runner only."""
        return {"unreadable": Unreadable, "generator": lambda: (n for n in [1])}[self.arg]()

    def count(self):
        """Shows what an earlier execution left in this object."""
        self.arg = (self.arg or 0) + 1
        return self.arg


class Bare:
    """An experiment without env_args and depends_on."""

    def __init__(self, exp_id):
        self.exp_id = exp_id

    def run(self):
        return self.exp_id


class Leaving(Bare):
    """Leaves a thread that reports, and a process, which with `path` that thread starts: its pid is in the file then."""

    def __init__(self, exp_id, path=None):
        super().__init__(exp_id)
        self.path = path

    def run(self, context):
        child = 0 if self.path else self.start()

        def report():
            time.sleep(0.1)
            if self.path:
                self.path.write_text(str(self.start()))
            while True:
                context.tell(at=time.time())
                time.sleep(0.02)

        threading.Thread(target=report, daemon=True).start()
        return os.getpid(), child

    def start(self):
        return subprocess.Popen(["sleep", "600"]).pid


class Later(Bare):
    run = None

    async def arun(self):
        await asyncio.sleep(0)
        return "later"


class Sums(Bare):
    """Uses the results that it depends on."""

    def run(self, inputs, context):
        return {"inputs": inputs, "task": context.task}


class LaterSums(Bare):
    run = None

    async def arun(self, inputs, context):
        await asyncio.sleep(0)
        return {"inputs": inputs, "task": context.task}


class Where(Bare):
    """Whether it runs in the main thread, and without a running event loop."""

    def run(self):
        is_main = threading.current_thread() is threading.main_thread()
        return is_main, asyncio._get_running_loop() is None


class Unsendable(Bare):
    def __reduce__(self):
        raise RuntimeError("no pickle of mine")


class Unreadable:
    """A result that the caller cannot read."""

    def __init__(self):
        self.home = os.getpid()

    def __setstate__(self, state):
        raise OSError("another machine's result")


def story_of(path):
    return [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []
