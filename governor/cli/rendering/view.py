"""The current state of a run for a person, folded from its events. Pure: no terminal, no clock.

An event of an unknown kind changes nothing but `seq`: a newer daemon may have other kinds of events.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final

from governor.messages import finalizing
from governor.messages.curves import Curve

if TYPE_CHECKING:
    from governor.messages import RunEvent, RunStatus

WINDOW: Final = 50
"""The number of episodes in the mean return."""
_BAD_EPISODES: Final = frozenset({"failed", "timed_out", "crashed"})
_NAMED: Final = 3
METRICS: Final = 6
"""Metrics of a phase that are followed: the return, and the first ones of the user."""


@dataclass(kw_only=True)
class RunView:
    """Fold events with `on`. `phases` is 0 while their number is unknown."""

    uid: str
    name: str = ""
    phases: int = 0
    seq: int = 0
    state: str = "pristine"
    outcome: str | None = None
    reason: str = ""
    phase: str | None = None
    index: int = 0
    mode: str = ""
    episodes: int = 0
    episodes_ended: int = 0
    episodes_bad: int = 0
    tasks: int = 0
    tasks_ended: int = 0
    tasks_bad: int = 0
    failures: int = 0
    """Events of this phase that tell of a failed episode, task or attempt."""
    running: dict[tuple[str, int], int] = field(default_factory=dict)
    starting: dict[str, None] = field(default_factory=dict)
    names: dict[int, str] = field(default_factory=dict)
    parent: str | None = None
    stalled: bool = False
    paused: bool = False
    """By a user."""
    finalizing: str = ""
    """How far the file of the steps is, once all episodes have ended."""
    earlier: dict[int, tuple[int, int]] = field(default_factory=dict)
    """Episodes and tasks that each phase has on record: a later invocation or another run may start it again."""
    returns: deque[float] = field(default_factory=lambda: deque(maxlen=WINDOW))
    curves: dict[str, Curve] = field(default_factory=dict)
    """Of the metrics of this phase's training episodes, by name."""
    recent: dict[str, deque[float]] = field(default_factory=dict)
    """Their last `WINDOW` values."""
    status: RunStatus | None = None
    """What the daemon said of the run last, if a display `wants_status`: the time left, and what the conductors use."""
    wants_status: bool = False

    @classmethod
    def of(cls, status: RunStatus) -> RunView:
        """A view to fold all events of the run into, from the first one."""
        return cls(
            uid=status.uid, name=status.name, phases=status.phases, state=status.state, parent=status.parent
        )

    def on(self, event: RunEvent) -> None:  # noqa: C901, PLR0912  # one case for each kind
        """Folds one event; events come in the order of their numbers."""
        self.seq = event.seq
        data = event.data
        match event.kind:
            case "run.accepted":
                self.name, self.phases = data.get("name", self.name), data.get("phases", self.phases)
            case "run.inherited":
                for kept in data.get("kept", ()):
                    episodes = kept.get("episodes", 0) - kept.get("evaluated", 0)
                    self.earlier[kept.get("phase", 0)] = (episodes, kept.get("tasks", 0))
            case "run.interrupted":
                self.state = "pristine"
                self.starting.clear()
                self.running.clear()
            case "run.restarted":
                self.earlier.clear()
            case "run.transition":
                self.state = data.get("to", self.state)
                self.stalled = False
                self.finalizing = ""
            case "run.pause_requested" | "run.continue_requested":
                self.paused, self.stalled = event.kind == "run.pause_requested", False
            case "run.assigned":
                self.paused = False
            case "run.stalled" | "run.moved":
                self.stalled = event.kind == "run.stalled"
            case "conductor.started":
                self.starting[data.get("conductor", "?")] = None
            case "conductor.ready" | "conductor.exited":
                self.starting.pop(data.get("conductor", "?"), None)
            case "phase.started":
                self._enter(data)
            case "part.finalizing":
                self.finalizing = finalizing(data.get("steps", 0), data.get("total", 0))
            case "part.ended":
                self.finalizing = ""
            case "episode.ended":
                self._episode(data.get("episode", {}))
            case "task.started":
                self.running[data.get("task", "?"), data.get("run", 0)] = data.get("attempt", 1)
            case "episode.attempt_ended":
                self.failures += 1
            case "task.attempt_ended":
                self.running.pop((data.get("task", "?"), data.get("run", 0)), None)
                self.failures += 1
            case "task.ended":
                self._task(data.get("record", {}))
            case "run.ended":
                self.outcome = data.get("outcome")
                self.reason = data.get("reason", "")

    def phase_name(self, place: object) -> str:
        """The name of a phase given by name or by its index."""
        return self.names.get(place, f"phase {place + 1}") if isinstance(place, int) else str(place or "?")

    @property
    def mean_return(self) -> float | None:
        """The mean return of the last `WINDOW` episodes of this phase."""
        return sum(self.returns) / len(self.returns) if self.returns else None

    @property
    def waits_for(self) -> str:
        """The next thing that must happen, in a few words."""
        return self._awaited + ("; no progress" if self.stalled and self.outcome is None else "")

    @property
    def _awaited(self) -> str:  # noqa: PLR0911  # one return for each cause, the strongest first
        if self.outcome is not None:
            return ""
        if self.paused and self.state in {"pristine", "starting", "running"}:
            return f"`governor continue {self.uid}`"
        if self.state == "pristine":
            return "a free slot"
        if self.starting:
            return f"{_some(list(self.starting))} to be ready"
        if self.finalizing:
            return f"the file of its steps: {self.finalizing}"
        if self.running:
            return _some([f"{task}[{run}]" for task, run in self.running])
        if self.state == "running" and self.tasks_ended < self.tasks:
            return "tasks to start"
        if self.state == "running" and self.episodes_ended < self.episodes:
            return "episodes"
        return {"stopping": "processes to end", "finalizing": "the result"}.get(self.state, "")

    def _enter(self, data: dict[str, Any]) -> None:
        self.phase, self.index, self.mode = data.get("phase", "?"), data.get("index", 0), data.get("mode", "")
        self.names[self.index] = str(self.phase)
        self.episodes, self.tasks = data.get("episodes", 0), data.get("tasks", 0)
        self.episodes_ended, self.tasks_ended = self.earlier.get(self.index, (0, 0))
        self.episodes_bad = self.tasks_bad = self.failures = 0
        self.returns.clear()
        self.curves.clear()
        self.recent.clear()
        self.running.clear()
        self.stalled = False
        self.finalizing = ""

    def _episode(self, episode: dict[str, Any]) -> None:
        """Evaluation episodes are not among the `episodes` of a phase."""
        is_bad = episode.get("outcome") in _BAD_EPISODES
        self.episodes_bad += is_bad
        self.failures += is_bad
        if episode.get("evaluation"):
            return
        self.episodes_ended += 1
        self.earlier[self.index] = (self.episodes_ended, self.tasks_ended)
        value = episode.get("value")
        if isinstance(value, int | float):
            self.returns.append(value)
            self._follow("return", value, episode.get("index", 0))
        for name, number in episode.get("metrics", {}).items():
            self._follow(name, number, episode.get("index", 0))

    def _follow(self, name: str, value: float, index: int) -> None:
        if name not in self.curves:
            if len(self.curves) >= METRICS:
                return
            self.curves[name], self.recent[name] = Curve(), deque(maxlen=WINDOW)
        self.curves[name].add(value, episode=index, step=0, at=0.0)
        self.recent[name].append(value)

    def _task(self, record: dict[str, Any]) -> None:
        self.tasks_ended += 1
        self.earlier[self.index] = (self.episodes_ended, self.tasks_ended)
        is_bad = record.get("outcome") not in ("succeeded", "upstream_failed")
        self.tasks_bad += is_bad
        self.failures += is_bad
        self.running.pop((record.get("task", "?"), record.get("run", 0)), None)


def _some(names: list[str]) -> str:
    more = len(names) - _NAMED
    return ", ".join(names[:_NAMED]) + (f" and {more} more" if more > 0 else "")
