"""The players of an environment, the API it has, and which agent plays whom."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from governor.episodes import spaces
from governor.episodes.players.game import listed, readers_of
from governor.episodes.players.parallel import ParallelGame
from governor.episodes.players.turns import TurnGame
from governor.errors import ConductorError
from governor.failures import reason_of

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from governor.episodes.info import Row
    from governor.episodes.players.game import Game, PlayerReader
    from governor.episodes.spaces import SpaceSpec


class SeveralPlayers(Exception):
    """The environment has several players: a worker of another kind plays those. `environment`, if it is in this process."""

    def __init__(self, environment: Any = None) -> None:
        super().__init__()
        self.environment = environment


def has_players(environment: Any) -> bool:
    return hasattr(environment, "possible_agents")


def takes_turns(environment: Any) -> bool:
    """Whether it has the AEC API; else it has the parallel one. A class that does not derive from AECEnv may lack `agent_iter`."""
    return hasattr(environment, "agent_iter") or hasattr(environment, "last")


def one_player() -> ConductorError:
    return ConductorError("it has one player (no possible_agents): say one agent, in a list")


def names_of(environment: Any, *, vector: int) -> list[str]:
    """The players. Raises ConductorError, also if there is to be a `vector` of such environments."""
    if not has_players(environment):
        raise one_player()
    players = list(environment.possible_agents)
    if not players:
        raise ConductorError("its possible_agents are empty")
    odd = [player for player in players if not isinstance(player, str)]
    if odd:
        raise ConductorError(f"player {odd[0]!r} is of type {type(odd[0]).__name__}: names must be texts")
    if vector != 1:
        raise ConductorError(f"it has several players ({listed(players)}): leave out 'vector'")
    return players


def spaces_of(environment: Any, players: Sequence[str]) -> dict[str, tuple[SpaceSpec, SpaceSpec]]:
    """The spaces of each player, of observations and actions. Raises ConductorError."""
    return {player: _spaces_of(environment, player) for player in players}


def game_of(
    environment: Any,
    players: Mapping[str, tuple[SpaceSpec, SpaceSpec]],
    read: Callable[[Any], Row] | None,
) -> tuple[Game, dict[str, PlayerReader]]:
    """`read` makes the row of the infos of a step."""
    readers = readers_of(players)
    kind = TurnGame if takes_turns(environment) else ParallelGame
    return kind(environment, readers, read), readers


def assign_agents(
    players: Sequence[str], *, agents: Sequence[str], given: Mapping[str, str]
) -> dict[str, str]:
    """The agent of each player: as `given`, if the run file names players. Raises ConductorError."""
    if given:
        unknown = [player for player in given if player not in players]
        if unknown:
            raise ConductorError(f"it has no player {listed(unknown)}; there are {listed(players)}")
        idle = [player for player in players if player not in given]
        if idle:
            raise ConductorError(f"no agent plays {listed(idle)}: say one in 'agents'")
        return {player: given[player] for player in players}
    if len(agents) == 1:
        return dict.fromkeys(players, agents[0])
    if len(agents) != len(players):
        raise ConductorError(
            f"{len(agents)} agents ({listed(agents)}) for {len(players)} players ({listed(players)})"
        )
    return dict(zip(players, agents, strict=True))


def require_same_spaces(
    assignment: Mapping[str, str], spaces: Mapping[str, tuple[SpaceSpec, SpaceSpec]]
) -> None:
    """Raises ConductorError if an agent would play players with different spaces."""
    first: dict[str, str] = {}
    for player, agent in assignment.items():
        other = first.setdefault(agent, player)
        if spaces[other] != spaces[player]:
            raise ConductorError(
                f"players {other!r} and {player!r} have different spaces: one agent, {agent!r}, cannot play both"
            )


def _spaces_of(environment: Any, player: str) -> tuple[SpaceSpec, SpaceSpec]:
    found = []
    for role in ("observation_space", "action_space"):
        try:
            space = getattr(environment, role)(player)
        except Exception as error:
            raise ConductorError(reason_of(error).within(f"{role}({player!r})")) from error
        found.append(spaces.describe(space, role=f"{role}({player!r})"))
    return found[0], found[1]
