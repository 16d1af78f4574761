"""An agent in the process of the simulation: it acts and learns for every worker, from phase to phase.

Rules:
1. It is built when its spaces are known, at the first join; a saved state is loaded into it then.
2. One worker at a time is with it (`holder`); where a part has one worker alone, nobody asks for the lock.
3. At the end of an episode in train mode its state is kept as `learned` says.
"""

from __future__ import annotations

import inspect
import threading
from typing import TYPE_CHECKING, Any, NamedTuple

from governor.episodes.agents import Agent, make_agent
from governor.episodes.entries import load
from governor.episodes.learned import Learned
from governor.episodes.records import state_file
from governor.errors import ConductorError

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from governor.episodes import spaces
    from governor.episodes.transition import Transition
    from governor.messages import Made


class Acted:
    """`version` is that of the weights that a worker's last action was taken with."""

    version = 0


class Calls(NamedTuple):
    """What a worker may ask of the agent; None for what it does not have."""

    act: Callable[..., Any]
    learn: Callable[[Transition], Any] | None
    act_many: Callable[..., Any] | None
    acted: Learned | Acted


class KeptAgent:
    """Its methods run user code, but `holder` is for everyone: the worker that is with it now, by its number."""

    def __init__(self, *, name: str, made: Made, seed: int, state_path: Path) -> None:
        self.name = name
        self.made = made
        self.holder: int | None = None
        self.spaces: tuple[spaces.SpaceSpec, spaces.SpaceSpec] | None = None
        self._seed = seed
        self._path = state_path
        self._agent: Agent | None = None
        self._learned: Learned | None = None
        self._lock = threading.Lock()

    def join(self, number: int, observation: spaces.SpaceSpec, action: spaces.SpaceSpec) -> None:
        """Raises ConductorError with one line."""
        with self._lock:
            self.holder = number
            if self.spaces is None:
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
                self.spaces = (observation, action)
            elif self.spaces != (observation, action):
                raise ConductorError(
                    f"agent {self.name} was built for other spaces: {self.spaces[0]}, {self.spaces[1]}"
                )
            self.holder = None

    def takes_player(self, name: str) -> bool:
        """Whether its method `name` wants to know which of several players it acts for."""
        call = getattr(self._agent, name, None)
        try:
            return call is not None and "player" in inspect.signature(call).parameters
        except (TypeError, ValueError):  # of a function that is not Python's
            return False

    def calls(self, number: int, *, alone: bool) -> Calls:
        """For one episode: between two of them the agent may be built anew."""
        agent, learned = self._agent, self._learned
        if agent is None or learned is None:
            raise ConductorError(f"nobody has joined agent {self.name}")
        act, learn, act_many = agent.act, learned.learn, getattr(agent, "act_many", None)
        if alone:
            return Calls(act, learn, act_many, learned)
        acted = Acted()
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
        self, call: Callable[..., Any], number: int, acted: Acted | None = None
    ) -> Callable[..., Any]:
        lock, learned = self._lock, self._learned

        def turn(*args: Any, **keywords: Any) -> Any:
            with lock:
                self.holder = number
                try:
                    if acted is not None and learned is not None:
                        acted.version = learned.version
                    return call(*args, **keywords)
                finally:
                    self.holder = None

        return turn
