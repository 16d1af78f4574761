"""One episode in the caller's thread, for a person who looks at it: prints, breakpoints and tracebacks of user code are as in a script.

Rules:
1. Seed, values, the checks of values and the order of act and learn are those of the run, with a single worker and without a vector.
2. What user code raises leaves `play` as it is: here it is not the end of an episode among others.
3. Nothing has a deadline: a debugger takes the time that it takes.
4. The environment is there until `close`: a debugger looks at it after the end.
"""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Any, NamedTuple

import msgspec

from governor.episodes.context import Context, reports
from governor.episodes.local import local_agent, notices
from governor.episodes.local.execution_context import SAVE, ExecutionContext, current_episodes
from governor.episodes.local.one_episode import OneEpisode
from governor.episodes.local.players import LocalPlayersWorker
from governor.episodes.local.stepping import LocalEpisodeWorker
from governor.episodes.players.assignment import SeveralPlayers
from governor.episodes.records.recording import Columns, StepRecorder
from governor.episodes.rules.evaluation import entropy
from governor.episodes.rules.seeds import episode_seed
from governor.episodes.spaces import decoder
from governor.episodes.vectors.vector_environment import OneOfVector
from governor.errors import ConductorError
from governor.messages import COMPLETE

if TYPE_CHECKING:
    from collections.abc import Callable, Generator
    from pathlib import Path

    from governor.episodes.local.stepping import LocalSlot
    from governor.episodes.spaces import SpaceSpec
    from governor.messages import EpisodeOutcome, EpisodeRecord, StartSimulation


class ForegroundStep(NamedTuple):
    """One step of a player (``""`` if there is only one); observation and action as user code gets them, None of a player that did
    not act, but got a reward or left.
    """

    number: int
    player: str
    observation: Any
    action: Any
    reward: float
    terminated: bool
    truncated: bool


class ForegroundEpisode(OneEpisode):
    """One episode of the command's phase; the `one_episode.EpisodeSource` of its worker. `where` tells whose code runs, as
    ``environment.step``. `show` gets each step as soon as the environment has returned.
    """

    def __init__(
        self, command: StartSimulation, index: int, *, folder: Path, show: Callable[[ForegroundStep], None]
    ) -> None:
        """`folder` gets the states that agents save."""
        made = command.made_environment
        if made is None:
            raise ConductorError("the command does not say what its environment is made of")
        self._made = msgspec.structs.replace(made, vector=1)
        self.command = msgspec.structs.replace(command, workers=1, vector=1, episode_timeout=None)
        self.seed = episode_seed(command.seed, *entropy(index, command))
        self.play_next = index
        self._folder = folder
        self._show = show
        context = partial(Context, run_id="try", run_folder=folder)
        self._agents = local_agent.of_phase(
            command, run_seed=command.seed, run_folder=folder, context=lambda name: context(name=name)
        )
        self._of_environment = context(name=f"environment.{command.environment}")
        self._context = ExecutionContext(number=0, command=command, owner=0, agent=command.agents[0])
        reports.phase = command.name
        reports.bind(partial(current_episodes, [self._context]))
        self._worker: LocalEpisodeWorker | None = None
        self.columns: Columns | None = None
        """What a step consists of, when the environment is built."""

    @property
    def where(self) -> str:
        return self._context.where

    @property
    def agent(self) -> str:
        """The name of the agent that `where` refers to."""
        return self._context.agent

    @property
    def steps(self) -> int:
        """Steps that are over."""
        return self._context.steps

    def play(self) -> EpisodeRecord:
        """Raises what user code raises, and ConductorError for what cannot be built, with that as its cause."""
        built = None
        if len(self._agents) == 1 and not self.command.players:
            try:
                agent = next(iter(self._agents.values()))
                worker = _Worker(self, [self._context], agent, self._made, user_context=self._of_environment)
                return self._play(worker)
            except SeveralPlayers as found:
                built = found.environment
        several = _LocalPlayersWorker(
            self, self._context, self._agents, self._made, built=built, user_context=self._of_environment
        )
        return self._play(several)

    def _play(self, worker: LocalEpisodeWorker) -> EpisodeRecord:
        self._worker = worker
        worker.play_all()
        if self.played is None:
            raise ConductorError("the episode was not played")
        return self.played

    @property
    def learns(self) -> bool:
        """Whether an agent of it has learned."""
        return self.trains(self.played.index if self.played else 0) and any(
            agent.learns for agent in self._agents.values()
        )

    def reload_states(self) -> list[str]:
        """Saves the state of each agent that has one, and loads it into a second instance; their names. Raises as `LocalAgent.reload`."""
        found = []
        for name, agent in self._agents.items():
            self._context.agent, self._context.where = name, SAVE
            if agent.reload():
                found.append(name)
        return found

    def close(self) -> None:
        """Closes the environment. Raises what its `close` raises."""
        if self._worker is not None:
            self._worker.close()

    # -- EpisodeSource ----------------------------------------------------------------------------------------

    def seed_of(self, index: int) -> int:  # noqa: ARG002  # its only one
        return self.seed

    def recorder(self, worker: int, observation: SpaceSpec, action: SpaceSpec) -> StepRecorder:
        return self.recorder_of(worker, Columns.of(observation, action, self.command.info))

    def recorder_of(self, worker: int, columns: Columns) -> StepRecorder:
        self.columns = columns
        return _ShownSteps(
            self._folder, phase=self.command.name, worker=worker, columns=columns, show=self._show
        )

    def trains(self, index: int) -> bool:
        return self.command.mode == "train" and index < self.command.episodes


class _Worker(LocalEpisodeWorker):
    """Rule 2."""

    def _make(self) -> Any:
        if self._made.vector_mode == "native":
            return OneOfVector(self._made, self._user_context)
        return super()._make()

    def _play(
        self, slot: LocalSlot, seed: int, deadline: float
    ) -> Generator[tuple[Any, Any], Any, tuple[EpisodeOutcome, str]]:
        trains = self._simulation.trains(slot.context.index or 0)
        outcome = yield from self._steps(slot, seed, deadline, explore=trains)
        if outcome in COMPLETE and trains:
            self._end_training_episode(slot, outcome)
        notices.end(slot, outcome)
        return outcome, ""

    def _close(self, slot: LocalSlot) -> None:
        environment, slot.environment = slot.environment, None
        close = getattr(environment, "close", None)
        if close is not None:
            close()


class _LocalPlayersWorker(_Worker, LocalPlayersWorker):
    """Likewise, of several players."""


class _ShownSteps(StepRecorder):
    """Shows each step instead of recording it."""

    def __init__(self, folder: Path, *, show: Callable[[ForegroundStep], None], **settings: Any) -> None:
        super().__init__(folder, **settings)
        self.most = 1
        self._show = show
        self._number = 0

    def flush(self) -> None:
        pending, width = list(self.steps), self.columns.width
        del self.steps[:]
        alone = self.columns.alone
        slots = self.columns.players if alone is None else (("", alone),)
        for first in range(0, len(pending), width):
            self._number += 1
            row = pending[first : first + width]
            by_player = row if alone is None else (row,)
            for (name, slot), values in zip(slots, by_player, strict=False):  # a last item is of `info`
                if values is None:  # the player took no part
                    continue
                observation, action, reward, terminated, truncated, *_ = values
                shown = None, None
                if observation is not None:
                    shown = decoder(slot.observation)(observation), decoder(slot.action)(action)
                elif not (reward or terminated or truncated):
                    continue
                self._show(ForegroundStep(self._number, name, *shown, reward, terminated, truncated))
