"""Pings the conductors of a run periodically: the I/O side of `governor.runs.liveness`.

An answer comes from a conductor's event loop, through the broker. The probe also asks the broker itself, to know
whether an answer could arrive, and reads /proc for stopped processes. Findings go to the state machine.
"""

from __future__ import annotations

import asyncio
import time
from typing import TYPE_CHECKING, Final

import msgspec

from governor import logs
from governor.messages import Alive, Ping
from governor.processes.identity import is_stopped
from governor.runs import liveness
from states import Finalizing, Running, Starting, events
from transport.errors import TransportError

if TYPE_CHECKING:
    from governor.runs.active_run import ActiveRun
    from states.conductors import ConductorState

LONGEST_INTERVAL: Final = 2.0
"""Seconds between two checks; a fifth of `deadlines.liveness` where that is shorter."""

log = logs.get_logger()


class LivenessProbe:
    """Probes one run. `run` checks until it is cancelled."""

    def __init__(self, run: ActiveRun) -> None:
        self._run = run
        self._pinging: set[tuple[str, int]] = set()
        self._silence = run.assignment.run.deadlines.liveness
        self._interval = min(LONGEST_INTERVAL, self._silence / 5)
        now = time.monotonic()
        self._liveness = liveness.Liveness(silence=self._silence, interval=self._interval, now=now)
        self._stall = liveness.Stall(now=now)

    async def run(self) -> None:
        async with asyncio.TaskGroup() as group:
            while True:
                begun = time.monotonic()
                for conductor in self._ready_conductors():
                    target = (conductor.name, conductor.incarnation)
                    if target not in self._pinging:
                        self._pinging.add(target)
                        group.create_task(self._ping(*target), name=f"{self._run.uid}.ping.{conductor.name}")
                broker = await self._broker_answers()
                await asyncio.sleep(begun + self._interval - time.monotonic())
                self._check(broker=broker)

    def _ready_conductors(self) -> list[ConductorState]:
        """Conductors that are ready, in a state that waits for conductors; others have deadlines of their own."""
        state = self._run.state
        if not isinstance(state, Starting | Running | Finalizing):
            return []
        return [conductor for conductor in state.conductors.all if conductor.standing == "ready"]

    async def _ping(self, conductor: str, incarnation: int) -> None:
        """One ping at a time: a late answer counts too."""
        try:
            reply = await self._run.command(conductor, incarnation, Ping(), seconds=self._silence)
        except (TransportError, msgspec.MsgspecError, IndexError) as error:
            log.debug("conductor.ping_failed", run=self._run.uid, conductor=conductor, reason=str(error))
        else:
            progress = reply.progress if isinstance(reply, Alive) else 0
            self._liveness.answered(conductor, incarnation, progress, time.monotonic())
        finally:
            self._pinging.discard((conductor, incarnation))

    async def _broker_answers(self) -> bool:
        try:
            await self._run.context.client.request(
                "mmi.service", b"governor", timeout=self._interval, idempotent=True
            )
        except TransportError:
            return False
        return True

    def _check(self, *, broker: bool) -> None:
        now, assignment, phase = time.monotonic(), self._run.assignment, self._run.progress.phase_index
        phase = assignment.first_phase if phase is None else phase
        seen = [
            liveness.Sample(
                conductor=conductor.name,
                incarnation=conductor.incarnation,
                stopped=conductor.pid is not None and is_stopped(conductor.pid),
                silence_limit=liveness.silence_limit(assignment.run, conductor.name, phase),
            )
            for conductor in self._ready_conductors()
        ]
        silent, counts = self._liveness.check(seen, broker=broker, now=now)
        for each, seconds in silent:
            log.warning(
                "conductor.silent",
                run=self._run.uid,
                conductor=each.conductor,
                seconds=round(seconds, 3),
                stopped=each.stopped,
            )
            silent_event = events.ConductorSilent(
                self._run.uid, now, each.conductor, each.incarnation, seconds=seconds
            )
            self._run.post(silent_event, {"stopped": each.stopped})
        self._report_progress(counts=counts, now=now)

    def _report_progress(self, *, counts: bool, now: float) -> None:
        state = self._run.state
        count = self._run.progress.changes + self._liveness.changes
        since = self._stall.since
        at_work = isinstance(state, Running) and state.pause is None
        timeout = self._run.assignment.run.limits.stall_timeout
        match self._stall.check(count, timeout=timeout, at_work=at_work, counts=counts, now=now):
            case "stalled":
                detail = {"seconds": round(now - since, 3), "waits_for": state.waits_for}
                log.warning("run.stalled", run=self._run.uid, **detail)
                self._run.post(events.RunStalled(self._run.uid, now, since=since), detail)
            case "resumed":
                log.info("run.progress_resumed", run=self._run.uid, seconds=round(now - since, 3))
                self._run.post(events.RunProgressResumed(self._run.uid, now))
            case None:
                pass
