"""From an `entry` of the run file to an agent that continues from its saved state.

It runs user code: call it from a separate thread, never from the one that sends heartbeats.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np

from governor.episodes import spaces
from governor.episodes.context import with_context
from governor.episodes.entries import Abandoned, load
from governor.episodes.learned import Learned
from governor.episodes.records import state_file
from governor.errors import ConductorError
from governor.failures import reason_of

if TYPE_CHECKING:
    from pathlib import Path

    from governor.episodes.context import Context


class Agent(Protocol):
    """The protocol of an agent; `learn`, `act_many`, `metrics`, `state_dict`, `load_state_dict` and `weight_version` are optional.

    `act(observation, explore=...)` gets one observation of the space's dtype and shape (int for Discrete) and returns one action,
    likewise, without a batch axis. `act_many(observations, explore=...)` gets an array (batch, *shape of the space), int64 of shape
    (batch,) for Discrete, else what `spaces.batches` tells, and returns `batch` actions in the same order: an array (batch, *shape)
    or a sequence; of a Dict or Tuple such a batch, or a list.
    `learn(transition)` gets one `Transition`; `metrics()` returns numbers by name, at the end of each training episode;
    `state_dict()` returns a dict, which `load_state_dict` gets.
    """

    def act(self, observation: Any, *, explore: bool) -> Any: ...


@dataclass(frozen=True, kw_only=True)
class AgentSource:
    """What an agent is made of. It begins from its saved state in `state_path`, else from the file `first_state`, as in
    `state_file.initial_state`. `context` is handed to a constructor that takes it. The methods raise ConductorError with one line, whatever the user's code raises.
    """

    entry: str
    params: dict[str, Any]
    seed: int
    state_path: Path
    first_state: str | None = None
    context: Context | None = None

    def make(self, observation: spaces.SpaceSpec, action: spaces.SpaceSpec) -> Agent:
        factory = load(self.entry)
        try:
            agent = factory(
                observation_space=spaces.build(observation, seed=self.seed),
                action_space=spaces.build(action, seed=self.seed),
                seed=self.seed,
                **with_context(factory, self.params, self.context),
            )
        except BaseException as error:  # user code, which may also exit
            raise ConductorError(reason_of(error).within(f"agent {self.entry!r} does not start")) from error
        if not hasattr(agent, "act"):
            raise ConductorError(f"agent {self.entry!r} has no act")
        state = state_file.initial_state(self.state_path, self.first_state)
        if self.first_state is not None and not hasattr(agent, "load_state_dict"):
            raise ConductorError(
                f"agent {self.entry!r} has no load_state_dict: it cannot begin from {self.first_state}"
            )
        if state is not None and hasattr(agent, "load_state_dict"):
            try:
                agent.load_state_dict(state)
            except BaseException as error:  # likewise
                raise ConductorError(
                    reason_of(error).within(f"agent {self.entry!r}: load_state_dict")
                ) from error
        made: Agent = agent
        return made

    def build(self, observation: spaces.SpaceSpec, action: spaces.SpaceSpec) -> Learned:
        """The agent that learns."""
        agent = self.make(observation, action)
        try:
            return Learned(agent, self.state_path, given=self.first_state)
        except Exception as error:
            raise ConductorError(reason_of(error).within(f"agent {self.entry!r}: weight_version")) from error


def act_many(  # `observations` and `rows` are all that differs from call to call
    agent: Any,
    space: spaces.SpaceSpec,
    conform: spaces.Conformer,
    observations: Any,
    rows: int,
    *,
    explore: bool,
) -> list[Any]:
    """For each observation a copy of the action, because the agent may reuse its array, or the exception of that row. `space` is that
    of actions.
    """
    try:
        actions = agent.act_many(observations, explore=explore)
        if isinstance(space, spaces.Dict | spaces.Tuple) and not isinstance(actions, list):
            actions = spaces.unstack(space, actions)
        if len(actions) != rows:
            raise ValueError(f"{len(actions)} actions for {rows} observations")  # noqa: TRY301  # one handler for a fault of all rows
    except Abandoned:
        raise
    except BaseException as error:  # noqa: BLE001  # user code: any error is the fault of each episode
        return [error] * rows
    if type(actions) is np.ndarray and actions.ndim == 1:
        actions = actions.tolist()
    found: list[Any] = []
    for action in actions:
        try:
            found.append(conform(action))
        except Abandoned:
            raise
        except BaseException as error:  # noqa: BLE001  # likewise, of this one
            found.append(error)
    return found
