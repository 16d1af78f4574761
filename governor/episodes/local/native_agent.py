"""The agent's part of a round of a vector whose environments step together (`native`): its actions for all, and the steps that it learns
from.
"""

from __future__ import annotations

from itertools import repeat
from typing import TYPE_CHECKING, Any, NamedTuple

from governor.episodes.transition import NO_EXTRAS, Transition
from governor.episodes.vectors.vector_environment import value_of

if TYPE_CHECKING:
    from collections.abc import Mapping

    import numpy as np
    from numpy.typing import NDArray

    from governor.episodes.local.execution_context import ExecutionContext
    from governor.episodes.local.local_agent import Calls
    from governor.episodes.records.step_buffer import StepBuffer


class Asked(NamedTuple):
    """The slots for which the agent acts by the same calls, their workers, and whether they are all that the vector has."""

    slots: NDArray[np.int64]
    workers: list[int]
    calls: Calls
    is_all: bool


def act(buffer: StepBuffer, asked: list[Asked], *, idle: NDArray[Any]) -> dict[int, Mapping[str, Any]]:
    """Puts the actions of all and the version of the weights into the row of the buffer, `idle` ones where nobody is asked; the extras
    of those that learn. Raises ValueError and what the agent raises.
    """
    row, observations = buffer.row, buffer.observations[buffer.row]
    extras: dict[int, Mapping[str, Any]] = {}
    if not asked[0].is_all:
        buffer.actions[row] = idle
    for slots, workers, calls, is_all in asked:
        if is_all:
            buffer.actions[row], beside = calls.act_batch(observations.copy(), workers)
        else:
            buffer.actions[row, slots], beside = calls.act_batch(observations[slots], workers)
        if calls.learn is not None:
            extras |= zip(slots.tolist(), beside or repeat(NO_EXTRAS, len(slots)), strict=True)
        buffer.versions[row] = calls.weights.version
    return extras


def transition(
    buffer: StepBuffer,
    place: tuple[int, int],
    following: Any,
    context: ExecutionContext,
    *,
    step: int,
    extras: Mapping[str, Any],
) -> Transition:
    """The step at this place, a row and a slot, that led to the observation `following`."""
    return Transition(
        observation=value_of(buffer.observations[place]),
        action=value_of(buffer.actions[place]),
        reward=float(buffer.rewards[place]),
        next_observation=value_of(following),
        terminated=bool(buffer.terminated[place]),
        truncated=bool(buffer.truncated[place]),
        episode=context.index,
        worker=context.number,
        step=step,
        seed=context.seed,
        extras=extras,
    )
