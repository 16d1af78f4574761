"""What the tasks of a script print: shown in its terminal as Ray shows it.

Rules:
1. A thread reads the spools of a driver's runners, and prints their lines through Ray's own printer: prefix, colours and variables
   (``RAY_COLOR_PREFIX``, ``RAY_DISABLE_WORKER_LOG_PREFIX``) are those of plain Ray. The name in the prefix is the task's.
2. `flush` returns when all that tasks had printed is shown; so does `close`. Ray loses the last lines of a script that ends.
3. On a terminal lines that several processes print are shown once, as Ray does it; elsewhere (a file, a pipe) each is shown.
4. With ``ray.init(log_to_driver=False)`` all of that is Ray's business: the lines are in its session folder.
"""

from __future__ import annotations

import sys
import threading
from contextlib import contextmanager, suppress
from functools import cache
from itertools import groupby
from time import monotonic
from typing import TYPE_CHECKING, Any, Final
from weakref import WeakSet

from governor import logs
from governor.output.spool_folder import SpoolFolder

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping
    from pathlib import Path

    from governor.messages import OutputLine

LOOK_SECONDS: Final = 0.1
REDRAWN_SECONDS: Final = 2.0
"""Between two states of a line that is redrawn, as of a progress bar."""
LINES_PER_SECOND: Final = 50_000
BYTES_PER_SECOND: Final = 32 << 20
"""Of each stream of a runner; of more the newest is shown, and the number of lines that are missing."""

log = logs.get_logger()
_names: dict[str, str] = {}
"""Of `shown_as`."""


class ScriptOutput:
    """That of one driver, whose spools are in `folder`. Thread-safe."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._spools = SpoolFolder(
            folder, lines_per_second=LINES_PER_SECOND, bytes_per_second=BYTES_PER_SECOND
        )
        self._reading = threading.Lock()
        self._closed = threading.Event()
        self._redrawn: dict[tuple[str, int, str], tuple[str, float]] = {}
        """Text and time of the state that was shown last, by node, pid and stream."""
        self._thread = threading.Thread(target=self._work, name="tasks.output", daemon=True)
        self._thread.start()
        _open.add(self)
        _flush_at_exit()

    def flush(self) -> None:
        """Shows all that was printed until now."""
        with self._reading:
            self._show(self._spools.read())

    def close(self) -> None:
        """Shows the rest. Idempotent."""
        _open.discard(self)
        if self._closed.is_set():
            return
        self._closed.set()
        self._thread.join()
        with self._reading:
            self._show(self._spools.read(all_left=True))
            self._spools.close()

    def _work(self) -> None:
        while not self._closed.wait(LOOK_SECONDS):
            try:
                self.flush()
                with self._reading:
                    self._show(self._redraws())
            except Exception:  # the thread goes on: a later line may be shown
                log.exception("output.failed")

    def _redraws(self) -> list[OutputLine]:
        """Lines that are being redrawn, if they have changed and were not shown for a while."""
        now = monotonic()
        found: list[OutputLine] = []
        known, self._redrawn = self._redrawn, {}
        for line in self._spools.unfinished():
            key = (line.node, line.pid, line.stream)
            text, at = known.get(key, ("", now))
            if line.text != text and now - at >= REDRAWN_SECONDS:
                found.append(line)
                text, at = line.text, now
            self._redrawn[key] = text, at
        return found

    def _show(self, lines: list[OutputLine]) -> None:
        for (node, pid, task, stream), some in groupby(lines, key=_source):
            shown = {
                "ip": node,
                "localhost": "",
                "pid": pid,
                "task_name": _names.get(task, task),
                "lines": [_text(line) for line in some],
                "is_err": stream == "stderr",
            }
            _print(shown)


def _source(line: OutputLine) -> tuple[str, int, str, str]:
    return line.node, line.pid, line.task, line.stream


def _text(line: OutputLine) -> str:
    if line.dropped is not None:
        return f"({line.dropped[0]} lines are not shown: they came faster than they can be)"
    return f"{line.level.upper()}: {line.text}" if line.logger == "context" else line.text


def _print(data: dict[str, Any]) -> None:
    # it has been imported, with its variables set
    from ray._private import ray_logging, worker  # noqa: PLC0415

    sink = sys.stderr if data["is_err"] else sys.stdout
    if sink is None:  # a script without a terminal, and without a file in its place
        return
    try:
        batches = [data]
        if sink.isatty():
            is_err = data["is_err"]
            known = ray_logging.stderr_deduplicator if is_err else ray_logging.stdout_deduplicator
            batches = known.deduplicate(data)
        ignores_prefix = worker._should_ignore_worker_log_prefix(worker.global_worker)  # noqa: SLF001  # its only place
        for batch in batches:
            worker.print_worker_logs(batch, sink, ignores_prefix)
        sink.flush()
    except (OSError, ValueError):  # nobody reads it any more; closed
        return


@contextmanager
def shown_as(names: Mapping[str, str]) -> Iterator[None]:
    """Meanwhile these tasks, by id, are shown under other names."""
    _names.update(names)
    try:
        yield
    finally:
        for task in names:
            _names.pop(task, None)


def wants_output() -> bool:
    """Whether prints of tasks are shown in this process, which has a connection to Ray: with ``log_to_driver=False`` they are not."""
    from ray._private.ray_logging import global_worker_stdstream_dispatcher  # noqa: PLC0415  # as above

    return any(name == "ray_print_logs" for name, _ in global_worker_stdstream_dispatcher.handlers)


_open: WeakSet[ScriptOutput] = WeakSet()


@cache
def _flush_at_exit() -> None:
    """Of a script that ends without closing what it has opened."""
    with suppress(RuntimeError):  # it is ending
        # As for the session of `run_exp`: for `atexit` the thread has been gone for long.
        threading._register_atexit(_flush_all)  # type: ignore[attr-defined]  # noqa: SLF001  # as said above


def _flush_all() -> None:
    for output in list(_open):
        output.flush()
