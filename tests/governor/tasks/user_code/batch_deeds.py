"""Tasks of the scheduler's tests. Most of them report to the test and do as they are told (`tests/support/tasks/gate.py`)."""

import ctypes
import json
import os
import socket
import time
from pathlib import Path

from governor.tasks import TaskResult


def visit(context, gate, *, stubborn=False):
    """Says that it has begun, and waits for its orders; a stubborn one cannot be cancelled."""
    began = time.monotonic()
    door = socket.socket(socket.AF_UNIX)
    door.connect(gate)
    me = {
        "task": context.task,
        "run": context.run_id,
        "attempt": context.attempt,
        "pid": os.getpid(),
        "began": began,
    }
    door.sendall(json.dumps(me).encode() + b"\n")
    while True:
        try:
            order = door.recv(100).decode()
            break
        except BaseException:
            if not stubborn:
                raise
    if order == "fail":
        raise ValueError(f"told to fail in attempt {context.attempt}")
    if order == "die":
        os._exit(3)
    if order == "hold the GIL":
        door.sendall(b"held\n")
        ctypes.PyDLL(None).sleep(60)
    if order == "hold the GIL for good":
        mutex = ctypes.create_string_buffer(64)  # that of a lock as pthread_mutex_init leaves it
        for _ in range(2):
            ctypes.PyDLL(None).pthread_mutex_lock(mutex)
    return TaskResult(
        metrics={"run": context.run_id, "attempt": context.attempt},
        payload=f"{context.task}/{context.run_id}".encode(),
    )


def score(context):
    return TaskResult(metrics={"score": context.run_id}, payload=f"{context.task}/{context.run_id}".encode())


def tell_all(context):
    """Its whole context, as its state and as its payload."""
    context.log.info("hello")
    context.tell(model_version=7, step=context.run_id)
    facts = [
        context.batch,
        context.task_id,
        context.run_id,
        context.attempt,
        context.deadline,
        context.model,
        context.is_eval,
        str(context.run_folder),
    ]
    return TaskResult(payload=json.dumps(facts).encode())


def fail_first(context, folder, times):
    """Run 1 fails in its first attempts; each call leaves a file."""
    Path(folder, f"{context.run_id}-{context.attempt}").touch(exist_ok=False)
    if context.run_id == 1 and context.attempt <= times:
        raise ValueError(f"attempt {context.attempt}")
    return TaskResult(payload=str(context.run_id).encode())


def matrix(fill):
    import numpy as np

    return np.full(3, fill)


def total(inputs):
    return TaskResult(metrics={"total": float(inputs["matrix"].sum())})


def large():
    return "x" * 200_000


def size(inputs):
    assert len(inputs["large"]) == 200_000
