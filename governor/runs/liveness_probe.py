"""Asks the conductors of a run, again and again, whether they are there: the thin side of `governor.runs.liveness`.

An answer comes from a conductor's event loop, over the broker. Whether the broker could carry one is asked of the broker
itself, whether a process has stopped of /proc. What is found goes to the state machine.
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
    from states.crew import ConductorState
    from transport.access import Secret
    from transport.client import Client

LONGEST_INTERVAL: Final = 2.0
"""Seconds between two beats; a fifth of `deadlines.silence` where that is shorter."""

log = logs.get_logger()


class LivenessProbe:
    """Of one run. `run` beats until it is cancelled; `state` gives the machine's."""

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
        self._asked: set[tuple[str, int]] = set()
        silence, now = assignment.run.deadlines.silence, time.monotonic()
        self._interval = min(LONGEST_INTERVAL, silence / 5)
        self._silence = silence
        self._pulse = liveness.Liveness(silence=silence, interval=self._interval, now=now)
        self._stall = liveness.Stall(timeout=assignment.plan.stall_timeout, now=now)

    async def run(self) -> None:
        async with asyncio.TaskGroup() as group:
            while True:
                begun = time.monotonic()
                for member in self._members():
                    who = (member.name, member.incarnation)
                    if who not in self._asked:
                        self._asked.add(who)
                        group.create_task(self._ask(*who), name=f"{self._uid}.ask.{member.name}")
                broker = await self._broker_answers()
                await asyncio.sleep(begun + self._interval - time.monotonic())
                self._beat(broker=broker)

    def _members(self) -> list[ConductorState]:
        """Who is ready, in a state that waits for somebody: the others have deadlines of their own."""
        state = self._state()
        if not isinstance(state, Starting | Running | Finalizing):
            return []
        return [member for member in state.crew.members if member.standing == "ready"]

    async def _ask(self, conductor: str, incarnation: int) -> None:
        """One question at a time: an answer that is late is one, too."""
        service = conductor_service(self._uid, conductor, incarnation)
        try:
            answer = await self._client.request(
                service, encode(Ping()), self._secret.value, timeout=self._silence, idempotent=True
            )
            reply = decode_command_reply(answer[0])
        except (TransportError, msgspec.MsgspecError, IndexError) as error:
            log.debug("conductor.unheard", run=self._uid, conductor=conductor, reason=str(error))
        else:
            progress = reply.progress if isinstance(reply, Alive) else 0
            self._pulse.heard(conductor, incarnation, progress, time.monotonic())
        finally:
            self._asked.discard((conductor, incarnation))

    async def _broker_answers(self) -> bool:
        try:
            await self._client.request("mmi.service", b"governor", timeout=self._interval, idempotent=True)
        except TransportError:
            return False
        return True

    def _beat(self, *, broker: bool) -> None:
        state, now = self._state(), time.monotonic()
        phase = self._first_phase if self._progress.phase_index is None else self._progress.phase_index
        seen = [
            liveness.Sample(
                conductor=member.name,
                incarnation=member.incarnation,
                stopped=_is_stopped(member.pid),
                patience=liveness.patience(self._run, member.name, phase),
            )
            for member in self._members()
        ]
        silent, counts = self._pulse.beat(seen, broker=broker, now=now)
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
        self._tell_progress(state, counts=counts, now=now)

    def _tell_progress(self, state: State, *, counts: bool, now: float) -> None:
        count = self._progress.moves + self._pulse.moves
        since = self._stall.since
        match self._stall.beat(count, at_work=isinstance(state, Running), counts=counts, now=now):
            case "stalled":
                told = {"seconds": round(now - since, 3), "waits_for": state.waits_for}
                log.warning("run.stalled", run=self._uid, **told)
                self._post(events.RunStalled(run=self._uid, at=now, since=since), told)
            case "moved":
                log.info("run.moved", run=self._uid, seconds=round(now - since, 3))
                self._post(events.RunMoved(run=self._uid, at=now))
            case None:
                pass


def _is_stopped(pid: int | None) -> bool:
    """By SIGSTOP or its kin, says /proc; a process that is traced goes on when its tracer wants."""
    try:
        stat = Path(f"/proc/{pid}/stat").read_text(encoding="utf-8", errors="replace")
    except OSError:
        return False
    return stat.rpartition(")")[2].split()[:1] == ["T"]
