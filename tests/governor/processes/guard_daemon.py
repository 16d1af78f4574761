"""A daemon for the guard's tests: `python guard_daemon.py MODE`; prints one JSON line, then a line for each signal."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys

from governor.processes.guard import start_guard

STRAY = "import subprocess as s; print(s.Popen(['sleep', '86400'], start_new_session=True, stdout=s.DEVNULL).pid, flush=True); {}"


def descendants() -> list[int]:
    """A child, one in its own session, one below that, and an orphan in a session of its own."""
    plain = subprocess.Popen(["sleep", "86400"])
    away = subprocess.Popen(
        [sys.executable, "-c", STRAY.format("import time; time.sleep(86400)")],
        start_new_session=True,
        stdout=subprocess.PIPE,
    )
    orphan_maker = subprocess.run(
        [sys.executable, "-c", STRAY.format("")], start_new_session=True, stdout=subprocess.PIPE, check=True
    )
    return [plain.pid, away.pid, int(away.stdout.readline()), int(orphan_maker.stdout)]


GUARD = os.getpid()
"""Of the process that was started: it becomes the guard."""


def main(mode: str) -> int:
    start_guard()
    signals = {signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGQUIT, signal.SIGUSR1, signal.SIGWINCH}
    signal.signal(signal.SIGWINCH, lambda *_: None)
    signal.pthread_sigmask(signal.SIG_BLOCK, signals)
    known = {
        "daemon": os.getpid(),
        "guard2": os.getppid(),
        "guard": GUARD,
        "group": os.getpgrp(),
        "descendants": descendants(),
    }
    sys.stdout.write(json.dumps(known) + "\n")
    sys.stdout.flush()
    if mode == "exit":
        return 3
    if mode == "raise":
        raise RuntimeError("on purpose")
    if mode == "kill":
        os.kill(os.getpid(), signal.SIGKILL)
    while True:
        number = signal.sigwait(signals)
        sys.stdout.write(signal.Signals(number).name + "\n")
        sys.stdout.flush()
        if mode == "stop" and number in {signal.SIGTERM, signal.SIGINT}:
            return 0 if number == signal.SIGTERM else 130


if __name__ == "__main__":
    sys.exit(main(sys.argv[1]))
