"""What users do in tasks, good and bad."""

import asyncio
import ctypes
import os
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

from governor.tasks import TaskResult


def nothing():
    return None


def give(value):
    return value


def add(inputs, plus=0):
    return sum(inputs.values()) + plus


def mine(context):
    return context.run_id


def collect(inputs):
    return inputs


def tell(context):
    context.log.warning("seen %s", context.task)
    left = None if context.deadline is None else context.deadline - time.time()
    return [context.run, context.task, context.run_id, context.attempt, left, str(context.run_folder)]


def measured():
    return TaskResult([1, 2], {"loss": 0.5}, b"\x00raw")


def scores():
    return {"accuracy": 0.75, "n": 3}


async def later(value):
    await asyncio.sleep(0)
    return value


class Work:
    def __init__(self, base):
        self.base = base

    def run(self, context):
        return self.base + context.attempt


class AsyncWork:
    async def arun(self):
        await asyncio.sleep(0)
        return "async"


def fail(text="bad luck"):
    raise ValueError(text)


def flaky(context):
    if context.attempt == 1:
        raise RuntimeError("first time")
    return context.attempt


def leave(code):
    sys.exit(code)


def interrupt():
    raise KeyboardInterrupt


def drop_dead(code):
    os._exit(code)


def shoot(number):
    os.kill(os.getpid(), number)
    time.sleep(60)


def lock():
    return threading.Lock()


def big(size):
    return "x" * size


def array(size):
    import numpy as np

    return np.arange(size)


def total(inputs):
    return float(sum(inputs["a"]))


def sleep(seconds=60):
    time.sleep(seconds)
    return seconds


def spin():
    while True:
        pass


def hold_the_gil(seconds=60):
    ctypes.PyDLL(None).sleep(seconds)


def swallow():  # what nobody should write is what is tested
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    while True:
        try:  # noqa: SIM105  # the deed itself
            time.sleep(1)
        except BaseException:  # noqa: BLE001  # the deed itself
            pass


def wait_on_child(note):
    child = subprocess.Popen(["sleep", "1000"])
    Path(note).write_text(str(child.pid))
    child.wait()


def leave_a_grandchild(note):
    """A daemon of its own session, whose parent is dead."""
    script = f"sleep 1000 & echo $! > {note}.part; mv {note}.part {note}"
    subprocess.run(["setsid", "sh", "-c", script], check=True)
    time.sleep(60)


def meet(folder, name, other):
    """Returns only when the other runs at the same time."""
    (Path(folder) / name).touch()
    end = time.monotonic() + 20
    while not (Path(folder) / other).exists():
        if time.monotonic() > end:
            raise TimeoutError
        time.sleep(0.01)
    return name


def pid():
    return os.getpid()


def chat(context, lines):
    for number in range(lines):
        context.log.log((10, 20, 25, 30, 40, 50)[number % 6], "%d", number)


def reports(values, *, context, returned=None, fault=False, seconds=0):
    for value in values:
        context.report(loss=value)
    time.sleep(seconds)
    if fault:
        raise ValueError("no convergence")
    return None if returned is None else {"loss": returned}


def reports_for(seconds, *, context):
    end, step = time.monotonic() + seconds, 0
    while time.monotonic() < end:
        context.report(step=step)
        step += 1
        time.sleep(0.001)
