"""The callable of tasks with a `command`: runs a program of the user, in a process of its own.

Rules:
1. It ends in each of these ways with all that it has started: exit, deadline, cancellation. What ignores SIGTERM is killed within
   the grace period; a runner that is killed itself takes all of them along.
2. Its value is, in this order: the file `result`; what it has written to the file that ``GOVERNOR_RESULT`` names; the last
   line of its standard output, where that is JSON. The numbers of a mapping are its metrics.
3. Its exit code and signal are the reason of a failure, the end of its standard error is the traceback.
"""

from __future__ import annotations

import json
import shutil
import sys
import tempfile
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from governor.errors import ConductorError, ProcessError
from governor.failures import Reason, shortened, utf8
from governor.files import read_regular
from governor.processes import program
from governor.processes.program import Leftovers, Program
from governor.tasks.api import TaskCancelled, TaskContext, TaskResult
from governor.tasks.protocol import values
from governor.units import placeholders

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

KNOWN: Final = (
    "run",
    "task",
    "run_id",
    "attempt",
    "deadline",
    "model",
    "run_folder",
    "inputs",
    "result",
    "python",
)
"""The placeholders that are no names of `args`."""
LARGEST: Final = 10**300
"""Whole numbers from here on are no metrics."""
TERMINATE_SHARE: Final = 0.8
"""Of the grace period, until SIGKILL: then the runner itself is not killed."""


class ProgramFailed(ConductorError):
    """`crashed`: a signal has killed it."""

    def __init__(self, reason: str, *, crashed: bool = False) -> None:
        super().__init__(reason)
        self.crashed = crashed


@dataclass(frozen=True, slots=True, kw_only=True)
class _Attempt:
    """One execution: its placeholders are filled in."""

    command: list[str]
    cwd: Path
    env: dict[str, str]
    stdin: Path | None
    result: Path | None
    given: Path
    """Of ``GOVERNOR_RESULT``."""


def run(
    *,
    command: Sequence[str],
    args: Mapping[str, Any],
    cwd: str | None,
    env: Mapping[str, str],
    stdin: str | None,
    result: str | None,
    grace: float,
    inputs: Mapping[str, Any],
    context: TaskContext,
) -> TaskResult:
    """Returns its value and metrics. Raises ProgramFailed."""
    home = Path.cwd()
    with _folder(context) as folder:
        files = {"inputs": _write_inputs(inputs, folder), "result": folder / "result.json"}
        known = _known(context, files)

        def fill(text: str) -> str:
            return placeholders.filled(text, lambda name: args[name] if name in args else known[name])

        place = home / fill(cwd) if cwd is not None else home
        attempt = _Attempt(
            command=[fill(word) for word in command],
            cwd=place,
            env=_variables(known) | {name: fill(value) for name, value in env.items()},
            stdin=None if stdin is None else home / fill(stdin),
            result=None if result is None else place / fill(result),
            given=files["result"],
        )
        return _execute(attempt, grace)


def _known(context: TaskContext, files: Mapping[str, Path]) -> dict[str, Any]:
    found: dict[str, Any] = {
        name: getattr(context, name) for name in ("run", "task", "run_id", "attempt", "deadline", "model")
    }
    found |= {name: str(path) for name, path in files.items()}
    return found | {"run_folder": str(context.run_folder), "python": sys.executable}


def _variables(known: Mapping[str, Any]) -> dict[str, str]:
    """``GOVERNOR_RUN`` and so on; what is None is left out."""
    return {
        f"GOVERNOR_{name.upper()}": value if isinstance(value, str) else json.dumps(value)
        for name, value in known.items()
        if value is not None and name != "python"
    }


def _execute(attempt: _Attempt, grace: float) -> TaskResult:
    before = _stamp(attempt.result)
    leftovers = Leftovers()
    started: Program | None = None
    code: int | None = None
    try:
        started = Program(attempt.command, cwd=attempt.cwd, env=attempt.env, stdin=attempt.stdin)
        code = started.wait()
    except ProcessError as error:
        raise ProgramFailed(str(error)) from None
    except TaskCancelled:
        if started is not None:
            started.terminate(TERMINATE_SHARE * grace)
    except BaseException:  # Ctrl-C of a person who tries it
        if started is not None:
            started.terminate(TERMINATE_SHARE * grace)
        raise
    finally:
        leftovers.kill()
        if started is not None:
            started.read_all()
    if started is None or code is None:
        raise ProgramFailed(Reason("the task was cancelled", _said(started)))
    if code:
        reason = program.reason_of_exit(code, started.stderr.end)
        raise ProgramFailed(Reason(utf8(reason), _said(started)), crashed=code < 0)
    return _value(attempt, before, program.last_line(started.stdout.end))


def _said(started: Program | None) -> str:
    """The end of its standard error, in place of a traceback."""
    return "" if started is None else shortened(utf8(started.stderr.end.strip("\n")))


# -- its value ----------------------------------------------------------------------------------------------


def _value(attempt: _Attempt, before: object, last: str) -> TaskResult:
    if attempt.result is not None:
        if _stamp(attempt.result) in (None, before):
            raise ProgramFailed(f"it has not written its result, {attempt.result}")
        return _of_file(attempt.result)
    if attempt.given.exists():
        return _of_file(attempt.given)
    try:
        return _result(json.loads(last))
    except (ValueError, RecursionError):
        return TaskResult()


def _of_file(path: Path) -> TaskResult:
    try:
        return _result(json.loads(read_regular(path)))
    except OSError as error:
        raise ProgramFailed(f"its result {path} cannot be read: {error.strerror}") from None
    except (ValueError, RecursionError) as error:
        raise ProgramFailed(f"its result {path} is no JSON: {error}") from None


def _result(value: Any) -> TaskResult:
    """Its metrics are the numbers of a mapping, unless they are too many for a message."""
    given = value if isinstance(value, dict) else {}
    metrics = {
        name: float(number)
        for name, number in given.items()
        if type(number) is float or (type(number) is int and abs(number) < LARGEST)
    }
    return TaskResult(value, metrics if values.fit_inline(metrics) else {})


def _stamp(path: Path | None) -> object:
    """Differs once the file is written again; None if it is not there."""
    if path is None or not path.exists():
        return None
    found = path.stat()
    return found.st_ino, found.st_mtime_ns, found.st_size


# -- its files ----------------------------------------------------------------------------------------------


@contextmanager
def _folder(context: TaskContext) -> Iterator[Path]:
    """For files of this attempt: in the run's folder, or where this machine does not have that. Removed at the end."""
    parent = context.run_folder if context.run_folder.is_dir() else None
    folder = Path(tempfile.mkdtemp(prefix="program-", dir=parent))
    try:
        yield folder
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def _write_inputs(inputs: Mapping[str, Any], folder: Path) -> Path:
    """The results of `depends_on`, as JSON."""
    path = folder / "inputs.json"
    try:
        path.write_text(json.dumps(inputs, default=_listed))
    except (TypeError, ValueError) as error:
        raise ProgramFailed(
            f"its inputs have no form in JSON ({error}): return plain data, or the path of a file"
        ) from None
    return path


def _listed(value: Any) -> Any:
    """Arrays and numbers of numpy as lists and numbers."""
    if type(value).__module__ == "numpy":
        return value.tolist()
    raise TypeError(f"it holds a {type(value).__name__}")
