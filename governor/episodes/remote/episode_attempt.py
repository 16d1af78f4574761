"""The slots of a vector worker, and the attempts at episodes that run in them."""

from __future__ import annotations

from math import inf
from time import monotonic
from typing import TYPE_CHECKING, Any

from governor.episodes.remote import wire
from governor.messages import EpisodeRecord

if TYPE_CHECKING:
    from governor.episodes.records.recording import StepRecorder
    from governor.messages import EpisodeOutcome


class VectorSlot:
    """One environment of the vector. `retries` are (episode, attempts so far) to be played again; `recording`: its recorder
    has an unfinished episode.
    """

    __slots__ = ("number", "recorder", "recording", "retries")

    def __init__(self, number: int) -> None:
        self.number = number
        self.recorder: StepRecorder
        self.recording = False
        self.retries: list[tuple[int, int]] = []


class EpisodeAttempt:
    """One attempt at an episode. `reward` and `end` (bits of `wire`) are of its last step; `value` is the undiscounted return
    so far; `began` and `deadline` are in seconds on the monotonic clock; `recorded`: it has begun in the slot's recorder.
    """

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

    def __init__(self, slot: VectorSlot, index: int, *, seed: int, tries: int, timeout: float | None) -> None:
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
        """`wire.FIRST`, `NEXT` or `LAST`, for its row in the next request to the agent."""
        if not self.steps:
            return wire.FIRST
        return wire.LAST if self.end else wire.NEXT

    def record(self, outcome: EpisodeOutcome, reason: str) -> EpisodeRecord:
        """The record, if it ended now."""
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
