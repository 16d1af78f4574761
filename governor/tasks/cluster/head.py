"""The daemon's own Ray head: started as a child, watched, terminated with everything that it started.

Rules:
1. The daemon never imports Ray: the head is a process of its own (`governor.tasks.cluster.head_process`), in its own process group.
2. One `RayHead` is one head from start to end. After `lost()` the caller stops it and starts a new one, with a back-off;
   task conductors connect to the new address.
3. Clients need a token: `token_path`, 0600, reused by later heads.
4. `stop` returns when every process has exited, also agents in sessions of their own, and the temp folder is removed.
5. Its GCS and its raylet are health-checked, not only watched for their exit: a frozen one counts as lost.
6. Call `start` in a thread that lives as long as the head: PDEATHSIG is sent when the thread that forked ends.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import secrets
import shutil
import sys
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from governor import logs
from governor.errors import ProcessError
from governor.processes import kill_tree
from governor.processes.leftovers import instance_of
from governor.processes.readiness import readable
from governor.tasks.cluster.liveness import all_answer, first_ended, race
from transport.endpoints import IPC_PATH_LIMIT

if TYPE_CHECKING:
    from governor.tasks.cluster.liveness import Server

START_SECONDS: Final = 60.0
STOP_SECONDS: Final = 10.0
# what Ray appends to our folder: /t/session_2026-01-01_00-00-00_000000_1234567/sockets/plasma_store.1
RAY_SUFFIX_BYTES: Final = 77
OBJECT_STORE_BYTES: Final = 256 * 1024 * 1024
"""Values of tasks are sent in records and files: the object store is almost empty."""
STDERR_LINES: Final = 20
LAST_ERROR_SECONDS: Final = 1.0
FALLBACK_FOLDER: Final = Path("/tmp")  # noqa: S108  # made by mkdtemp
"""Where Ray's temp folder goes if its sockets would not fit into the runtime folder."""

log = logs.get_logger()


@dataclass(frozen=True, slots=True, kw_only=True)
class HeadAddress:
    """The address of a head: `address` as ``host:port`` of its GCS, and the file with its token."""

    address: str
    token_path: Path


def environment(token_path: Path | None) -> dict[str, str]:
    """Environment variables for all processes that use Ray, ours and the head's. Ray reads them at import."""
    variables = {
        "RAY_USAGE_STATS_ENABLED": "0",
        "RAY_kill_child_processes_on_worker_exit_with_raylet_subreaper": "true",
        "RAY_enable_worker_prestart": "false",
        "RAY_GRACEFUL_SHUTDOWN_DRAIN_TIMEOUT_S": "0",
    }
    if token_path is not None:
        variables |= {"RAY_AUTH_MODE": "token", "RAY_AUTH_TOKEN_PATH": str(token_path)}
    return variables


class RayHead:
    """One local head.

    Args:
        state_folder: for the token. `runtime_folder`: for Ray's temp folder, which goes below /tmp instead if the paths of
            its sockets would be longer than 107 bytes.
        num_cpus: how many plain tasks may run at once. `token`: used if there is none yet; None: a random one.
    """

    def __init__(
        self, *, state_folder: Path, runtime_folder: Path, num_cpus: int, token: str | None = None
    ) -> None:
        self._token = token or secrets.token_hex(32)
        self._token_path = state_folder / "ray-token"
        self._state_folder = state_folder
        self._runtime_folder = runtime_folder
        self._num_cpus = num_cpus
        self._mark = kill_tree.new_child_mark()
        self._temp: Path | None = None
        self._process: asyncio.subprocess.Process | None = None
        self._stderr_lines: asyncio.Task[list[str]] | None = None
        self._exited: asyncio.Task[int] | None = None
        self._servers: tuple[Server, ...] = ()

    @property
    def pid(self) -> int | None:
        return None if self._process is None else self._process.pid

    async def start(self) -> HeadAddress:
        """Returns when tasks can be sent. Raises ProcessError with Ray's last lines, and leaves nothing behind then."""
        if self._process is not None:
            raise ProcessError("this Ray head was started before: one object is one head", pid=self.pid)
        self._write_token()
        self._temp = self._make_temp()
        settings = {
            "num_cpus": self._num_cpus,
            # Ray opens its folder to everybody (0777): ours around it stays closed
            "temp_dir": str(self._temp / "t"),
            "object_store_bytes": OBJECT_STORE_BYTES,
            "parent": os.getpid(),
            "mark": self._mark,
        }
        root = str(Path(__file__).parents[3])
        path = os.pathsep.join(filter(None, [root, os.environ.get("PYTHONPATH")]))
        began = time.monotonic()
        self._process = await asyncio.create_subprocess_exec(
            *(sys.executable, "-P", "-m", "governor.tasks.cluster.head_process", json.dumps(settings)),
            stdin=asyncio.subprocess.DEVNULL,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.PIPE,
            start_new_session=True,
            env={**os.environ, **environment(self._token_path), "PYTHONPATH": path},
        )
        self._stderr_lines = asyncio.create_task(_last_lines(self._process.stderr), name="ray_head.stderr")
        self._exited = asyncio.create_task(self._process.wait(), name="ray_head.exit")
        assert self._process.stdout is not None  # noqa: S101  # asked for above
        try:
            async with asyncio.timeout(START_SECONDS):
                ready = await _ready(self._process.stdout)
        except (TimeoutError, ValueError, ProcessError) as error:
            await self.stop()
            late = f" within {START_SECONDS:g} s" if isinstance(error, TimeoutError) else ""
            ended = str(error) if isinstance(error, ProcessError) else ""
            why = "; ".join(filter(None, (ended, *await self._last_error()))) or "no reason given"
            raise ProcessError(f"the Ray head did not start{late}: {why}") from error
        except asyncio.CancelledError:
            await self.stop()
            raise
        host, _, port = ready["address"].rpartition(":")
        self._servers = ((host, int(port), "Ray's GCS"), (host, ready["raylet_port"], "Ray's raylet"))
        took = round(time.monotonic() - began, 2)
        log.info(
            "ray_head.started",
            pid=self.pid,
            address=ready["address"],
            num_cpus=self._num_cpus,
            seconds=took,
        )
        return HeadAddress(address=ready["address"], token_path=self._token_path)

    async def exited(self) -> int:
        """Waits for the exit of the head; returns the exit code. Any number of waiters; call after `start`."""
        if self._exited is None:
            raise ProcessError("this Ray head was never started")
        return await asyncio.shield(self._exited)

    async def answers(self) -> bool:
        """Whether GCS and raylet answer, within the time after which a frozen one counts as lost."""
        return await all_answer(self._servers)

    async def lost(self) -> str:
        """Waits until it has exited, or a part of it is gone or silent; returns the reason. Call after `start`."""
        exited, silent = await race("ray_head.watch", self.exited(), first_ended(self._servers))
        if exited.cancelled():
            reason: str = silent.result()
            return reason
        return "".join([f"exit code {exited.result()}", *(f" ({line})" for line in await self._last_error())])

    async def _last_error(self) -> list[str]:
        """The last line that it has written, if any, once it has exited."""
        if self._stderr_lines is None:
            return []
        done, _ = await asyncio.wait({self._stderr_lines}, timeout=LAST_ERROR_SECONDS)
        if not done or self._stderr_lines.cancelled() or self._stderr_lines.exception() is not None:
            return []
        return self._stderr_lines.result()[-1:]

    async def stop(self) -> None:
        """Terminates the head; idempotent, may be called at any time. Raises ProcessError if a process survives."""
        try:
            if self._process is not None and self._exited is not None:
                left = await asyncio.to_thread(_kill_all, self._process.pid, self._mark)
                await asyncio.wait({self._exited}, timeout=STOP_SECONDS)
                await self._last_error()
                if left:
                    raise ProcessError(f"processes of the Ray head survive: {left}", pid=left[0])
        finally:
            temp, self._temp = self._temp, None
            if temp is not None:
                await asyncio.to_thread(shutil.rmtree, temp, ignore_errors=True)

    def _write_token(self) -> None:
        self._token_path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
        with contextlib.suppress(FileExistsError):
            descriptor = os.open(self._token_path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
            with os.fdopen(descriptor, "w") as file:
                file.write(self._token)

    def _make_temp(self) -> Path:
        fits = len(os.fsencode(self._runtime_folder)) + len("/ray-12345678") + RAY_SUFFIX_BYTES
        if fits <= IPC_PATH_LIMIT:
            self._runtime_folder.mkdir(parents=True, exist_ok=True, mode=0o700)
            return Path(tempfile.mkdtemp(prefix="ray-", dir=self._runtime_folder))
        return Path(
            tempfile.mkdtemp(prefix=_fallback_prefix(instance_of(self._state_folder)), dir=FALLBACK_FOLDER)
        )


def remove_left_over(instance: str) -> None:
    """Removes temp folders of earlier heads of this instance that are not in the runtime folder. Blocks."""
    for folder in FALLBACK_FOLDER.glob(f"{_fallback_prefix(instance)}*"):
        if folder.lstat().st_uid == os.getuid():
            shutil.rmtree(folder, ignore_errors=True)


def _fallback_prefix(instance: str) -> str:
    return f"ray-{instance[:8]}-"


async def _ready(stdout: asyncio.StreamReader) -> dict[str, Any]:
    """The message of a head that is ready. Raises ProcessError if a part of it exits before, ValueError if it does itself."""
    line = asyncio.create_task(stdout.readline(), name="ray_head.line")
    ends: dict[asyncio.Task[None], str] = {}
    try:
        while True:
            await asyncio.wait({line, *ends}, return_when=asyncio.FIRST_COMPLETED)
            if not line.done():
                await asyncio.wait(
                    {line}, timeout=LAST_ERROR_SECONDS
                )  # the head may exit itself, and print the reason
            if not line.done():
                ended = ", ".join(part for end, part in ends.items() if end.done())
                raise ProcessError(f"{ended} has ended during its start")
            message: dict[str, Any] = json.loads(line.result())
            if "part" not in message:
                return message
            ends[asyncio.create_task(_process_end(message["pid"]))] = message["part"]
            line = asyncio.create_task(stdout.readline(), name="ray_head.line")
    finally:
        for task in (line, *ends):
            task.cancel()
        await asyncio.wait({line, *ends})


async def _process_end(pid: int) -> None:
    """Returns when the process has exited; never, if no descriptor is left to watch it."""
    try:
        pidfd = os.pidfd_open(pid)
        try:
            await readable(pidfd)
        finally:
            os.close(pidfd)
    except ProcessLookupError:
        return
    except OSError as error:
        log.warning("ray_head.watch_failed", pid=pid, reason=str(error))
        await asyncio.Event().wait()


async def _last_lines(stream: asyncio.StreamReader | None) -> list[str]:
    lines: list[str] = []
    while stream is not None and (line := await stream.readline()):
        lines = [*lines, line.decode(errors="replace").strip()][-STDERR_LINES:]
    return lines


def _kill_all(pid: int, mark: int) -> list[int]:
    """Kills the head, its descendants and the processes that it has left behind; returns the pids that survive."""
    try:
        pidfd = os.pidfd_open(pid)
    except ProcessLookupError:
        return kill_tree.kill_tree(pid, None, mark)
    try:
        return kill_tree.kill_tree(pid, pidfd, mark)
    finally:
        os.close(pidfd)
