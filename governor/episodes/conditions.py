"""When a simulation goes on and when it stops: pure rules, no clock, no socket.

Rules:
1. At the end of an episode every voice gives a flow control; the strongest wins (`STRENGTH`).
2. An `until` looks at the last `average_over` episodes in the order in which they ended, and only at those that ended
   by themselves (terminated or truncated): a failed or cancelled one says nothing about the agent.
3. Several `until` are alternatives: the first one that holds stops the simulation.
"""

from __future__ import annotations

from collections import deque
from typing import TYPE_CHECKING, Final, get_args

from governor.messages import EpisodeRecord, FlowControl, Until

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

STRENGTH: Final[dict[FlowControl, int]] = {flow: level for level, flow in enumerate(get_args(FlowControl))}
COMPLETE: Final = frozenset({"terminated", "truncated"})
BAD: Final = frozenset({"failed", "timed_out", "crashed"})

METRICS: Final[dict[str, Callable[[EpisodeRecord], float]]] = {
    "return": lambda record: record.value,
    "steps": lambda record: float(record.steps),
}
"""What an `until` may name."""


def strongest(flows: Iterable[FlowControl]) -> FlowControl:
    """CONTINUE when nobody says anything."""
    return max(flows, key=STRENGTH.__getitem__, default="CONTINUE")


def faults(until: Iterable[Until]) -> list[str]:
    """What is wrong with these conditions, one line each."""
    found = []
    for condition in until:
        if condition.metric not in METRICS:
            found.append(f"unknown metric {condition.metric!r}; known: {', '.join(sorted(METRICS))}")
        if condition.average_over < 1:
            found.append(f"average_over must be at least 1, not {condition.average_over}")
    return found


class Goal:
    """The `until` conditions of a phase, fed with each episode as it ends."""

    def __init__(self, until: Iterable[Until]) -> None:
        self._windows = [(condition, deque[float](maxlen=condition.average_over)) for condition in until]

    def ended(self, record: EpisodeRecord) -> FlowControl:
        """STOP_SIMULATION when a condition holds now, else CONTINUE."""
        if record.outcome not in COMPLETE:
            return "CONTINUE"
        flow: FlowControl = "CONTINUE"
        for condition, window in self._windows:
            window.append(METRICS[condition.metric](record))
            if len(window) == window.maxlen and sum(window) / len(window) >= condition.at_least:
                flow = "STOP_SIMULATION"
        return flow
