"""The attempts at episodes: which are played again, by the phase's retries or because somebody has asked for it, and which are cancelled.

For one thread at a time, but for `in`.
"""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING

import msgspec

if TYPE_CHECKING:
    from collections.abc import Mapping

    from governor.episodes.rules.failures import Retries
    from governor.messages import EpisodeRecord
    from governor.messages.base import WorkChange


class Attempts:
    """`cancelled`: episodes that an earlier process was told of, and the reasons. An episode is `in` it while it is to end at its next
    step, to be cancelled or played again.
    """

    def __init__(self, retries: Retries, cancelled: Mapping[int, str]) -> None:
        self._retries = retries
        self._cancelled = dict(cancelled)
        self._requeued: dict[int, str] = {}
        self._repetitions: Counter[int] = Counter()

    def __contains__(self, index: int) -> bool:
        return index in self._cancelled or index in self._requeued

    def change(self, change: WorkChange, index: int, reason: str) -> None:
        (self._cancelled if change == "cancel" else self._requeued)[index] = reason

    def cancels(self, index: int) -> bool:
        return index in self._cancelled

    def of(self, index: int) -> int:
        """How many are over, and do not count."""
        return self._retries.of(index) + self._repetitions[index]

    def marked(self, record: EpisodeRecord) -> EpisodeRecord:
        """With the reason, if somebody has asked for this end."""
        if record.outcome != "cancelled" or record.index not in self:
            return record
        reason = self._cancelled.get(record.index) or self._requeued.get(record.index, "")
        return msgspec.structs.replace(record, reason=reason)

    def may_follow(self, record: EpisodeRecord) -> bool:
        """Whether another attempt may follow this one."""
        return record.index in self or self._retries.is_due(record)

    def over(self, record: EpisodeRecord) -> int:
        """The number of this attempt, from 1, if another one follows; else 0, and the episode has its outcome."""
        number = self.of(record.index) + 1
        if self.is_requeued(record):
            del self._requeued[record.index]
            self._repetitions[record.index] += 1
            return number
        if self._retries.is_due(record):
            self._retries.failed(record)
            return number
        return 0

    def is_requeued(self, record: EpisodeRecord) -> bool:
        return (
            record.outcome == "cancelled"
            and record.index in self._requeued
            and record.index not in self._cancelled
        )

    def ended(self, index: int) -> None:
        """The episode has its outcome. One that was cancelled stays so."""
        self._retries.ended(index)
        self._requeued.pop(index, None)
        self._repetitions.pop(index, None)
