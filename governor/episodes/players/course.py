"""The course of an episode of several players: whose turn it is, what each step is on record, and what is to be learned of it.

Rules:
1. A transition of a player goes from its turn to its next turn, or to its end: its reward is the sum of what the player got
   meanwhile. What it got before its first turn counts for its return alone. Its step and extras are those of that turn.
2. The value of an episode is the sum of its players' returns.
3. An episode ends when no player is left: as `terminated` if every player terminated, else as `truncated`. So it does after
   `limit` steps, which truncates all who are left.
4. A row has an item for each player that took part in the step: observation, action and version are None of one that did not act.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NamedTuple

from governor.episodes.transition import NO_EXTRAS, NO_INFO, Transition

if TYPE_CHECKING:
    from collections.abc import Mapping

    from governor.episodes.players.game import Seen, Stepped
    from governor.messages import EpisodeOutcome


class Action(NamedTuple):
    """`encoded` is for the recorder; `version` that of the weights that chose it; `extras` as of `Transition`."""

    value: Any
    encoded: Any
    version: int
    extras: Mapping[str, Any] = NO_EXTRAS


@dataclass(slots=True)
class _Turn:
    """A turn of a player whose transition is not over."""

    seen: Seen
    action: Action
    step: int
    reward: float = 0.0


class Learnable(NamedTuple):
    """A transition that is over. `seen`: the player sees this now."""

    player: str
    transition: Transition
    seen: Seen


class EpisodeCourse:
    """`seen` are the observations of those who act now, in their order. `row`: the last step by player, as it is recorded."""

    def __init__(self, first: Stepped, *, limit: int, episode: int, worker: int, seed: int) -> None:
        """`first` came of the reset; the others are for transitions."""
        self._numbers = {"episode": episode, "worker": worker, "seed": seed}
        self.values = dict(first.rewards)
        self.steps = 0
        self.is_over = False
        self.seen = {player: first.seen[player] for player in first.acting}
        self.row: dict[str, tuple[Any, ...]] = {}
        self._limit = limit
        self._turns: dict[str, _Turn] = {}
        self._all_terminated = all(terminated for terminated, _ in first.ends.values())

    @property
    def value(self) -> float:
        return sum(self.values.values())

    @property
    def outcome(self) -> EpisodeOutcome:
        """Of an episode that is over."""
        return "terminated" if self._all_terminated else "truncated"

    @property
    def is_last(self) -> bool:
        """Whether the next step is the last one at any rate."""
        return self.steps + 1 >= self._limit

    def take(self, actions: Mapping[str, Action], stepped: Stepped) -> list[Learnable]:
        """A step is over; the transitions that ended with it, in the order in which they are learned."""
        for player, action in actions.items():
            self._turns[player] = _Turn(self.seen[player], action, self.steps)
        is_cut = self.is_last
        self.steps += 1
        self.is_over = is_cut or not stepped.acting
        ends = {}
        self.row = {}
        for player, reward in stepped.rewards.items():
            terminated, truncated = stepped.ends.get(player, (False, False))
            truncated = truncated or is_cut
            if terminated or truncated:
                ends[player] = terminated, truncated
                self._all_terminated = self._all_terminated and terminated
            self.values[player] = self.values.get(player, 0.0) + reward
            if player in self._turns:
                self._turns[player].reward += reward
            if player in actions:
                action = actions[player]
                observed = self.seen[player].encoded
                self.row[player] = observed, action.encoded, reward, terminated, truncated, action.version
            else:
                self.row[player] = None, None, reward, terminated, truncated, None
        self.seen = {} if self.is_over else {player: stepped.seen[player] for player in stepped.acting}
        return [
            self._learnable(player, seen, ends)
            for player, seen in stepped.seen.items()
            if player in self._turns
        ]

    def _learnable(self, player: str, seen: Seen, ends: Mapping[str, tuple[bool, bool]]) -> Learnable:
        turn = self._turns.pop(player)
        terminated, truncated = ends.get(player, (False, False))
        transition = Transition(
            observation=turn.seen.observation,
            action=turn.action.value,
            reward=turn.reward,
            next_observation=seen.observation,
            terminated=terminated,
            truncated=truncated,
            step=turn.step,
            player=player,
            info=NO_INFO if seen.info is None else seen.info,
            extras=turn.action.extras,
            **self._numbers,
        )
        return Learnable(player, transition, seen)
