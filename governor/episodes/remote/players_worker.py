"""Episodes of several players through conductors: the environment in one, each agent in its own.

Rules:
1. Episodes, and what each agent is asked and told, are those of `local.players`.
2. A step is one round trip to the environment, and one to each agent that acts or learns then, one agent after the other.
3. When any of their conductors exits, the episode is played again, as with one player.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from governor.episodes.players.assignment import assign_agents, one_player, require_same_spaces
from governor.episodes.players.course import Action, EpisodeCourse
from governor.episodes.players.game import Seen, Stepped
from governor.episodes.remote import wire
from governor.episodes.remote.rounds import SingleWorker
from governor.episodes.remote.worker import ConductorUnavailable
from governor.episodes.rules.evaluation import number_of
from governor.episodes.spaces import is_array
from governor.errors import ConductorError
from governor.failures import one_line

if TYPE_CHECKING:
    from collections.abc import Sequence

    from governor.episodes.players.course import Learnable
    from governor.episodes.records.recording import StepRecorder
    from governor.episodes.remote import control
    from governor.episodes.remote.episode_attempt import EpisodeAttempt
    from governor.episodes.spaces import SpaceSpec


class PlayersWorker(SingleWorker):
    """A `SingleWorker` whose environment has several players."""

    def _accept(self, lease: control.Leased) -> None:
        command = self.simulation.command
        try:
            if not lease.players:
                raise one_player()
            names = [*lease.players]
            self._players = assign_agents(names, agents=command.agents, given=command.players)
            require_same_spaces(self._players, lease.players)
        except ConductorError as error:
            raise ConductorUnavailable(f"environment {command.environment!r}: {error.reason}") from error

    def _spaces_for(self, agent: str, lease: control.Leased) -> tuple[SpaceSpec, SpaceSpec]:
        return next(lease.players[player] for player, name in self._players.items() if name == agent)

    def _recorder_of(self, number: int) -> StepRecorder:
        from governor.episodes.records.recording import Columns  # noqa: PLC0415  # Arrow: not for the forkserver

        lease = self._lease
        if lease is None:
            raise ConductorUnavailable("steps cannot be recorded without an environment")
        try:
            columns = Columns.of_players(lease.players, self.simulation.command.info, turns=lease.turns)
        except ConductorError as error:
            environment = self.simulation.command.environment
            raise ConductorUnavailable(f"environment {environment!r}: {error.reason}") from error
        self._arrays = {
            player: (is_array(observation), is_array(action))
            for player, (observation, action) in lease.players.items()
        }
        return self.simulation.recorder_of(number, columns)

    # -- one episode ----------------------------------------------------------------------------------------

    def _play(self, attempt: EpisodeAttempt) -> None:
        environment = self._connected(self._environment)
        evaluation = number_of(attempt.index, self.simulation.command)
        reset = self._reset_frame(environment, attempt, evaluation)
        answer = self._ask(environment, reset, attempt, wire.PlayersSteppedFrame)
        if answer is None:
            return
        stepped = self._stepped_by(answer)
        attempt.begin_info(stepped.info)
        course = EpisodeCourse(
            stepped, limit=self._limit, episode=attempt.index, worker=self.number, seed=attempt.seed
        )
        attempt.values = course.values
        if not self._begin_with_agents(attempt, evaluation):
            return
        learnable: list[Learnable] = []
        while (actions := self._ask_agents(attempt, course, learnable)) is not None and not course.is_over:
            step = wire.PlayersStepFrame(
                environment.next_number(),
                {player: action.value for player, action in actions.items()},
                course.is_last,
            )
            answer = self._ask(environment, step, attempt, wire.PlayersSteppedFrame)
            if answer is None:
                return
            stepped = self._stepped_by(answer)
            learnable = course.take(actions, stepped)
            if not self._record(attempt, course, stepped):
                return
            self._reports.send_due()
        if actions is not None and (not self._train or self._finish_with_agents(attempt, course)):
            self._end_in_time(attempt, course.outcome)

    def _record(self, attempt: EpisodeAttempt, course: EpisodeCourse, stepped: Stepped) -> bool:
        """Whether the episode goes on, or is over in order."""
        attempt.steps, attempt.value = course.steps, course.value
        if attempt.info is not None:
            attempt.info.add(stepped.info)
        try:
            attempt.slot.recorder.step_players(course.row, stepped.info)
        except OSError as error:
            self._end(attempt, "failed", f"cannot record its steps: {one_line(error)}")
            return False
        if self.simulation.interrupted(attempt.index) and not course.is_over:
            self._end(attempt, "cancelled")
            return False
        return True

    # -- the agents -----------------------------------------------------------------------------------------

    def _begin_with_agents(self, attempt: EpisodeAttempt, evaluation: int) -> bool:
        """Whether the episode is still in play."""
        command = self.simulation.command
        for name in command.agents:
            channel = self._connected(self._agents.get(name))
            prefix = f"{name}." if len(command.agents) > 1 else ""
            begin = wire.PlayersBeginFrame(
                channel.next_number(),
                self._train,
                attempt.index,
                command.name,
                evaluation,
                prefix,
                attempt.seed,
                self._take_ended(name),
            )
            if self._ask(channel, begin, attempt, wire.FinishedFrame) is None:
                return False
        return True

    def _ask_agents(
        self, attempt: EpisodeAttempt, course: EpisodeCourse, learnable: Sequence[Learnable]
    ) -> dict[str, Action] | None:
        """What those who act do, in their order, when all agents have learned; None if the episode has ended instead."""
        found: dict[str, Action] = {}
        for name in self.simulation.command.agents:
            rows = self._rows(course, learnable, name)
            if not rows:
                continue
            channel = self._connected(self._agents.get(name))
            request = wire.PlayersActFrame(channel.next_number(), rows)
            acted = self._ask(channel, request, attempt, wire.PlayersActedFrame)
            if acted is None:
                return None
            acting = [row.player for row in rows if row.kind != wire.LAST]
            for player, action in zip(acting, acted.actions, strict=True):
                encoded = action.tobytes() if self._arrays[player][1] else action
                found[player] = Action(action, encoded, acted.weight_version)
        return {player: found[player] for player in course.seen}

    def _rows(
        self, course: EpisodeCourse, learnable: Sequence[Learnable], agent: str
    ) -> list[wire.PlayerRow]:
        """What this agent learns and sees."""
        rows = []
        informed = self._train and agent in self._informed
        for player, transition, seen in learnable:
            if self._players[player] != agent:
                continue
            kind = wire.NEXT if player in course.seen else wire.LAST
            if kind == wire.NEXT or self._train:
                end = wire.TERMINATED * transition.terminated | wire.TRUNCATED * transition.truncated
                step = kind, seen.observation, transition.reward, end, transition.step
                rows.append(wire.PlayerRow(player, *step, seen.info if informed else None, seen.mask))
        learned = {one.player for one in learnable}
        return rows + [
            wire.PlayerRow(player, wire.FIRST, seen.observation, mask=seen.mask)
            for player, seen in course.seen.items()
            if player not in learned and self._players[player] == agent
        ]

    def _finish_with_agents(self, attempt: EpisodeAttempt, course: EpisodeCourse) -> bool:
        """Whether all have reported and saved."""
        for name in self.simulation.command.agents:
            channel = self._connected(self._agents.get(name))
            finish = wire.PlayersFinishFrame(
                channel.next_number(), course.outcome, course.value, course.steps, course.values
            )
            if self._ask(channel, finish, attempt, wire.FinishedFrame) is None:
                return False
        return True

    def _stepped_by(self, answer: wire.PlayersSteppedFrame) -> Stepped:
        return Stepped(
            acting=answer.acting,
            seen={
                player: Seen(
                    observation, observation.tobytes() if self._arrays[player][0] else observation, mask, info
                )
                for player, (observation, mask, info) in answer.seen.items()
            },
            rewards=answer.rewards,
            ends={
                player: (bool(end & wire.TERMINATED), bool(end & wire.TRUNCATED))
                for player, end in answer.ends.items()
            },
            info=answer.info,
        )
