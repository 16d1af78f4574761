"""From exec of `governor serve` to its READY=1 on a real NOTIFY_SOCKET, and what the daemon weighs then.

The rows below it tell where the time goes. `python benchmarks/bench_start.py` takes about 12 s.
"""

from __future__ import annotations

import contextlib
import shutil
import socket
import subprocess
import sys
import tempfile
from pathlib import Path
from time import perf_counter
from typing import TYPE_CHECKING

from support.instance import HERE, READY_SECONDS, STOP_SECONDS, environment, governor
from support.process_tree import Memory, maps_ray, memory
from support.rows import Row, p50, spread, table

if TYPE_CHECKING:
    from collections.abc import Iterator

REPEAT = 5
OWN_IMPORTS = (
    "from time import perf_counter as now; t = now()\n"
    "import governor.cli.serve, governor.daemon.daemon\n"
    "print(now() - t)"
)
FORKSERVER = (
    "import asyncio; from time import perf_counter as now; from governor.processes import process\n"
    "t = now(); process.warm_up(); asyncio.run(process.warm(ray={ray})); print(now() - t); process.shut_down()"
)


@contextlib.contextmanager
def _serve() -> Iterator[tuple[float, int]]:
    """A daemon that has said READY, the seconds it took, and its pid."""
    folder = Path(tempfile.mkdtemp(prefix="gb-"))
    process: subprocess.Popen[bytes] | None = None
    try:
        with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as manager:
            manager.bind(str(folder / "n"))
            manager.settimeout(READY_SECONDS)
            folders = ("--state-dir", str(folder / "s"), "--runtime-dir", str(folder / "r"))
            environ = {**environment(), "NOTIFY_SOCKET": str(folder / "n")}
            begun = perf_counter()
            process = subprocess.Popen(
                governor("serve", *folders), env=environ, cwd=HERE, stderr=subprocess.DEVNULL
            )
            while b"READY=1" not in manager.recv(4096):
                pass
            yield perf_counter() - begun, process.pid
    finally:
        if process is not None:
            process.terminate()
            try:
                process.wait(STOP_SECONDS)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()
        shutil.rmtree(folder, ignore_errors=True)


def _timed(program: str) -> list[float]:
    return [
        float(
            subprocess.run(
                [sys.executable, "-c", program],
                env=environment(),
                capture_output=True,
                check=True,
                timeout=60,
            ).stdout
        )
        for _ in range(3)
    ]


def measure() -> list[Row]:
    with _serve():
        pass  # byte code is compiled and files are read into memory: not what a user waits for each time
    taken: list[float] = []
    weighed: Memory | None = None
    ray = False
    for _ in range(REPEAT):
        with _serve() as (seconds, pid):
            taken.append(seconds)
            weighed = memory(pid)
            ray = ray or maps_ray(pid)
    assert weighed is not None
    own, children = _timed(OWN_IMPORTS), _timed(FORKSERVER.format(ray=False))
    with_ray = _timed(FORKSERVER.format(ray=True))
    return [
        Row(
            what="exec of `governor serve` to READY=1",
            figure=p50(taken),
            unit="s",
            at_most=1.0,
            note=spread(taken, "s"),
            if_missed="the daemon's imports and then the forkserver's, one after the other",
        ),
        Row(what="of it: the daemon's own imports", figure=p50(own), unit="s", note=spread(own, "s")),
        Row(what="of it: the forkserver warm", figure=p50(children), unit="s", note=spread(children, "s")),
        Row(
            what="with Ray, for the first run that has tasks",
            figure=p50(with_ray),
            unit="s",
            note=spread(with_ray, "s"),
        ),
        Row(
            what="RSS of the daemon when ready",
            figure=weighed.rss,
            unit="MB",
            at_most=80.0,
            note=f"PSS {weighed.pss:.0f} MB",
        ),
        Row(
            what="Ray's files mapped in the daemon",
            figure=float(ray),
            unit="",
            at_most=0.0,
            note="/proc/PID/maps after READY",
        ),
    ]


if __name__ == "__main__":
    print(table(measure()))
