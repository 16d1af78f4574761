"""Makes the steps of a phase one Parquet file: ahead, while episodes are played, and the rest when the phase is over.

Rules:
1. Ahead of the end go whole row groups of the first episodes of which none is missing, each time that `AHEAD` more steps, or
   `AHEAD_BYTES` of them, are on record: so a phase of any length has about that many left at its end. An error ahead is no fault: the
   end repeats it.
2. What the end takes longer than `REPORT_SECONDS[0]` is reported, with how far it is.
3. A part that was told to stop has `STOP_SECONDS`: a stop has deadlines, and the streams are as good a record. They stay then,
   and all that reads steps reads them. A process that exits leaves them at once.
4. An unfinished file stays until the end of the part is on record: so a full disk is seen as such, and interrupts the run.
"""

from __future__ import annotations

import asyncio
from math import inf
from pathlib import Path
from time import monotonic
from typing import TYPE_CHECKING, Final

from governor import logs
from governor.failures import one_line
from governor.messages import PartFinalizing

if TYPE_CHECKING:
    from collections.abc import Callable

    from governor.episodes.trajectories import Conversion
    from governor.index_ranges import IndexRanges
    from governor.messages import ConductorSpec, StartSimulation
    from governor.messages.link import Link

    Recorded = Callable[[Callable[[], None]], IndexRanges]
    """Finds the episodes that count; it calls what it is given often, which may end it."""

AHEAD: Final = 1 << 20
AHEAD_BYTES: Final = 1 << 29
REPORT_SECONDS: Final = (1.0, 5.0)
"""Until the first report, and from one to the next."""
STOP_SECONDS: Final = 1.0

log = logs.get_logger()


class _OutOfTime(Exception):
    """The part was told to stop, or the process exits."""


class Finalizer:
    """Of one phase. `ended` is for the threads of workers, `stop` and `abandon` for any thread; the rest for the event loop."""

    def __init__(self, command: StartSimulation, *, spec: ConductorSpec, link: Link) -> None:
        self._phase = command.phase
        self._name = command.name
        self._folder = Path(spec.run_folder)
        self._link = link
        self._loop = asyncio.get_running_loop()
        self._due = asyncio.Event()
        self._ahead: asyncio.Task[None] | None = None
        self._conversion: Conversion | None = None
        self._below = 0
        self._done = 0
        self._finishing = self._stopped = self._keeps_streams = False
        self._until = inf

    @property
    def progress(self) -> int:
        """A number that changes with each row group."""
        return sum(self._steps)

    def begin(self) -> None:
        """Begins to work ahead."""
        self._ahead = asyncio.create_task(self._work_ahead(), name="steps.ahead")

    def ended(self, recorded: IndexRanges, steps: int, *, row_bytes: int = 0) -> None:
        """Episodes have ended: `steps` of this process are on record by now, each of `row_bytes`. Not for two threads at once."""
        bounds, more = recorded.bounds, steps - self._done
        if (more >= AHEAD or more * row_bytes >= AHEAD_BYTES) and bounds and bounds[0] == 0:
            self._done = steps
            self._below = bounds[1]
            self._loop.call_soon_threadsafe(self._due.set)

    def stop(self) -> None:
        """The part was told to stop."""
        self._stopped = True
        if self._finishing:
            self._until = min(self._until, monotonic() + STOP_SECONDS)

    def keep_streams(self) -> None:
        """An agent could not be saved: a run that resumes this one learns again from the streams."""
        self._keeps_streams = True

    def abandon(self) -> None:
        """The process exits."""
        self._until = 0.0

    async def finish(self, recorded: Recorded) -> str:
        """Makes the file whole when all episodes have ended. Returns why it could not be made, else an empty text."""
        self._finishing = True
        if self._stopped:
            self._until = min(self._until, monotonic() + STOP_SECONDS)
        reporting = asyncio.create_task(self._report(), name="steps.report")
        try:
            await self._end_ahead()
            return "" if self._keeps_streams else await asyncio.to_thread(self._finish, recorded)
        finally:
            reporting.cancel()
            await asyncio.wait({reporting})

    async def close(self) -> None:
        """Removes what is unfinished. May be called again."""
        await self._end_ahead()
        if self._conversion is not None:
            await asyncio.to_thread(self._conversion.discard)

    @property
    def _steps(self) -> tuple[int, int]:
        return (0, 0) if self._conversion is None else self._conversion.steps

    async def _report(self) -> None:
        first, wait = REPORT_SECONDS
        await asyncio.sleep(first)
        while True:
            done, total = self._steps
            await self._link.report(
                PartFinalizing(phase=self._phase, part="simulation", steps=done, total=total)
            )
            await asyncio.sleep(wait)

    async def _work_ahead(self) -> None:
        sound = True
        while sound and not self._finishing:
            await self._due.wait()
            self._due.clear()
            sound = self._finishing or await asyncio.to_thread(self._advance, self._below)

    async def _end_ahead(self) -> None:
        if self._ahead is not None:
            self._finishing = True
            self._due.set()
            await asyncio.wait({self._ahead})

    # -- in a thread ----------------------------------------------------------------------------------------

    def _advance(self, below: int) -> bool:
        """Whether it may be called again."""
        try:
            self._made().advance(below)
        except Exception as error:  # noqa: BLE001  # from Arrow and the disk
            if not isinstance(error, _OutOfTime):
                log.warning("steps.not_converted_ahead", phase=self._name, reason=one_line(error))
            self._made().discard()
            return False
        return True

    def _finish(self, recorded: Recorded) -> str:
        try:
            self._check()
            self._made().finish(recorded(self._check))
        except _OutOfTime:
            self._made().discard()
            log.info("steps.kept_as_streams", phase=self._name, reason="the phase was told to stop")
        except Exception as error:  # noqa: BLE001  # from Arrow and the disk
            return f"cannot finalize the steps of {self._name!r}: {one_line(error)}; they stay on record as streams"
        return ""

    def _made(self) -> Conversion:
        if self._conversion is None:
            from governor.episodes.trajectories import Conversion  # noqa: PLC0415  # Arrow: not for the forkserver

            self._conversion = Conversion(self._folder, self._name, check=self._check)
        return self._conversion

    def _check(self) -> None:
        if monotonic() >= self._until:
            raise _OutOfTime
