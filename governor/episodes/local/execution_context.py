"""The state of a worker in process: whose code runs, in which episode, until when. `in_process` watches it for hangs."""

from __future__ import annotations

import threading
from dataclasses import dataclass, field
from math import inf
from time import monotonic
from typing import TYPE_CHECKING, Final

from governor.messages import EpisodeRecord

if TYPE_CHECKING:
    from governor.messages import EpisodeOutcome

RESET: Final = "environment.reset"
STEP: Final = "environment.step"
ACT: Final = "agent.act"
LEARN: Final = "agent.learn"
SAVE: Final = "agent.state_dict"
BUILD: Final = "environment.__init__"
CLOSE: Final = "environment.close"
JOIN: Final = "agent.__init__"


class WrittenOff(Exception):
    """The worker came back after it had been declared hung: its episode is recorded already, or another process plays it."""


@dataclass(slots=True, eq=False)
class ExecutionContext:
    """The state of an episode, for the watch: whose code runs (`where`), since when, until when at most, how far.

    `owner` is the worker's number, `number` the slot among all that the phase plays at once, `agent` the name of the
    agent that `where` refers to. `began` and `deadline` are in seconds on the monotonic clock. `value` is the undiscounted
    return so far, `values` the returns by player.
    """

    number: int
    owner: int
    agent: str
    where: str = ""
    busy: bool = False
    index: int | None = None
    seed: int = 0
    began: float = 0.0
    deadline: float = inf
    value: float = 0.0
    values: dict[str, float] = field(default_factory=dict)
    steps: int = 0
    _lock: threading.Lock = field(default_factory=threading.Lock, init=False)

    def enter(self, where: str, *, seconds: float | None, index: int | None = None, seed: int = 0) -> float:
        """User code begins: an episode or, without an index, something around episodes. Returns its deadline."""
        with self._lock:
            self.where, self.index, self.seed = where, index, seed
            self.value, self.values, self.steps = 0.0, {}, 0
            self.began = monotonic()
            self.deadline = inf if seconds is None else self.began + seconds
            self.busy = True
            return self.deadline

    def leave(self) -> None:
        """User code has returned. Raises WrittenOff if the watch has declared it hung."""
        with self._lock:
            if not self.busy:
                raise WrittenOff
            self.busy = False

    def write_off(self, *, began: float) -> bool:
        """Whether the worker is still in the code that began at `began`; if so, nothing waits for it any more."""
        with self._lock:
            still = self.busy and self.began == began
            self.busy = self.busy and not still
            return still

    def record(self, outcome: EpisodeOutcome, reason: str) -> EpisodeRecord:
        """The record of its episode, if it ended now."""
        return EpisodeRecord(
            index=self.index or 0,
            worker=self.number,
            seed=self.seed,
            outcome=outcome,
            value=self.value,
            steps=self.steps,
            seconds=monotonic() - self.began,
            reason=reason,
            values=dict(self.values),
        )
