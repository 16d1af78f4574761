"""What an agent has learned: the version of its weights, and the file with its state.

Rules:
1. A version is the number of calls of `learn` and `learn_batch`, in all processes of the agent and of the one that made its first state. An
   agent with an attribute `weight_version`, a whole number, counts versions itself.
2. At the end of an episode in train mode the state is written, unless the last write took more than one part in `SPARING`
   of the time since: then a later end writes it. A written state survives this process; it is also synced, at most once in
   `SYNC_SECONDS` and by `save`. Saving states that are soon overwritten would cost short episodes half their time.
3. The first state that is written is read back: a state that cannot be loaded is reported then, not after a crash.
4. Steps that wait for their rollout are not in the state.
"""

from __future__ import annotations

from collections.abc import Mapping
from time import monotonic
from typing import TYPE_CHECKING, Any, Final

from governor.episodes import masks
from governor.episodes.agent_calls import optional_parameters
from governor.episodes.records import state_file
from governor.errors import ConductorError

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from governor.episodes.rollouts import Rollouts
    from governor.episodes.transition import Episode, Transition

SPARING: Final = 50
SYNC_SECONDS: Final = 1.0


class Learned:
    """Of one agent, for the object that holds it. `learn` is None for an agent that does not learn; `where` is the method's name, for
    faults. `rollouts` are those of an agent with `learn_batch`, else None.
    """

    def __init__(
        self, agent: Any, path: Path, *, given: str | None = None, rollouts: Rollouts | None = None
    ) -> None:
        """`agent` has the state of `path`, else of the file `given`. Raises what its `weight_version` raises."""
        self._by_step = getattr(agent, "learn", None) is not None
        self.where = "agent.learn" if self._by_step or rollouts is None else "agent.learn_batch"
        self.learn = self._learn if self._by_step or rollouts is not None else None
        self.agent = agent
        self.rollouts = rollouts
        self._options = optional_parameters(agent, "learn") - {masks.NAME}
        self._path = path
        metrics = getattr(agent, "metrics", None)
        self._metrics: Callable[[], Any] | None = metrics if callable(metrics) else None
        self._state_dict: Callable[[], dict[str, Any]] | None = getattr(agent, "state_dict", None)
        self._has_version = hasattr(agent, "weight_version")
        self.version = (
            int(agent.weight_version) if self._has_version else state_file.weight_version(path, given)
        )
        self._verified = False
        self._unsaved = False
        self._save_at = 0.0
        self._sync_at = 0.0

    def episode_ended(self) -> None:
        """In train mode. Raises what `state_dict` raises, TypeError and OSError."""
        self._unsaved = True
        now = monotonic()
        if now >= self._save_at:
            self._save_state(sync=now >= self._sync_at)

    def metrics(self) -> dict[Any, Any]:
        """What the agent's `metrics` returns; empty without it. Raises what it raises, and TypeError."""
        found = self._metrics() if self._metrics is not None else None
        if found is not None and not isinstance(found, Mapping):
            raise TypeError(f"it returned a {type(found).__name__}, not a dict")
        return {} if found is None else dict(found)

    def save(self) -> None:
        """Writes and syncs what was learned in ended episodes. Raises as `episode_ended`."""
        if self._unsaved:
            self._save_state(sync=True)

    def copy(self, path: Path, *, name: str) -> None:
        """Writes and syncs the current state to another `path`. Raises ConductorError without `state_dict`, and as `episode_ended`."""
        if self._state_dict is None:
            raise ConductorError(f"{name} has no state_dict")
        self._write(path, self._state_dict(), sync=True)

    def require_streams(self, workers: int, *, of: str) -> None:
        """Raises ConductorError if the agent `of` that name takes the steps of one worker alone, and would learn from more."""
        if workers > 1 and self.learn is not None and getattr(self.agent, "streams", None) == "one":
            raise ConductorError(
                f"{of} learns from one stream of steps (streams = 'one'), and here those of {workers} alternate: say workers: 1, "
                "and no vector"
            )

    def begin(self, episode: Episode) -> None:
        """Of each training episode, before it is learned."""
        if self.rollouts is not None:
            self.rollouts.begin(episode)

    def _learn(self, transition: Transition) -> None:
        if self._by_step:
            if self._options:
                self.agent.learn(transition, **self._options_of(transition))
            else:
                self.agent.learn(transition)
            self.version = int(self.agent.weight_version) if self._has_version else self.version + 1
        if self.rollouts is not None and (rollout := self.rollouts.add(transition)) is not None:
            self.agent.learn_batch(rollout)
            self.version = int(self.agent.weight_version) if self._has_version else self.version + 1

    def _options_of(self, transition: Transition) -> dict[str, Any]:
        """`player` only where there are several."""
        names = self._options if transition.player else self._options - {"player"}
        return {name: getattr(transition, name) for name in names}

    def _save_state(self, *, sync: bool) -> None:
        if self._state_dict is None:
            return
        began = monotonic()
        self._write(self._path, self._state_dict(), sync=sync)
        now = monotonic()
        self._save_at = now + SPARING * (now - began)
        if sync:
            self._sync_at = now + SYNC_SECONDS
        self._unsaved = not sync

    def _write(self, path: Path, state: dict[str, Any], *, sync: bool) -> None:
        state_file.save(path, state, sync=sync, weight_version=self.version, verify=not self._verified)
        self._verified = True
