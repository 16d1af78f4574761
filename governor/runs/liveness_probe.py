"""Pings the conductors of a run periodically: the I/O side of `governor.runs.liveness`.

An answer comes from a conductor's event loop, through the broker. The probe also asks the broker itself, to know
whether an answer could arrive, and reads /proc for stopped processes. Findings go to the state machine.
"""

from __future__ import annotations

import asyncio
import time
from pathlib import Path
from typing import TYPE_CHECKING, Final

import msgspec

from governor import logs
from governor.messages import Alive, Ping, conductor_service, decode_command_reply, encode
from governor.runs import liveness
from states import Finalizing, Running, Starting, events
from transport.errors import TransportError

if TYPE_CHECKING:
    from collections.abc import Callable

    from governor.runs.assignment import Assignment
    from governor.runs.effects import Post
    from governor.runs.progress import Progress
    from states import State
    from states.conductors import ConductorState
    from transport.access import Secret
    from transport.client import Client

LONGEST_INTERVAL: Final = 2.0
"""Seconds between two checks; a fifth of `deadlines.liveness` where that is shorter."""

log = logs.get_logger()


class LivenessProbe:
    """Probes one run. `run` checks until it is cancelled; `state` returns the current state of the machine."""

    def __init__(
        self,
        *,
        assignment: Assignment,
        client: Client,
        secret: Secret,
        progress: Progress,
        state: Callable[[], State],
        post: Post,
    ) -> None:
        self._uid = assignment.uid
        self._run = assignment.run
        self._first_phase = assignment.first_phase
        self._client = client
        self._secret = secret
        self._progress = progress
        self._state = state
        self._post = post
        self._pinging: set[tuple[str, int]] = set()
        silence, now = assignment.run.deadlines.liveness, time.monotonic()
        self._interval = min(LONGEST_INTERVAL, silence / 5)
        self._silence = silence
        self._liveness = liveness.Liveness(silence=silence, interval=self._interval, now=now)
        self._stall = liveness.Stall(timeout=assignment.plan.stall_timeout, now=now)

    async def run(self) -> None:
        async with asyncio.TaskGroup() as group:
            while True:
                begun = time.monotonic()
                for conductor in self._ready_conductors():
                    target = (conductor.name, conductor.incarnation)
                    if target not in self._pinging:
                        self._pinging.add(target)
                        group.create_task(self._ping(*target), name=f"{self._uid}.ping.{conductor.name}")
                broker = await self._broker_answers()
                await asyncio.sleep(begun + self._interval - time.monotonic())
                self._check(broker=broker)

    def _ready_conductors(self) -> list[ConductorState]:
        """Conductors that are ready, in a state that waits for conductors; others have deadlines of their own."""
        state = self._state()
        if not isinstance(state, Starting | Running | Finalizing):
            return []
        return [conductor for conductor in state.conductors.all if conductor.standing == "ready"]

    async def _ping(self, conductor: str, incarnation: int) -> None:
        """One ping at a time: a late answer counts too."""
        service = conductor_service(self._uid, conductor, incarnation)
        try:
            answer = await self._client.request(
                service, encode(Ping()), self._secret.value, timeout=self._silence, idempotent=True
            )
            reply = decode_command_reply(answer[0])
        except (TransportError, msgspec.MsgspecError, IndexError) as error:
            log.debug("conductor.ping_failed", run=self._uid, conductor=conductor, reason=str(error))
        else:
            progress = reply.progress if isinstance(reply, Alive) else 0
            self._liveness.answered(conductor, incarnation, progress, time.monotonic())
        finally:
            self._pinging.discard((conductor, incarnation))

    async def _broker_answers(self) -> bool:
        try:
            await self._client.request("mmi.service", b"governor", timeout=self._interval, idempotent=True)
        except TransportError:
            return False
        return True

    def _check(self, *, broker: bool) -> None:
        state, now = self._state(), time.monotonic()
        phase = self._first_phase if self._progress.phase_index is None else self._progress.phase_index
        seen = [
            liveness.Sample(
                conductor=conductor.name,
                incarnation=conductor.incarnation,
                stopped=_is_stopped(conductor.pid),
                silence_limit=liveness.silence_limit(self._run, conductor.name, phase),
            )
            for conductor in self._ready_conductors()
        ]
        silent, counts = self._liveness.check(seen, broker=broker, now=now)
        for each in silent:
            log.warning(
                "conductor.silent",
                run=self._uid,
                conductor=each.conductor,
                seconds=round(each.seconds, 3),
                stopped=each.stopped,
            )
            self._post(
                events.ConductorSilent(
                    run=self._uid,
                    at=now,
                    conductor=each.conductor,
                    incarnation=each.incarnation,
                    seconds=each.seconds,
                ),
                {"stopped": each.stopped},
            )
        self._report_progress(state, counts=counts, now=now)

    def _report_progress(self, state: State, *, counts: bool, now: float) -> None:
        count = self._progress.changes + self._liveness.changes
        since = self._stall.since
        match self._stall.check(count, at_work=isinstance(state, Running), counts=counts, now=now):
            case "stalled":
                detail = {"seconds": round(now - since, 3), "waits_for": state.waits_for}
                log.warning("run.stalled", run=self._uid, **detail)
                self._post(events.RunStalled(run=self._uid, at=now, since=since), detail)
            case "resumed":
                log.info("run.progress_resumed", run=self._uid, seconds=round(now - since, 3))
                self._post(events.RunProgressResumed(run=self._uid, at=now))
            case None:
                pass


def _is_stopped(pid: int | None) -> bool:
    """Whether /proc says stopped (T), by SIGSTOP or a similar signal; a traced process (t) depends on its tracer."""
    try:
        stat = Path(f"/proc/{pid}/stat").read_text(encoding="utf-8", errors="replace")
    except OSError:
        return False
    return stat.rpartition(")")[2].split()[:1] == ["T"]
