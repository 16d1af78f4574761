"""The two kinds of workers: with one environment, and with a vector of them, where one message carries the steps of all slots.

Rules of a vector:
1. The episodes, their order and the order of act and learn are those of `local.stepping`: a slot whose episode has ended
   begins its next one at once, the slot that ended last first. If that end may end the phase, the slot waits for it.
2. A round is two round trips: the agent learns from the last step of each slot and acts for those that continue, then the
   environment steps them. Resets are a third round trip, in rounds in which an episode begins.
"""

from __future__ import annotations

from collections import deque
from time import monotonic
from typing import TYPE_CHECKING, Any

from governor.episodes.remote import wire
from governor.episodes.remote.episode_worker import EpisodeWorker
from governor.episodes.rules.evaluation import number_of

if TYPE_CHECKING:
    from collections.abc import Sequence

    from governor.episodes.remote.episode_attempt import EpisodeAttempt
    from governor.episodes.remote.request_channel import RequestChannel
    from governor.episodes.simulation import Simulation


class SingleWorker(EpisodeWorker):
    """Its episodes cross one step a message, because a vector of one costs half as much again."""

    def __init__(self, simulation: Simulation, number: int) -> None:
        super().__init__(simulation, number)
        self._finishes: deque[int] = deque()
        """Of the episodes that the agent of this session has learned to their end: which of all reports they are."""
        self._finishes_settled = 0

    def _play_round(self) -> bool:
        """One episode."""
        self._idle = list(self._slots)
        starting = self._assign_idle_slots()
        if not starting:
            return False
        (attempt,) = starting
        if self._resets != self.simulation.resets:  # the reset came while it waited for its index
            attempt.slot.retries.append((attempt.index, attempt.tries, attempt.began))
            return True
        self._attempts = starting
        self._train = self.simulation.trains(attempt.index)
        attempt.begin_recording()
        self._play(attempt)
        return True

    def _play(self, attempt: EpisodeAttempt) -> None:
        environment, agent = self._connected(self._environment), self._connected(self._agent)
        command = self.simulation.command
        phase, evaluation = command.name, number_of(attempt.index, command)
        reset = self._reset_frame(environment, attempt, evaluation)
        observed = self._ask(environment, reset, attempt, wire.ObservedFrame)
        if observed is None:
            return
        attempt.begin_info(observed.info)
        attempt.observation = observed.observation
        request: wire.BeginFrame | wire.ActFrame = wire.BeginFrame(
            agent.next_number(),
            attempt.observation,
            self._train,
            attempt.index,
            phase,
            evaluation,
            attempt.seed,
            self._take_ended(),
            observed.mask,
            self._settled(),
        )
        while True:
            acted = self._ask(agent, request, attempt, wire.ActedFrame)
            if acted is None:
                return
            attempt.action, self._version = acted.action, acted.weight_version
            step = wire.StepFrame(environment.next_number(), attempt.action)
            stepped = self._ask(environment, step, attempt, wire.SteppedFrame)
            if stepped is None:
                return
            end = wire.TERMINATED * stepped.terminated | wire.TRUNCATED * stepped.truncated
            if not self._stepped(attempt, stepped.observation, stepped.reward, end, stepped.info):
                return
            if attempt.end:
                break
            self._reports.send_due()
            request = wire.ActFrame(
                agent.next_number(), attempt.observation, attempt.reward, stepped.whole_info, stepped.mask
            )
        truncated = bool(attempt.end & wire.TRUNCATED)
        finish = wire.FinishFrame(
            agent.next_number(),
            attempt.observation,
            attempt.reward,
            stepped.terminated,
            truncated,
            stepped.whole_info,
        )
        self._finishes.append(self._reports.added + 1)
        if self._ask(agent, finish, attempt, wire.FinishedFrame) is not None:
            self._end_in_time(attempt, attempt.regular_outcome)

    def _settled(self) -> int:
        """As of `wire.BeginFrame`."""
        while self._finishes and self._finishes[0] <= self._reports.settled:
            self._finishes.popleft()
            self._finishes_settled += 1
        return self._finishes_settled

    def _join(self, name: str) -> RequestChannel:
        self._finishes.clear()
        self._finishes_settled = 0
        return super()._join(name)

    def _reset_frame(
        self, environment: RequestChannel, attempt: EpisodeAttempt, evaluation: int
    ) -> wire.ResetFrame:
        command = self.simulation.command
        return wire.ResetFrame(
            environment.next_number(),
            attempt.seed,
            attempt.index,
            command.name,
            command.info or None,
            evaluation,
            bool(self._informed),
            bool(self._masked),
        )

    def _ask(self, channel: RequestChannel, request: Any, attempt: EpisodeAttempt, kind: type[Any]) -> Any:
        """The answer; None if the attempt has ended instead. Raises RoundLost."""
        answer = self._answer(channel, request, self._attempts, kind)
        if answer is not None and answer.reported:
            attempt.reported.merge(answer.reported)
        if answer is not None and monotonic() >= attempt.deadline:
            self._end(attempt, "timed_out", self._overdue_reason)
            return None
        return answer


class VectorWorker(EpisodeWorker):
    def _play_round(self) -> bool:
        # Every idle slot gets an episode, while episodes are left, and its environment is reset.
        while (starting := self._assign_idle_slots()) and not self._reset(starting):
            pass
        if not self._attempts:
            return False
        self._act()
        self._step()
        return True

    def _reset(self, starting: list[EpisodeAttempt]) -> bool:
        """Whether all environments are ready for their first step."""
        self._attempts += starting
        channel = self._connected(self._environment)
        slots = [attempt.slot.number - self._first_slot for attempt in starting]
        seeds, indices = [attempt.seed for attempt in starting], [attempt.index for attempt in starting]
        command = self.simulation.command
        request = wire.ResetManyFrame(
            channel.next_number(),
            slots,
            seeds,
            indices,
            command.name,
            command.info or None,
            number_of(indices[0], command),
            bool(self._informed),
            bool(self._masked),
        )
        answer = self._answer(channel, request, starting, wire.SteppedManyFrame)
        if answer is None:
            return False
        faults = {fault.row: fault for fault in answer.faults}
        for row, (attempt, observation) in enumerate(
            zip(starting, self._observations_of(answer), strict=True)
        ):
            attempt.observation = observation
            attempt.mask = None if answer.masks is None else answer.masks[row]
            self._merge_reported(answer, row, attempt)
            if answer.infos is not None:
                attempt.begin_info(answer.infos[row])
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
            wire.packed_rows(self._spaces[0], [attempt.observation for attempt in attempts]),
            [attempt.reward for attempt in attempts],
            [attempt.end for attempt in attempts],
            self._train,
            [attempt.index for attempt in attempts if attempt.kind == wire.FIRST],
            self.simulation.command.name,
            number_of(attempts[0].index, self.simulation.command) if attempts else 0,
            [attempt.seed for attempt in attempts if attempt.kind == wire.FIRST],
            [attempt.whole_info for attempt in attempts] if self._informed else None,
            self._take_ended(),
            [attempt.mask for attempt in attempts] if self._masked else None,
        )
        answer = self._answer(channel, request, attempts, wire.ActedManyFrame)
        if answer is None:
            return
        faults = {fault.row: fault for fault in answer.faults}
        actions = zip(answer.rows, wire.rows_of(self._spaces[1], answer.actions), strict=True)
        acting = {row: action for row, action in actions if row not in faults}  # one may fail to learn later
        for row, attempt in enumerate(attempts):
            self._merge_reported(answer, row, attempt)
            if not self._end_faulty(attempt, faults.get(row)) and attempt.kind == wire.LAST:
                self._end_in_time(attempt, attempt.regular_outcome)
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
            channel.next_number(),
            slots,
            wire.packed_rows(self._spaces[1], [attempt.action for attempt in attempts]),
        )
        answer = self._answer(channel, request, attempts, wire.SteppedManyFrame)
        if answer is None:
            return
        faults = {fault.row: fault for fault in answer.faults}
        results = zip(attempts, self._observations_of(answer), answer.rewards, answer.ends, strict=True)
        now = monotonic()
        continuing = []
        infos = answer.infos if answer.infos is not None else [None] * len(attempts)
        for row, (attempt, following, reward, end) in enumerate(results):
            self._merge_reported(answer, row, attempt)
            if answer.whole_infos is not None:
                attempt.whole_info = answer.whole_infos[row]
            attempt.mask = None if answer.masks is None else answer.masks[row]
            if self._end_faulty(attempt, faults.get(row)):
                continue
            if now >= attempt.deadline:
                self._idle.append(attempt.slot)
                self._end(attempt, "timed_out", self._overdue_reason)
            elif self._stepped(attempt, following, reward, end, infos[row]):
                continuing.append(attempt)
        self._attempts = continuing

    @staticmethod
    def _merge_reported(
        answer: wire.SteppedManyFrame | wire.ActedManyFrame, row: int, attempt: EpisodeAttempt
    ) -> None:
        if answer.reported is not None and answer.reported[row]:
            attempt.reported.merge(answer.reported[row])

    def _observations_of(self, answer: wire.SteppedManyFrame) -> Sequence[Any]:
        return wire.rows_of(self._spaces[0], answer.observations)
