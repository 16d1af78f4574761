"""What a worker of a vector plays: its slots, and the tries at episodes that are in them."""

from __future__ import annotations

from math import inf
from time import monotonic
from typing import TYPE_CHECKING, Any

from governor.episodes.remote import wire
from governor.messages import EpisodeRecord

if TYPE_CHECKING:
    from governor.episodes.records.recording import StepRecorder
    from governor.messages import EpisodeOutcome


class Slot:
    """`again` are the episodes that it has to play once more, with the tries that they have had; `recording`: an episode
    of it has begun in its recorder, and not ended.
    """

    __slots__ = ("again", "number", "recorder", "recording")

    def __init__(self, number: int) -> None:
        self.number = number
        self.recorder: StepRecorder
        self.recording = False
        self.again: list[tuple[int, int]] = []


class Play:
    """One try at an episode. `reward` and `end` are of its last step, `recorded`: it has begun in the slot's recorder."""

    __slots__ = (
        "action",
        "began",
        "deadline",
        "end",
        "index",
        "observation",
        "recorded",
        "reward",
        "seed",
        "slot",
        "steps",
        "tries",
        "value",
    )

    def __init__(self, slot: Slot, index: int, *, seed: int, tries: int, timeout: float | None) -> None:
        self.slot = slot
        self.index = index
        self.seed = seed
        self.tries = tries
        self.began = monotonic()
        self.deadline = inf if timeout is None else self.began + timeout
        self.value = self.reward = 0.0
        self.steps = self.end = 0
        self.recorded = False
        self.observation: Any = None
        self.action: Any = None

    @property
    def kind(self) -> int:
        """Of its row in the next request to the agent."""
        if not self.steps:
            return wire.FIRST
        return wire.LAST if self.end else wire.NEXT

    def record(self, outcome: EpisodeOutcome, reason: str) -> EpisodeRecord:
        """As if it ended now."""
        return EpisodeRecord(
            index=self.index,
            worker=self.slot.number,
            seed=self.seed,
            outcome=outcome,
            value=self.value,
            steps=self.steps,
            seconds=monotonic() - self.began,
            reason=reason,
        )
