"""The state of a worker in process: whose code runs, in which episode, until when. `in_process` watches it for hangs.

What a worker raises beside that is here, too.
"""

from __future__ import annotations

import threading
from dataclasses import dataclass, field
from math import inf
from time import monotonic
from typing import TYPE_CHECKING, Any, Final

from governor.episodes.metrics import Reported
from governor.episodes.progress import EpisodeProgress
from governor.episodes.rules.evaluation import number_of
from governor.output.attribution import episode_fields

if TYPE_CHECKING:
    from collections.abc import Iterable

    from governor.messages import StartSimulation
    from governor.output.attribution import Attribution

RESET: Final = "environment.reset"
STEP: Final = "environment.step"
BEGIN: Final = "agent.begin"
ACT: Final = "agent.act"
END: Final = "agent.end"
METRICS: Final = "agent.metrics"
SAVE: Final = "agent.state_dict"
BUILD: Final = "environment.__init__"
CLOSE: Final = "environment.close"
JOIN: Final = "agent.__init__"


class WrittenOff(Exception):
    """The worker came back after it had been declared hung: its episode is recorded already, or another process plays it."""


class NotRecorded(Exception):
    """A step could not be written; one line."""


@dataclass(slots=True, eq=False, kw_only=True)
class ExecutionContext(EpisodeProgress):
    """The state of an episode of `command`, for the watch: whose code runs (`where`), since when, until when at most, how far.

    `owner` is the worker's number, `thread` the id of its thread, `agent` the name of the agent that `where` refers to.
    """

    command: StartSimulation
    owner: int
    agent: str
    where: str = ""
    busy: bool = False
    attribution: Attribution | None = None
    """What the worker prints is that of the episode; None in a vector, where several are under way."""
    thread: int = 0
    _lock: threading.Lock = field(default_factory=threading.Lock, init=False)

    def enter(self, where: str, *, seconds: float | None, index: int = -1, seed: int = 0) -> float:
        """User code begins: an episode or, without an index, something around episodes. Returns its deadline."""
        with self._lock:
            self.where, self.index, self.seed = where, index, seed
            self.value, self.values, self.steps = 0.0, {}, 0
            self.reported = Reported()
            self.began = monotonic()
            self.deadline = inf if seconds is None else self.began + seconds
            self.busy = True
        if self.attribution is not None:
            self.attribution.begin(**self.fields)
        return self.deadline

    @property
    def fields(self) -> dict[str, Any]:
        """What its output belongs to, as of `Attribution.begin`."""
        if self.index < 0:
            return {"phase": self.command.name}
        return episode_fields(self.command.name, self.index, number_of(self.index, self.command))

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


class VectorContext(ExecutionContext):
    """The state of one of several episodes that are played together: `where` is that of all, and so is `worker`: the first number."""

    together: list[str] = [""]  # noqa: RUF012  # each worker has its own
    worker = 0

    @classmethod
    def several(
        cls, numbers: range, *, command: StartSimulation, owner: int, agent: str
    ) -> list[ExecutionContext]:
        """Those of one worker."""
        made = [cls(number, command=command, owner=owner, agent=agent) for number in numbers]
        where = [""]
        for one in made:
            one.together, one.worker = where, numbers.start
        return [*made]

    @property
    def where(self) -> str:
        return self.together[0]

    @where.setter
    def where(self, value: str) -> None:
        self.together[0] = value


def current_episodes(contexts: Iterable[ExecutionContext]) -> list[tuple[int, Reported]]:
    """Those of one worker whose code runs, for `context.Reports.bind`."""
    return [
        (context.index, context.reported)
        for context in contexts
        if context.busy and context.where and context.index >= 0
    ]
