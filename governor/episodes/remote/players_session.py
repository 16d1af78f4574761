"""The episodes of several players that one worker plays with the agent: one at a time, each player with its own turns.

Rules:
1. The last observation and action of each player are stored, so its next observation completes a transition.
2. A message is learned in the order of its rows, before the agent acts for any of them. The first fault ends the episode: what
   comes behind it is neither learned nor asked.
3. The agent is told once of the begin and the end of an episode, whomever it plays.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from governor.episodes.context import reports
from governor.episodes.remote import frames, wire
from governor.episodes.remote.agent_episode import AgentEpisode
from governor.episodes.transition import Episode
from governor.failures import Reason
from governor.output.attribution import episode_fields

if TYPE_CHECKING:
    from collections.abc import Sequence

    from governor.episodes.remote.agent_runtime import AgentRuntime
    from governor.output.attribution import Attribution


class PlayersSession:
    """As `agent_session.AgentSession`."""

    def __init__(self, name: bytes, attribution: Attribution, *, worker: int, workers: int) -> None:
        self._name = name
        self._attribution = attribution
        self._worker = worker
        self._workers = workers
        self._whole = AgentEpisode(name)
        self._players: dict[str, AgentEpisode] = {}

    def answer(self, runtime: AgentRuntime, request: wire.PlayersRequest) -> bytes | None:
        """None if the answer is sent later."""
        match request:
            case wire.PlayersBeginFrame():
                return self._begin(runtime, request)
            case wire.PlayersActFrame():
                return self._act(runtime, request)
            case wire.PlayersFinishFrame():
                whole, self._whole = self._whole, AgentEpisode(self._name)
                failed = whole.fault is not None
                outcome = "failed" if failed else request.outcome
                over = whole.ended(outcome, request.value, request.steps, request.values)
                runtime.tell_end(whole, over, counts=not failed)
                return runtime.end(
                    [whole], lambda: finished(request.number, whole, self._attribution), session=self._name
                )

    def close(self, runtime: AgentRuntime) -> None:
        """Another session replaces it."""
        whole, self._whole = self._whole, AgentEpisode(self._name)
        runtime.tell_end(whole, whole.ended("crashed", whole.value, whole.steps), counts=False)

    def tell_ends(self, runtime: AgentRuntime, ended: Sequence[frames.EndedEpisode]) -> None:
        """Of an episode that the agent has not learned to its end."""
        for end in ended:
            whole = self._whole
            if whole.told is not None and whole.number == end.episode:
                self._whole = AgentEpisode(self._name)
                over = whole.ended(end.outcome, end.value, end.steps, end.values)
                runtime.tell_end(whole, over, counts=False)

    def _begin(self, runtime: AgentRuntime, request: wire.PlayersBeginFrame) -> bytes:
        self.tell_ends(runtime, request.ended)
        fields = episode_fields(request.phase, request.episode, request.evaluation)
        self._attribution.begin_raw(**fields)
        reports.phase, train = request.phase, request.train
        self._players.clear()
        whole = self._whole = AgentEpisode(
            self._name,
            0,
            request.episode,
            explore=train,
            learn=train and runtime.learns,
            evaluation=request.evaluation,
            prefix=request.prefix,
            told=Episode(
                number=request.episode,
                phase=request.phase,
                seed=request.seed,
                worker=self._worker,
                workers=self._workers,
                explore=train,
                evaluation=request.evaluation,
            ),
        )
        runtime.begin(whole)
        if whole.fault is not None:
            return wire.encode(wire.fault(request.number, *whole.fault))
        return wire.encode(wire.FinishedFrame(request.number, reported_for(whole)))

    def _act(self, runtime: AgentRuntime, request: wire.PlayersActFrame) -> bytes:
        whole = self._whole
        acting = []
        for row in request.rows:
            observation = received(runtime, row.observation)
            episode = self._learn(runtime, row, observation)
            if whole.fault is not None:
                return wire.encode(wire.fault(request.number, *whole.fault))
            episode.observation, episode.mask = observation, row.mask
            if row.kind != wire.LAST:
                acting.append(episode)
        version = 0
        for episode in acting:
            version = runtime.act((episode,), explore=whole.explore)
            if whole.fault is not None:
                return wire.encode(wire.fault(request.number, *whole.fault))
        actions = [sent(runtime, episode.action) for episode in acting]
        return wire.encode(wire.PlayersActedFrame(request.number, actions, version, reported_for(whole)))

    def _learn(self, runtime: AgentRuntime, row: wire.PlayerRow, observation: Any) -> AgentEpisode:
        """The turns of the player of this row, which are learned so far."""
        whole = self._whole
        if row.kind == wire.FIRST:
            episode = self._players[row.player] = AgentEpisode(
                self._name,
                0,
                whole.number,
                explore=whole.explore,
                learn=whole.learn,
                reported=whole.reported,
                evaluation=whole.evaluation,
                told=whole.told,
                player=row.player,
                whole=whole,
            )
            return episode
        episode = self._players.get(row.player, whole)
        if episode.action is None:
            whole.fault = "agent.learn", Reason("ValueError: a step without an action before it")
            return episode
        episode.steps = whole.steps = row.step + 1
        whole.value += row.reward
        if episode.learn:
            ends = bool(row.end & wire.TERMINATED), bool(row.end & wire.TRUNCATED)
            runtime.learn(episode, episode.stepped(observation, row.reward, ends=ends, info=row.info))
        return episode


def received(runtime: AgentRuntime, observation: Any) -> Any:
    return observation if runtime.received is None else runtime.received(observation)


def sent(runtime: AgentRuntime, action: Any) -> Any:
    return action if runtime.sent is None else runtime.sent(action)


def finished(number: int, episode: AgentEpisode, attribution: Attribution) -> bytes:
    """Raw bytes are of no episode of this worker until it begins one."""
    attribution.end()
    if episode.fault is not None:
        return wire.encode(wire.fault(number, *episode.fault))
    return wire.encode(wire.FinishedFrame(number, reported_for(episode)))


def reported_for(episode: AgentEpisode) -> Any:
    """What was reported for it since the last answer, and by other threads."""
    reports.finish(episode.reported)
    return reports.take(episode.reported)
