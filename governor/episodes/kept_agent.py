"""An agent in the process of the simulation: it acts and learns for every worker, from phase to phase.

Rules:
1. It is built when its spaces are known, at the first join; a saved state is loaded into it then.
2. One worker at a time is with it (`holder`); where a part has one worker alone, nobody asks for the lock.
3. At the end of an episode in train mode its state is written, unless that took more than one part in `SPARING` of
   the time since: then a later end does it. Written, it outlives this process; at most once in `SYNC_SECONDS`, and by
   `keep`, it is also synced. What was saved for nothing but to be written over would cost short episodes half their time.
"""

from __future__ import annotations

import inspect
import threading
from time import monotonic
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from governor.episodes import spaces, state_file
from governor.episodes.agents import Agent, make_agent
from governor.episodes.entries import load
from governor.errors import ConductorError

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from governor.episodes.transition import Transition
    from governor.messages import Made

SPARING: Final = 50
SYNC_SECONDS: Final = 1.0


class Calls(NamedTuple):
    """What a worker may ask of the agent; None for what it does not have."""

    act: Callable[..., Any]
    learn: Callable[[Transition], Any] | None
    act_many: Callable[..., Any] | None


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
        self._lock = threading.Lock()
        self._unsaved = False
        self._save_at = 0.0
        self._sync_at = 0.0

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
        agent = self._agent
        names = ("act", "learn", "act_many")
        found = [getattr(agent, name, None) for name in names]
        if not alone:
            found = [None if call is None else self._taking_turns(call, number) for call in found]
        return Calls(*found)  # type: ignore[arg-type]  # an agent has act: `make_agent`

    def renew(self) -> None:
        """The next join builds it from its saved state. Raises what `keep` raises."""
        self.keep()
        with self._lock:
            self.spaces = self._agent = None

    def trained(self) -> None:
        """The end of an episode in train mode. Raises what its `state_dict` raises, TypeError and OSError."""
        self._unsaved = True
        now = monotonic()
        if now >= self._save_at:
            self._save(sync=now >= self._sync_at)

    def keep(self) -> None:
        """All that it has learned in episodes that ended is on disk. Raises as `trained`."""
        if self._unsaved:
            self._save(sync=True)

    def copy(self, path: Path) -> None:
        """As `AgentHost.copy`."""
        with self._lock:
            state_file.copy(path, self._agent, saved=self._path, name=f"agent {self.name!r}")

    def _save(self, *, sync: bool) -> None:
        state_dict = getattr(self._agent, "state_dict", None)
        if state_dict is None:
            return
        with self._lock:
            began = monotonic()
            state_file.save(self._path, state_dict(), sync=sync)
            now = monotonic()
            self._save_at = now + SPARING * (now - began)
            if sync:
                self._sync_at = now + SYNC_SECONDS
            self._unsaved = not sync

    def _taking_turns(self, call: Callable[..., Any], number: int) -> Callable[..., Any]:
        lock = self._lock

        def turn(*args: Any, **keywords: Any) -> Any:
            with lock:
                self.holder = number
                try:
                    return call(*args, **keywords)
                finally:
                    self.holder = None

        return turn
