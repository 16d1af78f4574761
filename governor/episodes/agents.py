"""From an `entry` of the run file to an agent that continues from its saved state.

It runs user code: call it from a separate thread, never from the one that sends heartbeats.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol

from governor.episodes import spaces
from governor.episodes.context import with_context
from governor.episodes.entries import load
from governor.episodes.learned import Learned
from governor.episodes.records import state_file
from governor.episodes.rollouts import rollouts_of
from governor.errors import ConductorError
from governor.failures import reason_of

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

    from governor.episodes.context import Context
    from governor.episodes.rollouts import Rollout
    from governor.episodes.transition import Episode, Transition


class Agent(Protocol):
    """The protocol of an agent. Only `act` is needed; all others are optional, so a class of yours must not derive from this one.

    Observations and actions have the dtype and shape of their space, without a batch axis: int for Discrete. `act`, `act_many` and
    `learn` are passed `worker` and `player` if they have parameters of these names: the stream of steps as of
    `Transition.worker`, in `act_many` an int64 array of shape (batch,), and the name of the player, where there are several.
    `act` and `act_many` get `action_mask` likewise: which actions the environment allows now (`masks`).
    No two of its methods run at the same time.

    `needs_info`: transitions have the environment's info. `rollout_steps` is n of `learn_batch`. `streams` is ``"one"`` for an agent
    that cannot learn from several workers. `weight_version`: the version of its weights, where it counts that itself. `not_exact`: why its
    `state_dict` is not all of it, so that nothing can be replayed on top of it; "": it is.
    """

    needs_info: bool
    not_exact: str
    rollout_steps: int
    streams: str
    weight_version: int

    def act(self, observation: Any, *, explore: bool) -> Any:
        """The action for one observation; or the action and `extras`, a dict that its transition has. Extras are neither copied nor
        sent nor recorded.
        """

    def act_many(self, observations: Any, *, explore: bool) -> Any:
        """For observations of shape (batch, *shape of the space), int64 of shape (batch,) for Discrete, and of Dict and Tuple a dict or
        tuple of such, as many actions in that order: an array (batch, *shape) or a sequence, of a Dict or Tuple such a batch or a
        list; or these and their extras, a list of dicts or a dict of arrays with a row for each.
        """

    def begin(self, episode: Episode) -> None:
        """Before the first action of each episode, also of those that nothing is learned from."""

    def reset_states(self, worker: int) -> None:
        """After `begin`: what a recurrent agent remembers of this worker's last episode does not count for the next one."""

    def learn(self, transition: Transition) -> None:
        """After each step of a training episode."""

    def learn_batch(self, rollout: Rollout) -> None:
        """When `rollout_steps` steps of each worker are there."""

    def end(self, episode: Episode) -> None:
        """After `begin`, once, with the outcome: of a training episode when all of it is learned, before its state is saved; of any other
        before the next one of this worker or at the end of the phase.
        """

    def metrics(self) -> Mapping[str, float]:
        """Numbers by name, at the end of each training episode."""

    def state_dict(self) -> dict[str, Any]:
        """All that was learned, as plain data, arrays and tensors."""

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """What `state_dict` has returned."""


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

    def make(self, observation: spaces.SpaceSpec, action: spaces.SpaceSpec) -> Any:
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
        return agent

    def build(self, observation: spaces.SpaceSpec, action: spaces.SpaceSpec) -> Learned:
        """The agent that learns."""
        agent = self.make(observation, action)
        rollouts = rollouts_of(agent, (observation, action), entry=self.entry)
        try:
            return Learned(agent, self.state_path, given=self.first_state, rollouts=rollouts)
        except Exception as error:
            raise ConductorError(reason_of(error).within(f"agent {self.entry!r}: weight_version")) from error
