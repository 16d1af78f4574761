"""What a worker has played, on its way to the governor: episodes that end within a moment share a write and a report.

Rules:
1. An episode is reported after its steps are in the kernel's hands. If they cannot be written, it is `failed`.
2. It waits for others `linger` seconds at most, or as long as one step of the next episode takes; one that took longer
   itself does not wait. What its end means for the phase is asked at once (`Simulation.judge`).
3. At most `UNACKNOWLEDGED` reports are not acknowledged: their episodes are played again when this process dies.
"""

from __future__ import annotations

from collections import deque
from concurrent.futures import wait
from math import inf
from time import monotonic
from typing import TYPE_CHECKING, Any, Final

import msgspec

from governor import logs
from governor.episodes.conditions import COMPLETE
from governor.episodes.entries import one_line

if TYPE_CHECKING:
    from concurrent.futures import Future

    from governor.episodes.recording import StepRecorder
    from governor.episodes.simulation import Simulation
    from governor.messages import EpisodeRecord

UNACKNOWLEDGED: Final = 64
LINGER_SECONDS: Final = 0.01

log = logs.get_logger()


class Reports:
    """Of one worker, for its thread."""

    def __init__(self, simulation: Simulation, *, linger: float = LINGER_SECONDS) -> None:
        self._simulation = simulation
        self._linger = linger
        self._due = inf
        self._held: list[tuple[EpisodeRecord, StepRecorder | None]] = []
        self._unacknowledged: deque[Future[Any]] = deque()

    def add(self, record: EpisodeRecord, recorder: StepRecorder | None) -> None:
        """`recorder` has its end, not yet flushed; None where no step was taken."""
        self._held.append((record, recorder))
        self._simulation.judge(record)
        self._due = min(self._due, monotonic() + self._linger)
        if record.seconds >= self._linger:
            self.send()
        else:
            self.send_due()

    def step(self, recorder: StepRecorder, *values: Any) -> None:
        """As `StepRecorder.step`. Raises OSError: then what was held back of this recorder is lost as well."""
        try:
            recorder.step(*values)
        except OSError as error:
            self._fail(recorder, error)
            raise

    def send_due(self) -> None:
        """To be called between steps. Raises OSError when steps of an episode that goes on are lost."""
        if monotonic() >= self._due:
            error = self.send()
            if error is not None:
                raise error

    def send(self) -> OSError | None:
        """All that is held; the fault of the disk, if there is one."""
        found = None
        for recorder in {recorder for _, recorder in self._held if recorder is not None}:
            try:
                recorder.flush()
            except OSError as error:
                found = error
                self._fail(recorder, error)
        held, self._held, self._due = self._held, [], inf
        if held:
            self._unacknowledged.append(self._simulation.keep(*(record for record, _ in held)))
        while len(self._unacknowledged) > UNACKNOWLEDGED:
            wait([self._unacknowledged.popleft()])
        return found

    def drain(self) -> None:
        """Returns when the governor has heard of all."""
        self.send()
        wait(self._unacknowledged)

    def _fail(self, lost: StepRecorder, error: OSError) -> None:
        for place, (record, recorder) in enumerate(self._held):
            if recorder is lost:
                log.warning("episode.not_recorded", index=record.index, reason=one_line(error))
                if record.outcome in COMPLETE:
                    failed = msgspec.structs.replace(
                        record, outcome="failed", reason=f"cannot record its steps: {one_line(error)}"
                    )
                    self._held[place] = failed, recorder
