"""Environments of several players in the simulation's own process.

Rules:
1. Faults, seeds and order are those of `stepping.LocalEpisodeWorker`, player by player; a fault names its player.
2. An agent that plays several players is one object: `player` is passed to its `act` or `learn` if they have that parameter.
"""

from __future__ import annotations

import sys
from dataclasses import dataclass
from time import monotonic
from typing import TYPE_CHECKING, Any, Protocol

from governor.episodes import spaces
from governor.episodes.context import reports
from governor.episodes.entries import make_environment
from governor.episodes.info import InfoFigures, columns_of, reader_of
from governor.episodes.local import notices
from governor.episodes.local.execution_context import ACT, BUILD, JOIN, METRICS, SAVE, STEP, NotRecorded
from governor.episodes.local.one_episode import EpisodeSource
from governor.episodes.local.stepping import LocalEpisodeWorker
from governor.episodes.players.assignment import (
    assign_agents,
    game_of,
    names_of,
    require_same_spaces,
    spaces_of,
    takes_turns,
)
from governor.episodes.players.course import Action, EpisodeCourse
from governor.errors import ConductorError
from governor.failures import one_line

if TYPE_CHECKING:
    from collections.abc import Callable, Generator, Mapping

    from governor.episodes.local.execution_context import ExecutionContext
    from governor.episodes.local.local_agent import Calls, LocalAgent
    from governor.episodes.local.stepping import LocalSlot
    from governor.episodes.players.course import Learnable
    from governor.episodes.players.game import Game, PlayerReader, Seen
    from governor.episodes.records.recording import Columns, StepRecorder
    from governor.episodes.spaces import SpaceSpec
    from governor.messages import EpisodeOutcome, Made


class PlayersSource(EpisodeSource, Protocol):
    """What the worker needs of the part whose episodes it plays; `simulation.Simulation` implements it."""

    def recorder_of(self, worker: int, columns: Columns) -> StepRecorder: ...


@dataclass(frozen=True, slots=True, kw_only=True)
class _Player:
    """The agent of a player; `encode` is for its actions, None for plain ones."""

    name: str
    agent: LocalAgent
    encode: Callable[[Any], Any] | None


class LocalPlayersWorker(LocalEpisodeWorker):
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
        self._game: Game

    # -- building -------------------------------------------------------------------------------------------

    def _build(self, slot: LocalSlot) -> None:
        from governor.episodes.records.recording import Columns  # noqa: PLC0415  # Arrow: not for the forkserver

        context, made = slot.context, self._made
        command = self._simulation.command
        slot.resets = self._simulation.resets
        context.enter(BUILD, seconds=command.build_seconds)
        environment, self._built = self._built, None
        if environment is None:
            environment = make_environment(made.entry, made.params, self._user_context, made.wrappers)
        slot.environment = environment
        wanted = command.info
        try:
            names = names_of(environment, vector=made.vector)
            assignment = assign_agents(names, agents=command.agents, given=command.players)
            known = spaces_of(environment, names)
            require_same_spaces(assignment, known)
            columns = Columns.of_players(known, wanted, turns=takes_turns(environment))
        except ConductorError as error:
            raise ConductorError(f"environment {made.entry!r}: {error.reason}") from error
        slot.read = reader_of(wanted, [*known])
        context.info = InfoFigures(wanted, columns_of(wanted, [*known])) if wanted else None
        self._game, readers = game_of(environment, known, slot.read)
        context.where = JOIN
        self._players = {
            player: self._join(readers[player], assignment[player], *known[player]) for player in known
        }
        context.leave()
        slot.recorder = self._recorder_of(self._number, columns)

    def _join(self, reader: PlayerReader, name: str, observation: SpaceSpec, action: SpaceSpec) -> _Player:
        self._context.agent = name
        agent = self._agents[name]
        learns_from = self._streams if self._simulation.command.mode == "train" else 1
        agent.join(self._number, observation, action, learns_from=learns_from)
        reader.masked, reader.informed = agent.is_masked, agent.needs_info
        return _Player(name=reader.name, agent=agent, encode=spaces.encoder(action))

    # -- one episode ----------------------------------------------------------------------------------------

    def _end_training_episode(self, slot: LocalSlot, outcome: EpisodeOutcome) -> None:
        notices.end(slot, outcome)
        for name, agent in self._agents.items():
            self._enter_agent(name, METRICS)
            found = agent.metrics()
            if len(self._agents) > 1:
                found = {f"{name}.{key}": value for key, value in found.items()}
            reports.add(found, of="metrics()")
            self._enter_agent(name, SAVE)
            agent.episode_ended(self._context.index)

    def _enter_agent(self, name: str, where: str) -> None:
        """Sets `agent` before `where`, because the watch reads the agent of `where`."""
        self._context.agent = name
        self._context.where = where

    def _steps(
        self, slot: LocalSlot, seed: int, deadline: float, *, explore: bool
    ) -> Generator[tuple[Any, Any], Any, EpisodeOutcome]:
        yield from ()  # it never waits for actions: it asks its agents itself
        context, simulation, game = slot.context, self._simulation, self._game
        calls = self._calls_of_players(explore=explore)
        first = game.reset(seed)
        course = EpisodeCourse(
            first,
            limit=simulation.command.max_steps or sys.maxsize,
            episode=context.index,
            worker=context.number,
            seed=seed,
        )
        if context.info is not None:
            context.info.begin(first.info)
        self._begin_agents(slot, calls, seed=seed, explore=explore)
        context.values = course.values
        while True:
            actions = {
                name: self._act(calls[name], self._players[name], seen) for name, seen in course.seen.items()
            }
            context.where = STEP
            stepped = game.step({name: action.value for name, action in actions.items()}, last=course.is_last)
            if monotonic() >= deadline:
                return "timed_out"
            learnable = course.take(actions, stepped)
            context.steps, context.value = course.steps, course.value
            try:
                slot.recorder.step_players(course.row, stepped.info)
            except OSError as error:
                raise NotRecorded(one_line(error)) from error
            if context.info is not None:
                context.info.add(stepped.info)
            if not course.is_over and simulation.interrupts and simulation.interrupted(context.index):
                return "cancelled"
            for one in learnable:
                self._learn(one, calls[one.player])
            if course.is_over:
                return course.outcome

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

    def _act(self, calls: Calls, player: _Player, seen: Seen) -> Action:
        self._enter_agent(player.agent.name, f"{ACT} of {player.name}")
        observation = seen.observation
        value, extras = calls.act(observation, seen.mask)
        encoded = value if player.encode is None else player.encode(value)
        return Action(value, encoded, calls.weights.version, extras)

    def _learn(self, learnable: Learnable, calls: Calls) -> None:
        if calls.learn is not None:
            self._enter_agent(
                self._players[learnable.player].agent.name, f"{calls.learns_in} of {learnable.player}"
            )
            calls.learn(learnable.transition)
