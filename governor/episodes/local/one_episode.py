"""What plays one episode at a time, outside of the process of the simulation, has in any case of a `stepping.EpisodeSource`."""

from __future__ import annotations

from concurrent.futures import Future
from typing import TYPE_CHECKING

from governor.messages import Acknowledged

if TYPE_CHECKING:
    from governor.messages import EpisodeRecord


class OneEpisode:
    """`play_next` is the index of the next episode, None when it has begun; `played` is the record of the last one."""

    stopping = False
    resets = 0
    play_next: int | None = None
    played: EpisodeRecord | None = None

    def next_index(self, *, wait: bool = True) -> int | None:
        del wait
        index, self.play_next = self.play_next, None
        return index

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
