"""A game of PettingZoo's parallel API: all players act, then comes one step."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from governor.episodes.players.game import Seen, Stepped, ends_of, known, of, vanished

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping

    from governor.episodes.info import Row
    from governor.episodes.players.game import PlayerReader


class ParallelGame:
    """As `game.Game`. `read` makes the row of the infos."""

    def __init__(
        self, environment: Any, readers: Mapping[str, PlayerReader], read: Callable[[Any], Row] | None
    ) -> None:
        self._environment = environment
        self._readers = readers
        self._read = read
        self._gone: set[str] = set()

    def reset(self, seed: int) -> Stepped:
        self._gone.clear()
        returned = self._environment.reset(seed=seed)
        try:
            observations, infos = returned
        except (TypeError, ValueError):
            raise ValueError("it did not return (observations, infos)") from None
        live = list(self._environment.agents)
        if not live:
            raise ValueError("it has no player")
        seen = self._seen(live, observations, infos)
        return Stepped(acting=live, seen=seen, rewards=dict.fromkeys(live, 0.0), info=self._row(infos))

    def step(self, actions: Mapping[str, Any], *, last: bool) -> Stepped:  # noqa: ARG002  # all see something after each step
        environment = self._environment
        returned = environment.step(
            {player: self._readers[player].action(action) for player, action in actions.items()}
        )
        try:
            observations, rewards, terminations, truncations, infos = returned
        except (TypeError, ValueError):
            raise ValueError(
                "it did not return (observations, rewards, terminations, truncations, infos)"
            ) from None
        ends = {}
        for player in actions:
            if any(end := ends_of(terminations, truncations, player)):
                ends[player] = end
        live = [player for player in environment.agents if player not in self._gone]
        for player in actions:
            if player not in live and player not in ends:
                raise vanished(player)
        seen = self._seen(dict.fromkeys([*actions, *live]), observations, infos)
        self._gone.update(ends)
        return Stepped(
            acting=[player for player in seen if player not in ends],
            seen=seen,
            rewards={
                player: self._readers[player].reward(of(rewards, player, "reward")) for player in actions
            },
            ends=ends,
            info=self._row(infos),
        )

    def _seen(self, players: Iterable[str], observations: Any, infos: Any) -> dict[str, Seen]:
        found = {}
        for player in players:
            reader = known(self._readers, player)
            info = infos.get(player) if isinstance(infos, dict) else None
            found[player] = reader.seen(of(observations, player, "observation"), info)
        return found

    def _row(self, infos: Any) -> Row:
        return None if self._read is None else self._read(infos)
