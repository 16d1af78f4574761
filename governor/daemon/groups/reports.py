"""How a group stands: its cells with the metrics of their last runs, and how that changes."""

from __future__ import annotations

import asyncio
from collections import Counter
from contextlib import suppress
from functools import partial
from typing import TYPE_CHECKING, Any, Final

from governor.messages import CellStatus, Done, GroupProgress, GroupReport, WatchEnd, encode
from governor.messages.chunking import slices

if TYPE_CHECKING:
    from collections.abc import Mapping

    from governor.daemon.queries import DaemonState, RunQueries
    from governor.journal.runs_table import RunLine
    from governor.messages import GetGroup, RunOutcome, WatchGroup
    from governor.runs.active_run import RunContext
    from transport.worker import Request

AT_ONCE: Final = 500
"""Cells that are described before the event loop does something else."""
PROGRESS_SECONDS: Final = 1.0
"""At most so often the cells are counted."""
KEEP_ALIVE_SECONDS: Final = 5.0


class GroupReports:
    """The methods raise NoSuchRun and JournalError."""

    def __init__(self, *, daemon: DaemonState, context: RunContext, queries: RunQueries) -> None:
        self._daemon = daemon
        self._journal = context.journal
        self._queries = queries

    async def send(self, request: Request, asked: GetGroup) -> Done:
        """In parts: it may be large."""
        group = await self._journal.read(partial(self._queries.find_group, asked.uid))
        metrics = None
        if asked.phase is not None:
            metrics = await self._journal.read(partial(self._journal.phase_metrics, group.uid, asked.phase))
        report = GroupReport(
            uid=group.uid,
            name=group.name,
            submitted_at=group.submitted_at,
            paths=group.paths,
            max_parallel=group.max_parallel,
            fail_fast=group.fail_fast,
            cells=await self._cells(group.uid, metrics),
        )
        for part in slices(encode(report)):
            await request.partial(part)
        return Done()

    async def watch(self, request: Request, asked: WatchGroup) -> WatchEnd:
        """The outcome is that of the worst run."""
        group = await self._journal.read(partial(self._queries.find_group, asked.uid))
        told = set[str]()
        counts: Mapping[str, int] = {}
        now = asyncio.get_running_loop().time
        silent_until = 0.0
        while True:
            movement, again_at = self._daemon.limits.movement, now() + PROGRESS_SECONDS
            cells = await self._cells(group.uid)
            before, counts = counts, Counter(cell.state for cell in cells)
            ended = tuple(cell for cell in cells if cell.state in _WORST and cell.uid not in told)
            told.update(cell.uid for cell in ended)
            if counts != before or ended:
                await request.partial(encode(GroupProgress(uid=group.uid, counts=dict(counts), ended=ended)))
                silent_until = now() + KEEP_ALIVE_SECONDS
            if all(cell.state in _WORST for cell in cells):
                return WatchEnd(
                    outcome=next(outcome for outcome in _WORST if outcome in counts or outcome == _BEST)
                )
            if self._daemon.is_stopping and not any(
                slot.group == group.uid for slot in self._daemon.governors
            ):
                return WatchEnd(outcome="interrupted")
            with suppress(TimeoutError):
                async with asyncio.timeout_at(silent_until):
                    await movement.wait()
                    await asyncio.sleep(
                        again_at - now()
                    )  # others may move meanwhile: they are counted together
            if now() >= silent_until:
                await request.partial(b"")
                silent_until = now() + KEEP_ALIVE_SECONDS

    async def _cells(
        self, uid: str, metrics: Mapping[str, dict[str, float]] | None = None
    ) -> tuple[CellStatus, ...]:
        """The last run of each cell. `metrics`: those of one phase, by run."""
        lines = await self._journal.read(lambda: [*self._journal.lines_of_group(uid)])
        lines = await self._queries.settled(lines)
        last = {line.cell: line for line in lines}
        number = Counter(line.cell for line in lines)
        cells: list[CellStatus] = []
        for cell, line in sorted(last.items(), key=lambda item: item[0] or 0):
            if len(cells) % AT_ONCE == AT_ONCE - 1:
                await asyncio.sleep(0)
            cells.append(
                CellStatus(
                    cell=line.cell or 0,
                    uid=line.uid,
                    state=self._state_of(line),
                    params=line.params,
                    reason=line.reason,
                    metrics=line.metrics if metrics is None else metrics.get(line.uid, {}),
                    seconds=line.seconds,
                    runs=number[cell],
                )
            )
        return tuple(cells)

    def _state_of(self, line: RunLine) -> str:
        """Its outcome, once it has ended; ``running`` from its assignment to its end."""
        if line.ended_at is not None:
            return line.outcome or "damaged"
        if self._queries.governor_of(line.uid) is not None:
            return "running"
        if self._queries.damage_of(line):
            return "damaged"
        if line.uid in self._daemon.held or self._daemon.is_stopping:
            return "interrupted"
        waiting = self._daemon.queue.find(line.uid)
        return "queued" if waiting is None or waiting.pause is None else "paused"


_WORST: Final[tuple[RunOutcome, ...]] = ("failed", "aborted", "finished")
_BEST: Final[Any] = _WORST[-1]
