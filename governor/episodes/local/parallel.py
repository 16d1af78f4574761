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
from dataclasses import dataclass
from time import monotonic
from typing import TYPE_CHECKING, Any, NamedTuple

from governor.episodes import spaces
from governor.episodes.conforming import observer
from governor.episodes.entries import make_environment, one_line
from governor.episodes.local.execution_context import ACT, BUILD, JOIN, LEARN, SAVE, STEP
from governor.episodes.local.stepping import LocalEpisodeWorker, NotRecorded
from governor.episodes.spaces import finite_reward, flag
from governor.episodes.transition import Transition
from governor.errors import ConductorError

if TYPE_CHECKING:
    from collections.abc import Generator, Iterable, Mapping

    from governor.episodes.conforming import Observer
    from governor.episodes.local.execution_context import ExecutionContext
    from governor.episodes.local.local_agent import Calls, LocalAgent
    from governor.episodes.local.stepping import LocalSlot
    from governor.episodes.simulation import Simulation
    from governor.episodes.spaces import SpaceSpec
    from governor.messages import EpisodeOutcome, Made


@dataclass(frozen=True, slots=True, kw_only=True)
class _Player:
    """The agent of a player, and the form of its values; `plain`: its actions are numbers, not arrays."""

    name: str
    agent: LocalAgent
    observed: Observer
    plain: bool


class _Step(NamedTuple):
    """The result of a step by player: rewards and flags of the players that acted, observations also of new players, each
    as (value, encoded for the recorder).
    """

    observations: dict[str, tuple[Any, Any]]
    rewards: dict[str, float]
    terminated: dict[str, bool]
    truncated: dict[str, bool]

    def leaving_players(self) -> set[str]:
        return {name for name in self.rewards if self.terminated[name] or self.truncated[name]}


class ParallelWorker(LocalEpisodeWorker):
    """A `LocalEpisodeWorker` whose environment has several players. `built` is the first environment, if it exists already."""

    def __init__(
        self,
        simulation: Simulation,
        context: ExecutionContext,
        agents: Mapping[str, LocalAgent],
        made: Made,
        *,
        built: Any = None,
    ) -> None:
        super().__init__(simulation, [context], next(iter(agents.values())), made)
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
            environment = make_environment(made.entry, made.params)
        try:
            assignment = self._assign_agents(_players_of(environment))
            known = {player: _spaces_of(environment, player) for player in assignment}
            self._check_same_spaces(assignment, known)
            columns = Columns.of_players(known)
        except ConductorError as error:
            raise ConductorError(f"environment {made.entry!r}: {error.reason}") from error
        context.where = JOIN
        self._players = {
            player: self._join(player, assignment[player], *known[player]) for player in assignment
        }
        context.leave()
        slot.environment = environment
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
        agent.join(self._number, observation, action)
        return _Player(
            name=player,
            agent=agent,
            observed=observer(observation),
            plain=isinstance(action, spaces.Discrete),
        )

    def _renew_agents(self) -> None:
        for agent in self._agents.values():
            agent.renew()

    # -- one episode ----------------------------------------------------------------------------------------

    def _end_training_episode(self, context: ExecutionContext) -> None:  # noqa: ARG002  # its only one
        for name, agent in self._agents.items():
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
        finished_players: set[str] = set()
        all_terminated = True
        seen = self._reset(environment, seed)
        context.values = dict.fromkeys(seen, 0.0)
        while True:
            chosen = {
                name: self._act(name, calls[name], observation) for name, (observation, _) in seen.items()
            }
            actions = {name: action for name, (action, _) in chosen.items()}
            step = self._step_with(environment, actions, finished_players)
            if monotonic() >= deadline:
                return "timed_out"
            context.steps += 1
            if context.steps >= limit:
                step = step._replace(truncated=dict.fromkeys(actions, True))
            self._add_rewards(step.rewards)
            try:
                slot.recorder.step_players(self._rows(seen, chosen, step))
            except OSError as error:
                raise NotRecorded(one_line(error)) from error
            leaving = step.leaving_players()
            finished_players |= leaving
            all_terminated = all_terminated and all(step.terminated[name] for name in leaving)
            following = {
                name: value for name, value in step.observations.items() if name not in finished_players
            }
            over = not following or context.steps >= limit
            if not over and simulation.stopping:
                return "cancelled"
            self._learn(calls, seen, actions, step)
            if over:
                return "terminated" if all_terminated else "truncated"
            seen = following

    def _calls_of_players(self, *, explore: bool) -> dict[str, Calls]:
        """By player."""
        alone = self._simulation.command.workers == 1
        return {
            name: player.agent.calls(self._number, alone=alone, explore=explore, player=name)
            for name, player in self._players.items()
        }

    def _reset(self, environment: Any, seed: int) -> dict[str, tuple[Any, Any]]:
        """The observation of each player, and its encoding for the recorder. Raises ValueError and what the environment raises."""
        returned = environment.reset(seed=seed)
        try:
            observations, _ = returned
        except (TypeError, ValueError):
            raise ValueError("it did not return (observations, infos)") from None
        live = list(environment.agents)
        if not live:
            raise ValueError("it has no player")
        return self._observed_by(live, observations)

    def _act(self, name: str, calls: Calls, observation: Any) -> tuple[Any, int]:
        """The action, and the version of the weights that chose it."""
        self._enter_agent(self._players[name].agent.name, f"{ACT} of {name}")
        return calls.act(observation), calls.weights.version

    def _step_with(self, environment: Any, actions: dict[str, Any], finished_players: set[str]) -> _Step:
        self._context.where = STEP
        given = {
            name: action if self._players[name].plain else action.copy() for name, action in actions.items()
        }
        returned = environment.step(given)
        try:
            observations, rewards, terminations, truncations, _ = returned
        except (TypeError, ValueError):
            raise ValueError(
                "it did not return (observations, rewards, terminations, truncations, infos)"
            ) from None
        terminated = {name: flag(_of(terminations, name, "termination"), "termination") for name in actions}
        truncated = {name: flag(_of(truncations, name, "truncation"), "truncation") for name in actions}
        live = [name for name in environment.agents if name not in finished_players]
        for name in actions:
            if name not in live and not (terminated[name] or truncated[name]):
                raise ValueError(
                    f"player {name!r} is not in agents any more, but neither terminated nor truncated"
                )
        return _Step(
            self._observed_by(dict.fromkeys([*actions, *live]), observations),
            {name: _reward(name, _of(rewards, name, "reward")) for name in actions},
            terminated,
            truncated,
        )

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
                raise ValueError(f"player {name!r}: observation: {error}") from None
        return found

    def _add_rewards(self, rewards: Mapping[str, float]) -> None:
        values = self._context.values
        for name, reward in rewards.items():
            values[name] = values.get(name, 0.0) + reward
        self._context.value = sum(values.values())

    def _rows(
        self, seen: Mapping[str, tuple[Any, Any]], chosen: Mapping[str, tuple[Any, int]], step: _Step
    ) -> dict[str, tuple[Any, ...]]:
        return {
            name: (
                seen[name][1],
                action if self._players[name].plain else action.tobytes(),
                step.rewards[name],
                step.terminated[name],
                step.truncated[name],
                version,
            )
            for name, (action, version) in chosen.items()
        }

    def _learn(
        self,
        calls: Mapping[str, Calls],
        seen: Mapping[str, tuple[Any, Any]],
        actions: Mapping[str, Any],
        step: _Step,
    ) -> None:
        for name, action in actions.items():
            learn = calls[name].learn
            if learn is not None:
                self._enter_agent(self._players[name].agent.name, f"{LEARN} of {name}")
                learn(
                    Transition(
                        observation=seen[name][0],
                        action=action,
                        reward=step.rewards[name],
                        next_observation=step.observations[name][0],
                        terminated=step.terminated[name],
                        truncated=step.truncated[name],
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
            raise ConductorError(f"{role}({player!r}): {one_line(error)}") from error
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
