"""What an agent has learned: the version of its weights, and the file with its state.

Rules:
1. A version is the number of calls of `learn` and `learn_batch`, in all processes of the agent and of the one that made its first state. An
   agent with an attribute `weight_version`, a whole number, counts versions itself.
2. At the end of an episode in train mode the state is written, unless the last write took more than one part in `SPARING`
   of the time since: then a later end writes it. A written state survives this process; it is also synced, at most once in
   `SYNC_SECONDS` and by `save`. Saving states that are soon overwritten would cost short episodes half their time.
3. The first state that is written is read back: a state that cannot be loaded is reported then, not after a crash.
4. Beside the state the file says what of it was learned (`Told`): which episodes of the phase the agent was told of, and the steps
   that wait for their rollout.
5. Of one stream of steps (`exact`) a state is written only when its episodes are on record, which `settle` tells: what was learned
   after it is replayed from the record (`restoring`). Until then it is held in memory, and no other one is made.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from time import monotonic
from typing import TYPE_CHECKING, Any, Final

from governor.episodes import masks
from governor.episodes.agent_calls import optional_parameters
from governor.episodes.records import state_file
from governor.errors import ConductorError
from governor.files import write_whole
from governor.index_ranges import IndexRanges

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from governor.episodes.rollouts import Rollouts
    from governor.episodes.transition import Episode, Transition

SPARING: Final = 50
SYNC_SECONDS: Final = 1.0


@dataclass(slots=True)
class Told:
    """What an agent was told of in a `phase`, which `trains` it or not: the episodes that have `ended`; `current` is the one that has
    begun last. `over`: its part in the phase is over.
    """

    phase: str = ""
    trains: bool = True
    ended: IndexRanges = field(default_factory=IndexRanges)
    current: int | None = None
    over: bool = False

    def begin(self, index: int) -> None:
        """Of an episode; the one before has ended, however."""
        if self.current is not None:
            self.ended.add(self.current)
        self.current = index

    def end(self, index: int) -> None:
        self.ended.add(index)
        self.current = None


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
        self.told = Told()
        self.exact = False
        """Whether rule 5 holds."""
        self._others: set[str] = set()
        """Other phases of which it has learned."""
        self._verified = False
        self._unsaved = False
        self._save_at = 0.0
        self._sync_at = 0.0
        self._held: tuple[int, bytes, float] | None = None
        """A state that waits for `settle`: its ticket, its content, and the seconds that it took."""

    @property
    def has_state(self) -> bool:
        return self._state_dict is not None

    def saved(self) -> dict[str, Any] | None:
        """What the state file says of what was learned (rule 4). Raises ConductorError."""
        return state_file.learned(self._path)

    def state(self) -> bytes:
        """Of an agent with `state_dict`, for comparisons. Raises what that raises, and TypeError."""
        return b"" if self._state_dict is None else state_file.dumps(self._state_dict())

    def enter(self, told: Told, *, exact: bool) -> None:
        """What it learns from now on is of another phase, or of the same one after a restoration. Raises ConductorError."""
        if self.told.phase:
            self._others.add(self.told.phase)
        elif saved := self.saved():
            self._others = {*saved.get("others", ()), saved["phase"]}
        self._others.discard(told.phase)
        self.told, self.exact, self._held = told, exact, None

    def begin_told(self, index: int) -> None:
        """An episode begins; the one before has ended, however. Only for rule 5, as `end_told`: for one thread."""
        if self.exact:
            self.told.begin(index)

    def end_told(self, index: int) -> None:
        if self.exact and index >= 0:
            self.told.end(index)

    def episode_ended(self, index: int = -1, *, ticket: int = 0) -> None:
        """In train mode; `settle` is called with its `ticket`, or with a later one. Raises what `state_dict` raises, TypeError and OSError."""
        self.end_told(index)
        self._unsaved = True
        now = monotonic()
        if now < self._save_at or self._held is not None or self._state_dict is None:
            return
        if not self.exact:
            self._save_state(sync=now >= self._sync_at)
            return
        self._held = ticket, self._dumped(self._state_dict()), monotonic() - now

    def settle(self, ticket: int) -> None:
        """The episodes up to the one with this ticket are on record. Raises OSError."""
        if self._held is None or ticket < self._held[0]:
            return
        (_, data, seconds), self._held = self._held, None
        began = monotonic()
        sync = began >= self._sync_at
        write_whole(self._path, data, sync=sync)
        now = monotonic()
        self._save_at = now + SPARING * (now - began + seconds)
        if sync:
            self._sync_at = now + SYNC_SECONDS

    def metrics(self) -> dict[Any, Any]:
        """What the agent's `metrics` returns; empty without it. Raises what it raises, and TypeError."""
        found = self._metrics() if self._metrics is not None else None
        if found is not None and not isinstance(found, Mapping):
            raise TypeError(f"it returned a {type(found).__name__}, not a dict")
        return {} if found is None else dict(found)

    def save(self, *, over: bool = False, settled: bool = False) -> None:
        """Writes and syncs what was learned: all of it when the agent's part in a phase is `over`, or what was learned of is on record
        (`settled`). Raises as `episode_ended`.
        """
        if over:
            self.told.over, self._held = True, None
            if self.told.trains or self._is_changed():
                self._save_state(sync=True)
        elif settled or (self._unsaved and not self.exact):  # else it may be ahead of the record
            self._save_state(sync=True)

    def _is_changed(self) -> bool:
        """Whether acting alone has changed a state that was saved."""
        try:
            saved = state_file.load(self._path)
            return saved is not None and state_file.dumps(saved) != self.state()
        except Exception:  # noqa: BLE001  # user code: nothing was to be saved
            return False

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
        self._write(self._path, self._state_dict(), sync=sync, learned=self._so_far())
        now = monotonic()
        self._save_at = now + SPARING * (now - began)
        if sync:
            self._sync_at = now + SYNC_SECONDS
        self._unsaved = not sync

    def _so_far(self) -> dict[str, Any]:
        """As the state file says it."""
        told = self.told
        return {
            "phase": told.phase,
            "ended": [*told.ended.bounds],
            "over": told.over,
            "current": told.current,
            "others": sorted(self._others),
        }

    def _dumped(self, state: dict[str, Any]) -> bytes:
        """With `rollout`, the steps that wait for theirs; None if their extras cannot be saved."""
        make = state_file.dumps if self._verified else state_file.dumps_verified
        learned = self._so_far()
        if self.rollouts is not None:
            learned["rollout"] = self.rollouts.waiting()
        try:
            data = make(state, weight_version=self.version, learned=learned)
        except TypeError:
            if not learned.get("rollout"):
                raise
            data = make(state, weight_version=self.version, learned={**learned, "rollout": None})
        self._verified = True
        return data

    def _write(
        self, path: Path, state: dict[str, Any], *, sync: bool, learned: dict[str, Any] | None = None
    ) -> None:
        state_file.save(
            path, state, sync=sync, weight_version=self.version, verify=not self._verified, learned=learned
        )
        self._verified = True
