"""Pristine: no run; waits for one from the queue. The first state, and the one after each run."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, ClassVar

from states.base import Answer, Dropped, State, Step

if TYPE_CHECKING:
    from states.events import ProcessesGone, StopRequested


@dataclass(frozen=True, slots=True, kw_only=True)
class Pristine(State):
    """`shutdown`: it accepts no further run. `stuck`: pids of an earlier run that could not be killed: quarantined
    until they are gone.
    """

    name: ClassVar[str] = "pristine"
    shutdown: bool = False
    stuck: tuple[int, ...] = ()

    @property
    def waits_for(self) -> str:
        if self.shutdown:
            return "nothing: shut down"
        if self.stuck:
            return f"processes that could not be killed ({self.stuck_pids}): quarantined until they are gone"
        return "a run"

    @property
    def stuck_pids(self) -> str:
        """``pid 7, 8``."""
        return f"pid {', '.join(map(str, self.stuck))}"


def stop(state: Pristine, event: StopRequested) -> Answer:
    return Step(replace(state, shutdown=True), cause=event.reason)


def gone(state: Pristine, event: ProcessesGone) -> Answer:
    left = tuple(pid for pid in state.stuck if pid not in event.pids)
    if left == state.stuck:
        return Dropped(state, "none of them is waited for")
    return Step(replace(state, stuck=left), cause="" if left else "its last process is gone")
