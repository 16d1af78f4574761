"""`usage.jsonl` in the folder of a run: what its conductors used, over time, for its report.

Rules:
1. At most `MOST` lines: then every second one goes, and the interval doubles. Each line is appended whole, so a kill loses none before it.
2. Measuring takes at most a hundredth of a core. It runs in a thread that nothing waits for.
3. It is of no use to the run: a disk that is full leaves a gap, and nothing else.
"""

from __future__ import annotations

import asyncio
import time
from contextlib import suppress
from functools import partial
from itertools import pairwise
from typing import TYPE_CHECKING, Final

import msgspec

from governor import logs
from governor.episodes.entries import in_daemon_thread
from governor.files import write_whole
from governor.processes import kill_tree
from governor.runs.resource_usage import ConductorUsage

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

    from governor.runs.active_run import ActiveRun

FILE: Final = "usage.jsonl"
MOST: Final = 1_000
FIRST_SECONDS: Final = 0.5
"""The interval at first; it doubles from 500 lines on, which are then four minutes."""
SHARE: Final = 100

log = logs.get_logger()


class UsageLine(msgspec.Struct, frozen=True):
    """At a Unix time, by conductor: CPUs in use since the line before, bytes."""

    at: float
    conductors: dict[str, tuple[float, int]]


class UsageRecorder:
    """Records what one run uses, until it is cancelled."""

    def __init__(self, active: ActiveRun) -> None:
        self._run = active
        self._path = active.folder / FILE
        self._usage = ConductorUsage()
        self._lines = 0
        self._seconds = FIRST_SECONDS

    async def run(self) -> None:
        known = await asyncio.to_thread(read, self._path)
        self._lines = len(known)
        if len(known) > 1:  # a daemon before this one has begun it
            gaps = sorted(later.at - line.at for line, later in pairwise(known))
            self._seconds = max(gaps[len(gaps) // 2], FIRST_SECONDS)
        failed = False
        while True:
            took = 0.0
            pids = {name: (child.pid, child.mark) for name, child in self._run.effects.processes.items()}
            try:
                if pids:
                    took = await in_daemon_thread(partial(self._record, pids), name="usage-record")
                failed = False
            except OSError as error:
                if not failed:
                    log.info("usage.not_recorded", run=self._run.uid, reason=str(error))
                failed = True
            await asyncio.sleep(max(self._seconds, SHARE * took))

    def _record(self, pids: Mapping[str, tuple[int, int]]) -> float:
        """Returns the seconds of CPU that it took. Raises OSError."""
        begin = time.thread_time()
        marked = kill_tree.marked()
        found = self._usage.sample({name: {pid, *marked.get(mark, ())} for name, (pid, mark) in pids.items()})
        line = UsageLine(
            time.time(), {name: (round(cpu, 3), memory) for name, (cpu, memory) in found.items()}
        )
        with self._path.open("ab", buffering=0) as file:
            file.write(msgspec.json.encode(line) + b"\n")
        self._lines += 1
        if self._lines >= MOST:
            kept = read(self._path)[::2]
            write_whole(self._path, b"".join(msgspec.json.encode(each) + b"\n" for each in kept))
            self._lines = len(kept)
            self._seconds *= 2
        return time.thread_time() - begin


def read(path: Path) -> list[UsageLine]:
    """The lines of the file; none if there is no file. A line that is torn is left out. Blocks. Raises OSError."""
    found: list[UsageLine] = []
    decode = msgspec.json.Decoder(UsageLine).decode
    with suppress(FileNotFoundError), path.open("rb") as file:
        for line in file:
            with suppress(msgspec.MsgspecError):
                found.append(decode(line))
    return found
