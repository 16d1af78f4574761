"""One episode over two channels, to an environment and to an agent, from reset to its end.

A fault of either side ends it as `failed`. A `ChannelError` goes to the caller, who reads the return and the steps so far here.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from governor.episodes.entries import one_line
from governor.episodes.remote import wire

if TYPE_CHECKING:
    from collections.abc import Callable

    from governor.episodes.remote.request_channel import RequestChannel
    from governor.messages import EpisodeOutcome


class _Failed(Exception):
    """The other side answered with a fault; one line."""


@dataclass(slots=True, kw_only=True)
class Episode:
    """Played once. `record` has the signature of `StepRecorder.step`. `value` is the undiscounted return so far, `steps` the
    number of environment steps; `deadline` is in seconds on the monotonic clock; `stopping` is called between two steps.
    """

    environment: RequestChannel
    agent: RequestChannel
    index: int
    seed: int
    train: bool
    max_steps: int | None
    deadline: float | None
    record: Callable[..., None]
    stopping: Callable[[], bool]
    value: float = 0.0
    steps: int = 0

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
        environment, agent, deadline = self.environment, self.agent, self.deadline
        reset = wire.ResetFrame(environment.next_number(), self.seed, self.index)
        observed = environment.ask(reset, deadline=deadline)
        observation = _expect(observed, wire.ObservedFrame).observation
        request: wire.BeginFrame | wire.ActFrame = wire.BeginFrame(
            agent.next_number(), observation, self.train, self.index
        )
        limit = self.max_steps
        while True:
            acted = _expect(agent.ask(request, deadline=deadline), wire.ActedFrame)
            step = _expect(
                environment.ask(wire.StepFrame(environment.next_number(), acted.action), deadline=deadline),
                wire.SteppedFrame,
            )
            self.value += step.reward
            self.steps += 1
            truncated = step.truncated or (limit is not None and self.steps >= limit)
            self.record(
                observation, acted.action, step.reward, step.terminated, truncated, acted.weight_version
            )
            if step.terminated or truncated:
                self._finish(step, truncated=truncated)
                return "terminated" if step.terminated else "truncated"
            if self.stopping():
                return "cancelled"
            observation = step.observation
            request = wire.ActFrame(agent.next_number(), observation, step.reward)

    def _finish(self, step: wire.SteppedFrame, *, truncated: bool) -> None:
        if self.train:
            last = wire.FinishFrame(
                self.agent.next_number(), step.observation, step.reward, step.terminated, truncated
            )
            _expect(self.agent.ask(last, deadline=self.deadline), wire.FinishedFrame)


def _expect(answer: Any, kind: type[Any]) -> Any:
    if type(answer) is kind:
        return answer
    if type(answer) is wire.FaultFrame:
        raise _Failed(f"{answer.where}: {answer.reason}")
    raise _Failed(f"wire: {type(answer).__name__} where {kind.__name__} was due")
