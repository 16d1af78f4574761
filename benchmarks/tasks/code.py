"""What the tasks of the benchmarks do."""

import os
import signal
import subprocess
import time
from pathlib import Path


def nothing():
    return None


def busy(seconds):
    end = time.perf_counter() + seconds
    while time.perf_counter() < end:
        pass


def _note(folder, context, *children):
    """Which processes are to be dead, once this run has ended."""
    pids = " ".join(map(str, (os.getpid(), *children)))
    (Path(folder) / f"{context.task}-{context.run_id}").write_text(pids, encoding="utf-8")


def sleep(folder, context):
    _note(folder, context)
    time.sleep(1000)


def python(folder, context):
    _note(folder, context)
    while True:
        pass


def gil(folder, context):
    _note(folder, context)
    sum(range(10**13))  # no signal is heard in there


def swallow(folder, context):
    _note(folder, context)
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    while True:
        try:
            time.sleep(1)
        except BaseException:
            continue


def child(folder, context):
    process = subprocess.Popen(["sleep", "1000"])
    _note(folder, context, process.pid)
    process.wait()


def grandchild(folder, context):
    script = "sleep 1000 > /dev/null 2>&1 & echo $!"
    pid = subprocess.run(["setsid", "sh", "-c", script], check=True, capture_output=True, text=True).stdout
    _note(folder, context, int(pid))
    time.sleep(1000)


def score(context):
    from governor.tasks import TaskResult

    return TaskResult(metrics={"accuracy": context.run_id % 2, "reward": context.run_id / 7, "steps": 12})
