"""The conductors of a run as the machine knows them, and the budget of their restarts.

A member is ``starting`` from the moment its start is wanted, ``ready``, ``gone`` (exited and reaped), or ``stuck`` (it
would not die). Its incarnation counts starts, over the invocations of the daemon; events of an earlier one are stale. A
restart takes one from the budget; the death of a forkserver, which takes all conductors along, takes one for all of them.
"""

from __future__ import annotations

import signal
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Literal, TypeAlias

from states.effects import Effect, StartConductor, StopConductor, Wake

if TYPE_CHECKING:
    from states.events import ConductorEvent, ConductorExited, ConductorSilent
    from states.plan import Kind, RunPlan

Standing: TypeAlias = Literal["starting", "ready", "gone", "stuck"]
FIRST_BACK_OFF = 0.25
"""Seconds before the first restart of a conductor; doubled for each further one."""
LONGEST_BACK_OFF = 30.0
"""Seconds; a budget of many restarts would come to hours of waiting otherwise."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ConductorState:
    name: str
    kind: Kind
    incarnation: int = 1
    restarts: int = 0
    standing: Standing = "starting"
    pid: int | None = None
    last_words: str = ""
    before: str = ""
    """How the last incarnation before this one died."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ConductorStates:
    """Immutable: each method gives another crew. `forkservers` are the pids of those whose death has been paid for."""

    members: tuple[ConductorState, ...]
    restarts_left: int
    forkservers: frozenset[int] = frozenset()

    @classmethod
    def of(cls, plan: RunPlan) -> ConductorStates:
        last = dict(plan.incarnations)
        members = tuple(
            ConductorState(
                name=conductor.name, kind=conductor.kind, incarnation=last.get(conductor.name, 0) + 1
            )
            for conductor in plan.conductors
        )
        return cls(members=members, restarts_left=max(plan.restarts - plan.restarts_used, 0))

    def member(self, name: str) -> ConductorState | None:
        return next((member for member in self.members if member.name == name), None)

    def current(self, event: ConductorEvent) -> ConductorState | None:
        """The member that the event speaks of, if it is of this incarnation and was not gone already."""
        member = self.member(event.conductor)
        if member is None or member.incarnation != event.incarnation or member.standing == "gone":
            return None
        return member

    def awaited(self, event: ConductorEvent) -> ConductorState | None:
        """The member that the event speaks of, if it is of this incarnation and has still to be ready."""
        member = self.current(event)
        return member if member is not None and member.standing == "starting" else None

    def is_ready(self, name: str) -> bool:
        member = self.member(name)
        return member is not None and member.standing == "ready"

    def incarnation(self, name: str) -> int:
        """The one that is there, or was there last; 0 of nobody."""
        member = self.member(name)
        return 0 if member is None else member.incarnation

    @property
    def all_ready(self) -> bool:
        return all(member.standing == "ready" for member in self.members)

    @property
    def alive(self) -> tuple[ConductorState, ...]:
        """Members that may have a process."""
        return tuple(member for member in self.members if member.standing in ("starting", "ready"))

    @property
    def stuck_pids(self) -> tuple[int, ...]:
        return tuple(m.pid for m in self.members if m.standing == "stuck" and m.pid is not None)

    def started(self, name: str, pid: int) -> ConductorStates:
        return self._with(name, pid=pid)

    def ready(self, name: str) -> ConductorStates:
        return self._with(name, standing="ready")

    def said(self, name: str, reason: str) -> ConductorStates:
        return self._with(name, last_words=reason)

    def gone(self, name: str) -> ConductorStates:
        return self._with(name, standing="gone", pid=None)

    def stuck(self, name: str) -> ConductorStates:
        return self._with(name, standing="stuck")

    def restart(
        self, name: str, *, at: float, within: float, death: str = "", forkserver: int | None = None
    ) -> tuple[ConductorStates, tuple[Effect, ...]] | None:
        """One more incarnation that has to be ready `within` seconds; None when the budget is used up. `death`: how the
        last one died; `forkserver` is the one that took it along.
        """
        member = self.member(name)
        cost = 0 if forkserver in self.forkservers else 1
        if member is None or self.restarts_left < cost:
            return None
        paid = self.forkservers if forkserver is None else self.forkservers | {forkserver}
        incarnation, restarts = member.incarnation + 1, member.restarts + 1
        delay = min(FIRST_BACK_OFF * 2.0**member.restarts, LONGEST_BACK_OFF)
        crew = self._with(
            name,
            standing="starting",
            incarnation=incarnation,
            restarts=restarts,
            pid=None,
            last_words="",
            before=death,
        )
        return (
            replace(crew, restarts_left=self.restarts_left - cost, forkservers=paid),
            (
                StartConductor(conductor=name, kind=member.kind, incarnation=incarnation, delay=delay),
                Wake(name="restart", at=at + delay + within, conductor=name, incarnation=incarnation),
            ),
        )

    def kill(self, name: str, reason: str) -> tuple[ConductorStates, StopConductor]:
        """Of no use as it is: its exit follows, with this reason."""
        return self.said(name, reason), StopConductor(
            conductor=name, incarnation=self.incarnation(name), first="SIGKILL"
        )

    def kill_silent(self, event: ConductorSilent) -> tuple[ConductorStates, StopConductor] | str:
        """Or why that is not to be done."""
        member = self.current(event)
        if member is None:
            return "of an earlier incarnation"
        if member.standing != "ready":
            return "who is not ready has a deadline of its own"
        return self.kill(member.name, f"silent for {event.seconds:.0f} s (deadlines.silence)")

    def stop(self, *, urgent: bool = False) -> tuple[Effect, ...]:
        """Takes everybody down; who is not ready yet could not hear a message."""
        return tuple(
            StopConductor(
                conductor=member.name,
                incarnation=member.incarnation,
                first="SIGKILL" if urgent else "message" if member.standing == "ready" else "SIGTERM",
            )
            for member in self.alive
        )

    def _with(self, name: str, **changes: object) -> ConductorStates:
        members = tuple(
            replace(member, **changes) if member.name == name else member  # type: ignore[arg-type]
            for member in self.members
        )
        return replace(self, members=members)


def obituary(member: ConductorState, event: ConductorExited) -> str:
    """How it died, in one line."""
    if event.exit_code is None:
        how = "could not be started"
    elif event.exit_code < 0:
        how = f"was killed by {_signal_name(-event.exit_code)}"
    else:
        how = f"exited with code {event.exit_code}"
    words = member.last_words or event.reason
    return f"conductor {member.name} {how}{f': {words}' if words else ''}"


def _signal_name(number: int) -> str:
    try:
        return signal.Signals(number).name
    except ValueError:
        return f"signal {number}"
