"""Where a worker in process is: in whose code, in which episode, until when. The watch of `in_process` looks at it."""

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
    """The worker came back after it had been found hanging: its episode is on record, or another process's."""


class ExecutionContext:
    """Where an episode is, for who watches it: in whose code (`where`), since when, until when at most, how far.

    `owner` is the thread that plays it, `number` its place among all that are played at once, `agent` the name of the
    agent that `where` speaks of. `values` are the returns of several players.
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
        """User code begins: an episode or, without an index, something around episodes. Gives its deadline."""
        with self._lock:
            self.where, self.index, self.seed = where, index, seed
            self.value, self.values, self.steps = 0.0, {}, 0
            self.began = monotonic()
            self.deadline = inf if seconds is None else self.began + seconds
            self.busy = True
            return self.deadline

    def leave(self) -> None:
        """User code is over. Raises WrittenOff when the watch was quicker."""
        with self._lock:
            if not self.busy:
                raise WrittenOff
            self.busy = False

    def write_off(self, *, began: float) -> bool:
        """Whether the worker still is where it was since `began`; it is not waited for any more then."""
        with self._lock:
            still = self.busy and self.began == began
            self.busy = self.busy and not still
            return still


def record(place: ExecutionContext, outcome: EpisodeOutcome, reason: str) -> EpisodeRecord:
    """The end of an episode. Raises WrittenOff."""
    place.leave()
    return EpisodeRecord(
        index=place.index or 0,
        worker=place.number,
        seed=place.seed,
        outcome=outcome,
        value=place.value,
        steps=place.steps,
        seconds=monotonic() - place.began,
        reason=reason,
        values=place.values,
    )
