"""The episodes that one worker plays with the agent: as many at once as it has environments, each in a slot with a number.

Rules:
1. A session stores the last observation and action of each slot, so the next observation completes a transition.
2. A step is learned before the next action is chosen, in the order of the requests and of their rows; with
   `max_staleness` it is learned asynchronously. The end of an episode in train mode is answered after all of it is learned.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from governor.episodes.context import reports
from governor.episodes.remote import wire
from governor.episodes.remote.agent_runtime import AgentEpisode
from governor.failures import Reason
from governor.output.attribution import Attribution, episode_fields

if TYPE_CHECKING:
    from governor.episodes.remote.agent_runtime import AgentRuntime


class AgentSession:
    """`name` is the identity of the worker's channel."""

    def __init__(self, name: bytes) -> None:
        self.attribution = Attribution()
        self._name = name
        self._episodes: dict[int, AgentEpisode] = {}

    def answer(self, runtime: AgentRuntime, request: wire.AgentRequest) -> bytes | None:
        """None if the answer is sent later."""
        match request:
            case wire.ActFrame():
                observation = _received(runtime, request.observation)
                episode = self._learn(runtime, 0, observation, request.reward, 0)
                episode.observation = observation
                return self._act(runtime, episode, request.number)
            case wire.BeginFrame():
                self.attribution.begin_raw(
                    **episode_fields(request.phase, request.episode, request.evaluation)
                )
                observation = _received(runtime, request.observation)
                episode = self._begin(runtime, request, 0, request.episode, observation)
                return self._act(runtime, episode, request.number)
            case wire.FinishFrame():
                end = wire.TERMINATED * request.terminated | wire.TRUNCATED * request.truncated
                observation = _received(runtime, request.observation)
                episode = self._learn(runtime, 0, observation, request.reward, end)
                del self._episodes[0]
                return runtime.end(
                    [episode], lambda: self._finished(request.number, episode), session=self._name
                )
            case wire.SaveFrame():
                return self._save(runtime, request.number)
            case wire.ActManyFrame():
                return self._act_many(runtime, request)

    def _begin(
        self,
        runtime: AgentRuntime,
        request: wire.BeginFrame | wire.ActManyFrame,
        slot: int,
        number: int,
        observation: Any,
    ) -> AgentEpisode:
        reports.phase, train = request.phase, request.train
        episode = self._episodes[slot] = AgentEpisode(
            self._name,
            slot,
            number,
            observation,
            explore=train,
            learn=train and runtime.learns,
            evaluation=request.evaluation,
        )
        return episode

    def _learn(
        self, runtime: AgentRuntime, slot: int, observation: Any, reward: float, end: int
    ) -> AgentEpisode:
        """The episode in this slot; it has a fault, if learning failed."""
        episode = self._episodes.get(slot)
        if episode is None or episode.action is None:
            episode = self._episodes[slot] = AgentEpisode(self._name)
            episode.fault = "agent.learn", Reason("ValueError: a step without an action before it")
        elif episode.learn:
            ends = bool(end & wire.TERMINATED), bool(end & wire.TRUNCATED)
            runtime.learn(episode, observation, reward, ends=ends)
        return episode

    def _act(self, runtime: AgentRuntime, episode: AgentEpisode, number: int) -> bytes:
        version = 0 if episode.fault else runtime.act((episode,), explore=episode.explore)
        if episode.fault is not None:
            return wire.encode(wire.fault(number, *episode.fault))
        return wire.encode(
            wire.ActedFrame(number, _sent(runtime, episode.action), version, _reported(episode))
        )

    def _save(self, runtime: AgentRuntime, number: int) -> bytes | None:
        work = AgentEpisode(self._name)

        def save() -> bytes:
            runtime.save(work)
            return self._finished(number, work)

        return runtime.end([], save, session=self._name)

    def _finished(self, number: int, episode: AgentEpisode) -> bytes:
        """Raw bytes are of no episode of this worker until it begins one."""
        self.attribution.end()
        if episode.fault is not None:
            return wire.encode(wire.fault(number, *episode.fault))
        return wire.encode(wire.FinishedFrame(number, _reported(episode)))

    def _act_many(self, runtime: AgentRuntime, request: wire.ActManyFrame) -> bytes | None:
        observations = wire.rows_of(runtime.spaces[0], request.observations)
        if runtime.received is not None:
            observations = [runtime.received(row) for row in observations]
        ended: dict[int, AgentEpisode] = {}
        acting: dict[int, AgentEpisode] = {}
        numbers = iter(request.episodes)
        reports.phase = request.phase
        for row, (slot, kind) in enumerate(zip(request.slots, request.kinds, strict=True)):
            if kind == wire.FIRST:
                acting[row] = self._begin(runtime, request, slot, next(numbers, -1), observations[row])
                continue
            episode = self._learn(runtime, slot, observations[row], request.rewards[row], request.ends[row])
            episode.observation = observations[row]
            if kind == wire.LAST:
                ended[row] = self._episodes.pop(slot)
            else:
                acting[row] = episode
        rows = [row for row, episode in acting.items() if episode.fault is None]
        version = 0
        if rows:
            version = runtime.act([acting[row] for row in rows], explore=request.train, at_once=True)
        rows = [row for row in rows if acting[row].fault is None]
        actions = wire.packed_rows(runtime.spaces[1], [_sent(runtime, acting[row].action) for row in rows])

        def answer() -> bytes:
            faults = [
                wire.RowFault(row, episode.fault[0], str(episode.fault[1]), episode.fault[1].traceback)
                for row, episode in (acting | ended).items()
                if episode.fault is not None
            ]
            every = acting | ended
            reported = [_reported(every[row]) for row in range(len(request.slots))]
            found = reported if any(reported) else None
            return wire.encode(wire.ActedManyFrame(request.number, rows, actions, version, faults, found))

        return runtime.end([*ended.values()], answer, session=self._name) if ended else answer()


def _received(runtime: AgentRuntime, observation: Any) -> Any:
    return observation if runtime.received is None else runtime.received(observation)


def _sent(runtime: AgentRuntime, action: Any) -> Any:
    return action if runtime.sent is None else runtime.sent(action)


def _reported(episode: AgentEpisode) -> Any:
    """What was reported for it since the last answer, and by other threads."""
    reports.finish(episode.reported)
    return reports.take(episode.reported)
