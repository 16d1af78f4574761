"""The state of a worker in process: whose code runs, in which episode, until when. `in_process` watches it for hangs."""

from __future__ import annotations

import threading
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


class ExecutionContext:
    """The state of an episode, for the watch: whose code runs (`where`), since when, until when at most, how far.

    `owner` is the worker's number, `number` the slot among all that the phase plays at once, `agent` the name of the
    agent that `where` refers to. `began` and `deadline` are in seconds on the monotonic clock. `value` is the undiscounted
    return so far, `values` the returns by player.
    """

    __slots__ = (
        "_lock",
        "agent",
        "began",
        "busy",
        "deadline",
        "index",
        "number",
        "owner",
        "seed",
        "steps",
        "value",
        "values",
        "where",
    )

    def __init__(self, number: int, *, owner: int, agent: str) -> None:
        self.number = number
        self.owner = owner
        self.agent = agent
        self.where = ""
        self.busy = False
        self.index: int | None = None
        self.seed = 0
        self.began = 0.0
        self.deadline = inf
        self.value = 0.0
        self.values: dict[str, float] = {}
        self.steps = 0
        self._lock = threading.Lock()

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


def record(context: ExecutionContext, outcome: EpisodeOutcome, reason: str) -> EpisodeRecord:
    """The record of an episode that ends now. Raises WrittenOff."""
    context.leave()
    return EpisodeRecord(
        index=context.index or 0,
        worker=context.number,
        seed=context.seed,
        outcome=outcome,
        value=context.value,
        steps=context.steps,
        seconds=monotonic() - context.began,
        reason=reason,
        values=context.values,
    )
