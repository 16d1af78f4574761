"""What tasks do to their runner."""

import asyncio
import contextlib
import ctypes
import os
import signal
import socket
import subprocess
import sys
import threading
import time
from pathlib import Path

from governor.tasks import TaskCancelled, TaskResult


def nothing():
    return None


def give(value):
    return value


def sleep(seconds=60.0):
    time.sleep(seconds)


def hold_the_gil(seconds=60):
    ctypes.PyDLL(None).sleep(seconds)


def spin():
    while True:
        pass


def wait_on_child():
    subprocess.Popen(["sleep", "1000"]).wait()


class SlowToEnd:
    """Python ignores the exception in its finalizer, which comes out of it late."""

    def __init__(self, seconds, context=None):
        self.seconds, self.context = seconds, context

    def __del__(self):
        try:
            if self.context is not None:
                self.context.tell(inside=True)
            time.sleep(60)
        finally:
            time.sleep(self.seconds)


def sleep_in_a_finalizer(context, seconds=0.02):
    SlowToEnd(seconds, context)
    time.sleep(60)


async def sleep_async():
    await asyncio.sleep(60)


async def block_async():
    time.sleep(60)  # noqa: ASYNC251  # the deed itself


async def wait_for_output():
    subprocess.run(["sleep", "1000"], check=False, capture_output=True)  # noqa: ASYNC221  # the deed itself


async def block_in_a_group():
    async with asyncio.TaskGroup() as group:
        group.create_task(block_async())
        group.create_task(sleep_async())


async def spin_in_a_child():
    async def child():
        while True:  # noqa: ASYNC110  # the deed itself
            await asyncio.sleep(0)

    await asyncio.gather(child(), child())


def own_loop():
    asyncio.run(spin_in_a_child())


def own_loop_of_a_group():
    async def group_of_many():
        async with asyncio.TaskGroup() as group:
            for _ in range(5):
                group.create_task(spin_in_a_child())

    asyncio.run(group_of_many())


async def clean_up_beside_a_finalizer(note):
    async def child():
        SlowToEnd(0)

    try:
        await asyncio.gather(child(), asyncio.sleep(60))
    finally:
        await asyncio.sleep(0.1)
        Path(note).touch()  # noqa: ASYNC240  # nothing else is in this loop


async def callbacks_only():
    """The loop is busy with plain callbacks, in which an exception is only logged."""
    loop = asyncio.get_running_loop()

    def again():
        end = time.perf_counter() + 0.002
        while time.perf_counter() < end:
            pass
        loop.call_soon(again)

    again()
    await asyncio.Event().wait()


def swallow():
    while True:
        try:  # noqa: SIM105  # the deed itself
            time.sleep(0.1)
        except BaseException:  # noqa: BLE001  # the deed itself
            pass


def clean_up(note):
    try:
        time.sleep(60)
    except TaskCancelled as error:
        Path(note).write_text(f"cancelled: {error}")
        raise
    finally:
        Path(f"{note}.finally").touch()


async def clean_up_async(note):
    try:
        await asyncio.sleep(60)
    finally:
        Path(note).touch()  # noqa: ASYNC240  # nothing else is in this loop


def deaf_until(context, note):
    """A signal that comes meanwhile is lost."""
    handler = signal.signal(signal.SIGUSR1, signal.SIG_IGN)
    context.tell(deaf=True)
    while not Path(note).exists():
        time.sleep(0.001)
    signal.signal(signal.SIGUSR1, handler)
    time.sleep(60)


def tell_much(context, seconds=60.0):
    """Talks without a pause."""
    end = time.monotonic() + seconds
    n = 0
    while time.monotonic() < end:
        n += 1
        context.tell(n=n)


def tell_large(context):
    while True:
        context.tell(text="x" * 300_000)


def log_much(context, seconds=60.0):
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        context.log.info("x" * 100)


def shoot(number=9):
    os.kill(os.getpid(), number)
    time.sleep(60)


def drop_dead(code=3):
    os._exit(code)


def close_all():
    os.closerange(3, 1000)


def close_all_and_open(folder):
    """Files of its own take the numbers of what was closed."""
    os.closerange(3, 1000)
    for n in range(200):
        os.open(f"{folder}/{n}", os.O_RDWR | os.O_CREAT)
    for n in range(3, 200):
        with contextlib.suppress(OSError):
            os.write(n, b"\x07" * 64)
            os.lseek(n, 0, os.SEEK_SET)


def fork_and_return(note):
    """The child falls out of the task, as the parent does."""
    pid = os.fork()
    if pid:
        os.waitpid(pid, 0)
        Path(note).write_text(str(pid))
    return "child" if pid == 0 else "parent"


def fork_and_raise():
    pid = os.fork()
    if pid == 0:
        raise ValueError("child")
    os.waitpid(pid, 0)
    return "parent"


def fork_and_die(note):
    """A child of its own session keeps every descriptor; the runner dies."""
    if os.fork() == 0:
        os.setsid()
        time.sleep(1000)
    Path(note).touch()
    os.kill(os.getpid(), signal.SIGKILL)


def leave_behind(note, *, die=True):
    """Starts what has a session of its own, by fork alone and with an empty environment, and dies."""
    started = subprocess.Popen(["sleep", "1000"], start_new_session=True, env={})
    forked = os.fork()
    if forked == 0:
        os.setsid()
        time.sleep(1000)
    Path(note).write_text(f"{started.pid} {forked}")
    if die:
        os.kill(os.getpid(), signal.SIGKILL)
    time.sleep(1000)


def fork_many():
    """Children that fork children, all with the runner's descriptors, until they are killed."""
    for _ in range(3):
        if os.fork() == 0:
            os.setsid()
            if os.fork() == 0:
                os.setsid()
            time.sleep(1000)
    time.sleep(1000)


def bad_error():
    raise FileNotFoundError("/tmp/\udc80\udcff")


class Unspeakable(Exception):
    def __str__(self):
        raise RuntimeError("no")

    __repr__ = __str__


def unspeakable():
    raise Unspeakable


def nested_error():
    try:
        raise ValueError("in")  # noqa: TRY301  # the deed itself
    except ValueError as error:
        raise RuntimeError("out") from error


def endless_recursion():
    return endless_recursion()


def bad_metric():
    return TaskResult(1, {"\udc80": 1.0})


def bad_payload():
    return TaskResult(1, {}, "text")


def bad_tell(context):
    deep = []
    for _ in range(500):
        deep = [deep]
    for what in (object(), deep, "\udc80"):
        try:
            context.tell(what=what)
        except (TypeError, ValueError):
            continue
        return "taken"
    return "refused"


def bad_log(context):
    context.log.info("\udc80")
    context.log.info("%s", Unspeakable())
    return "ok"


def grow(items):
    items.append(1)
    return len(items)


def grow_input(inputs):
    inputs["a"]["list"].append(1)
    return len(inputs["a"]["list"])


def take_the_signal(handler):
    signal.signal(signal.SIGUSR1, signal.Handlers[handler])


def told_by_threads(context):
    def talk(n):
        for i in range(200):
            context.tell(**{f"t{n}": i})

    threads = [threading.Thread(target=talk, args=(n,)) for n in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()


def burst(seconds):
    end = time.perf_counter() + seconds
    while time.perf_counter() < end:
        pass


def stranger(path):
    """Talks to the driver's socket without the secret."""
    with socket.socket(socket.AF_UNIX) as sock:
        sock.connect(path)
        sock.sendall(b"\xff" * 100)
        sock.settimeout(5)
        return sock.recv(10)


def pid():
    return os.getpid()


def modules():
    return sorted(sys.modules)


def context_of(context):
    return {
        name: getattr(context, name)
        for name in ("run", "batch", "task", "run_id", "attempt", "is_eval", "model")
    }


def codes():
    """Exit codes of children, as `subprocess` sees them."""
    return [
        subprocess.run(["sh", "-c", f"exit {code}"], check=False).returncode for code in (0, 3)
    ], signal.getsignal(signal.SIGCHLD) == signal.SIG_DFL


def short(context):
    """Of random length, with all that a task may do to its stream."""
    for n in range(context.run_id % 4):
        context.tell(n=n)
        context.log.info("n is %s", n)
    end = time.perf_counter() + (hash((context.task, context.run_id)) % 7) * 3e-5
    while time.perf_counter() < end:
        pass
    return context.task


async def short_async(context):
    for _ in range(context.run_id % 5):
        await asyncio.sleep(0)
    return context.task


def steps(note):
    """Obeys only after a while, with a result."""
    try:
        time.sleep(60)
    except TaskCancelled:
        Path(note).touch()
        return "rescued"


def own_cancelled_error():
    raise asyncio.CancelledError
