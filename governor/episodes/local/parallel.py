"""Environments of several players (PettingZoo's parallel API) in the simulation's own process: all act, then one step.

Rules:
1. Values, faults, seeds and order are those of `stepping.LocalEpisodeWorker`, player by player; a fault names its player.
2. A player that is terminated or truncated leaves, and does not return in this episode. The episode ends when no player
   is left: as `terminated` if every player terminated, else as `truncated`.
3. The value of an episode is the sum of its players' returns.
4. An agent that plays several players is one object: `player` is passed to its `act` or `learn` if they have that parameter.
"""

from __future__ import annotations

import sys
from dataclasses import dataclass, field
from time import monotonic
from typing import TYPE_CHECKING, Any, Protocol

from governor.episodes import spaces
from governor.episodes.conforming import finite_reward, flag
from governor.episodes.entries import make_environment
from governor.episodes.info import InfoFigures, columns_of, reader_of
from governor.episodes.local import notices
from governor.episodes.local.execution_context import ACT, BUILD, JOIN, METRICS, SAVE, STEP
from governor.episodes.local.one_episode import EpisodeSource
from governor.episodes.local.stepping import LocalEpisodeWorker, NotRecorded
from governor.episodes.step_info import plain_info
from governor.episodes.transition import NO_INFO, Transition
from governor.errors import ConductorError
from governor.failures import one_line, reason_of

if TYPE_CHECKING:
    from collections.abc import Callable, Generator, Iterable, Mapping, Sequence

    from governor.episodes.local.execution_context import ExecutionContext
    from governor.episodes.local.local_agent import Calls, LocalAgent
    from governor.episodes.local.stepping import LocalSlot
    from governor.episodes.records.recording import Columns, StepRecorder
    from governor.episodes.spaces import Observer, SpaceSpec
    from governor.messages import EpisodeOutcome, Made


class PlayersSource(EpisodeSource, Protocol):
    """What the worker needs of the part whose episodes it plays; `simulation.Simulation` implements it."""

    def recorder_of(self, worker: int, columns: Columns) -> StepRecorder: ...


@dataclass(frozen=True, slots=True, kw_only=True)
class _Player:
    """The agent of a player, and the form of its values; `copied` and `encode` are for actions, None for plain ones."""

    name: str
    agent: LocalAgent
    observed: Observer
    copied: Callable[[Any], Any] | None
    encode: Callable[[Any], Any] | None


@dataclass(slots=True, kw_only=True)
class _Turn:
    """One step of a player: what it saw, as value and encoded for the recorder, what it did, and what came of it. `extras` and `info` are
    as of `Transition`.
    """

    player: _Player
    observation: Any
    encoded: Any
    action: Any
    version: int
    extras: Mapping[str, Any]
    info: Mapping[str, Any] = field(default_factory=lambda: NO_INFO)
    reward: float = 0.0
    terminated: bool = False
    truncated: bool = False

    def row(self) -> tuple[Any, ...]:
        """As it is recorded."""
        encode = self.player.encode
        action = self.action if encode is None else encode(self.action)
        return self.encoded, action, self.reward, self.terminated, self.truncated, self.version


class ParallelWorker(LocalEpisodeWorker):
    """A `LocalEpisodeWorker` whose environment has several players. `built` is the first environment, if it exists already."""

    def __init__(
        self,
        simulation: PlayersSource,
        context: ExecutionContext,
        agents: Mapping[str, LocalAgent],
        made: Made,
        *,
        built: Any = None,
        **settings: Any,
    ) -> None:
        super().__init__(simulation, [context], next(iter(agents.values())), made, **settings)
        self._context = context
        self._agents = agents
        self._built = built
        self._recorder_of = simulation.recorder_of
        self._players: dict[str, _Player] = {}

    # -- building -------------------------------------------------------------------------------------------

    def _build(self, slot: LocalSlot) -> None:
        from governor.episodes.records.recording import Columns  # noqa: PLC0415  # Arrow: not for the forkserver

        context, made = slot.context, self._made
        slot.resets = self._simulation.resets
        context.enter(BUILD, seconds=self._simulation.command.build_seconds)
        environment, self._built = self._built, None
        if environment is None:
            environment = make_environment(made.entry, made.params, self._user_context, made.wrappers)
        slot.environment = environment
        try:
            assignment = self._assign_agents(_players_of(environment))
            known = {player: _spaces_of(environment, player) for player in assignment}
            self._check_same_spaces(assignment, known)
            wanted = self._simulation.command.info
            slot.read = reader_of(wanted, [*known])
            context.info = InfoFigures(wanted, columns_of(wanted, [*known])) if wanted else None
            columns = Columns.of_players(known, wanted)
        except ConductorError as error:
            raise ConductorError(f"environment {made.entry!r}: {error.reason}") from error
        context.where = JOIN
        self._players = {
            player: self._join(player, assignment[player], *known[player]) for player in assignment
        }
        context.leave()
        slot.recorder = self._recorder_of(self._number, columns)

    def _assign_agents(self, players: list[str]) -> dict[str, str]:
        """The agent of each player. Raises ConductorError."""
        command = self._simulation.command
        if self._made.vector != 1:
            raise ConductorError(f"it has several players ({_listed(players)}): leave out 'vector'")
        if command.players:
            unknown = [player for player in command.players if player not in players]
            if unknown:
                raise ConductorError(f"it has no player {_listed(unknown)}; there are {_listed(players)}")
            idle = [player for player in players if player not in command.players]
            if idle:
                raise ConductorError(f"no agent plays {_listed(idle)}: say one in 'agents'")
            return {player: command.players[player] for player in players}
        agents = command.agents
        if len(agents) == 1:
            return dict.fromkeys(players, agents[0])
        if len(agents) != len(players):
            raise ConductorError(
                f"{len(agents)} agents ({_listed(agents)}) for {len(players)} players ({_listed(players)})"
            )
        return dict(zip(players, agents, strict=True))

    @staticmethod
    def _check_same_spaces(
        assignment: Mapping[str, str], known: Mapping[str, tuple[SpaceSpec, SpaceSpec]]
    ) -> None:
        first: dict[str, str] = {}
        for player, agent in assignment.items():
            other = first.setdefault(agent, player)
            if known[other] != known[player]:
                raise ConductorError(
                    f"players {other!r} and {player!r} have different spaces: one agent, {agent!r}, cannot play both"
                )

    def _join(self, player: str, name: str, observation: SpaceSpec, action: SpaceSpec) -> _Player:
        self._context.agent = name
        agent = self._agents[name]
        learns_from = self._streams if self._simulation.command.mode == "train" else 1
        agent.join(self._number, observation, action, learns_from=learns_from)
        return _Player(
            name=player,
            agent=agent,
            observed=spaces.observer(observation),
            copied=spaces.duplicator(action),
            encode=spaces.encoder(action),
        )

    # -- one episode ----------------------------------------------------------------------------------------

    def _end_training_episode(self, slot: LocalSlot, outcome: EpisodeOutcome) -> None:
        notices.end(slot, outcome)
        for name, agent in self._agents.items():
            self._enter_agent(name, METRICS)
            found = agent.metrics()
            self._report(
                {f"{name}.{key}": value for key, value in found.items()} if len(self._agents) > 1 else found
            )
            self._enter_agent(name, SAVE)
            agent.episode_ended()

    def _enter_agent(self, name: str, where: str) -> None:
        """Sets `agent` before `where`, because the watch reads the agent of `where`."""
        self._context.agent = name
        self._context.where = where

    def _steps(
        self, slot: LocalSlot, seed: int, deadline: float, *, explore: bool
    ) -> Generator[tuple[Any, Any], Any, EpisodeOutcome]:
        yield from ()  # it never waits for actions: it asks its agents itself
        context, simulation, environment = slot.context, self._simulation, slot.environment
        limit = simulation.command.max_steps or sys.maxsize
        calls = self._calls_of_players(explore=explore)
        finished_players, all_terminated = set[str](), True
        seen, infos = self._reset_players(environment, seed)
        if context.info is not None and slot.read is not None:
            context.info.begin(slot.read(infos))
        self._begin_agents(slot, calls, seed=seed, explore=explore)
        context.values = dict.fromkeys(seen, 0.0)
        while True:
            turns = [self._act(calls[name], self._players[name], *seen[name]) for name in seen]
            following, infos = self._step_with(environment, turns, finished_players)
            row = slot.read(infos) if slot.read is not None else None
            if monotonic() >= deadline:
                return "timed_out"
            context.steps += 1
            for turn in turns:
                turn.truncated = turn.truncated or context.steps >= limit
                name = turn.player.name
                context.values[name] = context.values.get(name, 0.0) + turn.reward
            context.value = sum(context.values.values())
            try:
                slot.recorder.step_players({turn.player.name: turn.row() for turn in turns}, row)
            except OSError as error:
                raise NotRecorded(one_line(error)) from error
            if context.info is not None:
                context.info.add(row)
            leaving = [turn for turn in turns if turn.terminated or turn.truncated]
            finished_players.update(turn.player.name for turn in leaving)
            all_terminated = all_terminated and all(turn.terminated for turn in leaving)
            seen = {name: value for name, value in following.items() if name not in finished_players}
            over = not seen or context.steps >= limit
            if not over and simulation.stopping:
                return "cancelled"
            for turn in turns:
                self._learn(turn, calls[turn.player.name], following[turn.player.name][0], seed=seed)
            if over:
                return "terminated" if all_terminated else "truncated"

    def _calls_of_players(self, *, explore: bool) -> dict[str, Calls]:
        """By player."""
        alone = self._simulation.command.workers == 1
        return {
            name: player.agent.calls(
                self._number, alone=alone, explore=explore, worker=self._number, player=name
            )
            for name, player in self._players.items()
        }

    def _begin_agents(self, slot: LocalSlot, calls: Mapping[str, Calls], *, seed: int, explore: bool) -> None:
        """Tells each agent once, whomever it plays."""
        agents = {player.agent.name: calls[name] for name, player in self._players.items()}
        if any(found.begin is not None for found in agents.values()):
            notices.begin(slot, agents, seed=seed, workers=self._streams, explore=explore)

    def _reset_players(self, environment: Any, seed: int) -> tuple[dict[str, tuple[Any, Any]], Any]:
        """The observation of each player, with its encoding for the recorder, and the infos. Raises ValueError and what the environment raises."""
        returned = environment.reset(seed=seed)
        try:
            observations, infos = returned
        except (TypeError, ValueError):
            raise ValueError("it did not return (observations, infos)") from None
        live = list(environment.agents)
        if not live:
            raise ValueError("it has no player")
        return self._observed_by(live, observations), infos

    def _act(self, calls: Calls, player: _Player, observation: Any, encoded: Any) -> _Turn:
        self._enter_agent(player.agent.name, f"{ACT} of {player.name}")
        action, extras = calls.act(observation)
        return _Turn(
            player=player,
            observation=observation,
            encoded=encoded,
            action=action,
            version=calls.weights.version,
            extras=extras,
        )

    def _step_with(
        self, environment: Any, turns: Sequence[_Turn], finished_players: set[str]
    ) -> tuple[dict[str, tuple[Any, Any]], Any]:
        """Steps the environment with these turns, and notes what came of them; observations and infos, as of `_reset_players`."""
        self._context.where = STEP
        returned = environment.step(
            {
                turn.player.name: turn.action
                if (copied := turn.player.copied) is None
                else copied(turn.action)
                for turn in turns
            }
        )
        try:
            observations, rewards, terminations, truncations, infos = returned
        except (TypeError, ValueError):
            raise ValueError(
                "it did not return (observations, rewards, terminations, truncations, infos)"
            ) from None
        for turn in turns:
            turn.terminated = flag(_of(terminations, turn.player.name, "termination"), "termination")
        for turn in turns:
            turn.truncated = flag(_of(truncations, turn.player.name, "truncation"), "truncation")
        live = [name for name in environment.agents if name not in finished_players]
        for turn in turns:
            if turn.player.name not in live and not (turn.terminated or turn.truncated):
                raise ValueError(
                    f"player {turn.player.name!r} is not in agents any more, but neither terminated nor truncated"
                )
        acted = [turn.player.name for turn in turns]
        observed = self._observed_by(dict.fromkeys([*acted, *live]), observations)
        for turn in turns:
            turn.reward = _reward(turn.player.name, _of(rewards, turn.player.name, "reward"))
            if turn.player.agent.needs_info:
                turn.info = plain_info(infos.get(turn.player.name) if isinstance(infos, dict) else None)
        return observed, infos

    def _observed_by(self, names: Iterable[str], observations: Any) -> dict[str, tuple[Any, Any]]:
        found = {}
        for name in names:
            player = self._players.get(name)
            if player is None:
                raise ValueError(f"player {name!r} is in agents, but not in possible_agents")
            observation = _of(observations, name, "observation")
            try:
                found[name] = player.observed(observation)
            except ValueError as error:
                raise spaces.named(f"player {name!r}: observation", error) from None
        return found

    def _learn(self, turn: _Turn, calls: Calls, following: Any, *, seed: int) -> None:
        if calls.learn is not None:
            context = self._context
            self._enter_agent(turn.player.agent.name, f"{calls.learns_in} of {turn.player.name}")
            calls.learn(
                Transition(
                    observation=turn.observation,
                    action=turn.action,
                    reward=turn.reward,
                    next_observation=following,
                    terminated=turn.terminated,
                    truncated=turn.truncated,
                    episode=context.index,
                    worker=context.number,
                    step=context.steps - 1,
                    seed=seed,
                    player=turn.player.name,
                    info=turn.info,
                    extras=turn.extras,
                )
            )


def _players_of(environment: Any) -> list[str]:
    if hasattr(environment, "agent_iter"):
        if (getattr(environment, "metadata", None) or {}).get("is_parallelizable") is False:
            raise ConductorError(
                "its players take turns (AEC), and PettingZoo cannot wrap it (is_parallelizable: False): make it an environment "
                "of one player, whose step plays the others"
            )
        raise ConductorError(
            "its players take turns (AEC); wrap it with pettingzoo.utils.conversions.aec_to_parallel"
        )
    if not hasattr(environment, "possible_agents"):
        raise ConductorError("it has one player (no possible_agents): say one agent, in a list")
    players = list(environment.possible_agents)
    if not players:
        raise ConductorError("its possible_agents are empty")
    odd = [player for player in players if not isinstance(player, str)]
    if odd:
        raise ConductorError(f"player {odd[0]!r} is of type {type(odd[0]).__name__}: names must be texts")
    return players


def _spaces_of(environment: Any, player: str) -> tuple[SpaceSpec, SpaceSpec]:
    found = []
    for role in ("observation_space", "action_space"):
        try:
            space = getattr(environment, role)(player)
        except Exception as error:
            raise ConductorError(reason_of(error).within(f"{role}({player!r})")) from error
        found.append(spaces.describe(space, role=f"{role}({player!r})"))
    return found[0], found[1]


def _of(values: Any, player: str, what: str) -> Any:
    try:
        return values[player]
    except (LookupError, TypeError):
        raise ValueError(f"player {player!r}: {what}: none is there") from None


def _reward(player: str, reward: Any) -> float:
    try:
        return finite_reward(reward)
    except ValueError as error:
        raise ValueError(f"player {player!r}: {error}") from None


def _listed(names: Iterable[str]) -> str:
    return ", ".join(map(repr, names))
