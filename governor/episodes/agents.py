"""From an `entry` of the run file to an agent that continues from its saved state.

It runs user code: call it from a separate thread, never from the one that sends heartbeats.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Protocol

from governor.episodes import spaces
from governor.episodes.entries import one_line
from governor.episodes.records import state_file
from governor.errors import ConductorError

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path


class Agent(Protocol):
    """The protocol of an agent; `learn`, `act_many`, `state_dict`, `load_state_dict` and `weight_version` are optional.

    `act(observation, explore=...)` gets one observation of the space's dtype and shape (int for Discrete) and returns one action,
    likewise, without a batch axis. `act_many(observations, explore=...)` gets an array (batch, *shape of the space), int64 of shape
    (batch,) for Discrete, and returns `batch` actions in the same order: an array (batch, *shape) or a sequence.
    `learn(transition)` gets one `Transition`; `state_dict()` returns a dict, which `load_state_dict` gets.
    """

    def act(self, observation: Any, *, explore: bool) -> Any: ...


def make_agent(
    factory: Callable[..., Any],
    *,
    entry: str,
    params: dict[str, Any],
    seed: int,
    observation: spaces.SpaceSpec,
    action: spaces.SpaceSpec,
    state_path: Path,
    first_state: str | None = None,
) -> Agent:
    """Raises ConductorError with one line, whatever the user's code raises. `factory` is what `entry` names; the files are
    as in `state_file.initial_state`.
    """
    try:
        agent = factory(
            observation_space=spaces.build(observation, seed=seed),
            action_space=spaces.build(action, seed=seed),
            seed=seed,
            **params,
        )
    except BaseException as error:  # user code, which may also exit
        raise ConductorError(f"agent {entry!r} does not start: {one_line(error)}") from error
    if not hasattr(agent, "act"):
        raise ConductorError(f"agent {entry!r} has no act")
    state = state_file.initial_state(state_path, first_state)
    if first_state is not None and not hasattr(agent, "load_state_dict"):
        raise ConductorError(f"agent {entry!r} has no load_state_dict: it cannot begin from {first_state}")
    if state is not None and hasattr(agent, "load_state_dict"):
        try:
            agent.load_state_dict(state)
        except BaseException as error:  # likewise
            raise ConductorError(f"agent {entry!r}: load_state_dict: {one_line(error)}") from error
    made: Agent = agent
    return made
