"""Reports of a worker's episodes to the governor: episodes that end within a moment share a write and a report.

Rules:
1. An episode is reported after its steps are written to the kernel. If they cannot be written, it is `failed`.
2. It is evaluated when it is stored. It waits for others only if the last report was less than `LINGER_SECONDS` ago and the
   phase does not end with it: a long episode never waits.
3. At most `most` reports are unacknowledged: their episodes are played again when this process exits.
4. A worker that shares the interpreter with the event loop waits up to `patience` seconds for the acknowledgement. The loop needs the
   interpreter some twenty times for a report, and a worker whose numpy or torch gives it up in each step wakes the loop's thread each
   time, and has it back before that one runs: both contend for it most of the time, which took a fifth of the steps. Reports that are
   sent earlier, since the phase may end with them, are not waited for.
"""

from __future__ import annotations

from collections import deque
from concurrent.futures import Future, wait
from time import monotonic
from typing import TYPE_CHECKING, Final, Protocol

from governor import logs
from governor.episodes.records.episode_file import as_not_recorded
from governor.failures import one_line

if TYPE_CHECKING:
    from governor.messages import Acknowledged, EpisodeRecord

UNACKNOWLEDGED: Final = 64
LINGER_SECONDS: Final = 0.1
"""A write and a report cost as much as a hundred steps: at a third of it episodes of 22 steps took a tenth longer."""

log = logs.get_logger()


class EpisodeSink(Protocol):
    """Stores and evaluates episodes; `simulation.Simulation` implements it."""

    def may_end(self, record: EpisodeRecord) -> bool: ...

    def ended(self, *records: EpisodeRecord) -> Future[Acknowledged]: ...


class Recorder(Protocol):
    """What has the steps of the episodes; `lost` are those that could not be written."""

    lost: dict[int, OSError]

    def flush(self) -> None: ...


class EpisodeReports:
    """The reports of one worker, for its thread."""

    def __init__(self, sink: EpisodeSink, *, most: int = UNACKNOWLEDGED, patience: float = 0.0) -> None:
        self._sink = sink
        self._patience = patience
        self._most = most
        self._due = 0.0
        self._pending: list[tuple[EpisodeRecord, Recorder | None]] = []
        self.added = 0
        """How many records there were."""
        self._settled = 0
        self._unacknowledged: deque[tuple[Future[Acknowledged], int]] = deque()
        """With the number of records that there were by then."""

    def add(self, record: EpisodeRecord, recorder: Recorder | None, *, more: bool = False) -> None:
        """`recorder` has its end, not yet flushed; None if no step was taken. `more` may end at the same time, and share its report: the
        caller calls `send_due` after them.
        """
        self._pending.append((record, recorder))
        self.added += 1
        if self._sink.may_end(record):
            self.send()
        elif not more:
            self.send_due()

    def send_due(self) -> None:
        """Sends the reports that are due. Called between steps, so that no report waits for the end of a long episode."""
        if self._pending and monotonic() >= self._due:
            self.send()

    def send(self) -> None:
        """Sends all pending reports."""
        if self._pending:
            is_due = monotonic() >= self._due
            reported = self.write_and_report()
            self._unacknowledged.append((reported, self.added))
            if self._patience and is_due:
                wait([reported], self._patience)
            self._due = monotonic() + LINGER_SECONDS
        while len(self._unacknowledged) > self._most:
            wait([self._unacknowledged[0][0]])
            self._take_acknowledged()

    @property
    def settled(self) -> int:
        """So many of the records, in their order, has the governor acknowledged: their episodes are never played again."""
        self._take_acknowledged()
        return self._settled

    def _take_acknowledged(self) -> None:
        while self._unacknowledged and self._unacknowledged[0][0].done():
            reported, records = self._unacknowledged.popleft()
            if not reported.cancelled() and reported.exception() is None:
                self._settled = records

    def drain(self) -> None:
        """Sends all pending reports and waits until the governor has acknowledged all."""
        self.send()
        wait([reported for reported, _ in self._unacknowledged])
        self._take_acknowledged()

    def write_and_report(self) -> Future[Acknowledged]:
        """Writes the pending episodes to disk, steps first, and reports them. Also for the watch, which may have declared the worker hung."""
        pending, self._pending = self._pending, []
        for recorder in {recorder for _, recorder in pending if recorder is not None}:
            try:
                recorder.flush()
            except OSError as error:
                log.warning("episode.not_recorded", episodes=len(recorder.lost), reason=one_line(error))
        return self._sink.ended(*(_as_recorded(record, recorder) for record, recorder in pending))


def _as_recorded(record: EpisodeRecord, recorder: Recorder | None) -> EpisodeRecord:
    fault = recorder.lost.pop(record.index, None) if recorder is not None else None
    return record if fault is None else as_not_recorded(record, f"cannot record its steps: {one_line(fault)}")
