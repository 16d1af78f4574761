"""The part of a phase that a conductor works on: begun once, however often its command arrives, one after the other. An error
that ends the work without a report ends the conductor, with that reason: the phase would wait for it for ever.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any, Final, Generic, TypeVar

from governor import logs
from governor.conductors.conductor import refused
from governor.errors import ConductorError
from governor.failures import reason_of
from governor.messages import Done

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine

    from governor.episodes.simulation import Simulation
    from governor.messages import ChangeWorkCommand, PausePartCommand, Refused

HANDOVER_SECONDS: Final = 2.0
"""The governor begins the next phase as soon as it knows the end of this one; the acknowledgement of that end may
still be on its way to the conductor then.
"""

W = TypeVar("W")

log = logs.get_logger()


class PhaseWork(Generic[W]):
    """`current` is the work that began last, `task` does it. `busy` refuses a phase before the last one is over; `fail` is
    `Conductor.fail`.
    """

    def __init__(self, busy: str, *, fail: Callable[[str], None]) -> None:
        self.current: W | None = None
        self.task: asyncio.Task[None] | None = None
        self._busy = busy
        self._fail = fail
        self._phase = -1

    def of(self, phase: int) -> W | None:
        """The current work, if it is of this phase."""
        return self.current if phase == self._phase else None

    async def begin(
        self, phase: int, make: Callable[[], tuple[W, Coroutine[Any, Any, None]]]
    ) -> Done | Refused:
        """Does what `make` returns, unless this or a later phase has begun. `make` refuses by a ConductorError."""
        before = self.task
        if phase > self._phase and before is not None and not before.done():
            await asyncio.wait({before}, timeout=HANDOVER_SECONDS)
            if not before.done():
                return refused(self._busy)
        if phase > self._phase:  # else it began by the same command, meanwhile
            try:
                self.current, work = make()
            except ConductorError as error:
                return refused(error.reason)
            self._phase = phase
            self.task = asyncio.create_task(work, name=f"phase.{phase}")
            self.task.add_done_callback(self._ended)
        return Done()

    def _ended(self, task: asyncio.Task[None]) -> None:
        if not task.cancelled() and (error := task.exception()) is not None:
            log.error("phase.failed", task=task.get_name(), exc_info=error)
            self._fail(reason_of(error))


class SimulationWork(PhaseWork["Simulation"]):
    """The simulation of a phase: its command sent again ends a PAUSE."""

    def __init__(self, *, fail: Callable[[str], None]) -> None:
        super().__init__("another phase is being simulated", fail=fail)

    async def begin(
        self, phase: int, make: Callable[[], tuple[Simulation, Coroutine[Any, Any, None]]]
    ) -> Done | Refused:
        reply = await super().begin(phase, make)
        if (simulation := self.of(phase)) is not None:
            simulation.pause(paused=False, ends_flow=True)
        return reply

    def pause(self, command: PausePartCommand) -> None:
        if (simulation := self.of(command.phase)) is not None:
            simulation.pause(paused=command.paused, ends_flow=command.ends_flow)

    def change(self, command: ChangeWorkCommand) -> None:
        if (simulation := self.of(command.phase)) is not None:
            simulation.change(command)

    def retire(self, retired: asyncio.Event) -> None:
        """Begins no further episode; `retired` is set once those that are played have ended."""
        if self.current is None or self.task is None or self.task.done():
            retired.set()
            return
        self.current.retire()
        self.task.add_done_callback(lambda _: retired.set())

    def stop(self, phase: int) -> None:
        if (simulation := self.of(phase)) is not None:
            simulation.finalizer.stop()
            simulation.stop(end="stopped")

    def abandon(self) -> None:
        if self.current is not None:
            self.current.abandon()

    @property
    def progress(self) -> int:
        return 0 if self.current is None else self.current.progress
