"""What a worker has played, on its way to the governor: episodes that end within a moment share a write and a report.

Rules:
1. An episode is reported after its steps are in the kernel's hands. If they cannot be written, it is `failed`.
2. It is judged as it is kept. It waits for others only where the last report was less than `linger` seconds ago, and the
   phase is not over with it: a long episode never waits.
3. At most `most` reports are not acknowledged: their episodes are played again when this process dies.
"""

from __future__ import annotations

from collections import deque
from concurrent.futures import Future, wait
from time import monotonic
from typing import TYPE_CHECKING, Final, Protocol

from governor import logs
from governor.episodes.entries import one_line
from governor.episodes.records.episode_file import unkept

if TYPE_CHECKING:
    from governor.episodes.records.recording import StepRecorder
    from governor.messages import Acknowledged, EpisodeRecord

UNACKNOWLEDGED: Final = 64
LINGER_SECONDS: Final = 0.01

log = logs.get_logger()


class Keeper(Protocol):
    """Who keeps and judges episodes; `simulation.Simulation` is one."""

    def may_end(self, record: EpisodeRecord) -> bool: ...

    def ended(self, *records: EpisodeRecord) -> Future[Acknowledged]: ...


class EpisodeReports:
    """Of one worker, for its thread."""

    def __init__(self, keeper: Keeper, *, linger: float = LINGER_SECONDS, most: int = UNACKNOWLEDGED) -> None:
        self._keeper = keeper
        self._linger = linger
        self._most = most
        self._due = 0.0
        self._held: list[tuple[EpisodeRecord, StepRecorder | None]] = []
        self._unacknowledged: deque[Future[Acknowledged]] = deque()

    def add(self, record: EpisodeRecord, recorder: StepRecorder | None) -> None:
        """`recorder` has its end, not yet flushed; None where no step was taken."""
        self._held.append((record, recorder))
        if self._keeper.may_end(record):
            self.send()
        else:
            self.send_due()

    def send_due(self) -> None:
        """May be called between steps, so that nothing waits for the end of a long episode."""
        if self._held and monotonic() >= self._due:
            self.send()

    def send(self) -> None:
        """All that is held."""
        if self._held:
            self._unacknowledged.append(self.hand_in())
            self._due = monotonic() + self._linger
        while len(self._unacknowledged) > self._most:
            wait([self._unacknowledged.popleft()])

    def drain(self) -> None:
        """Returns when the governor has heard of all."""
        self.send()
        wait(self._unacknowledged)
        self._unacknowledged.clear()

    def hand_in(self) -> Future[Acknowledged]:
        """What is held comes to disk, the steps first, and is reported. Also for who has written the worker off."""
        held, self._held = self._held, []
        for recorder in {recorder for _, recorder in held if recorder is not None}:
            try:
                recorder.flush()
            except OSError as error:
                log.warning("episode.not_recorded", episodes=len(recorder.lost), reason=one_line(error))
        return self._keeper.ended(*(_as_kept(record, recorder) for record, recorder in held))


def _as_kept(record: EpisodeRecord, recorder: StepRecorder | None) -> EpisodeRecord:
    fault = recorder.lost.pop(record.index, None) if recorder is not None else None
    return record if fault is None else unkept(record, f"cannot record its steps: {one_line(fault)}")
