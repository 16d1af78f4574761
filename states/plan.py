"""What the state machine must know of a run before it starts: names, kinds, order, limits and deadlines. No user
code.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, TypeAlias

Kind: TypeAlias = Literal["environment", "agent", "simulation", "task", "service"]
Part: TypeAlias = Literal["simulation", "tasks"]
Outcome: TypeAlias = Literal["finished", "failed", "aborted"]
WorkChange: TypeAlias = Literal["cancel", "requeue"]
"""What is asked for an episode or a task that has not ended: its end, or that what runs of it ends and is done again."""
OnStall: TypeAlias = Literal["report", "restart", "fail"]


@dataclass(frozen=True, slots=True, kw_only=True)
class ConductorPlan:
    name: str
    kind: Kind


@dataclass(frozen=True, slots=True, kw_only=True)
class PhasePlan:
    """`on_failure`: the effect on the run of failed episodes or tasks that the phase does not bear. `simulated_by` is the
    conductor that works on the simulation, by its name in the plan.
    """

    name: str
    parts: frozenset[Part]
    on_failure: Literal["fail", "continue"] = "fail"
    simulated_by: str = "simulation"

    def conductor_of(self, part: Part) -> str:
        return self.simulated_by if part == "simulation" else "tasks"


@dataclass(frozen=True, slots=True, kw_only=True)
class Deadlines:
    """Seconds: for all conductors to be ready; for the result to be durable; for the last process to exit."""

    start: float = 60.0
    finalize: float = 60.0
    stop: float = 20.0


@dataclass(frozen=True, slots=True, kw_only=True)
class RunPlan:
    """`restarts` is the number of conductor restarts that the whole run may use; `wall_clock` its limit in seconds;
    `first_phase` the phase to begin with, above 0 when an earlier invocation finished some; `incarnations` the last
    one of each conductor in earlier invocations, which have `worked` so many seconds on the run, and used so many
    restarts (`restarts_used`). `failed` is the number of phases before `first_phase` that failed, `failure` the line of the
    first one. `stall_timeout` is seconds without progress, `on_stall` the reaction to them.
    """

    uid: str
    name: str
    conductors: tuple[ConductorPlan, ...]
    phases: tuple[PhasePlan, ...]
    restarts: int = 2
    wall_clock: float | None = None
    deadlines: Deadlines = Deadlines()
    first_phase: int = 0
    worked: float = 0.0
    restarts_used: int = 0
    incarnations: tuple[tuple[str, int], ...] = ()
    failed: int = 0
    failure: str = ""
    stall_timeout: float | None = None
    on_stall: OnStall = "report"
