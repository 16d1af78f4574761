"""From an `entry` of the run file to an agent that goes on where its saved state ends.

It runs user code: call it from a thread of its own, never from the one that keeps the heartbeat.
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
    """What an agent must have; `learn`, `act_many`, `state_dict` and `load_state_dict` are optional."""

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
    as in `state_file.first`.
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
    state = state_file.first(state_path, first_state)
    if first_state is not None and not hasattr(agent, "load_state_dict"):
        raise ConductorError(f"agent {entry!r} has no load_state_dict: it cannot begin from {first_state}")
    if state is not None and hasattr(agent, "load_state_dict"):
        try:
            agent.load_state_dict(state)
        except BaseException as error:  # likewise
            raise ConductorError(f"agent {entry!r}: load_state_dict: {one_line(error)}") from error
    made: Agent = agent
    return made
