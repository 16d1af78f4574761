"""Rollouts: the steps of several workers as arrays of n steps of m workers, for agents with `learn_batch`.

Rules:
1. The steps of each worker queue up here, in a column for each worker (and player): one that is ahead goes on, and its steps count
   for the next rollout. Nobody has to wait, so nothing can hang; where workers share a process they wait a little (`local_agent`).
2. When all columns that are awaited have n steps, their first n are a rollout. At first all workers of the phase are awaited.
3. When one column has 2n steps, the columns with n are a rollout without the others, so nothing grows without bound. Then only
   columns with a step since the last rollout are awaited: a worker that hangs or has left delays one rollout at most, and
   counts again from its next step.
4. A vector in one worker is in lockstep: its rollouts have all columns, and none of them has a step more.
5. The steps that remain when another phase begins are dropped.
"""

from __future__ import annotations

from functools import cached_property
from operator import attrgetter
from typing import TYPE_CHECKING, Any, Final, TypeAlias

import numpy as np

from governor.episodes.spaces import Dict, Discrete, Tuple, is_array, stack
from governor.episodes.transition import Transition
from governor.errors import ConductorError

if TYPE_CHECKING:
    from collections.abc import Collection, Sequence

    from numpy.typing import NDArray

    from governor.episodes.spaces import SpaceSpec
    from governor.episodes.transition import Episode

Key: TypeAlias = tuple[int, str]
"""Worker and player."""
_FIELDS: Final = tuple(name for name in Transition.__struct_fields__ if name not in {"info", "extras"})


class Rollout:
    """`n` steps of each of `m` columns, in `transitions`; as arrays, each of which is made when it is first read.

    A column is the unbroken stream of steps of one worker, across its episodes: row t + 1 follows row t. `workers`, int64 of shape
    (m,), ascends. `players` are m names, empty ones for an environment of one player.
    """

    def __init__(
        self,
        columns: dict[Key, Sequence[Transition]],
        *,
        steps: int,
        spaces: tuple[SpaceSpec, SpaceSpec],
    ) -> None:
        self.n, self.m = steps, len(columns)
        self.workers = np.array([worker for worker, _ in columns], np.int64)
        self.players = tuple(player for _, player in columns)
        self.transitions = tuple(map(tuple, columns.values()))
        self._rows = [step for row in zip(*self.transitions, strict=True) for step in row]
        self._spaces = spaces

    def __repr__(self) -> str:
        return f"Rollout(n={self.n}, workers={self.workers.tolist()})"

    @cached_property
    def observation(self) -> Any:
        """Shape (n, m, *shape of the space); of a Discrete space int64 of shape (n, m). Of Dict and Tuple a dict or tuple of these; what
        is not numbers (Text, Sequence, Graph, OneOf) is a tuple of n tuples with m values.
        """
        return self._of_space("observation", self._spaces[0])

    @cached_property
    def next_observation(self) -> Any:
        """As `observation`. The value of the last row's is that of what follows the rollout."""
        return self._of_space("next_observation", self._spaces[0])

    @cached_property
    def action(self) -> Any:
        """Shape (n, m, *shape of the space), likewise."""
        return self._of_space("action", self._spaces[1])

    @cached_property
    def reward(self) -> NDArray[np.float64]:
        """Shape (n, m), as all that follow."""
        return self._plain("reward", np.float64)

    @cached_property
    def terminated(self) -> NDArray[np.bool_]:
        return self._plain("terminated", np.bool_)

    @cached_property
    def truncated(self) -> NDArray[np.bool_]:
        return self._plain("truncated", np.bool_)

    @cached_property
    def episode(self) -> NDArray[np.int64]:
        return self._plain("episode", np.int64)

    @cached_property
    def step(self) -> NDArray[np.int64]:
        """In its episode, from 0."""
        return self._plain("step", np.int64)

    @cached_property
    def starts(self) -> NDArray[np.bool_]:
        """The first steps of episodes."""
        first: NDArray[np.bool_] = self.step == 0
        return first

    @cached_property
    def ends(self) -> NDArray[np.bool_]:
        """The last steps of episodes, also of those that failed: the next row is of another one. Where it is not `terminated`, the
        value of `next_observation` continues.
        """
        found: NDArray[np.bool_] = self.terminated | self.truncated
        found[:-1] |= self.starts[1:]
        return found

    @cached_property
    def extras(self) -> dict[str, Any]:
        """What `act` returned beside the actions: arrays of shape (n, m, ...) by key; dicts and tuples of them stay such.

        Raises ValueError, which names the key, for a key that a step lacks and for values of different shapes.
        """
        each = [step.extras for step in self._rows]
        found = {}
        for key in each[0]:
            if any(key not in extras for extras in each):
                raise ValueError(f"extras: {key!r} is missing in some steps of the rollout")
            found[key] = self._stacked([extras[key] for extras in each], f"extras: {key!r}")
        return found

    def _of_space(self, name: str, spec: SpaceSpec) -> Any:
        return self._folded(spec, stack(spec, list(map(attrgetter(name), self._rows))))

    def _folded(self, spec: SpaceSpec, batch: Any) -> Any:
        """A batch of n * m rows as n rows of m."""
        match spec:
            case Dict():
                parts = zip(spec.keys, spec.spaces, strict=True)
                return {key: self._folded(part, batch[key]) for key, part in parts}
            case Tuple():
                return tuple(self._folded(part, one) for part, one in zip(spec.spaces, batch, strict=True))
            case _ if is_array(spec) or isinstance(spec, Discrete):
                return batch.reshape(self.n, self.m, *batch.shape[1:])
            case _:
                return tuple(tuple(batch[row * self.m : (row + 1) * self.m]) for row in range(self.n))

    def _plain(self, name: str, dtype: Any) -> NDArray[Any]:
        return np.array(list(map(attrgetter(name), self._rows)), dtype).reshape(self.n, self.m)

    def _stacked(self, values: list[Any], what: str) -> Any:
        first = values[0]
        if isinstance(first, dict):
            return {key: self._stacked([value[key] for value in values], f"{what}.{key}") for key in first}
        if isinstance(first, tuple):
            return tuple(self._stacked(list(items), what) for items in zip(*values, strict=True))
        try:
            array = np.stack(list(map(np.asarray, values)))
        except ValueError as error:
            raise ValueError(f"{what}: {error}") from None
        return array.reshape(self.n, self.m, *array.shape[1:])


class Rollouts:
    """Of one agent, for rollouts of `steps` steps; for one thread at a time."""

    def __init__(self, steps: int, spaces: tuple[SpaceSpec, SpaceSpec]) -> None:
        self.steps = steps
        self.count = 0
        """How many there were."""
        self._spaces = spaces
        self._of: tuple[str, int] = ("", 0)
        self._columns: dict[Key, list[Transition]] = {}
        self._awaited: set[Key] = set()
        self._stepped: set[Key] = set()
        """Since the last rollout."""
        self._missing: set[int] = set()
        """Workers of the phase without a step, as long as they are awaited."""

    def begin(self, episode: Episode) -> None:
        """Of each training episode, before its first step."""
        if self._of != (episode.phase, episode.workers):
            self._of = (episode.phase, episode.workers)
            self._columns.clear()
            self._awaited.clear()
            self._stepped.clear()
            self._missing = set(range(episode.workers))

    def add(self, transition: Transition) -> Rollout | None:
        """The rollout that this step completes."""
        key = transition.worker, transition.player
        column = self._columns.get(key)
        if column is None:
            column = self._columns[key] = []
            self._missing.discard(transition.worker)
        self._stepped.add(key)
        self._awaited.add(key)
        column.append(transition)
        steps = self.steps
        if len(column) < steps:
            return None
        columns = self._columns
        if not self._missing and all(len(columns[other]) >= steps for other in self._awaited):
            return self._take()
        if len(column) < 2 * steps:
            return None
        self._missing.clear()
        self._awaited = set(self._stepped)
        return self._take()

    def waiting(self) -> list[dict[str, Any]]:
        """The steps that wait for their rollout, of each worker in their order, as plain data; without infos."""
        steps = [step for column in self._columns.values() for step in column]
        return [
            {name: getattr(step, name) for name in _FIELDS} | {"extras": dict(step.extras)} for step in steps
        ]

    def restore(self, steps: list[dict[str, Any]], episode: Episode) -> None:
        """Takes over what `waiting` has returned, in the phase of this episode."""
        self.begin(episode)
        for step in steps:
            self.add(Transition(**step))

    def is_ahead(self, workers: Collection[int]) -> bool:
        """Whether only others keep these workers from their next rollout. For any thread."""
        return all(len(column) >= self.steps for key, column in [*self._columns.items()] if key[0] in workers)

    def _take(self) -> Rollout:
        taken: dict[Key, Sequence[Transition]] = {}
        for key in sorted(self._columns):
            column = self._columns[key]
            if len(column) >= self.steps:
                taken[key] = column[: self.steps]
                del column[: self.steps]
        self._stepped.clear()
        self.count += 1
        return Rollout(taken, steps=self.steps, spaces=self._spaces)


def rollouts_of(agent: Any, spaces: tuple[SpaceSpec, SpaceSpec], *, entry: str) -> Rollouts | None:
    """For an agent with `learn_batch`. Raises ConductorError if its `rollout_steps` are not a whole number from 1 on."""
    if getattr(agent, "learn_batch", None) is None:
        return None
    steps = getattr(agent, "rollout_steps", None)
    if isinstance(steps, bool) or not isinstance(steps, int | np.integer) or steps < 1:
        found = "no rollout_steps" if steps is None else f"rollout_steps = {steps!r}"
        raise ConductorError(
            f"agent {entry!r} has learn_batch and {found}: set rollout_steps to the number of steps of each worker in a "
            "rollout, a whole number from 1 on"
        )
    return Rollouts(int(steps), spaces)
