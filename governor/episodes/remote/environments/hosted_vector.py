"""A vector whose environments step together, in its process: requests of the wire in, what came of them out."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from governor.episodes.records.step_buffer import StepBuffer
from governor.episodes.remote import frames, wire
from governor.episodes.vectors.vector_environment import VectorEnvironment
from governor.failures import reason_of

if TYPE_CHECKING:
    from collections.abc import Mapping

    from governor.episodes.context import Context
    from governor.messages import Made


class HostedVector:
    """Its methods run user code."""

    def __init__(self, made: Made, context: Context | None) -> None:
        """Raises ConductorError."""
        self._vector = VectorEnvironment(made, context)
        self.observation_space, self.action_space = self._vector.observation, self._vector.action
        self._buffer = StepBuffer(self.observation_space, self.action_space, slots=made.vector, rounds=1)

    def reset(self, request: wire.ResetManyFrame) -> dict[str, Any]:
        """The fields of a `frames.SteppedTogetherFrame`. Raises ValueError and what the vector raises; so does `step`."""
        seeds = dict(zip(request.slots, request.seeds, strict=True))
        faults = self._vector.reset(seeds, self._buffer)
        return self._answer(0, faults, where="environment.reset")

    def step(self, request: frames.StepTogetherFrame) -> dict[str, Any]:
        self._vector.begin(request.begun)
        buffer = self._buffer
        stepped = self._vector.step(request.actions, buffer)
        answer = self._answer(1, stepped.faults, where="environment.step")
        answer["rewards"] = buffer.rewards[0]
        if stepped.has_ended:
            answer["terminated"], answer["truncated"] = buffer.terminated[0], buffer.truncated[0]
            if stepped.following.base is not buffer.observations:
                answer["following"] = stepped.following
        return answer

    def _answer(self, row: int, faults: Mapping[int, BaseException], *, where: str) -> dict[str, Any]:
        found = [(slot, reason_of(fault)) for slot, fault in faults.items()]
        return {
            "observations": self._buffer.observations[row],
            "fresh": self._vector.fresh,
            "resets_single": self._vector.resets_single,
            "faults": [frames.RowFault(slot, where, str(why), why.traceback) for slot, why in found],
        }

    def close(self) -> None:
        self._vector.close()
