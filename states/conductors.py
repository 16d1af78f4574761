"""The conductors of a run in the state machine, and the number of restarts left.

A conductor is ``starting`` from the moment its start is requested, ``ready``, ``gone`` (exited and reaped), or
``stuck`` (it could not be killed). Its incarnation counts starts, over all invocations of the daemon; events of an
earlier one are stale. A restart uses one of the run's restarts; the exit of a forkserver, which kills all conductors,
uses one for all of them, and so does `restart_all`.
"""

from __future__ import annotations

import signal
from dataclasses import dataclass, replace
from math import inf
from typing import TYPE_CHECKING, Literal, TypeAlias

from states.effects import Effect, RetireConductor, StartConductor, StopConductor, Wake

if TYPE_CHECKING:
    from collections.abc import Collection

    from states.events import ConductorEvent, ConductorExited
    from states.plan import Kind, RunPlan

Standing: TypeAlias = Literal["starting", "ready", "gone", "stuck"]
FIRST_BACK_OFF = 0.25
"""Seconds before the first restart of a conductor; doubled for each further one in a row."""
STEADY = 30.0
"""Seconds; the next restart of a conductor that was ready for so long is a first one again."""
LONGEST_BACK_OFF = 30.0
"""Seconds; many restarts would otherwise wait for hours."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ConductorState:
    name: str
    kind: Kind
    incarnation: int = 1
    restarts: int = 0
    """In a row, without a steady life between two."""
    ready_at: float = inf
    standing: Standing = "starting"
    pid: int | None = None
    last_error: str = ""
    last_exit: str = ""
    """How the previous incarnation exited."""
    replacing: bool = False
    """It was asked to exit, and its restart is paid for."""


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

    def __getitem__(self, name: str) -> ConductorState:
        """The conductor with this name, which is in the plan."""
        return next(conductor for conductor in self.all if conductor.name == name)

    def concerned(self, event: ConductorEvent) -> bool:
        """Whether the event is of the current incarnation of a conductor that has not exited."""
        conductor = self.find(event.conductor)
        return (
            conductor is not None
            and conductor.incarnation == event.incarnation
            and conductor.standing != "gone"
        )

    def is_ready(self, name: str) -> bool:
        return self[name].standing == "ready"

    @property
    def not_ready(self) -> tuple[ConductorState, ...]:
        return tuple(conductor for conductor in self.all if conductor.standing != "ready")

    @property
    def missing_services(self) -> tuple[str, ...]:
        """Services that are not ready: nothing of a phase begins without them."""
        return tuple(each.name for each in self.not_ready if each.kind == "service")

    @property
    def alive(self) -> tuple[ConductorState, ...]:
        """Conductors that may have a process."""
        return tuple(conductor for conductor in self.all if conductor.standing in ("starting", "ready"))

    @property
    def stuck_pids(self) -> tuple[int, ...]:
        return tuple(m.pid for m in self.all if m.standing == "stuck" and m.pid is not None)

    def started(self, name: str, pid: int) -> ConductorStates:
        return self._with(name, pid=pid)

    def ready(self, name: str, *, at: float) -> ConductorStates:
        return self._with(name, standing="ready", ready_at=at)

    def with_error(self, name: str, reason: str) -> ConductorStates:
        return self._with(name, last_error=reason)

    def gone(self, name: str) -> ConductorStates:
        return self._with(name, standing="gone", pid=None)

    def stuck(self, name: str, pid: int | None) -> ConductorStates:
        return self._with(name, standing="stuck", pid=pid)

    def restart(
        self, name: str, *, at: float, within: float, last_exit: str = "", forkserver: int | None = None
    ) -> tuple[ConductorStates, tuple[Effect, ...]] | None:
        """Another incarnation that has to be ready `within` seconds; None when no restart is left. `last_exit`: how
        the previous one exited; `forkserver`: the pid of the one whose exit killed it.
        """
        conductor = self[name]
        cost = 0 if conductor.replacing or forkserver in self.forkservers else 1
        if self.restarts_left < cost:
            return None
        paid = self.forkservers if forkserver is None else self.forkservers | {forkserver}
        incarnation = conductor.incarnation + 1
        restarts = 0 if at - conductor.ready_at >= STEADY else conductor.restarts
        delay = 0.0 if conductor.replacing else min(FIRST_BACK_OFF * 2.0**restarts, LONGEST_BACK_OFF)
        conductors = self._with(
            name,
            standing="starting",
            incarnation=incarnation,
            restarts=restarts + (not conductor.replacing),
            ready_at=inf,
            pid=None,
            last_error="",
            last_exit=last_exit,
            replacing=False,
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
            conductor=name, incarnation=self[name].incarnation, first="SIGKILL"
        )

    def restart_all(
        self, names: Collection[str], reason: str
    ) -> tuple[ConductorStates, tuple[StopConductor, ...]] | None:
        """Asks those of the conductors that are ready to exit, for one restart in all; None when no restart is left."""
        asked = [each for each in self.all if each.name in names and each.standing == "ready"]
        asked = [each for each in asked if not each.replacing]
        if asked and not self.restarts_left:
            return None
        conductors = tuple(
            replace(each, last_error=reason, replacing=True) if each in asked else each for each in self.all
        )
        effects = tuple(
            StopConductor(conductor=each.name, incarnation=each.incarnation, first="message")
            for each in asked
        )
        return replace(self, all=conductors, restarts_left=self.restarts_left - bool(asked)), effects

    def retire(self, name: str, reason: str) -> tuple[ConductorStates, tuple[RetireConductor, ...]]:
        """Asks a conductor that is ready to exit in its own time; that costs no restart. One that is asked already, or that starts, begins
        anew anyway.
        """
        conductor = self[name]
        if conductor.standing != "ready" or conductor.replacing:
            return self, ()
        asked = self._with(name, last_error=reason, replacing=True)
        return asked, (RetireConductor(conductor=name, incarnation=conductor.incarnation),)

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
        if event.exit_code == 0 and conductor.kind != "service":
            how += ", though nothing had stopped it (SIGTERM does that)"
    words = conductor.last_error or event.reason
    if (
        conductor.kind == "service" and conductor.last_error
    ):  # of the program; the exit code is only its conductor's
        return f"{conductor.name}: {words}"
    return f"conductor {conductor.name} {how}{f': {words}' if words else ''}"


def _signal_name(number: int) -> str:
    try:
        return signal.Signals(number).name
    except ValueError:
        return f"signal {number}"
