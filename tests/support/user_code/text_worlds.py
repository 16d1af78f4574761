"""Text environments, good and bad, that run in other processes."""

import asyncio
import ctypes
import os
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

import numpy as np

PROMPT = [{"role": "system", "content": "play"}, {"role": "user", "content": "go"}]


class Corridor:
    """Terminates after `length` steps. The action may be the name of a fault."""

    def __init__(self, length=3, folder=None):
        self.length = length
        self.folder = folder and Path(folder)
        self.done = 0

    def get_task_prompt(self):
        return PROMPT

    def step(self, action):
        self.done += 1
        if hasattr(self, f"do_{action}"):
            return getattr(self, f"do_{action}")()
        return {
            "reward": 1.0,
            "terminated": self.done >= self.length,
            "truncated": False,
            "info": {"pid": os.getpid()},
        }

    def close(self):
        if self.folder:
            (self.folder / "closed").write_text(str(os.getpid()))

    def do_tuple(self):
        return 0.5, False, True, {}

    def do_numpy(self):
        return np.float32(0.5), np.bool_(True), np.False_, {"seen": np.arange(3), "kinds": {1}, "of": object}

    def do_nan(self):
        return float("nan"), False, False, {}

    def do_shape(self):
        return "much", False, False, {}

    def do_five(self):
        return None, 1.0, False, False, {}

    def do_keys(self):
        return 1.0, False, False, {(1, 2): 3}

    def do_circle(self):
        info = {}
        info["info"] = info
        return 1.0, False, False, info

    def do_raise(self):
        raise ValueError("no such\ndoor")

    def do_exit(self):
        sys.exit(3)

    def do_print(self):
        print("to standard output")  # noqa: T201
        return 1.0, False, False, {}

    def do_asyncio(self):
        async def inner():
            return 1.0, False, False, {}

        return asyncio.run(inner())

    def do_die(self):
        os._exit(5)

    def do_crash(self):
        os.kill(os.getpid(), signal.SIGSEGV)

    def do_hang(self):
        time.sleep(1000)

    def do_gil(self):
        ctypes.PyDLL(None).usleep(1000 * 10**6)

    def do_stubborn(self):
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
        self.close = self.do_hang
        return 1.0, False, False, {}

    def do_child(self, *, session=False):
        child = subprocess.Popen(
            [sys.executable, "-c", "import signal; signal.pause()"], start_new_session=session
        )
        return 1.0, False, False, {"child": child.pid}

    def do_stop(self):
        os.killpg(0, signal.SIGSTOP)

    def do_orphan(self):
        code = "import subprocess, sys; print(subprocess.Popen([sys.executable, '-c', '']).pid)"
        pid = int(subprocess.check_output([sys.executable, "-c", code]))
        return 1.0, False, False, {"child": pid}

    def do_stranger(self):
        return self.do_child(session=True)

    def do_fork(self):
        pid = os.fork()
        if pid == 0:
            os.setsid()
            signal.alarm(10)  # its grandparent cannot kill it
            signal.pause()
        os._exit(6)

    def do_thread(self):
        threading.Thread(target=self.do_hang).start()
        return 1.0, False, False, {}

    def do_cut(self):
        os.closerange(3, os.sysconf("SC_OPEN_MAX"))
        return 1.0, False, False, {}


class Talker:
    """Async; its own task keeps counting between calls."""

    def __init__(self):
        self.goes_on, self.turns = asyncio.Event(), asyncio.Event()
        self.task = None

    async def get_task_prompt(self):
        self.task = self.task or asyncio.create_task(self.tick())
        return [*PROMPT, {"role": "user", "content": "and now"}]

    async def tick(self):
        await self.goes_on.wait()
        self.turns.set()

    async def step(self, action):
        asyncio.get_running_loop().call_later(0.01, self.goes_on.set)  # between this call and the next one
        if action == "hang":
            await asyncio.Event().wait()
        if action == "wait":
            await self.turns.wait()
        return {
            "reward": 1,
            "terminated": action == "wait",
            "truncated": False,
            "info": {"done": self.task.done()},
        }


class Bad:
    def __init__(self, how):
        if how == "raise":
            raise OSError("no\ndisk")
        if how == "exit":
            sys.exit(4)
        if how == "die":
            os._exit(4)
        if how == "hang":
            time.sleep(1000)


def make(length):
    return Corridor(length)
