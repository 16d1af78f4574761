"""The conductors of a run in the state machine, and the number of restarts left.

A conductor is ``starting`` from the moment its start is requested, ``ready``, ``gone`` (exited and reaped), or
``stuck`` (it could not be killed). Its incarnation counts starts, over all invocations of the daemon; events of an
earlier one are stale. A restart uses one of the run's restarts; the exit of a forkserver, which kills all conductors,
uses one for all of them.
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
"""Seconds; many restarts would otherwise wait for hours."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ConductorState:
    name: str
    kind: Kind
    incarnation: int = 1
    restarts: int = 0
    standing: Standing = "starting"
    pid: int | None = None
    last_error: str = ""
    last_exit: str = ""
    """How the previous incarnation exited."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ConductorStates:
    """Immutable: each method returns a changed copy. `forkservers` are the pids of those whose exit has been counted."""

    all: tuple[ConductorState, ...]
    restarts_left: int
    forkservers: frozenset[int] = frozenset()

    @classmethod
    def of(cls, plan: RunPlan) -> ConductorStates:
        last = dict(plan.incarnations)
        states = tuple(
            ConductorState(
                name=conductor.name, kind=conductor.kind, incarnation=last.get(conductor.name, 0) + 1
            )
            for conductor in plan.conductors
        )
        return cls(all=states, restarts_left=max(plan.restarts - plan.restarts_used, 0))

    def find(self, name: str) -> ConductorState | None:
        return next((conductor for conductor in self.all if conductor.name == name), None)

    def current(self, event: ConductorEvent) -> ConductorState | None:
        """The conductor of the event, if the event is of its current incarnation and it has not exited."""
        conductor = self.find(event.conductor)
        if conductor is None or conductor.incarnation != event.incarnation or conductor.standing == "gone":
            return None
        return conductor

    def awaited(self, event: ConductorEvent) -> ConductorState | None:
        """The conductor of the event, if the event is of its current incarnation and it is not ready yet."""
        conductor = self.current(event)
        return conductor if conductor is not None and conductor.standing == "starting" else None

    def is_ready(self, name: str) -> bool:
        conductor = self.find(name)
        return conductor is not None and conductor.standing == "ready"

    def incarnation(self, name: str) -> int:
        """The current or last incarnation; 0 if there is no such conductor."""
        conductor = self.find(name)
        return 0 if conductor is None else conductor.incarnation

    @property
    def all_ready(self) -> bool:
        return all(conductor.standing == "ready" for conductor in self.all)

    @property
    def alive(self) -> tuple[ConductorState, ...]:
        """Conductors that may have a process."""
        return tuple(conductor for conductor in self.all if conductor.standing in ("starting", "ready"))

    @property
    def stuck_pids(self) -> tuple[int, ...]:
        return tuple(m.pid for m in self.all if m.standing == "stuck" and m.pid is not None)

    def started(self, name: str, pid: int) -> ConductorStates:
        return self._with(name, pid=pid)

    def ready(self, name: str) -> ConductorStates:
        return self._with(name, standing="ready")

    def with_error(self, name: str, reason: str) -> ConductorStates:
        return self._with(name, last_error=reason)

    def gone(self, name: str) -> ConductorStates:
        return self._with(name, standing="gone", pid=None)

    def stuck(self, name: str) -> ConductorStates:
        return self._with(name, standing="stuck")

    def restart(
        self, name: str, *, at: float, within: float, last_exit: str = "", forkserver: int | None = None
    ) -> tuple[ConductorStates, tuple[Effect, ...]] | None:
        """Another incarnation that has to be ready `within` seconds; None when no restart is left. `last_exit`: how
        the previous one exited; `forkserver`: the pid of the one whose exit killed it.
        """
        conductor = self.find(name)
        cost = 0 if forkserver in self.forkservers else 1
        if conductor is None or self.restarts_left < cost:
            return None
        paid = self.forkservers if forkserver is None else self.forkservers | {forkserver}
        incarnation, restarts = conductor.incarnation + 1, conductor.restarts + 1
        delay = min(FIRST_BACK_OFF * 2.0**conductor.restarts, LONGEST_BACK_OFF)
        conductors = self._with(
            name,
            standing="starting",
            incarnation=incarnation,
            restarts=restarts,
            pid=None,
            last_error="",
            last_exit=last_exit,
        )
        return (
            replace(conductors, restarts_left=self.restarts_left - cost, forkservers=paid),
            (
                StartConductor(conductor=name, kind=conductor.kind, incarnation=incarnation, delay=delay),
                Wake(name="restart", at=at + delay + within, conductor=name, incarnation=incarnation),
            ),
        )

    def kill(self, name: str, reason: str) -> tuple[ConductorStates, StopConductor]:
        """Kills a conductor that can't work; its exit follows, with this reason."""
        return self.with_error(name, reason), StopConductor(
            conductor=name, incarnation=self.incarnation(name), first="SIGKILL"
        )

    def kill_silent(self, event: ConductorSilent) -> tuple[ConductorStates, StopConductor] | str:
        """Kills a silent conductor; returns the reason if that must not be done."""
        conductor = self.current(event)
        if conductor is None:
            return "of an earlier incarnation"
        if conductor.standing != "ready":
            return "a conductor that is not ready has a deadline of its own"
        return self.kill(conductor.name, f"silent for {event.seconds:.0f} s (deadlines.liveness)")

    def stop(self, *, urgent: bool = False) -> tuple[Effect, ...]:
        """Stops all conductors; one that is not ready yet can't receive a message."""
        return tuple(
            StopConductor(
                conductor=conductor.name,
                incarnation=conductor.incarnation,
                first="SIGKILL" if urgent else "message" if conductor.standing == "ready" else "SIGTERM",
            )
            for conductor in self.alive
        )

    def _with(self, name: str, **changes: object) -> ConductorStates:
        states = tuple(
            replace(conductor, **changes) if conductor.name == name else conductor  # type: ignore[arg-type]
            for conductor in self.all
        )
        return replace(self, all=states)


def exit_reason(conductor: ConductorState, event: ConductorExited) -> str:
    """How a conductor exited, in one line."""
    if event.exit_code is None:
        how = "could not be started"
    elif event.exit_code < 0:
        how = f"was killed by {_signal_name(-event.exit_code)}"
    else:
        how = f"exited with code {event.exit_code}"
    words = conductor.last_error or event.reason
    return f"conductor {conductor.name} {how}{f': {words}' if words else ''}"


def _signal_name(number: int) -> str:
    try:
        return signal.Signals(number).name
    except ValueError:
        return f"signal {number}"
