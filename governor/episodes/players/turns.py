"""A game of PettingZoo's AEC API: one player acts, then it is another one's turn.

Rules:
1. The rewards of a step are `rewards` as the environment has them after it. What `last()` says of a player at its turn counts:
   if both differ, the last step before the turn gets the difference.
2. The turns of players that have left (`step(None)`) belong to the step before them. Each has one.
3. A player that has left sees something for the last time at that turn; one that the end of the episode cuts, by `observe`.
"""

from __future__ import annotations

from math import isclose
from typing import TYPE_CHECKING, Any, Final

from governor.episodes.conforming import flag
from governor.episodes.players.game import Seen, Stepped, known, vanished

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from governor.episodes.info import Row
    from governor.episodes.players.game import PlayerReader

ROUNDING: Final = 1e-6
"""Sums of rewards may differ by so much, of float32."""


class TurnGame:
    """As `game.Game`. `read` makes the row of the infos."""

    def __init__(
        self, environment: Any, readers: Mapping[str, PlayerReader], read: Callable[[Any], Row] | None
    ) -> None:
        self._environment = environment
        self._readers = readers
        self._read = read
        self._live: list[str] = []
        self._gone: set[str] = set()
        self._since: dict[str, float] = {}
        """By player: its rewards since its last turn."""

    def reset(self, seed: int) -> Stepped:
        environment = self._environment
        environment.reset(seed=seed)
        self._gone.clear()
        self._since.clear()
        self._live = [known(self._readers, player).name for player in environment.agents]
        stepped = self._settle(dict.fromkeys(self._live, 0.0))
        if not stepped.acting:
            raise ValueError("it has no player")
        return stepped

    def step(self, actions: Mapping[str, Any], *, last: bool) -> Stepped:
        environment = self._environment
        ((player, action),) = actions.items()
        environment.step(self._readers[player].action(action))
        self._since[player] = 0.0
        rewards = {}
        given = environment.rewards
        for name in dict.fromkeys([*self._live, *environment.agents]):
            reward = given.get(name, 0.0)
            rewards[name] = known(self._readers, name).reward(reward)
            self._since[name] = self._since.get(name, 0.0) + rewards[name]
        stepped = self._settle(rewards)
        if last and stepped.acting:
            for name in self._live:
                if name not in stepped.seen:
                    stepped.seen[name] = self._observe(name)
        return stepped

    def _settle(self, rewards: dict[str, float]) -> Stepped:
        """What came of a step, with the turns of those who have left; `rewards` are those of the step."""
        environment = self._environment
        row = None if self._read is None else self._read(dict(environment.infos))
        stepped = Stepped(acting=[], seen={}, rewards=rewards, info=row)
        while environment.agents:
            player = known(self._readers, environment.agent_selection).name
            stepped.seen[player], ends = self._turn(player, rewards)
            if not any(ends):
                stepped.acting.append(player)
                break
            stepped.ends[player] = ends
            environment.step(None)
        before, self._live = self._live, list(environment.agents)
        self._gone.update(stepped.ends)
        for player in before:
            if player not in self._live and player not in self._gone:
                raise vanished(player)
        return stepped

    def _turn(self, player: str, rewards: dict[str, float]) -> tuple[Seen, tuple[bool, bool]]:
        """What the player whose turn it is sees, and how it ends."""
        returned = self._environment.last()
        try:
            observation, value, terminated, truncated, info = returned
        except (TypeError, ValueError):
            raise ValueError(
                "last() did not return (observation, reward, terminated, truncated, info)"
            ) from None
        ends = flag(terminated, "terminated"), flag(truncated, "truncated")
        if player in self._gone:
            raise ValueError(f"player {player!r} has left, and has another turn")
        if any(ends):
            self._gone.add(player)
        reader = self._readers[player]
        reward, since = reader.reward(value), self._since.get(player, 0.0)
        if not isclose(reward, since, rel_tol=ROUNDING, abs_tol=ROUNDING):
            rewards[player] = rewards.get(player, 0.0) + reward - since
            self._since[player] = reward
        return reader.seen(observation, info), ends

    def _observe(self, player: str) -> Seen:
        environment = self._environment
        return self._readers[player].seen(environment.observe(player), environment.infos.get(player))
