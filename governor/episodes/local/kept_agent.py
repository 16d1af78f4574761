"""An agent in the process of the simulation: it acts and learns for every worker, from phase to phase.

Rules:
1. It is built when its spaces are known, at the first join; a saved state is loaded into it then.
2. One worker at a time is with it (`holder`); where a part has one worker alone, nobody asks for the lock. A turn ends
   when the action is the worker's own: an agent may give the same array each time.
3. At the end of an episode in train mode its state is kept as `learned` says.
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


class ActResult:
    """`version` is that of the weights that a worker's last action was taken with."""

    version = 0


class Calls(NamedTuple):
    """What a worker may ask of the agent; None for what it does not have. Actions have the form of their space, in memory
    of their own. `act` raises ValueError and what the agent raises; of `act_many` each action may be its fault instead.
    """

    act: Callable[[Any], Any]
    learn: Callable[[Transition], Any] | None
    act_many: Callable[[NDArray[Any]], list[Any]] | None
    acted: Learned | ActResult


class LocalAgent:
    """Its methods run user code, but `holder` is for everyone: the worker that is with it now, by its number."""

    def __init__(self, *, name: str, made: Made, seed: int, state_path: Path) -> None:
        self.name = name
        self.made = made
        self.holder: int | None = None
        self.lives = 0
        """How often it has been built: `calls` are of one of them."""
        self.spaces: tuple[spaces.SpaceSpec, spaces.SpaceSpec] | None = None
        self._seed = seed
        self._path = state_path
        self._agent: Agent | None = None
        self._learned: Learned | None = None
        self._told: frozenset[str] = frozenset()
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
                    self.lives += 1
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
        self._told = frozenset(name for name in ("act", "learn") if _takes_player(self._agent, name))
        self._conform = copier(action)

    def calls(self, number: int, *, alone: bool, explore: bool = True, player: str | None = None) -> Calls:
        """They hold for one of the agent's `lives`. Who does not explore does not learn. `player` is told to the agent if it
        asks for it.
        """
        agent, learned = self._agent, self._learned
        if agent is None or learned is None:
            raise ConductorError(f"nobody has joined agent {self.name}")
        who = {} if player is None else {"player": player}
        act = _conforming(agent, self._conform, explore=explore, who=who if "act" in self._told else {})
        learn: Callable[..., Any] | None = learned.learn if explore else None
        if learn is not None and who and "learn" in self._told:
            learn = partial(learn, **who)
        act_many = None
        if getattr(agent, "act_many", None) is not None:
            act_many = _conforming_many(agent, self._conform, explore=explore)
        if alone:
            return Calls(act, learn, act_many, learned)
        acted = ActResult()
        return Calls(
            self._taking_turns(act, number, acted),
            None if learn is None else self._taking_turns(learn, number),
            None if act_many is None else self._taking_turns(act_many, number, acted),
            acted,
        )

    def renew(self) -> None:
        """The next join builds it from its saved state. Raises what `keep` raises."""
        self.keep()
        with self._lock:
            self.spaces = self._agent = self._learned = None

    def trained(self) -> None:
        """The end of an episode in train mode. Raises what its `state_dict` raises, TypeError and OSError."""
        with self._lock:
            if self._learned is not None:
                self._learned.episode_ended()

    def keep(self) -> None:
        """All that it has learned in episodes that ended is on disk. Raises as `trained`."""
        with self._lock:
            if self._learned is not None:
                self._learned.keep()

    def copy(self, path: Path) -> None:
        """As `AgentHost.copy`."""
        name = f"agent {self.name!r}"
        with self._lock:
            if self._learned is not None:
                self._learned.copy(path, name=name)
            else:
                state_file.copy(path, saved=self._path, name=name)

    def _taking_turns(
        self, call: Callable[[Any], Any], number: int, acted: ActResult | None = None
    ) -> Callable[[Any], Any]:
        lock, learned = self._lock, self._learned

        def turn(told: Any) -> Any:
            with lock:
                self.holder = number
                try:
                    if acted is not None and learned is not None:
                        acted.version = learned.version
                    return call(told)
                finally:
                    self.holder = None

        return turn


def _takes_player(agent: Any, name: str) -> bool:
    """Whether its method `name` wants to know which of several players it acts for."""
    call = getattr(agent, name, None)
    try:
        return call is not None and "player" in inspect.signature(call).parameters
    except (TypeError, ValueError):  # of a function that is not Python's
        return False


def _conforming(
    agent: Agent, conform: Conformer, *, explore: bool, who: dict[str, str]
) -> Callable[[Any], Any]:
    def act(observation: Any) -> Any:
        return conform(agent.act(observation, explore=explore))

    def act_as(observation: Any) -> Any:
        return conform(agent.act(observation, explore=explore, **who))

    return act_as if who else act


def _conforming_many(agent: Any, conform: Conformer, *, explore: bool) -> Callable[[NDArray[Any]], list[Any]]:
    def act_many(observations: NDArray[Any]) -> list[Any]:
        try:
            actions = agent.act_many(observations, explore=explore)
            if len(actions) != len(observations):
                raise ValueError(f"{len(actions)} actions for {len(observations)} observations")  # noqa: TRY301  # one place for what is everybody's fault
        except BaseException as error:  # noqa: BLE001  # user code: whatever it raises is the fault of each episode
            return [error] * len(observations)
        if type(actions) is np.ndarray and actions.ndim == 1:
            actions = actions.tolist()
        try:
            return [conform(action) for action in actions]
        except BaseException:  # noqa: BLE001  # likewise, of one of them at least
            return [_or_fault(conform, action) for action in actions]

    return act_many


def _or_fault(conform: Conformer, action: Any) -> Any:
    try:
        return conform(action)
    except BaseException as error:  # noqa: BLE001  # as above
        return error
