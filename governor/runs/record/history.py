"""What earlier invocations of the daemon did with a run, read from its events. Pure.

Times are monotonic seconds of the events and are compared only within one invocation, so changes of the clock,
reboots, time without a daemon, and pauses do not count.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from states.events import EVENTS

if TYPE_CHECKING:
    from collections.abc import Iterable

    from governor.messages import RunEvent

KINDS: Final = (*(event.kind for event in EVENTS), "run.interrupted", "run.restarted")
"""The events that `read` needs."""


@dataclass(frozen=True, slots=True, kw_only=True)
class History:
    """`begun`: the run has been in work, and its work was not discarded since. `at_work`: its last invocation
    recorded neither its end nor an interruption. `worked`: seconds in work, `restarts`: of its conductors; both over
    all invocations. `deaths`: consecutive crashes of the daemon without a new record of an episode or task between
    them.
    """

    begun: bool = False
    at_work: bool = False
    worked: float = 0.0
    restarts: int = 0
    deaths: int = 0


def read(events: Iterable[RunEvent], *, last_record: int = 0) -> History:
    """`last_record`: the number of the last event with an ended episode or task."""
    begun = at_work = False
    worked = 0.0
    since: float | None = None  # until it was first in work: inherited events have times of another run
    until: float | None = None
    paused: float | None = None
    restarts = deaths = 0
    forkservers: set[int] = set()  # whose exits have been counted
    for event in events:
        data = event.data
        match event.kind:
            case "run.assigned":
                worked += ((until if paused is None else paused) or 0.0) - (since or 0.0)
                since = until = data["at"]
                paused = None
                forkservers.clear()
                begun = at_work = True
            case "run.pause_requested" if at_work and paused is None:
                paused = data["at"]
            case "run.continue_requested" if at_work and paused is not None and since is not None:
                since += data["at"] - paused
                paused = None
            case "run.interrupted":
                at_work = False
                deaths = deaths + 1 if data.get("died") and event.seq > last_record else 0
            case "run.restarted":
                begun = False
            case "flow.requested" if data["flow"] == "RESTART":
                restarts += 1
            case "conductor.exited" if not data.get("expected"):
                restarts += data.get("forkserver") not in forkservers
                forkservers |= {data["forkserver"]} if data.get("forkserver") else set()
        if until is not None:
            until = max(until, data.get("at", until))
    worked += ((until if paused is None else paused) or 0.0) - (since or 0.0)
    return History(begun=begun, at_work=at_work, worked=worked, restarts=restarts, deaths=deaths)
