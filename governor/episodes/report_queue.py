"""What a phase reports to the governor: episodes that end while a report is on its way share the next one."""

from __future__ import annotations

from concurrent.futures import Future
from typing import TYPE_CHECKING, Any, Final

from governor.episodes.records.tracebacks import Tracebacks
from governor.messages import (
    Acknowledged,
    EpisodeAttemptEnded,
    EpisodeEnded,
    EpisodeRecord,
    FiguresUpdated,
    encode,
)

if TYPE_CHECKING:
    import threading
    from collections.abc import Callable, Coroutine, Sequence

    from governor.messages import ConductorEvent, FlowReport
    from governor.messages.figures import PhaseFigures
    from governor.messages.link import Link

EPISODES_UNTIL_FIGURES: Final = 10_000
"""Episodes after which the running figures are reported: a later process reads what ended after them one by one."""
BYTES_PER_EPISODE: Final = 100
"""Figures with many gaps, as in a run that resumes one with many failures, are reported less often."""


class ReportQueue:
    """Of one phase. `lock` guards it and the `figures`; `ask` runs a coroutine in the event loop, `acknowledged` gets its future."""

    def __init__(
        self,
        phase: int,
        *,
        link: Link,
        figures: PhaseFigures,
        lock: threading.Condition,
        ask: Callable[[Coroutine[Any, Any, Acknowledged]], Future[Acknowledged]],
        acknowledged: Callable[[Future[Acknowledged]], None],
    ) -> None:
        self.tracebacks = Tracebacks()
        self._phase = phase
        self._link = link
        self._figures = figures
        self._lock = lock
        self._ask = ask
        self._acknowledged = acknowledged
        self._events: list[ConductorEvent] = []
        self._reported: Future[Acknowledged] = Future()
        self._until_figures = EPISODES_UNTIL_FIGURES

    def episodes(self, records: Sequence[EpisodeRecord]) -> Future[Acknowledged]:
        """The acknowledgement of all."""
        self._until_figures -= len(records)
        return self.put(*(EpisodeEnded(phase=self._phase, episode=record) for record in records))

    def attempt(self, record: EpisodeRecord, *, number: int, lost: bool = False) -> None:
        """An attempt at an episode that is not its last one. `lost`: with its process, so another one follows without `failures.retry`."""
        with self._lock:
            failed = self.tracebacks.take(record)
            self.put(
                EpisodeAttemptEnded(
                    phase=self._phase,
                    index=failed.index,
                    attempt=number,
                    worker=failed.worker,
                    outcome=failed.outcome,
                    reason=failed.reason,
                    steps=failed.steps,
                    seconds=failed.seconds,
                    traceback=failed.traceback,
                    lost=lost,
                )
            )

    def put(self, *events: EpisodeEnded | EpisodeAttemptEnded | FlowReport) -> Future[Acknowledged]:
        """Reports these events, in order; the acknowledgement of all."""
        with self._lock:
            first = not self._events
            if first:
                self._reported = self._ask(self._send())
            self._events += events
            reported = self._reported
        if first:
            reported.add_done_callback(self._acknowledged)
        return reported

    async def _send(self) -> Acknowledged:
        """Reports all that has come before the event loop runs this."""
        with self._lock:
            events: list[ConductorEvent] = [*self.tracebacks.texts(), *self._events]
            self._events = []
            if self._until_figures <= 0:
                figures = encode(self._figures)
                self._until_figures = max(EPISODES_UNTIL_FIGURES, len(figures) // BYTES_PER_EPISODE)
                events.append(FiguresUpdated(phase=self._phase, figures=figures))
        return await self._link.report_all(events)
