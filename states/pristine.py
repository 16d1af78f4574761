"""Pristine: holds nothing; waits for a run from the queue. Entered at birth and after each run."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, ClassVar

from states.base import Answer, State, Step

if TYPE_CHECKING:
    from states.events import StopRequested


@dataclass(frozen=True, slots=True, kw_only=True)
class Pristine(State):
    """`shutdown`: it takes no further run. `stuck`: pids of an earlier run that would not die: quarantined."""

    name: ClassVar[str] = "pristine"
    shutdown: bool = False
    stuck: tuple[int, ...] = ()

    @property
    def waits_for(self) -> str:
        if self.shutdown:
            return "nothing: shut down"
        if self.stuck:
            pids = ", ".join(map(str, self.stuck))
            return f"an operator: quarantined, processes that could not be killed are alive (pid {pids})"
        return "a run"


def stop(state: Pristine, event: StopRequested) -> Answer:
    return Step(replace(state, shutdown=True), cause=event.reason)
