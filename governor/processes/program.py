"""A program of a user, as a child of a process that runs user code: its start, its output, its end.

Rules:
1. It leads a session and a process group of its own. Its environment is that of this process, without what Ray and we have set
   for our own processes.
2. What it writes goes on to descriptors 1 and 2 of this process as it comes; the end of each stream is kept.
3. `Leftovers` are what it has started and left, also in sessions of their own.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import IO, TYPE_CHECKING, Final

from governor.errors import ProcessError, text_of
from governor.failures import signal_name
from governor.processes import kill_tree

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

KEPT_BYTES: Final = 1 << 20
"""Of the end of each stream, at least."""
LAST_SECONDS: Final = 1.0
"""For the last output to be read, once all of its processes are gone."""
SHELL_SIGNAL: Final = 128
"""A shell whose command was killed by signal n exits with this plus n."""
LINE_CHARACTERS: Final = 200
"""Of the last line that a reason has."""
_PORTION: Final = 64 << 10
_ROOT: Final = str(Path(__file__).parents[2])


class Program:
    """Runs from its construction on. `on_line` is called with each line of its streams, in their threads, and with what
    is there of a line that is not over. Raises ProcessError.
    """

    def __init__(
        self,
        command: Sequence[str],
        *,
        cwd: Path,
        env: Mapping[str, str],
        stdin: Path | None = None,
        on_line: Callable[[str], None] | None = None,
    ) -> None:
        variables = {**environment(), **env}
        executable = find(command[0], cwd=cwd, path=variables.get("PATH", os.defpath))
        mask = signal.pthread_sigmask(signal.SIG_SETMASK, ())  # Ray blocks SIGINT
        try:
            with (stdin or Path(os.devnull)).open("rb") as given:
                self._process = subprocess.Popen(
                    [*command],
                    executable=executable,
                    cwd=cwd,
                    env=variables,
                    stdin=given,
                    stdout=subprocess.PIPE,
                    stderr=subprocess.PIPE,
                    bufsize=0,
                    start_new_session=True,
                )
        except (OSError, ValueError) as error:
            what = getattr(error, "strerror", None) or text_of(error)
            place = f" ({error.filename})" if isinstance(error, OSError) and error.filename else ""
            raise ProcessError(f"cannot start {command[0]}: {what}{place}") from None
        finally:
            signal.pthread_sigmask(signal.SIG_SETMASK, mask)
        self.pid = self._process.pid
        self.stdout = Stream(self._process.stdout, to=1, on_line=on_line)
        self.stderr = Stream(self._process.stderr, to=2, on_line=on_line)

    def wait(self, seconds: float | None = None) -> int | None:
        """Its exit code, negative for a signal; None if it still runs."""
        try:
            return self._process.wait(seconds)
        except subprocess.TimeoutExpired:
            return None

    def terminate(self, grace: float) -> None:
        """SIGTERM to its group; SIGKILL where it has not exited within `grace` seconds. Blocks until it is dead."""
        for number in (
            signal.SIGTERM,
            signal.SIGCONT,
        ):  # a stopped process handles SIGTERM only when it continues
            self.signal(number)
        if self.wait(grace) is None:
            self.signal(signal.SIGKILL)
            self.wait(kill_tree.KILL_SECONDS)

    def signal(self, number: signal.Signals) -> None:
        """To its process group, while it runs."""
        if self._process.poll() is None:
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.killpg(self.pid, number)

    def read_all(self) -> None:
        """Returns when all that it has written is read: none of its processes is left."""
        for stream in (self.stdout, self.stderr):
            stream.join(LAST_SECONDS)


class Stream(threading.Thread):
    """Reads one stream to its end."""

    def __init__(self, pipe: IO[bytes] | None, *, to: int, on_line: Callable[[str], None] | None) -> None:
        super().__init__(name=f"program.{to}", daemon=True)
        assert pipe is not None  # noqa: S101  # as it was started
        self._pipe = pipe
        self._to = to
        self._on_line = on_line
        self._kept = bytearray()
        self._line = b""
        self.start()

    @property
    def end(self) -> str:
        """What it has written last."""
        return self._kept.decode("utf-8", "backslashreplace")

    def run(self) -> None:
        with self._pipe as pipe:
            while data := os.read(pipe.fileno(), _PORTION):
                self._kept += data
                if len(self._kept) > 2 * KEPT_BYTES:
                    del self._kept[:-KEPT_BYTES]
                self._hand_on(data)
                if self._on_line is not None:
                    *lines, self._line = (self._line + data).split(b"\n")
                    self._line = self._line[-KEPT_BYTES:]
                    for line in (*lines, self._line):
                        self._on_line(line.decode("utf-8", "backslashreplace"))

    def _hand_on(self, data: bytes) -> None:
        """On a full disk it is lost, as what user code prints itself."""
        with contextlib.suppress(OSError):
            while data:
                data = data[os.write(self._to, data) :]


class Leftovers:
    """The processes below this one that were not there when this was made. It adopts orphans, so that none of them is missed."""

    def __init__(self) -> None:
        self._before = kill_tree.descendants(os.getpid())

    def kill(self) -> None:
        """Kills them and reaps those that are this process' children. Raises OSError when no descriptors are left to watch them."""
        deadline = time.monotonic() + kill_tree.KILL_SECONDS
        while (found := self._alive()) and time.monotonic() < deadline:
            killed = kill_tree.stop_and_kill(found, spared={os.getpid(), *self._before})
            kill_tree.close(kill_tree.finish(killed, marks=()))

    def _alive(self) -> dict[int, int]:
        """Their pidfds; what is dead is reaped."""
        found: dict[int, int] = {}
        for pid in kill_tree.descendants(os.getpid()) - self._before:
            with contextlib.suppress(ProcessLookupError):
                found[pid] = os.pidfd_open(pid)
                if kill_tree.is_dead(found[pid]):
                    os.close(found.pop(pid))
                    with contextlib.suppress(ChildProcessError):
                        os.waitpid(pid, os.WNOHANG)
        return found


def find(name: str, *, cwd: Path, path: str) -> str:
    """The file of a program: in the folders of `path`, else in `cwd`. Raises ProcessError."""
    known = shutil.which(name, path=path) if os.sep not in name else None
    if known is not None:
        return known
    file = cwd / name
    if not file.is_file():
        places = f"in {cwd}" if os.sep in name else f"on PATH, nor in {cwd}"
        raise ProcessError(f"there is no program {name!r} {places}")
    if not os.access(file, os.X_OK):
        shell = "python" if file.suffix == ".py" else "sh"
        raise ProcessError(
            f"{name} is not executable: `chmod +x {name}`, or say what runs it: [{shell}, {name}]"
        )
    return str(file)


def environment() -> dict[str, str]:
    """That of programs. The folder of this Python is the last one of PATH: under systemd no virtual environment is active."""
    found = {name: value for name, value in os.environ.items() if not name.startswith("RAY_")}
    found.pop("SPT_NOENV", None)
    if found.get("PYTHONBREAKPOINT", "").startswith("ray."):
        del found["PYTHONBREAKPOINT"]
    paths = [path for path in found.pop("PYTHONPATH", "").split(os.pathsep) if path and path != _ROOT]
    if paths:  # without our own: programs may be of another Python
        found["PYTHONPATH"] = os.pathsep.join(paths)
    folders = [*found.get("PATH", os.defpath).split(os.pathsep), str(Path(sys.executable).parent)]
    return found | {"PATH": os.pathsep.join(dict.fromkeys(folders))}


def reason_of_exit(code: int, said: str) -> str:
    """``exit code 3`` with the last line of its standard error, ``killed by SIGSEGV``: that line says nothing of a signal."""
    if code < 0:
        return f"killed by {signal_name(-code)}"
    shell = signal_name(code - SHELL_SIGNAL)
    how = f"exit code {code}" + (f" ({SHELL_SIGNAL} + {shell})" if shell.startswith("SIG") else "")
    line = last_line(said)[:LINE_CHARACTERS]
    return f"{how}: {line}" if line else how


def last_line(text: str) -> str:
    """The last line that is not blank; of one that is redrawn its last state."""
    end = len(text)
    while end > 0:
        start = text.rfind("\n", 0, end) + 1
        if line := text[start:end].rstrip("\r").rpartition("\r")[2].strip():
            return line
        end = start - 1
    return ""
