"""What the children of these tests do; imported in the child by name."""

from __future__ import annotations

import asyncio
import json
import multiprocessing
import os
import signal
import socket
import subprocess
import sys
import threading
from pathlib import Path

SLEEP = ("sleep", "86400")


def describe() -> dict:
    fds = {}
    for link in Path("/proc/self/fd").iterdir():
        try:
            fds[link.name] = str(link.readlink())
        except FileNotFoundError:
            continue
    status = Path("/proc/self/status").read_text()
    ignored = int(status.split("SigIgn:")[1].split()[0], 16)
    return {
        "pid": os.getpid(),
        "ppid": os.getppid(),
        "pgid": os.getpgrp(),
        "ticks": int(Path("/proc/self/stat").read_text().rpartition(")")[2].split()[19]),
        "comm": Path("/proc/self/comm").read_text().strip(),
        "fds": fds,
        "modules": sorted(sys.modules),
        "main": {
            "name": getattr(sys.modules["__main__"], "__name__", None),
            "mark": hasattr(sys.modules["__main__"], "MARK"),
        },
        "ignored": [number for number in range(1, 32) if ignored >> (number - 1) & 1],
        "environ": dict(os.environ),
        "path": sys.path,
    }


def send_report(address: str, what: object) -> None:
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as sender:
        sender.sendto(json.dumps(what).encode(), address)


async def answer(payload: bytes) -> None:
    send_report(payload.decode(), describe())


async def leave(payload: bytes) -> int:
    return int(payload)


async def leave_by_exit(payload: bytes) -> None:
    sys.exit(int(payload))


async def leave_with_hung_thread(payload: bytes) -> int:
    asyncio.get_running_loop().run_in_executor(None, threading.Event().wait)
    return 5


async def fail(payload: bytes) -> None:
    raise RuntimeError("on purpose")


async def obey(payload: bytes) -> int:
    """Says its pid, then serves until SIGTERM."""
    stop = asyncio.Event()
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, stop.set)
    asyncio.get_running_loop().add_signal_handler(signal.SIGUSR1, stop.set)
    send_report(payload.decode(), {"pid": os.getpid()})
    await stop.wait()
    return 0


async def nap(payload: bytes) -> None:
    """Lets SIGTERM do what it does by default."""
    send_report(payload.decode(), {"pid": os.getpid()})
    await asyncio.Event().wait()


async def nap_in_silence(payload: bytes) -> None:
    await asyncio.Event().wait()


async def defy(payload: bytes) -> None:
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    send_report(payload.decode(), {"pid": os.getpid()})
    await asyncio.Event().wait()


async def start_descendants(payload: bytes) -> None:
    """One child in the group, one in a session of its own, and one below that in yet another; defies SIGTERM."""
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    send_report(payload.decode(), {"pid": os.getpid(), "descendants": _three()})
    await asyncio.Event().wait()


def _three() -> list[int]:
    inside = subprocess.Popen(SLEEP)
    outside = subprocess.Popen(
        [sys.executable, "-c", _PARENT_OF_ONE], start_new_session=True, stdout=subprocess.PIPE, text=True
    )
    return [inside.pid, outside.pid, int(outside.stdout.readline())]


_WITHOUT_A_MAIN_THREAD = """
import ctypes, pathlib, threading
def live():
    while pathlib.Path("/proc/self/stat").read_text().split()[2] != "Z":
        pass
    print(flush=True)
    threading.Event().wait()
threading.Thread(target=live).start()
SYS_EXIT = 60
ctypes.CDLL(None).syscall(SYS_EXIT, 0)
"""


async def start_hollow(payload: bytes) -> None:
    """A process in a session of its own whose main thread has ended: a zombie, with a thread that lives."""
    send_report(payload.decode(), {"pid": os.getpid(), "descendants": [_hollow()]})
    await asyncio.Event().wait()


def _hollow() -> int:
    command = [sys.executable, "-c", _WITHOUT_A_MAIN_THREAD]
    hollow = subprocess.Popen(command, start_new_session=True, stdout=subprocess.PIPE)
    hollow.stdout.readline()
    return hollow.pid


async def leave_descendants(payload: bytes) -> int:
    """Obeys SIGTERM, but leaves a process in its group and one outside behind."""
    stop = asyncio.Event()
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, stop.set)
    send_report(payload.decode(), {"pid": os.getpid(), "descendants": _two_ignoring()})
    await stop.wait()
    return 0


def _two_ignoring() -> list[int]:
    deaf = ["sh", "-c", "trap '' TERM; echo; exec sleep 86400"]
    two = [subprocess.Popen(deaf, stdout=subprocess.PIPE, start_new_session=away) for away in (False, True)]
    for each in two:
        each.stdout.readline()  # it ignores SIGTERM now
    return [each.pid for each in two]


_PARENT_OF_ONE = """
import subprocess, time
print(subprocess.Popen(["sleep", "86400"], start_new_session=True).pid, flush=True)
time.sleep(86400)
"""


async def start_one(payload: bytes) -> None:
    """Starts a process that reports, and lives as long as it."""
    from governor.processes import process  # no other target needs it

    child = await process.start(name="own", target="process_targets:answer_and_nap", payload=payload)
    await child.wait()


async def start_one_that_uses_multiprocessing(payload: bytes) -> None:
    from governor.processes import process  # as above

    child = await process.start(name="own", target="process_targets:use_multiprocessing", payload=payload)
    await child.wait()


async def use_multiprocessing(payload: bytes) -> None:
    """As user code does: with the start method that there is, and not in the event loop's thread."""

    def sum_in_a_process() -> int:
        numbers = multiprocessing.Queue()
        other = multiprocessing.Process(target=numbers.put, args=(42,))
        other.start()
        found = numbers.get()
        other.join()
        return found

    send_report(payload.decode(), {"found": await asyncio.to_thread(sum_in_a_process)})


async def answer_and_nap(payload: bytes) -> None:
    await answer(payload)
    await asyncio.Event().wait()


async def echo(payload: bytes, connection: socket.socket) -> None:
    connection.sendall(payload)
