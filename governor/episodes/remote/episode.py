"""One episode over two channels, to an environment and to an agent, from reset to its end.

A fault of either side ends it as `failed`. A `ChannelError` goes to the caller, who reads the return and the steps so far here.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from governor.episodes.entries import one_line
from governor.episodes.remote import wire

if TYPE_CHECKING:
    from collections.abc import Callable

    from governor.episodes.remote.request_channel import RequestChannel
    from governor.messages import EpisodeOutcome


class _Failed(Exception):
    """The other side answered with a fault; one line."""


class Episode:
    """Played once. `record` has the signature of `StepRecorder.step`. `value` is the undiscounted return so far, `steps` the
    number of environment steps; `deadline` is in seconds on the monotonic clock.
    """

    def __init__(
        self,
        *,
        environment: RequestChannel,
        agent: RequestChannel,
        index: int,
        seed: int,
        train: bool,
        max_steps: int | None,
        deadline: float | None,
        record: Callable[..., None],
        stopping: Callable[[], bool] = lambda: False,
    ) -> None:
        self.value = 0.0
        self.steps = 0
        self._environment = environment
        self._agent = agent
        self._index = index
        self._seed = seed
        self._train = train
        self._max_steps = max_steps
        self._deadline = deadline
        self._record = record
        self._stopping = stopping

    def play(self) -> tuple[EpisodeOutcome, str]:
        """The outcome and, for `failed`, its reason in one line. Raises ChannelError."""
        try:
            return self._play(), ""
        except _Failed as fault:
            return "failed", str(fault)
        except OSError as error:  # from the recorder alone: an ended channel raises ChannelError
            return "failed", f"cannot record its steps: {one_line(error)}"
        except TypeError as error:  # a value that msgpack cannot carry, from an encoder hook
            return "failed", f"wire: {error}"

    def _play(self) -> EpisodeOutcome:
        environment, agent, deadline = self._environment, self._agent, self._deadline
        reset = wire.ResetFrame(environment.next_number(), self._seed, self._index)
        observed = environment.ask(reset, deadline=deadline)
        observation = _expect(observed, wire.ObservedFrame).observation
        request: wire.BeginFrame | wire.ActFrame = wire.BeginFrame(
            agent.next_number(), observation, self._train, self._index
        )
        limit = self._max_steps
        while True:
            acted = _expect(agent.ask(request, deadline=deadline), wire.ActedFrame)
            step = _expect(
                environment.ask(wire.StepFrame(environment.next_number(), acted.action), deadline=deadline),
                wire.SteppedFrame,
            )
            self.value += step.reward
            self.steps += 1
            truncated = step.truncated or (limit is not None and self.steps >= limit)
            self._record(
                observation, acted.action, step.reward, step.terminated, truncated, acted.weight_version
            )
            if step.terminated or truncated:
                self._finish(step, truncated=truncated)
                return "terminated" if step.terminated else "truncated"
            if self._stopping():
                return "cancelled"
            observation = step.observation
            request = wire.ActFrame(agent.next_number(), observation, step.reward)

    def _finish(self, step: wire.SteppedFrame, *, truncated: bool) -> None:
        if self._train:
            last = wire.FinishFrame(
                self._agent.next_number(), step.observation, step.reward, step.terminated, truncated
            )
            _expect(self._agent.ask(last, deadline=self._deadline), wire.FinishedFrame)


def _expect(answer: Any, kind: type[Any]) -> Any:
    if type(answer) is kind:
        return answer
    if type(answer) is wire.FaultFrame:
        raise _Failed(f"{answer.where}: {answer.reason}")
    raise _Failed(f"wire: {type(answer).__name__} where {kind.__name__} was due")
