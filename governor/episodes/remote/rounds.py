"""A worker with a vector of environments: each slot plays its own episodes, one message carries the steps of all slots.

Rules:
1. The episodes, their order and the order of act and learn are those of `local.vector`: a slot whose episode has ended
   begins its next one at once, the slot that ended last first. If that end may end the phase, the slot waits for it.
2. A round is two round trips: the agent learns from the last step of each slot and acts for those that continue, then the
   environment steps them. Resets are a third round trip, in rounds in which an episode begins.
3. A fault affects one episode. When a conductor exits, or an environment of the vector hangs, the other episodes are
   played again, each in its slot: an exit counts as an attempt, a neighbour's hang does not. After a deadline and
   `SETTLE_SECONDS`, a peer hangs if it runs the code of that very slot; else the other slots keep their own deadlines.
4. An episode in train mode ends when the agent has learned its last step.
"""

from __future__ import annotations

import sys
from functools import partial
from math import inf
from time import monotonic
from typing import TYPE_CHECKING, Any, Final

import numpy as np

from governor.episodes.entries import one_line
from governor.episodes.remote import control, wire
from governor.episodes.remote.episode_attempt import EpisodeAttempt, VectorSlot
from governor.episodes.remote.request_channel import Interrupted, Overdue, PeerLost
from governor.episodes.remote.worker import (
    MAX_ATTEMPTS,
    SETTLE_SECONDS,
    ConductorUnavailable,
    NoFreeEnvironment,
    RemoteEpisodeWorker,
    Stopped,
    run,
)
from governor.episodes.simulation import Paused

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from governor.episodes.remote.request_channel import RequestChannel
    from governor.episodes.simulation import Simulation
    from governor.messages import EpisodeOutcome

LINGER_SECONDS: Final = 0.05
"""How long reports wait: each slot has its own recorder, so waiting combines episodes that end together into one write."""


def run_worker(simulation: Simulation, number: int) -> None:
    """Runs worker `number`, with a vector or without."""
    kind = RemoteEpisodeWorker if simulation.command.vector == 1 else RemoteVectorWorker
    run(kind(simulation, number))


class _RoundLost(Exception):
    """The round did not finish: its unfinished episodes are played again. The channel is closed or dropped already."""

    def __init__(self, *, dead: bool) -> None:
        self.dead = dead
        super().__init__()


class RemoteVectorWorker(RemoteEpisodeWorker):
    """A `RemoteEpisodeWorker` with a slot for each environment of the vector; `_attempts` are in the order in which the agent acts."""

    def __init__(self, simulation: Simulation, number: int) -> None:
        super().__init__(simulation, number, linger=LINGER_SECONDS)
        command = simulation.command
        self._first_slot = number * command.vector
        self._slots = [VectorSlot(self._first_slot + offset) for offset in range(command.vector)]
        self._idle = list(self._slots)
        self._attempts: list[EpisodeAttempt] = []
        self._waiting_ends: list[tuple[EpisodeAttempt, EpisodeOutcome, str]] = []
        self._more = True
        self._version = 0
        self._train = False
        self._limit = command.max_steps or sys.maxsize

    def play_all(self) -> None:
        """As `RemoteEpisodeWorker.play_all`."""
        while True:
            if not self._attempts:
                self._prepare()
            try:
                self._begin_all()
                if not self._attempts:
                    break
                self._act()
                self._step()
            except _RoundLost as lost:
                self._play_again(dead=lost.dead)
            self._reports.send_due()
        self._reports.drain()

    def _prepare(self) -> None:
        try:
            self._connect()
        except (ConductorUnavailable, NoFreeEnvironment, Stopped) as error:
            outcome: EpisodeOutcome = "cancelled" if isinstance(error, Stopped) else "crashed"
            for slot in self._slots:
                for index, tries in slot.retries:
                    attempt = self._new_attempt(slot, index, tries)
                    self._end(attempt, outcome, "" if outcome == "cancelled" else str(error))
            raise
        self._apply_resets()
        for slot in self._slots:
            slot.recorder = self._recorder_of(slot.number)

    # -- beginning ------------------------------------------------------------------------------------------

    def _begin_all(self) -> None:
        """Assigns an episode to every idle slot, while episodes are left, and resets their environments."""
        while (starting := self._assign_idle_slots()) and not self._reset(starting):
            pass

    def _assign_idle_slots(self) -> list[EpisodeAttempt]:
        found: list[EpisodeAttempt] = []
        if self._attempts and self._resets != self.simulation.resets:
            return found  # when all have ended, the environment is built anew
        if self._would_end():
            return found
        while self._idle:
            slot = next((slot for slot in self._idle if slot.retries), self._idle[-1])
            if slot.retries:
                index, tries = slot.retries.pop(0)
            else:
                new = self._next_new(wait=not self._attempts and not found) if self._more else None
                if new is None:
                    break
                index, tries = new, 0
            self._idle.remove(slot)
            found.append(self._new_attempt(slot, index, tries))
        return found

    def _would_end(self) -> bool:
        """Whether the phase will end with the episodes that have taken their last step."""
        if not self.simulation.command.until:
            return False
        ended = [attempt.record(attempt.regular_outcome, "") for attempt in self._attempts if attempt.end]
        return bool(ended) and self.simulation.would_end(ended)

    def _next_new(self, *, wait: bool) -> int | None:
        try:
            index = self._next_index(wait=wait)
        except Paused:
            return None
        self._more = index is not None
        return index

    def _new_attempt(self, slot: VectorSlot, index: int, tries: int) -> EpisodeAttempt:
        timeout, now = self.simulation.command.episode_timeout, monotonic()
        deadline = inf if timeout is None else now + timeout
        return EpisodeAttempt(slot, index, self.simulation.seed_of(index), tries, now, deadline)

    def _reset(self, starting: list[EpisodeAttempt]) -> bool:
        """Whether all environments are ready for their first step."""
        self._attempts += starting
        channel = self._connected(self._environment)
        slots = [attempt.slot.number - self._first_slot for attempt in starting]
        seeds, indices = [attempt.seed for attempt in starting], [attempt.index for attempt in starting]
        request = wire.ResetManyFrame(channel.next_number(), slots, seeds, indices)
        answer = self._answer(channel, request, starting, wire.SteppedManyFrame)
        if answer is None:
            return False
        faults = {fault.row: fault for fault in answer.faults}
        for row, (attempt, observation) in enumerate(
            zip(starting, self._observations_of(answer), strict=True)
        ):
            attempt.observation = observation
            self._end_faulty(attempt, faults.get(row))
        return not faults

    # -- the agent's part of a round ------------------------------------------------------------------------

    def _act(self) -> None:
        """Afterwards `_attempts` holds those with an action; episodes whose last step is learned have ended."""
        attempts, channel = self._attempts, self._connected(self._agent)
        if attempts:
            self._train = self.simulation.trains(
                attempts[0].index
            )  # all of them: a stage of the phase follows another
        request = wire.ActManyFrame(
            channel.next_number(),
            [attempt.slot.number for attempt in attempts],
            [attempt.kind for attempt in attempts],
            np.array([attempt.observation for attempt in attempts]),
            [attempt.reward for attempt in attempts],
            [attempt.end for attempt in attempts],
            self._train,
            [attempt.index for attempt in attempts if attempt.kind == wire.FIRST],
        )
        answer = self._answer(channel, request, attempts, wire.ActedManyFrame)
        if answer is None:
            return
        faults = {fault.row: fault for fault in answer.faults}
        actions = answer.actions.tolist() if self._plain_action else answer.actions
        acting = dict(zip(answer.rows, actions, strict=True))
        for row, attempt in enumerate(attempts):
            if not self._end_faulty(attempt, faults.get(row)) and attempt.kind == wire.LAST:
                self._end_regularly(attempt)
        self._attempts = [attempts[row] for row in acting]
        self._version = answer.weight_version
        self._end_waiting()
        for row, action in acting.items():
            attempt = attempts[row]
            attempt.action = action
            if not attempt.recorded:
                attempt.begin_recording()

    # -- the environment's ----------------------------------------------------------------------------------

    def _step(self) -> None:
        attempts = self._attempts
        if not attempts:
            return
        channel = self._connected(self._environment)
        slots = [attempt.slot.number - self._first_slot for attempt in attempts]
        request = wire.StepManyFrame(
            channel.next_number(), slots, np.array([attempt.action for attempt in attempts])
        )
        answer = self._answer(channel, request, attempts, wire.SteppedManyFrame)
        if answer is None:
            return
        faults = {fault.row: fault for fault in answer.faults}
        results = zip(attempts, self._observations_of(answer), answer.rewards, answer.ends, strict=True)
        now = monotonic()
        continuing = []
        for row, (attempt, following, reward, end) in enumerate(results):
            if self._end_faulty(attempt, faults.get(row)):
                continue
            if now >= attempt.deadline:
                self._release_slot(attempt)
                self._end(attempt, "timed_out", self._overdue_reason)
            elif self._stepped(attempt, following, reward, end):
                continuing.append(attempt)
        self._attempts = continuing

    def _stepped(self, attempt: EpisodeAttempt, following: Any, reward: float, end: int) -> bool:
        """Whether it is still in play: it continues, or the agent must learn its last step."""
        attempt.value += reward
        attempt.steps += 1
        if attempt.steps >= self._limit:
            end |= wire.TRUNCATED
        terminated, truncated = bool(end & wire.TERMINATED), bool(end & wire.TRUNCATED)
        values = (attempt.observation, attempt.action, reward, terminated, truncated, self._version)
        attempt.observation, attempt.reward, attempt.end = following, reward, end
        try:
            attempt.slot.recorder.step(*values)
        except OSError as error:
            self._release_slot(attempt)
            self._end(attempt, "failed", f"cannot record its steps: {one_line(error)}")
            return False
        if not end:
            if self.simulation.stopping:
                self._release_slot(attempt)
                self._end(attempt, "cancelled")
                return False
            return True
        self._release_slot(attempt)
        if not self._train:
            self._end_regularly(attempt)
        return self._train

    # -- ends -----------------------------------------------------------------------------------------------

    def _release_slot(self, attempt: EpisodeAttempt) -> None:
        """Its slot may begin another episode."""
        self._idle.append(attempt.slot)

    def _end_faulty(self, attempt: EpisodeAttempt, fault: wire.RowFault | None) -> bool:
        """Whether it has ended with the fault of its row."""
        if fault is None:
            return False
        if attempt.kind != wire.LAST:
            self._release_slot(attempt)
        self._end(attempt, "failed", f"{fault.where}: {fault.reason}")
        return True

    def _end_regularly(self, attempt: EpisodeAttempt) -> None:
        if monotonic() >= attempt.deadline:
            self._end(attempt, "timed_out", self._overdue_reason)
        else:
            self._end(attempt, attempt.regular_outcome)

    def _end(self, attempt: EpisodeAttempt, outcome: EpisodeOutcome, reason: str = "") -> None:
        """Ends an attempt; it is recorded later if the previous episode of its slot has not ended yet."""
        self._attempts = [other for other in self._attempts if other is not attempt]
        slot = attempt.slot
        if not attempt.recorded:
            if slot.recording:
                self._waiting_ends.append((attempt, outcome, reason))
                return
            attempt.begin_recording()
        attempt.end_recording(outcome)
        self._reports.add(attempt.record(outcome, reason), slot.recorder)

    def _end_waiting(self) -> None:
        waiting, self._waiting_ends = self._waiting_ends, []
        for attempt, outcome, reason in waiting:
            self._end(attempt, outcome, reason)

    def _play_again(self, *, dead: bool) -> None:
        attempts, self._attempts = self._attempts, []
        for attempt in sorted(attempts, key=lambda attempt: not attempt.recorded):
            tries = attempt.tries + dead
            if tries >= MAX_ATTEMPTS:
                self._end(attempt, "crashed", "the conductor of its environment or of its agent exited")
                continue
            if attempt.recorded:
                attempt.end_recording("crashed")
            attempt.slot.retries.append((attempt.index, tries))
            self.simulation.played_again()
        self._end_waiting()
        self._idle = list(self._slots)

    # -- lines ----------------------------------------------------------------------------------------------

    def _answer(
        self, channel: RequestChannel, request: Any, asked: Sequence[EpisodeAttempt], kind: type[Any]
    ) -> Any:
        """The answer; None if it is a fault of all attempts `asked` for, which have failed then. Raises _RoundLost."""
        try:
            answer = self._wait_for_answer(channel, request, asked)
        except PeerLost:
            self._drop_lost(channel)
            raise _RoundLost(dead=True) from None
        if type(answer) is kind:
            return answer
        where, reason = "wire", f"{type(answer).__name__} where {kind.__name__} was due"
        if type(answer) is wire.FaultFrame:
            where, reason = answer.where, answer.reason
        for attempt in list(asked):
            self._end(attempt, "failed", f"{where}: {reason}")
        self._end_waiting()
        self._idle = [
            slot for slot in self._slots if all(attempt.slot is not slot for attempt in self._attempts)
        ]
        return None

    def _wait_for_answer(self, channel: RequestChannel, request: Any, asked: Sequence[EpisodeAttempt]) -> Any:
        """The answer. Raises PeerLost, and _RoundLost when the attempt that hangs has been ended."""
        until = min(attempt.deadline for attempt in asked) + SETTLE_SECONDS
        wait: Callable[..., wire.Answer] = partial(channel.ask, request)
        while True:
            try:
                return wait(deadline=None if until == inf else until)
            except Interrupted:
                return self._answer_after_stop(channel)
            except Overdue:
                until = self._extended_deadline(channel, asked, now=max(until, monotonic()))
                wait = channel.wait

    def _answer_after_stop(self, channel: RequestChannel) -> Any:
        """The late answer. Raises PeerLost, and _RoundLost when all attempts have been cancelled."""
        answer = channel.wait_late(seconds=SETTLE_SECONDS)
        if answer is not None:
            return answer
        self._report_hung(channel)
        for attempt in list(self._attempts):
            self._end(attempt, "cancelled")
        raise _RoundLost(dead=False)

    def _extended_deadline(
        self, channel: RequestChannel, asked: Sequence[EpisodeAttempt], *, now: float
    ) -> float:
        """The next deadline of the other attempts. Raises _RoundLost when the attempt that hangs has been ended."""
        first = self._first_slot if channel is self._environment else 0
        due = tuple(p.slot.number - first for p in asked if p.deadline + SETTLE_SECONDS <= now)
        later = [p.deadline + SETTLE_SECONDS for p in asked if p.deadline + SETTLE_SECONDS > now]
        answer = self._report_hung(channel, due=due if later else ())
        if isinstance(answer, control.NotExpired):
            return min(later)
        slot = answer.slot if isinstance(answer, control.Accepted) else None
        overdue = [attempt for attempt in asked if attempt.deadline <= now]
        for attempt in [attempt for attempt in overdue if attempt.slot.number - first == slot] or overdue:
            self._end(attempt, "timed_out", f"{self._overdue_reason}, and {channel.name} hangs")
        raise _RoundLost(dead=False)

    @property
    def _overdue_reason(self) -> str:
        return f"longer than {self.simulation.command.episode_timeout:g} s"

    def _observations_of(self, answer: wire.SteppedManyFrame) -> Sequence[Any]:
        observations: Any = answer.observations
        seen: Sequence[Any] = observations.tolist() if self._plain_observation else observations
        return seen

    @staticmethod
    def _connected(channel: RequestChannel | None) -> RequestChannel:
        if channel is None:
            raise _RoundLost(dead=False)
        return channel
