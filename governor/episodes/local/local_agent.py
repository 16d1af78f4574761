"""An agent in the process of the simulation: it acts and learns for every worker, from phase to phase.

Rules:
1. It is built at the first join, when its spaces are known; a saved state is loaded then.
2. One worker at a time uses it (`holder`); a part with a single worker takes no lock. The lock is released when the
   action has been copied: an agent may return the same array each time.
3. At the end of an episode in train mode its state is saved as `learned` says.
"""

from __future__ import annotations

import inspect
import threading
from functools import partial
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from governor.episodes import spaces
from governor.episodes.agents import Agent, make_agent
from governor.episodes.conforming import copier
from governor.episodes.entries import load
from governor.episodes.learned import Learned
from governor.episodes.records import state_file
from governor.errors import ConductorError

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from numpy.typing import NDArray

    from governor.episodes.spaces import Conformer
    from governor.episodes.transition import Transition
    from governor.messages import Made


class ActedWeights:
    """`version` is the version of the weights that chose a worker's last action."""

    version = 0


class Calls(NamedTuple):
    """The methods of the agent for one worker; None for a method that it lacks. Actions are copies in the dtype and shape of their
    space. `act` takes one observation; it raises ValueError and what the agent raises. `act_many` takes observations of shape
    (rows, *shape of the space) and returns one item for each row: an action, or the exception of that row.
    """

    act: Callable[[Any], Any]
    learn: Callable[[Transition], Any] | None
    act_many: Callable[[NDArray[Any]], list[Any]] | None
    weights: Learned | ActedWeights


class LocalAgent:
    """Its methods run user code. `holder`, for any thread, is the number of the worker that uses it now, or None."""

    def __init__(self, *, name: str, made: Made, seed: int, state_path: Path) -> None:
        self.name = name
        self.made = made
        self.holder: int | None = None
        self.builds = 0
        """How often it has been built; `calls` are valid for one build."""
        self.spaces: tuple[spaces.SpaceSpec, spaces.SpaceSpec] | None = None
        self._seed = seed
        self._path = state_path
        self._agent: Agent | None = None
        self._learned: Learned | None = None
        self._player_methods: frozenset[str] = frozenset()
        self._conform: Conformer
        self._lock = threading.Lock()

    def join(self, number: int, observation: spaces.SpaceSpec, action: spaces.SpaceSpec) -> None:
        """Raises ConductorError with one line."""
        with self._lock:
            self.holder = number
            try:
                if self.spaces is None:
                    self._build(observation, action)
                    self.spaces = (observation, action)
                    self.builds += 1
                elif self.spaces != (observation, action):
                    other = spaces.difference(self.spaces, (observation, action))
                    raise ConductorError(f"agent {self.name} was built for other spaces: {other}")
            finally:
                self.holder = None

    def _build(self, observation: spaces.SpaceSpec, action: spaces.SpaceSpec) -> None:
        self._agent = make_agent(
            load(self.made.entry),
            entry=self.made.entry,
            params=self.made.params,
            seed=self._seed,
            observation=observation,
            action=action,
            state_path=self._path,
            first_state=self.made.state,
        )
        self._learned = Learned(self._agent, self._path, given=self.made.state)
        self._player_methods = frozenset(
            name for name in ("act", "learn") if _accepts_player(self._agent, name)
        )
        self._conform = copier(action)

    def calls(self, number: int, *, alone: bool, explore: bool = True, player: str | None = None) -> Calls:
        """The methods for worker `number`, valid for one of the agent's `builds`. A worker that does not explore does not learn.
        `player` is passed to an agent whose methods have that parameter.
        """
        agent, learned = self._agent, self._learned
        if agent is None or learned is None:
            raise ConductorError(f"no worker has joined agent {self.name}")
        player_argument = {} if player is None else {"player": player}
        act = _conforming(
            agent,
            self._conform,
            explore=explore,
            player_argument=player_argument if "act" in self._player_methods else {},
        )
        learn: Callable[..., Any] | None = learned.learn if explore else None
        if learn is not None and player_argument and "learn" in self._player_methods:
            learn = partial(learn, **player_argument)
        act_many = None
        if getattr(agent, "act_many", None) is not None:
            act_many = _conforming_many(agent, self._conform, explore=explore)
        if alone:
            return Calls(act, learn, act_many, learned)
        weights = ActedWeights()
        return Calls(
            self._with_lock(act, number, weights),
            None if learn is None else self._with_lock(learn, number),
            None if act_many is None else self._with_lock(act_many, number, weights),
            weights,
        )

    def renew(self) -> None:
        """The next join builds it from its saved state. Raises what `save` raises."""
        self.save()
        with self._lock:
            self.spaces = self._agent = self._learned = None

    def episode_ended(self) -> None:
        """The end of an episode in train mode. Raises what its `state_dict` raises, TypeError and OSError."""
        with self._lock:
            if self._learned is not None:
                self._learned.episode_ended()

    def save(self) -> None:
        """Writes and syncs what it has learned in ended episodes. Raises as `episode_ended`."""
        with self._lock:
            if self._learned is not None:
                self._learned.save()

    def copy(self, path: Path) -> None:
        """As `AgentHost.copy`."""
        name = f"agent {self.name!r}"
        with self._lock:
            if self._learned is not None:
                self._learned.copy(path, name=name)
            else:
                state_file.copy(path, saved=self._path, name=name)

    def _with_lock(
        self, call: Callable[[Any], Any], number: int, weights: ActedWeights | None = None
    ) -> Callable[[Any], Any]:
        lock, learned = self._lock, self._learned

        def locked_call(argument: Any) -> Any:
            with lock:
                self.holder = number
                try:
                    if weights is not None and learned is not None:
                        weights.version = learned.version
                    return call(argument)
                finally:
                    self.holder = None

        return locked_call


def _accepts_player(agent: Any, name: str) -> bool:
    """Whether its method `name` has a parameter `player`."""
    call = getattr(agent, name, None)
    try:
        return call is not None and "player" in inspect.signature(call).parameters
    except (TypeError, ValueError):  # a function that is not written in Python
        return False


def _conforming(
    agent: Agent, conform: Conformer, *, explore: bool, player_argument: dict[str, str]
) -> Callable[[Any], Any]:
    def act(observation: Any) -> Any:
        return conform(agent.act(observation, explore=explore))

    def act_as(observation: Any) -> Any:
        return conform(agent.act(observation, explore=explore, **player_argument))

    return act_as if player_argument else act


def _conforming_many(agent: Any, conform: Conformer, *, explore: bool) -> Callable[[NDArray[Any]], list[Any]]:
    def act_many(observations: NDArray[Any]) -> list[Any]:
        try:
            actions = agent.act_many(observations, explore=explore)
            if len(actions) != len(observations):
                raise ValueError(f"{len(actions)} actions for {len(observations)} observations")  # noqa: TRY301  # one handler for a fault of all rows
        except BaseException as error:  # noqa: BLE001  # user code: any error is the fault of each episode
            return [error] * len(observations)
        if type(actions) is np.ndarray and actions.ndim == 1:
            actions = actions.tolist()
        try:
            return [conform(action) for action in actions]
        except BaseException:  # noqa: BLE001  # likewise, of one of them at least
            return [_conform_or_fault(conform, action) for action in actions]

    return act_many


def _conform_or_fault(conform: Conformer, action: Any) -> Any:
    try:
        return conform(action)
    except BaseException as error:  # noqa: BLE001  # as above
        return error
