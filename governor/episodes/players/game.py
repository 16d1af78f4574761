"""An environment of several players, whichever API it has: who acts now, and what came of a step.

Rules:
1. In a game of the parallel API (`parallel`) all players act, then comes one step; in one of the AEC API (`turns`) one player acts.
2. A player that is terminated or truncated leaves, and does not return in this episode.
3. A fault of the environment is a ValueError in one line, which names the player.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Protocol

from governor.episodes import spaces
from governor.episodes.conforming import finite_reward, flag
from governor.episodes.masks import MaskReader
from governor.episodes.step_info import plain_info

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from governor.episodes.info import Row
    from governor.episodes.spaces import SpaceSpec


@dataclass(frozen=True, slots=True)
class Seen:
    """What a player sees: the observation, its encoding for the recorder, the action mask, None if there is none, and its info as plain
    data (`step_info`), None if it is not wanted.
    """

    observation: Any
    encoded: Any
    mask: Any = None
    info: Any = None


@dataclass(slots=True, kw_only=True)
class Stepped:
    """What came of a step, or of a reset. `acting`: who acts next, in this order; nobody: the episode is over.

    `seen` has an item for those who act next and for those whose turn has ended, in the order in which they learn. `rewards`
    are those of this step, of each player that took part in it; `ends` are (terminated, truncated) of those who left with it.
    """

    acting: list[str]
    seen: dict[str, Seen]
    rewards: dict[str, float]
    ends: dict[str, tuple[bool, bool]] = field(default_factory=dict)
    info: Row = None


class Game(Protocol):
    """The methods raise ValueError and what the environment raises."""

    def reset(self, seed: int) -> Stepped: ...

    def step(self, actions: Mapping[str, Any], *, last: bool) -> Stepped:
        """`actions`, in the form of their spaces, are those of all who act. `last`: the episode is cut after this step, so what
        each player sees now is wanted.
        """
        ...


class PlayerReader:
    """Brings the values of one player into the form of its spaces. `masked`: action masks are read too; `informed`: and whole infos."""

    def __init__(self, name: str, observation: SpaceSpec, action: SpaceSpec) -> None:
        self.name = name
        self.masked = self.informed = False
        self._observed = spaces.observer(observation)
        self._copied = spaces.duplicator(action)
        self._masks = MaskReader(action)

    def seen(self, observation: Any, info: Any) -> Seen:
        try:
            value, encoded = self._observed(observation)
        except ValueError as error:
            raise spaces.named(f"player {self.name!r}: observation", error) from None
        whole = plain_info(info) if self.informed else None
        if not self.masked:
            return Seen(value, encoded, info=whole)
        try:
            return Seen(value, encoded, self._masks.of(value, info), whole)
        except ValueError as error:
            raise ValueError(f"player {self.name!r}: {error}") from None

    def reward(self, value: Any) -> float:
        try:
            return finite_reward(value)
        except ValueError as error:
            raise ValueError(f"player {self.name!r}: {error}") from None

    def action(self, value: Any) -> Any:
        """For the environment, which may change it."""
        return value if self._copied is None else self._copied(value)


def readers_of(spaces: Mapping[str, tuple[SpaceSpec, SpaceSpec]]) -> dict[str, PlayerReader]:
    return {player: PlayerReader(player, *both) for player, both in spaces.items()}


def known(readers: Mapping[str, PlayerReader], player: Any) -> PlayerReader:
    """Raises ValueError for a player that is not in `possible_agents`."""
    try:
        return readers[player]
    except (KeyError, TypeError):
        raise ValueError(f"player {player!r} is in agents, but not in possible_agents") from None


def of(values: Any, player: str, what: str) -> Any:
    """The item of a player. Raises ValueError."""
    try:
        return values[player]
    except (LookupError, TypeError):
        raise ValueError(f"player {player!r}: {what}: none is there") from None


def ends_of(terminations: Any, truncations: Any, player: str) -> tuple[bool, bool]:
    return (
        flag(of(terminations, player, "termination"), "termination"),
        flag(of(truncations, player, "truncation"), "truncation"),
    )


def vanished(player: str) -> ValueError:
    return ValueError(f"player {player!r} is not in agents any more, but neither terminated nor truncated")


def listed(names: Iterable[str]) -> str:
    return ", ".join(map(repr, names))
