"""A daemon with its folders: started, struck, observed and ended from outside its process tree.

A variable of the environment identifies its processes: all descendants inherit it, also those in other sessions.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import shutil
import subprocess
import sys
import time
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import psutil

from governor.errors import GovernorError
from governor.executor import Executor
from governor.processes.identity import ProcessIdentity
from tests.faults.run_processes import registered

if TYPE_CHECKING:
    import signal
    from collections.abc import Iterator

    from governor.messages import ConductorStatus, StatusReport

HERE: Final = Path(__file__).parent
MARK: Final = "GOVERNOR_FAULT_INSTANCE"
REGISTER: Final = ".started"
READY_SECONDS: Final = 60.0
STATE_BYTES: Final = 160 << 20
"""Size of a state folder that a fault fills."""
STATE_INODES: Final = 4096
OPEN_FILES: Final = 1024
"""The soft limit of systemd and most shells; a process may raise it up to the hard limit."""


class Instance:
    """`small_disk`: the state folder is a separate, small file system."""

    def __init__(self, folder: Path, *, small_disk: bool = False) -> None:
        self.folder = folder
        self.state = folder / "s"
        self.runtime = folder / "r"
        self.clock = folder / "clock"
        self._small_disk = small_disk
        self._process: asyncio.subprocess.Process | None = None
        self._environ = {
            **os.environ,
            MARK: str(folder),
            "PYTHONPATH": str(HERE.parents[1]),
            "RUN_GOVERNOR_CLOCK": str(self.clock),
        }
        self._environ.pop("NOTIFY_SOCKET", None)
        folder.mkdir(parents=True, exist_ok=True)
        self.state.mkdir(exist_ok=True)
        shutil.copy(HERE / "user_code.py", folder)
        self.step_clock(0.0)
        if small_disk:
            subprocess.run(
                [
                    "mount",
                    "-t",
                    "tmpfs",
                    "-o",
                    f"size={STATE_BYTES},nr_inodes={STATE_INODES}",
                    "governor-faults",
                    self.state,
                ],
                check=True,
            )

    @property
    def endpoint(self) -> str:
        return f"ipc://{self.runtime}/broker.sock"

    @property
    def client_socket(self) -> Path:
        return Path(self.endpoint.removeprefix("ipc://"))

    @property
    def guard(self) -> psutil.Process:
        """The process that was started: the guard of the daemon."""
        if self._process is None:
            raise RuntimeError("the daemon was not started")
        return psutil.Process(self._process.pid)

    async def start(self) -> int:
        """Returns the daemon's pid when it answers. Raises RuntimeError when it ends instead."""
        with (self.folder / "log").open("ab") as log:
            self._process = await asyncio.create_subprocess_exec(
                *("/bin/sh", "-c", f'ulimit -Sn {OPEN_FILES}; exec "$@"', "sh"),
                *(sys.executable, "-m", "governor", "serve", "--state-dir", str(self.state)),
                *("--runtime-dir", str(self.runtime), "--log-format", "json", "--ray-cpus", "2"),
                env=self._environ,
                cwd=self.folder,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                start_new_session=True,
            )
        async with asyncio.timeout(READY_SECONDS):
            while self._process.returncode is None:
                with contextlib.suppress(Exception):  # not ready yet
                    async with Executor(self.endpoint, patience=0.0) as executor:
                        return (await executor.status()).pid
        raise RuntimeError(f"the daemon ended with {self._process.returncode}; see {self.folder / 'log'}")

    @property
    def is_up(self) -> bool:
        return self._process is not None and self._process.returncode is None

    async def ended(self, seconds: float | None) -> int:
        """Waits for the end of the daemon. Returns its exit code. Raises TimeoutError."""
        if self._process is None:
            raise RuntimeError("the daemon was not started")
        async with asyncio.timeout(seconds):
            return await self._process.wait()

    async def stop(self, seconds: float = 60.0) -> None:
        """Ends the daemon in order; kills all processes and raises TimeoutError if that takes longer."""
        if not self.is_up:
            return
        self.guard.terminate()
        try:
            await self.ended(seconds)
        except TimeoutError:
            self.kill_all()
            raise

    def register(self, name: str) -> Path:
        """The file that lists the processes of one run's user code."""
        return self.folder / f"{name}{REGISTER}"

    def processes(self) -> list[psutil.Process]:
        """All live processes of this instance, without zombies; processes of user code also if their environment differs."""
        known = {
            each.identity.pid: each.identity
            for path in self.folder.glob(f"*{REGISTER}")
            for each in registered(path)
        }
        found = []
        for process in psutil.process_iter():
            with contextlib.suppress(psutil.Error, ProcessLookupError):
                if process.status() == psutil.STATUS_ZOMBIE:
                    continue
                identity = known.get(process.pid)
                if process.environ().get(MARK) == str(self.folder) or (
                    identity is not None and ProcessIdentity.of(process.pid) == identity
                ):
                    found.append(process)
        return found

    async def gone(self, seconds: float) -> list[str]:
        """Descriptions of the processes that are alive after `seconds`."""
        left = self.processes()
        await asyncio.to_thread(psutil.wait_procs, left, timeout=seconds)
        return [f"{each.pid} {_description(each)}" for each in self.processes()]

    def kill_all(self) -> None:
        for process in self.processes():
            with contextlib.suppress(psutil.Error):
                process.kill()

    def close(self) -> None:
        """Kills all processes. The folder stays."""
        self.kill_all()
        if self._small_disk:
            subprocess.run(["umount", "-l", self.state], check=True)

    # -- faults --------------------------------------------------------------------------------------------

    async def victims(self, name: str, uid: str) -> list[psutil.Process]:
        """The processes with this name: all Ray workers, all conductors of a kind, else one. Empty if none runs."""
        if name == "guard":
            return [self.guard]
        if name == "guards":
            return [self.guard, *(each for each in self.guard.children() if each.name() == "governor-guard2")]
        report = await self._report(uid)
        if name == "daemon":
            return [psutil.Process(report.pid)]
        pids = {
            each.pid for run in report.runs for each in run.conductors if each.name.partition(".")[0] == name
        }
        return [process for process in self.processes() if process.pid in pids or _matches(process, name)]

    async def conductors(self, uid: str) -> list[ConductorStatus]:
        """The conductors of a run that have a process."""
        report = await self._report(uid)
        return [each for run in report.runs for each in run.conductors if each.pid is not None]

    async def _report(self, uid: str) -> StatusReport:
        async with Executor(self.endpoint, timeout=5.0, patience=5.0) as executor:
            return await executor.status(uid)

    def step_clock(self, seconds: float) -> None:
        """Shifts the daemon's wall clock by `seconds` from now on."""
        beside = self.clock.with_suffix(".new")
        beside.write_text(str(seconds))
        beside.replace(self.clock)

    def sockets(self) -> list[Path]:
        """The sockets of the broker; empty if the runtime folder is gone."""
        with contextlib.suppress(FileNotFoundError):
            return [path for path in self.runtime.iterdir() if path.is_socket()]
        return []

    def remove(self, what: str) -> None:
        """The ``sockets``, or the ``runtime`` folder with all that is in it."""
        if what == "runtime":
            shutil.rmtree(self.runtime, ignore_errors=True)  # files created meanwhile stay
            return
        for path in self.sockets():
            path.unlink(missing_ok=True)

    async def answers(self, seconds: float) -> bool:
        """Whether a new client receives an answer within `seconds`; False if the daemon ends."""
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(seconds):
                while self.is_up:
                    with contextlib.suppress(GovernorError):
                        async with Executor(self.endpoint, timeout=seconds, patience=0.0) as executor:
                            await executor.status()
                            return True
        return False

    @contextlib.contextmanager
    def no_inodes(self) -> Iterator[None]:
        """The state folder has no free inodes in this context."""
        ballast = self.state / "ballast"
        ballast.mkdir()
        with contextlib.suppress(OSError):
            for number in range(STATE_INODES):
                (ballast / str(number)).touch()
        try:
            yield
        finally:
            shutil.rmtree(ballast)

    @contextlib.contextmanager
    def full_disk(self) -> Iterator[None]:
        """The state folder has no free space in this context."""
        ballast = self.state / "ballast"
        with ballast.open("wb", buffering=0) as file, contextlib.suppress(OSError):
            for size in (1 << 20, 4096, 1):
                with contextlib.suppress(OSError):
                    while True:
                        file.write(bytes(size))
        try:
            yield
        finally:
            ballast.unlink()

    def ray_start_seconds(self, *, since: int, until: float) -> float:
        """Start time of the Ray heads that were ready by `until` (monotonic), by the log from byte `since` on."""
        lines = self._logged("ray_head.started", since=since)
        return sum(line.get("seconds", 0.0) for line in lines if _logged_at(line) <= until)

    def found_silent(self, *, since: int) -> float | None:
        """When the daemon first reported a silent process (monotonic), by the log from byte `since` on."""
        found = ("conductor.silent", "broker.silent", "forkserver.silent", "ray.lost")
        lines = self._logged(*found, since=since)
        if (line := next(lines, None)) is None:
            return None
        return _logged_at(line)

    def logged(self, *events: str, since: int) -> list[str]:
        """Those of these events that are in the log from byte `since` on."""
        return [line["event"] for line in self._logged(*events, since=since)]

    def _logged(self, *events: str, since: int) -> Iterator[dict[str, Any]]:
        with (self.folder / "log").open("rb") as log:
            log.seek(since)
            for text in log:
                with contextlib.suppress(ValueError):  # lines of other processes
                    line = json.loads(text)
                    if isinstance(line, dict) and line.get("event") in events:
                        yield line

    @property
    def log_size(self) -> int:
        return (self.folder / "log").stat().st_size


def _matches(process: psutil.Process, name: str) -> bool:
    with contextlib.suppress(psutil.Error):
        match name:
            case "broker" | "raylet" | "gcs_server":
                return process.name() == name
            case "forkserver":
                return process.name() == "gov-forkserver"
            case "environment_process":
                return process.name().startswith("lake.")
            case "ray_head":
                return "governor.tasks.cluster.head_process" in process.cmdline()
            case "ray_worker":
                return process.name().startswith("ray::Runner")
    return False


def _logged_at(line: dict[str, Any]) -> float:
    """The time of the line on the monotonic clock."""
    ago = datetime.now(UTC) - datetime.fromisoformat(line["timestamp"])
    return time.monotonic() - ago.total_seconds()


def _description(process: psutil.Process) -> str:
    with contextlib.suppress(psutil.Error):
        return f"{process.name()} {' '.join(process.cmdline())[:80]}"
    return "?"


def signal_all(processes: list[psutil.Process], number: signal.Signals) -> None:
    for process in processes:
        with contextlib.suppress(psutil.Error):
            process.send_signal(number)
