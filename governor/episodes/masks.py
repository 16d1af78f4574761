"""Action masks: which actions an environment allows now.

Rules:
1. A mask is `observation["action_mask"]`, else `info["action_mask"]`; None where there is neither. The observation stays as it is.
2. It is looked for only if the agent's `act` or `act_many` has a parameter `action_mask`: other agents cost nothing.
3. It has the form that `sample(mask)` of the gymnasium space takes: int8, as a copy; of Discrete in the shape (n,), of
   MultiBinary in that of the space, of MultiDiscrete and Tuple a tuple of masks, of Dict a dict of masks.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

import numpy as np

from governor.episodes.spaces import Discrete

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from governor.episodes.spaces import SpaceSpec

NAME: Final = "action_mask"


class MaskReader:
    """Reads the masks for actions of one space. `mask` is the last one that `note` has read."""

    def __init__(self, action: SpaceSpec, read: Callable[[Any], Any] | None = None) -> None:
        """`read` is what reads an info besides."""
        self.mask: Any = None
        self._numbers = action.n if isinstance(action, Discrete) else None
        self._read_info = read
        self._info: Any = None

    def read(self, info: Any) -> Any:
        """Keeps an info for `note`; its row."""
        self._info = info
        return None if self._read_info is None else self._read_info(info)

    def note(self, observation: Any) -> None:
        """Reads the mask of this observation, whose info was read before. Raises ValueError."""
        self.mask = self.of(observation, self._info)

    def stepper(self, step: Callable[[Any], Any]) -> Callable[[Any], Any]:
        """As a `conforming.Stepper`, and notes the mask of each step."""

        def masked_step(action: Any) -> Any:
            stepped = step(action)
            self.note(stepped[0])
            return stepped

        return masked_step

    def asking(self, act: Callable[..., Any]) -> Callable[[Any], Any]:
        """A function that asks `act` for an action at an observation and the last mask."""
        return lambda observation: act(observation, self.mask)

    def of(self, observation: Any, info: Any) -> Any:
        """A copy of the mask, or None. Raises ValueError."""
        found = observation.get(NAME) if isinstance(observation, dict) else None
        if found is None and isinstance(info, dict):
            found = info.get(NAME)
        if found is None:
            return None
        try:
            mask = _copy(found) if self._numbers is None else np.array(found, np.int8)
        except (TypeError, ValueError, OverflowError) as error:
            raise ValueError(f"{NAME}: {error}") from None
        if self._numbers is not None and mask.shape != (self._numbers,):
            raise ValueError(f"{NAME}: shape {mask.shape} where there are {self._numbers} actions")
        return mask


def together(masks: Sequence[Any]) -> Any:
    """The masks of several observations, for `act_many`: None if there is none; an array with a row for each if all are arrays of
    one shape, where all actions are allowed in a row that has none; else a list.
    """
    first = next((mask for mask in masks if mask is not None), None)
    if first is None:
        return None
    if not isinstance(first, np.ndarray):
        return [*masks]
    return np.array([np.ones_like(first) if mask is None else mask for mask in masks])


def _copy(mask: Any) -> Any:
    if isinstance(mask, dict):
        return {key: _copy(value) for key, value in mask.items()}
    if isinstance(mask, tuple):
        return tuple(map(_copy, mask))
    return None if mask is None else np.array(mask, np.int8)
