"""An environment of several players in its conductor: requests of the wire in, what came of them out."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from governor.episodes import spaces
from governor.episodes.info import reader_of
from governor.episodes.players.assignment import game_of, names_of, spaces_of, takes_turns
from governor.episodes.remote import wire
from governor.errors import ConductorError

if TYPE_CHECKING:
    from governor.episodes.players.game import Game


class HostedGame:
    """`players`: the spaces of each, of observations and actions; `turns`: they take turns. Its methods run user code."""

    def __init__(self, environment: Any, *, entry: str, vector: int) -> None:
        """Raises ConductorError."""
        self._environment = environment
        try:
            self.players = spaces_of(environment, names_of(environment, vector=vector))
        except ConductorError as error:
            raise ConductorError(f"environment {entry!r}: {error.reason}") from error
        self.turns = takes_turns(environment)
        self._encoded = {player: spaces.is_composite(both[0]) for player, both in self.players.items()}
        """Which one of value and encoding is sent."""
        self._received = {player: spaces.receiver(both[1]) for player, both in self.players.items()}
        self._game: Game

    def want(self, wanted: Any, *, masked: bool, informed: bool) -> None:
        """For the next episode; `wanted` of infos, as of `StartSimulation`."""
        self._game, readers = game_of(self._environment, self.players, reader_of(wanted, [*self.players]))
        for reader in readers.values():
            reader.masked, reader.informed = masked, informed

    def answer(self, request: wire.ResetFrame | wire.PlayersStepFrame) -> dict[str, Any]:
        """The fields of a `wire.PlayersSteppedFrame`. Raises ValueError and what the environment raises."""
        if isinstance(request, wire.ResetFrame):
            stepped = self._game.reset(request.seed)
        else:
            actions = {
                player: sent if (received := self._received[player]) is None else received(sent)
                for player, sent in request.actions.items()
            }
            stepped = self._game.step(actions, last=request.last)
        seen = {
            player: (one.encoded if self._encoded[player] else one.observation, one.mask, one.info)
            for player, one in stepped.seen.items()
        }
        ends = {
            player: wire.TERMINATED * terminated | wire.TRUNCATED * truncated
            for player, (terminated, truncated) in stepped.ends.items()
        }
        return {
            "acting": stepped.acting,
            "seen": seen,
            "rewards": stepped.rewards,
            "ends": ends,
            "info": stepped.info,
        }
