"""What a worker in process needs of the part whose episodes it plays, and what of that is the same wherever it plays one at a time, outside
of the process of the simulation.
"""

from __future__ import annotations

from concurrent.futures import Future
from typing import TYPE_CHECKING, Protocol

from governor.episodes.records.reports import EpisodeSink
from governor.messages import Acknowledged

if TYPE_CHECKING:
    from governor.episodes.records.recording import StepRecorder
    from governor.episodes.spaces import SpaceSpec
    from governor.messages import EpisodeRecord, StartSimulation


class EpisodeSource(EpisodeSink, Protocol):
    """What a worker needs of the part whose episodes it plays; `simulation.Simulation` implements it."""

    command: StartSimulation
    interrupts: bool
    resets: int

    def interrupted(self, index: int) -> bool: ...

    def next_index(self, *, wait: bool = True) -> int | None: ...

    def seed_of(self, index: int) -> int: ...

    def recorder(self, worker: int, observation: SpaceSpec, action: SpaceSpec) -> StepRecorder: ...

    def trains(self, index: int) -> bool: ...

    def retries_of(self, index: int) -> int: ...


class OneEpisode:
    """Of an `EpisodeSource`. `play_next` is the index of the next episode, None when it has begun; `played` is the record of the last one."""

    interrupts = False
    resets = 0
    play_next: int | None = None
    played: EpisodeRecord | None = None

    def next_index(self, *, wait: bool = True) -> int | None:
        del wait
        index, self.play_next = self.play_next, None
        return index

    def interrupted(self, index: int) -> bool:  # noqa: ARG002  # there is one
        return self.interrupts

    def take_restart(self) -> bool:
        return False

    def retries_of(self, index: int) -> int:  # noqa: ARG002  # its recorder is new after an attempt that failed
        return 0

    def may_end(self, record: EpisodeRecord) -> bool:  # noqa: ARG002  # whoever plays the phase decides that
        return False

    def ended(self, *records: EpisodeRecord) -> Future[Acknowledged]:
        self.played = records[-1]
        acknowledged: Future[Acknowledged] = Future()
        acknowledged.set_result(Acknowledged())
        return acknowledged
