"""A worker with one environment: its episodes cross one step a message, because a vector of one costs half as much again."""

from __future__ import annotations

from time import monotonic
from typing import TYPE_CHECKING, Any

from governor.episodes.remote import wire
from governor.episodes.remote.episode_worker import EpisodeWorker

if TYPE_CHECKING:
    from governor.episodes.remote.episode_attempt import EpisodeAttempt
    from governor.episodes.remote.request_channel import RequestChannel


class SingleWorker(EpisodeWorker):
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
        reset = wire.ResetFrame(environment.next_number(), attempt.seed, attempt.index)
        observed = self._ask(environment, reset, attempt, wire.ObservedFrame)
        if observed is None:
            return
        attempt.observation = observed.observation
        request: wire.BeginFrame | wire.ActFrame = wire.BeginFrame(
            agent.next_number(), attempt.observation, self._train, attempt.index
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
            if not self._stepped(attempt, stepped.observation, stepped.reward, end):
                return
            if attempt.end:
                break
            self._reports.send_due()
            request = wire.ActFrame(agent.next_number(), attempt.observation, attempt.reward)
        truncated = bool(attempt.end & wire.TRUNCATED)
        finish = wire.FinishFrame(
            agent.next_number(), attempt.observation, attempt.reward, stepped.terminated, truncated
        )
        if self._ask(agent, finish, attempt, wire.FinishedFrame) is not None:
            self._end_in_time(attempt, attempt.regular_outcome)

    def _ask(self, channel: RequestChannel, request: Any, attempt: EpisodeAttempt, kind: type[Any]) -> Any:
        """The answer; None if the attempt has ended instead. Raises RoundLost."""
        answer = self._answer(channel, request, self._attempts, kind)
        if answer is not None and monotonic() >= attempt.deadline:
            self._end(attempt, "timed_out", self._overdue_reason)
            return None
        return answer
