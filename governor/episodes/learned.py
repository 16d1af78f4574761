"""What an agent has learned: the version of its weights, and the file that keeps them.

Rules:
1. A version is the number of calls of `learn`, in all lives of the agent and of who made its first state; an agent that knows better has an attribute
   `weight_version`, a whole number, which counts instead.
2. At the end of an episode in train mode the state is written, unless that took more than one part in `SPARING` of the
   time since: then a later end does it. Written, it outlives this process; at most once in `SYNC_SECONDS`, and by `keep`,
   it is also synced. What was saved for nothing but to be written over would cost short episodes half their time.
3. The first state that is written has been read back: one that could not be loaded is told then, not after a crash.
"""

from __future__ import annotations

from time import monotonic
from typing import TYPE_CHECKING, Any, Final

from governor.episodes.records import state_file
from governor.errors import ConductorError

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from governor.episodes.transition import Transition

SPARING: Final = 50
SYNC_SECONDS: Final = 1.0


class Learned:
    """Of one agent; for whoever holds it. `learn` is None for an agent that does not."""

    def __init__(self, agent: Any, path: Path, *, given: str | None = None) -> None:
        """`agent` has the state of `path`, else of the file that it was `given`. Raises what its `weight_version` raises."""
        self.learn = self._learn if getattr(agent, "learn", None) is not None else None
        self._agent = agent
        self._path = path
        self._state_dict: Callable[[], dict[str, Any]] | None = getattr(agent, "state_dict", None)
        self._own = hasattr(agent, "weight_version")
        self.version = int(agent.weight_version) if self._own else state_file.weight_version(path, given)
        self._tried = False
        self._unsaved = False
        self._save_at = 0.0
        self._sync_at = 0.0

    def episode_ended(self) -> None:
        """In train mode. Raises what `state_dict` raises, TypeError and OSError."""
        self._unsaved = True
        now = monotonic()
        if now >= self._save_at:
            self._save(sync=now >= self._sync_at)

    def keep(self) -> None:
        """All that was learned in episodes that ended is on disk. Raises as `episode_ended`."""
        if self._unsaved:
            self._save(sync=True)

    def copy(self, path: Path, *, name: str) -> None:
        """The state as it is now, at another place. Raises ConductorError without `state_dict`, and as `episode_ended`."""
        if self._state_dict is None:
            raise ConductorError(f"{name} has no state_dict")
        self._write(path, self._state_dict(), sync=True)

    def _learn(self, transition: Transition, player: str | None = None) -> None:
        """`player` is told to an agent of several players that asks."""
        if player is None:
            self._agent.learn(transition)
        else:
            self._agent.learn(transition, player=player)
        self.version = int(self._agent.weight_version) if self._own else self.version + 1

    def _save(self, *, sync: bool) -> None:
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
        state_file.save(path, state, sync=sync, weight_version=self.version, trial=not self._tried)
        self._tried = True
