"""What an agent is told: each step that it learns from, and the episodes that it plays."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from types import MappingProxyType
from typing import Any, Final

import msgspec


class _NoInfo(Mapping[str, Any]):
    """The info of an agent that does not ask for it: empty, and says so."""

    def __getitem__(self, key: str) -> Any:
        raise KeyError(f"{key!r}: only agents with an attribute needs_info = True get the environment's info")

    def __iter__(self) -> Iterator[str]:
        return iter(())

    def __len__(self) -> int:
        return 0


NO_INFO: Final = _NoInfo()
NO_EXTRAS: Final[Mapping[str, Any]] = MappingProxyType({})


class Transition(msgspec.Struct, frozen=True, kw_only=True, repr_omit_defaults=True):
    """`action`, taken at `observation`, led to `reward` and `next_observation`.

    Observations and actions have the form of their space, without a batch axis: int for Discrete, str for Text, dict for Dict,
    tuple for Tuple, and so on, else a numpy array of its dtype and shape. `reward` is a finite float, undiscounted. `terminated`: the task itself has ended, so the value of
    `next_observation` is 0. `truncated`: a step limit of the environment or of the phase cut the episode; the
    value of `next_observation` continues.

    Steps of several workers alternate. Those of one `worker`, from 0 on, are in order; each environment of a vector counts as
    one. `step` counts from 0 in the episode with number `episode` of the phase, which has this `seed`. `player` is empty for an
    environment of one player. `info` is the environment's, for agents with ``needs_info = True``: numbers, texts and arrays,
    nested. `extras` is what `act` returned beside the action.
    """

    observation: Any
    action: Any
    reward: float
    next_observation: Any
    terminated: bool
    truncated: bool
    episode: int = -1
    worker: int = 0
    step: int = -1
    seed: int = -1
    player: str = ""
    info: Mapping[str, Any] = NO_INFO
    extras: Mapping[str, Any] = NO_EXTRAS


class Episode(msgspec.Struct, frozen=True, kw_only=True):
    """An episode, as `begin` and `end` of an agent get it.

    `number` is its index in `phase`, `worker` as in `Transition`; there are `workers` of them. Without `explore` it is one of an
    evaluation or of a phase in ``mode: eval``, of which nothing is learned; `evaluation` is the number of the evaluation, from 1,
    0 for none. The others are known at its end: `outcome` as on record (``terminated``, ``truncated``, ``failed``, ...), `value`,
    the undiscounted return, and `values`, the return of each player where there are several.
    """

    number: int
    phase: str
    seed: int
    worker: int = 0
    workers: int = 1
    explore: bool = True
    evaluation: int = 0
    outcome: str = ""
    value: float = 0.0
    steps: int = 0
    values: Mapping[str, float] = NO_EXTRAS
