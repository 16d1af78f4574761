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

from governor.episodes import agents, spaces
from governor.episodes.agents import AgentSource
from governor.episodes.records import state_file
from governor.episodes.rules.seeds import agent_seed
from governor.errors import ConductorError

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from governor.episodes.agents import Agent
    from governor.episodes.context import Context
    from governor.episodes.learned import Learned
    from governor.episodes.spaces import Conformer, SpaceSpec
    from governor.episodes.transition import Transition
    from governor.messages import Made, StartSimulation


class ActedWeights:
    """`version` is the version of the weights that chose a worker's last action."""

    version = 0


class Calls(NamedTuple):
    """The methods of the agent for one worker; None for a method that it lacks. Actions are copies in the dtype and shape of their
    space. `act` takes one observation; it raises ValueError and what the agent raises. `act_many` takes the batch of several
    (`spaces.stack`) and their number, and returns one item for each row: an action, or the exception of that row.
    """

    act: Callable[[Any], Any]
    learn: Callable[[Transition], Any] | None
    act_many: Callable[[Any, int], list[Any]] | None
    weights: Learned | ActedWeights


class LocalAgent:
    """Its methods run user code. `holder`, for any thread, is the number of the worker that uses it now, or None."""

    def __init__(
        self, *, name: str, made: Made, seed: int, state_path: Path, context: Context | None = None
    ) -> None:
        self.name = name
        self.holder: int | None = None
        self.builds = 0
        """How often it has been built; `calls` are valid for one build."""
        self._source = AgentSource(
            entry=made.entry,
            params=made.params,
            seed=seed,
            state_path=state_path,
            first_state=made.state,
            context=context,
        )
        self._spaces: tuple[SpaceSpec, SpaceSpec]
        self._learned: Learned | None = None
        """The agent, if it is built."""
        self._player_methods: frozenset[str] = frozenset()
        self._conform: Conformer
        self._lock = threading.Lock()

    def join(self, number: int, observation: SpaceSpec, action: SpaceSpec) -> None:
        """Raises ConductorError with one line."""
        with self._lock:
            self.holder = number
            try:
                if self._learned is not None:
                    spaces.require_same(self._spaces, (observation, action), of=f"agent {self.name}")
                    return
                self._learned = self._source.build(observation, action)
                self._spaces = (observation, action)
                self._player_methods = frozenset(
                    name for name in ("act", "learn") if _accepts_player(self._learned.agent, name)
                )
                self._conform = spaces.copier(action)
                self.builds += 1
            finally:
                self.holder = None

    def calls(self, number: int, *, alone: bool, explore: bool = True, player: str | None = None) -> Calls:
        """The methods for worker `number`, valid for one of the agent's `builds`. A worker that does not explore does not learn.
        `player` is passed to an agent whose methods have that parameter.
        """
        learned = self._learned
        if learned is None:
            raise ConductorError(f"no worker has joined agent {self.name}")
        agent = learned.agent
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
            act_many = partial(agents.act_many, agent, self._spaces[1], self._conform, explore=explore)
        if alone:
            return Calls(act, learn, act_many, learned)
        weights = ActedWeights()
        return Calls(
            self._with_lock(act, number, weights),
            None if learn is None else self._with_lock(learn, number),
            None if act_many is None else self._with_lock(act_many, number, weights),
            weights,
        )

    def metrics(self) -> dict[Any, Any]:
        """As `Learned.metrics`."""
        with self._lock:
            return {} if self._learned is None else self._learned.metrics()

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
                state_file.copy(path, saved=self._source.state_path, name=name)

    @property
    def learns(self) -> bool:
        """Whether it is built, and has `learn`."""
        return self._learned is not None and self._learned.learn is not None

    def reload(self) -> bool:
        """Saves its state, and loads it into a second instance; False if it has no state. Raises as `copy`, and as `join`."""
        with self._lock:
            if self._learned is None or not hasattr(self._learned.agent, "state_dict"):
                return False
            self._learned.copy(self._source.state_path, name=f"agent {self.name!r}")
            self._source.make(*self._spaces)
            return True

    def _with_lock(
        self, call: Callable[..., Any], number: int, weights: ActedWeights | None = None
    ) -> Callable[..., Any]:
        lock, learned = self._lock, self._learned

        def locked_call(*arguments: Any) -> Any:
            with lock:
                self.holder = number
                try:
                    if weights is not None and learned is not None:
                        weights.version = learned.version
                    return call(*arguments)
                finally:
                    self.holder = None

        return locked_call


def of_phase(
    command: StartSimulation,
    *,
    run_seed: int,
    run_folder: Path,
    context: Callable[[str], Context] | None = None,
) -> dict[str, LocalAgent]:
    """The agents of a phase by name, not built yet. `context` makes the one of a component by the name of its log."""
    several = len(command.agents) > 1
    return {
        name: LocalAgent(
            name=name,
            made=made,
            seed=agent_seed(run_seed, name) if several else run_seed,
            state_path=run_folder / "agents" / f"{name}.state",
            context=None if context is None else context(f"agent.{name}"),
        )
        for name, made in zip(command.agents, command.made_agents, strict=True)
    }


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
