"""The agent's part of a step of a vector: several environments of one worker, stepped in turn (`stepping`).

Rules:
1. Each sub-environment plays its own episodes with their own seeds, identical to those without `vector`; a failing episode
   does not affect the others. (`gymnasium.vector.SyncVectorEnv` has one fault for all, and takes longer for a step.)
2. A sub-environment whose episode has ended begins its next one at once, while the others continue theirs.
3. A round is: act for all, with `act_many` at once, then step each and learn from it. The agent is called in the same order
   as through conductors.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from governor.episodes.local.execution_context import ACT
from governor.episodes.spaces import is_array, stack, storage

if TYPE_CHECKING:
    from collections.abc import Sequence

    from governor.episodes.local.stepping import LocalSlot
    from governor.episodes.spaces import SpaceSpec


def choose(slots: Sequence[LocalSlot], observed: SpaceSpec) -> list[tuple[Any, ...] | BaseException]:
    """For each slot its fault, or a tuple of the action, the version of the weights, the agent's `learn`, and the action's extras."""
    calls = slots[0].calls
    if calls.act_many is None:
        return [_act(slot) for slot in slots]
    if is_array(observed):  # what `stack` makes of their arrays, in a fifth of the time
        dtype, shape = storage(observed)
        data = bytearray(b"".join([slot.encoded for slot in slots]))
        observations: Any = np.ndarray((len(slots), *shape), dtype, data)
    else:
        observations = stack(observed, [slot.observation for slot in slots])
    for slot in slots:
        slot.context.where = ACT
    masks = () if slots[0].masks is None else ([slot.masks and slot.masks.mask for slot in slots],)
    found = calls.act_many(observations, [slot.context.number for slot in slots], *masks)
    for slot in slots:
        slot.context.where = ""
    version, learn = calls.weights.version, calls.learn
    return [(acted[0], version, learn, acted[1]) if isinstance(acted, tuple) else acted for acted in found]


def _act(slot: LocalSlot) -> tuple[Any, ...] | BaseException:
    context, calls = slot.context, slot.calls
    context.where = ACT
    try:
        act = calls.act if slot.masks is None else slot.masks.asking(calls.act)
        action, extras = act(slot.observation)
    except BaseException as error:  # noqa: BLE001  # user code: any error is this episode's fault
        return error
    finally:
        context.where = ""
    return action, calls.weights.version, calls.learn, extras
