"""How the methods of a user's agent are called: which of the optional ones it has, with which of the optional parameters.

Rules:
1. An optional parameter is passed to a method that names it in its signature: `worker`, `player`, `action_mask` (`masks`). That is
   found out once.
2. What `act` returns beside its action stays in this process. It is recognized as a dict that is the second of two items; where
   actions themselves are such pairs, only if the first item is one, too.
3. An agent without any of this pays one comparison for each action.
"""

from __future__ import annotations

import inspect
from functools import cached_property, partial
from typing import TYPE_CHECKING, Any, Final, TypeAlias

import numpy as np

from governor.episodes import masks, spaces
from governor.episodes.entries import Abandoned
from governor.episodes.spaces import Dict, Discrete, OneOf, Tuple, copier, unstack
from governor.episodes.spaces.conformers import rows_conformer
from governor.episodes.transition import NO_EXTRAS

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from numpy.typing import NDArray

    from governor.episodes.spaces import SpaceSpec
    from governor.episodes.transition import Episode

OPTIONAL: Final = ("player", "worker", masks.NAME)
"""Parameters that `act` and `act_many` may have; `learn` the first two."""
Acted: TypeAlias = "tuple[Any, Mapping[str, Any]]"
"""An action, copied in the dtype and shape of its space, and its extras."""
ActedBatch: TypeAlias = "tuple[NDArray[Any], Sequence[Mapping[str, Any]] | None]"
"""Actions, likewise, and the extras of each row; None for none in any."""


class AgentCalls:
    """Of one agent whose actions are of the space `action`. `hears`: it has `begin`, `end` or `reset_states`."""

    def __init__(self, agent: Any, action: SpaceSpec) -> None:
        self.agent = agent
        self.needs_info = bool(getattr(agent, "needs_info", False))
        self.hears_ends = callable(getattr(agent, "end", None))
        self.has_act_many = getattr(agent, "act_many", None) is not None
        self._begin = getattr(agent, "begin", None)
        self._end = getattr(agent, "end", None)
        self._reset_states = getattr(agent, "reset_states", None)
        self.hears = any(callable(found) for found in (self._begin, self._end, self._reset_states))
        self._action = action
        self._is_whole = _whole_test(action)
        self._conform = copier(action)  # an agent may write its next action over the last one
        discrete = (action.start, action.start + action.n) if isinstance(action, Discrete) else (0, 0)
        self._start, self._stop = discrete
        """An int from the one to below the other is an action as it stands."""
        self._acts: dict[tuple[bool, int, str], Callable[..., Acted]] = {}
        self._act_options = optional_parameters(agent, "act")
        self._many_options = optional_parameters(agent, "act_many")
        self.is_masked = masks.NAME in self._act_options | self._many_options
        """Whether it takes action masks."""

    def act_of(self, *, explore: bool, worker: int, player: str = "") -> Callable[..., Acted]:
        """What asks the agent for the action of one observation of this stream; the action mask may follow. It raises ValueError and what
        the agent raises.
        """
        found = self._acts.get((explore, worker, player))
        if found is None:
            found = self._acts[explore, worker, player] = self._make_act(explore, worker, player)
        return found

    def _make_act(self, explore: bool, worker: int, player: str) -> Callable[..., Acted]:  # noqa: FBT001  # as `act_of`
        act, conform, start, stop = self.agent.act, self._conform, self._start, self._stop
        options = _options(self._act_options, worker, player)

        def call(observation: Any, mask: Any = None) -> Acted:  # noqa: ARG001  # as `call_with_mask`
            found = act(observation, explore=explore)
            if found.__class__ is int and start <= found < stop:
                return found, NO_EXTRAS
            if isinstance(found, tuple):
                found, extras = self._split(found)
                return conform(found), extras
            return conform(found), NO_EXTRAS

        def call_with_options(observation: Any, mask: Any = None) -> Acted:  # noqa: ARG001  # likewise
            found, extras = self._split(act(observation, explore=explore, **options))
            return conform(found), extras

        def call_with_mask(observation: Any, mask: Any = None) -> Acted:
            found, extras = self._split(act(observation, explore=explore, action_mask=mask, **options))
            return conform(found), extras

        if masks.NAME in self._act_options:
            return call_with_mask
        return call_with_options if options else call

    def act_many(
        self, observations: Any, workers: Sequence[int], of_rows: Sequence[Any] = (), *, explore: bool
    ) -> list[Acted | BaseException]:
        """For each of a batch of observations (`spaces.stack`) the action and its extras, or the exception of that row. `of_rows` are the
        action masks, for an agent that `is_masked`.
        """
        rows = len(workers)
        try:
            actions, extras = self._ask_many(observations, workers, of_rows, explore=explore)
            if isinstance(self._action, Dict | Tuple) and not isinstance(actions, list):
                actions = unstack(self._action, actions)
            if len(actions) != rows:
                raise ValueError(f"{len(actions)} actions for {rows} observations")  # noqa: TRY301  # one handler for a fault of all rows
        except Abandoned:
            raise
        except BaseException as error:  # noqa: BLE001  # user code: any error is the fault of each episode
            return [error] * rows
        if type(actions) is np.ndarray and actions.ndim == 1:
            actions = actions.tolist()
        return self._copied(actions, extras)

    def act_batch_of(self, *, explore: bool) -> Callable[..., ActedBatch]:
        """What asks for the actions of a batch of observations, given with the worker of each row, as an array (rows, *shape of the
        space); also of an agent that lacks `act_many`. It raises ValueError and what the agent raises.
        """
        if not self.has_act_many:
            return partial(self._act_one_by_one, explore=explore)
        act_many, takes_options = self.agent.act_many, bool(self._many_options)

        def call(observations: NDArray[Any], workers: Sequence[int]) -> ActedBatch:
            if takes_options:
                actions, extras = self._ask_many(observations, workers, (), explore=explore)
            else:
                actions, extras = act_many(observations, explore=explore), None
                if actions.__class__ is not np.ndarray:
                    actions, extras = self._split_many(actions, len(workers))
            conformed = self._conform_rows(actions)
            if len(conformed) != len(workers):
                raise ValueError(f"{len(conformed)} actions for {len(workers)} observations")
            return conformed.copy(), extras  # an agent may write its next actions over the last ones

        return call

    def _act_one_by_one(
        self, observations: NDArray[Any], workers: Sequence[int], *, explore: bool
    ) -> ActedBatch:
        is_discrete = observations.ndim == 1 and observations.dtype.kind in "iu"
        rows = observations.tolist() if is_discrete else observations
        acted = [
            self.act_of(explore=explore, worker=worker)(row)
            for worker, row in zip(workers, rows, strict=True)
        ]
        return np.array([action for action, _ in acted]), [extras for _, extras in acted]

    def _ask_many(
        self, observations: Any, workers: Sequence[int], of_rows: Sequence[Any], *, explore: bool
    ) -> tuple[Any, Sequence[Mapping[str, Any]]]:
        """What the agent returned: the actions as they are, and for each row its extras."""
        options = {"worker": np.array(workers, np.int64)} if "worker" in self._many_options else {}
        if masks.NAME in self._many_options:
            options[masks.NAME] = masks.together(of_rows)
        return self._split_many(self.agent.act_many(observations, explore=explore, **options), len(workers))

    @cached_property
    def _conform_rows(self) -> Callable[[Any], NDArray[Any]]:
        return rows_conformer(self._action)  # type: ignore[arg-type]  # a space of arrays, or Discrete

    def _copied(
        self, actions: Sequence[Any], extras: Sequence[Mapping[str, Any]]
    ) -> list[Acted | BaseException]:
        found: list[Acted | BaseException] = []
        start, stop = self._start, self._stop
        for action, beside in zip(actions, extras, strict=True):
            if action.__class__ is int and start <= action < stop:
                found.append((action, beside))
                continue
            try:
                found.append((self._conform(action), beside))
            except Abandoned:
                raise
            except BaseException as error:  # noqa: BLE001  # likewise, of this one
                found.append(error)
        return found

    def _split(self, found: Any) -> Acted:
        """Action and extras of what `act` returned."""
        if _is_pair(found) and self._is_whole(found[0]):
            pair: Acted = found
            return pair
        return found, NO_EXTRAS

    def _split_many(self, found: Any, rows: int) -> tuple[Any, Sequence[Mapping[str, Any]]]:
        """The actions, and for each row its extras. Raises ValueError if there are fewer."""
        if _is_pair(found) and (isinstance(found[0], list) or self._is_whole(found[0])):
            actions, extras = found
            for key, values in extras.items():
                if len(values) != rows:
                    raise ValueError(f"extras: {len(values)} rows of {key!r} for {rows} observations")
            return actions, [{key: values[row] for key, values in extras.items()} for row in range(rows)]
        if (
            isinstance(found, tuple)
            and len(found) == 2
            and isinstance(found[1], list)
            and found[1]
            and all(isinstance(row, dict) for row in found[1])
        ):
            if len(found[1]) != rows:
                raise ValueError(f"extras: {len(found[1])} rows for {rows} observations")
            return found
        return found, [NO_EXTRAS] * rows

    def begin(self, episode: Episode, *, acts: bool = True) -> None:
        """Raises what the agent raises; so does `end`. `acts`: this object acts in the episode."""
        if self._begin is not None:
            self._begin(episode)
        if acts and self._reset_states is not None:
            self._reset_states(episode.worker)

    def end(self, episode: Episode) -> None:
        if self._end is not None:
            self._end(episode)


def optional_parameters(agent: Any, method: str) -> frozenset[str]:
    """Those of `OPTIONAL` that the method has, if there is such a method."""
    call = getattr(agent, method, None)
    try:
        return (
            frozenset() if call is None else frozenset(OPTIONAL) & inspect.signature(call).parameters.keys()
        )
    except (TypeError, ValueError):  # a function that is not written in Python
        return frozenset()


def _options(named: frozenset[str], worker: int, player: str) -> dict[str, Any]:
    """`player` only where there are several."""
    given: dict[str, Any] = {"worker": worker, **({"player": player} if player else {})}
    return {name: given[name] for name in given if name in named}


def _is_pair(found: Any) -> bool:
    return isinstance(found, tuple) and len(found) == 2 and isinstance(found[1], dict)


def _whole_test(action: SpaceSpec) -> Callable[[Any], bool]:
    """Tells of the first item of a pair whose second one is a dict whether it is an action, or a batch of them, and not a part of one."""
    match action:
        case Tuple() if len(action.spaces) == 2 and isinstance(action.spaces[1], Dict):
            return _is_pair
        case OneOf() if any(isinstance(part, Dict) for part in action.spaces):
            return _is_pair
        case spaces.Sequence() if isinstance(action.feature, Dict) and not action.stack:
            return lambda first: isinstance(first, tuple | list)
        case _:
            return lambda _: True
