"""The life of episodes through conductors: which attempt runs in which slot of a worker, and how each one ends.

Rules:
1. Every episode that began is recorded once, with its outcome. A fault affects one episode.
2. When an environment's process or a conductor exits, or an environment of a vector hangs, the unfinished episodes are played again, each in its slot with
   the same index and seed: an exit counts as an attempt, a neighbour's hang does not. After `MAX_ATTEMPTS` an episode is
   `crashed`. Such an exit alone is not a failure.
3. After a deadline and `SETTLE_SECONDS`, a peer hangs if it runs the code of that very slot; else the other slots keep their
   own deadlines. An answer that comes after a deadline is taken, and the episode has timed out.
4. An episode in train mode ends when the agent has learned its last step.
"""

from __future__ import annotations

import sys
from abc import abstractmethod
from math import inf
from time import monotonic
from typing import TYPE_CHECKING, Any

from governor import logs
from governor.episodes.info import InfoFigures, columns_of
from governor.episodes.remote import control, frames, wire
from governor.episodes.remote.episode_attempt import EpisodeAttempt, WorkerSlot
from governor.episodes.remote.request_channel import Interrupted, Overdue, PeerLost
from governor.episodes.remote.worker import (
    MAX_ATTEMPTS,
    SETTLE_SECONDS,
    ConductorUnavailable,
    NoFreeEnvironment,
    RemoteWorker,
    Stopped,
)
from governor.episodes.restoring.so_far import obstacle_of
from governor.episodes.simulation import Paused
from governor.failures import Reason, one_line

if TYPE_CHECKING:
    from collections.abc import Sequence

    from governor.episodes.remote.request_channel import RequestChannel
    from governor.episodes.simulation import Simulation
    from governor.messages import EpisodeOutcome

log = logs.get_logger()


class RoundLost(Exception):
    """The round did not finish: its unfinished episodes are played again. The channel is closed or dropped already. `reason` is that,
    if a process exited; else it is empty.
    """

    def __init__(self, reason: str = "") -> None:
        self.reason = reason
        super().__init__(reason)


class EpisodeWorker(RemoteWorker):
    """A `RemoteWorker` with a slot for each of its environments; `_attempts` are in the order in which the agent acts."""

    def __init__(self, simulation: Simulation, number: int) -> None:
        super().__init__(simulation, number)
        command = simulation.command
        self._first_slot = number * command.vector
        self._slots = [WorkerSlot(self._first_slot + offset) for offset in range(command.vector)]
        self._idle = list(self._slots)
        self._attempts: list[EpisodeAttempt] = []
        self._waiting_ends: list[tuple[EpisodeAttempt, EpisodeOutcome, str]] = []
        self._more = True
        self._version = 0
        self._train = False
        self._limit = command.max_steps or sys.maxsize
        self._players: dict[str, str] = {}
        """Of several players: the agent of each."""

    def play_all(self) -> None:
        while True:
            if not self._attempts:
                self._prepare()
            try:
                if not self._play_round():
                    break
            except RoundLost as lost:
                self._play_again(lost.reason)
            self._reports.send_due()
        self._reports.drain()

    @abstractmethod
    def _play_round(self) -> bool:
        """Plays on with all attempts, and begins others; whether there was any. Raises RoundLost."""

    def _prepare(self) -> None:
        """Its environments and its agent, as the last reset wants them."""
        try:
            self._apply_resets()
            self._connect()
        except (ConductorUnavailable, NoFreeEnvironment, Stopped) as error:
            outcome: EpisodeOutcome = "cancelled" if isinstance(error, Stopped) else "crashed"
            for slot in self._slots:
                for again in slot.retries:
                    reason = "" if outcome == "cancelled" else getattr(error, "reason", str(error))
                    self._end(self._new_attempt(slot, *again), outcome, reason)
                    if reason and len(self._slots) == 1:
                        self.simulation.break_off(reason)
            raise
        for slot in self._slots:
            slot.recorder = self._recorder_of(slot.number)

    # -- beginning ------------------------------------------------------------------------------------------

    def _assign_idle_slots(self) -> list[EpisodeAttempt]:
        found: list[EpisodeAttempt] = []
        if self._attempts and self._resets != self.simulation.resets:
            return found  # when all have ended, the environment is built anew
        if self._would_end():
            return found
        while self._idle:
            slot = next((slot for slot in self._idle if slot.retries), self._idle[-1])
            if slot.retries:
                if not self._may_retry(slot.retries[0][0], wait=not self._attempts and not found):
                    break
                again = slot.retries.pop(0)
            else:
                new = self._next_new(wait=not self._attempts and not found) if self._more else None
                if new is None:
                    break
                again = new, 0, monotonic()
            self._idle.remove(slot)
            found.append(self._new_attempt(slot, *again))
        return found

    def _would_end(self) -> bool:
        """Whether the phase will end with the episodes that have taken their last step."""
        if not self.simulation.command.until:
            return False
        ended = [attempt.record(attempt.regular_outcome) for attempt in self._attempts if attempt.end]
        return bool(ended) and self.simulation.would_end(ended)

    def _next_new(self, *, wait: bool) -> int | None:
        try:
            index = self._next_index(wait=wait)
        except Paused:
            return None
        self._more = index is not None
        return index

    def _may_retry(self, index: int, *, wait: bool) -> bool:
        """False in a pause. Where the phase stops meanwhile, the attempt is told."""
        try:
            self._next_index(wait=wait, again=index)
        except Paused:
            return False
        return True

    def _new_attempt(self, slot: WorkerSlot, index: int, tries: int, began: float) -> EpisodeAttempt:
        timeout = self.simulation.command.episode_timeout
        deadline = inf if timeout is None else monotonic() + timeout
        seed = self.simulation.seed_of(index)
        wanted = self.simulation.command.info
        info = InfoFigures(wanted, columns_of(wanted, [*self._players])) if wanted else None
        retries = self.simulation.retries_of(index)
        return EpisodeAttempt(
            slot.number, index, seed, began, deadline, slot=slot, tries=tries, retries=retries, info=info
        )

    def _stepped(self, attempt: EpisodeAttempt, following: Any, reward: float, end: int, row: Any) -> bool:
        """`row` is of its info. Whether it is still in play: it continues, or the agent must learn its last step."""
        attempt.value += reward
        attempt.steps += 1
        if attempt.steps >= self._limit:
            end |= wire.TRUNCATED
        terminated, truncated = bool(end & wire.TERMINATED), bool(end & wire.TRUNCATED)
        if attempt.info is not None:
            attempt.info.add(row)
        values = (attempt.observation, attempt.action, reward, terminated, truncated, self._version, row)
        attempt.observation, attempt.reward, attempt.end = following, reward, end
        try:
            attempt.slot.recorder.step(*values)
        except OSError as error:
            self._idle.append(attempt.slot)
            self._end(attempt, "failed", f"cannot record its steps: {one_line(error)}")
            return False
        if not end:
            if self.simulation.interrupts and self.simulation.interrupted(attempt.index):
                self._idle.append(attempt.slot)
                self._end(attempt, "cancelled")
                return False
            return True
        attempt.slot.recorder.note_last(following)
        self._idle.append(attempt.slot)
        if not self._train:
            self._end_in_time(attempt, attempt.regular_outcome)
        return self._train

    # -- ends -----------------------------------------------------------------------------------------------

    def _end_faulty(self, attempt: EpisodeAttempt, fault: frames.RowFault | None) -> bool:
        """Whether it has ended with the fault of its row."""
        if fault is None:
            return False
        if attempt.kind != wire.LAST:
            self._idle.append(attempt.slot)
        self._end(attempt, "failed", Reason(fault.reason, fault.traceback).within(fault.where))
        return True

    def _end_in_time(self, attempt: EpisodeAttempt, outcome: EpisodeOutcome, reason: str = "") -> None:
        """Ends it; as timed out, if its deadline has passed."""
        if monotonic() >= attempt.deadline:
            outcome, reason = "timed_out", self._overdue_reason
        self._end(attempt, outcome, reason)

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
        self._note_end(attempt, outcome)
        self._reports.add(attempt.record(outcome, reason), self._recorder_at(slot))

    def _note_end(self, attempt: EpisodeAttempt, outcome: EpisodeOutcome) -> None:
        """For an agent that wants to know it."""
        if self._hearing:
            slot = self._slot_in_session(attempt)
            figures = attempt.value, attempt.steps, dict(attempt.values)
            ended = frames.EndedEpisode(slot, attempt.index, outcome, *figures)
            for name in self._hearing:
                self._ended.setdefault(name, []).append(ended)

    def _recorder_at(self, slot: WorkerSlot) -> Any:
        """What has the steps of this slot."""
        return slot.recorder

    def _slot_in_session(self, attempt: EpisodeAttempt) -> int:
        """By which the agent's session knows its slot."""
        return attempt.slot.number if len(self._slots) > 1 else 0

    def _end_waiting(self) -> None:
        waiting, self._waiting_ends = self._waiting_ends, []
        for attempt, outcome, reason in waiting:
            self._end(attempt, outcome, reason)

    def _play_again(self, reason: str) -> None:
        """`reason` as of `RoundLost`."""
        attempts, self._attempts = self._attempts, []
        for attempt in sorted(attempts, key=lambda attempt: not attempt.recorded):
            tries = attempt.tries + bool(reason)
            if tries >= MAX_ATTEMPTS:
                self._end(attempt, "crashed", reason)
                continue
            if reason and not self.simulation.stopping:
                self.simulation.reports.attempt(attempt.record("crashed", reason), number=tries, lost=True)
            self._note_end(attempt, "crashed")
            if attempt.recorded:
                attempt.end_recording("crashed")
            attempt.slot.retries.append((attempt.index, tries, attempt.began))
            self.simulation.played_again()
        self._end_waiting()
        self._idle = list(self._slots)
        self.report_obstacle()
        if not obstacle_of(
            self.simulation.command
        ):  # it has learned of the episode: it joins again, without that
            self._to_rejoin |= self._agents.keys()
            for channel in list(self._agents.values()):
                self._drop_agent(channel)

    # -- lines ----------------------------------------------------------------------------------------------

    def _answer(
        self, channel: RequestChannel, request: Any, asked: Sequence[EpisodeAttempt], kind: type[Any]
    ) -> Any:
        """The answer; None if it is a fault of all attempts `asked` for, which have failed then. Raises RoundLost."""
        try:
            answer = self._wait_for_answer(channel, request, asked)
        except PeerLost:
            reason = self._drop_lost(channel)
            for attempt in [attempt for attempt in asked if attempt.deadline <= monotonic()]:
                self._end(attempt, "timed_out", self._overdue_reason)
            raise RoundLost(reason) from None
        if type(answer) is kind:
            return answer
        reason = Reason(f"wire: {type(answer).__name__} where {kind.__name__} was due")
        if type(answer) is wire.FaultFrame:
            reason = Reason(answer.reason, answer.traceback).within(answer.where)
        for attempt in list(asked):
            self._end_in_time(attempt, "failed", reason)
        self._end_waiting()
        playing = [attempt.slot for attempt in self._attempts if not attempt.end]
        self._idle = [slot for slot in self._slots if all(other is not slot for other in playing)]
        return None

    def _wait_for_answer(self, channel: RequestChannel, request: Any, asked: Sequence[EpisodeAttempt]) -> Any:
        """The answer. Raises PeerLost, and RoundLost when the attempt that hangs has been ended."""
        until = min([attempt.deadline for attempt in asked]) + SETTLE_SECONDS
        again = False
        while True:
            deadline = None if until == inf else until
            try:
                return channel.wait(deadline=deadline) if again else channel.ask(request, deadline=deadline)
            except Interrupted:
                return self._answer_after_stop(channel)
            except Overdue:
                until = self._extended_deadline(channel, asked, now=max(until, monotonic()))
                again = True

    def _answer_after_stop(self, channel: RequestChannel) -> Any:
        """The late answer. Raises PeerLost, and RoundLost when all attempts have been cancelled."""
        answer = channel.wait_late(seconds=SETTLE_SECONDS)
        if answer is not None:
            return answer
        self._report_hung(channel)
        for attempt in list(self._attempts):
            self._end(attempt, "cancelled")
        raise RoundLost

    def _extended_deadline(
        self, channel: RequestChannel, asked: Sequence[EpisodeAttempt], *, now: float
    ) -> float:
        """The next deadline of the other attempts. Raises RoundLost when the attempt that hangs has been ended."""
        first = self._first_slot if channel is self._environment else 0
        due = tuple(p.slot.number - first for p in asked if p.deadline + SETTLE_SECONDS <= now)
        later = [p.deadline + SETTLE_SECONDS for p in asked if p.deadline + SETTLE_SECONDS > now]
        answer = self._report_hung(channel, due=due if later else ())
        if isinstance(answer, control.NotExpired):
            return min(later)
        slot = answer.slot if isinstance(answer, control.Accepted) else None
        overdue = [attempt for attempt in asked if attempt.deadline <= now]
        for attempt in [attempt for attempt in overdue if attempt.slot.number - first == slot] or overdue:
            reason = f"{self._overdue_reason}, and {channel.name} hangs"
            if isinstance(answer, control.Accepted):
                reason = Reason(reason + answer.place, answer.stack)
            self._end(attempt, "timed_out", reason)
        raise RoundLost

    @property
    def _overdue_reason(self) -> str:
        return f"longer than {self.simulation.command.episode_timeout:g} s"

    @staticmethod
    def _connected(channel: RequestChannel | None) -> RequestChannel:
        if channel is None:
            raise RoundLost
        return channel
