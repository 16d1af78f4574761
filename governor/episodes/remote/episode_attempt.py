"""The slots of a worker, and the attempts at episodes that run in them."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from governor.episodes.progress import EpisodeProgress
from governor.episodes.remote import wire

if TYPE_CHECKING:
    from governor.episodes.records.recording import StepRecorder
    from governor.messages import EpisodeOutcome


@dataclass(slots=True, eq=False)
class WorkerSlot:
    """One environment. `retries` are (episode, attempts so far, `began`) to be played again; `recording`: its recorder has an
    unfinished episode.
    """

    number: int
    recorder: StepRecorder = field(init=False)
    recording: bool = False
    retries: list[tuple[int, int, float]] = field(default_factory=list)


@dataclass(slots=True, eq=False, kw_only=True)
class EpisodeAttempt(EpisodeProgress):
    """One attempt at an episode, which `began` with the first attempt. `reward` and `end` (bits of `wire`) are of its last
    step, as is `whole_info`; `recorded`: it has begun in the slot's recorder. `retries` attempts at it have failed
    (`failures.retry`). `mask` is the action mask of `observation`.
    """

    slot: WorkerSlot
    tries: int
    retries: int = 0
    reward: float = 0.0
    end: int = 0
    recorded: bool = False
    observation: Any = None
    action: Any = None
    whole_info: Any = None
    mask: Any = None

    @property
    def regular_outcome(self) -> EpisodeOutcome:
        return "terminated" if self.end & wire.TERMINATED else "truncated"

    @property
    def kind(self) -> int:
        """`wire.FIRST`, `NEXT` or `LAST`, for its row in the next request to the agent."""
        if not self.steps:
            return wire.FIRST
        return wire.LAST if self.end else wire.NEXT

    def begin_info(self, row: Any) -> None:
        """With the row of the info of its reset."""
        if self.info is not None:
            self.info.begin(row)

    def begin_recording(self) -> None:
        self.slot.recorder.begin(episode=self.index, seed=self.seed, retries=self.retries)
        self.recorded = self.slot.recording = True

    def end_recording(self, outcome: EpisodeOutcome) -> None:
        self.slot.recorder.end(outcome=outcome, flush=False)
        self.slot.recording = False
