"""The episodes that one worker plays with the agent: as many at once as it has environments, each in a slot with a number.

Rules:
1. A session stores the last observation and action of each slot, so the next observation completes a transition.
2. A step is learned before the next action is chosen, in the order of the requests and of their rows; with
   `max_staleness` it is learned asynchronously. The end of an episode in train mode is answered after all of it is learned.
"""

from __future__ import annotations

from itertools import repeat, zip_longest
from typing import TYPE_CHECKING, Any

import numpy as np

from governor.episodes.context import reports
from governor.episodes.remote import frames, wire
from governor.episodes.remote.agent_episode import AgentEpisode
from governor.episodes.remote.players_session import PlayersSession, finished, received, reported_for, sent
from governor.episodes.transition import NO_EXTRAS, Episode
from governor.episodes.vectors.vector_environment import value_of
from governor.failures import Reason
from governor.output.attribution import Attribution, episode_fields

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from governor.episodes.remote.agent_runtime import AgentRuntime
    from governor.episodes.remote.frames import FinishedRow


class AgentSession:
    """`name` is the identity of the channel of worker number `worker`; the phase has `workers` streams of steps."""

    def __init__(self, name: bytes, *, worker: int = 0, workers: int = 1) -> None:
        self.attribution = Attribution()
        self._name = name
        self._worker = worker
        self._workers = workers
        self._finished = 0
        """How many episodes were learned to their end."""
        self._episodes: dict[int, AgentEpisode] = {}
        self._acting: dict[int, AgentEpisode] = {}
        """Of a vector whose environments step together."""
        self._players = PlayersSession(name, self.attribution, worker=worker, workers=workers)

    def answer(self, runtime: AgentRuntime, request: wire.AgentRequest) -> bytes | None:
        """None if the answer is sent later."""
        match request:
            case wire.ActFrame():
                observation = received(runtime, request.observation)
                episode = self._learn(runtime, 0, observation, request.reward, info=request.info)
                episode.observation, episode.mask = observation, request.mask
                return self._act(runtime, episode, request.number)
            case wire.BeginFrame():
                self.attribution.begin_raw(
                    **episode_fields(request.phase, request.episode, request.evaluation)
                )
                self._tell_ends(runtime, request.ended)
                observation = received(runtime, request.observation)
                numbers = request.episode, request.seed
                episode = self._begin(
                    runtime, request, observation, numbers=numbers, slot=0, worker=self._worker
                )
                episode.mask = request.mask
                return self._act(runtime, episode, request.number)
            case wire.FinishFrame():
                end = wire.TERMINATED * request.terminated | wire.TRUNCATED * request.truncated
                observation = received(runtime, request.observation)
                episode = self._learn(runtime, 0, observation, request.reward, end=end, info=request.info)
                del self._episodes[0]
                self._tell_regular_end(runtime, episode, end)
                self._finished += 1
                return runtime.end(
                    [episode],
                    lambda: finished(request.number, episode, self.attribution),
                    session=self._name,
                    ticket=self._finished,
                )
            case wire.SaveFrame():
                self._tell_ends(runtime, request.ended)
                self._players.tell_ends(runtime, request.ended)
                return self._save(runtime, request.number)
            case wire.ActManyFrame() | frames.ActTogetherFrame():
                return (
                    self._act_many(runtime, request)
                    if isinstance(request, wire.ActManyFrame)
                    else self._act_together(runtime, request)
                )
            case _:
                return self._players.answer(runtime, request)

    def _begin(
        self,
        runtime: AgentRuntime,
        request: wire.BeginFrame | wire.ActManyFrame | frames.ActTogetherFrame,
        observation: Any,
        *,
        numbers: tuple[int, int],
        slot: int,
        worker: int,
    ) -> AgentEpisode:
        """`numbers`: the episode's and its seed."""
        reports.phase, train = request.phase, request.train
        number, seed = numbers
        episode = self._episodes[slot] = AgentEpisode(
            self._name,
            slot,
            number,
            observation,
            explore=train,
            learn=train and runtime.learns,
            evaluation=request.evaluation,
            told=Episode(
                number=number,
                phase=request.phase,
                seed=seed,
                worker=worker,
                workers=self._workers,
                explore=train,
                evaluation=request.evaluation,
            ),
        )
        runtime.begin(episode, settled=getattr(request, "settled", 0))
        return episode

    def close(self, runtime: AgentRuntime) -> None:
        """Another session replaces it: its episodes do not go on."""
        self.attribution.end()
        for episode in self._episodes.values():
            over = episode.ended("crashed", episode.value, episode.steps)
            runtime.tell_end(episode, over, counts=False)
        self._players.close(runtime)

    def _tell_ends(self, runtime: AgentRuntime, ended: Sequence[frames.EndedEpisode]) -> None:
        """Of episodes that the agent has not learned to their end."""
        for end in ended:
            episode = self._episodes.get(end.slot)
            if episode is not None and episode.number == end.episode:
                del self._episodes[end.slot]
                over = episode.ended(end.outcome, end.value, end.steps)
                runtime.tell_end(episode, over, counts=False)

    @staticmethod
    def _tell_regular_end(runtime: AgentRuntime, episode: AgentEpisode, end: int) -> None:
        """Of an episode that the agent has learned to its `end`, or to a fault."""
        outcome = "terminated" if end & wire.TERMINATED else "truncated"
        failed = episode.fault is not None
        over = episode.ended("failed" if failed else outcome, episode.value, episode.steps)
        runtime.tell_end(episode, over, counts=not failed)

    def _learn(
        self,
        runtime: AgentRuntime,
        slot: int,
        observation: Any,
        reward: float,
        *,
        end: int = 0,
        info: Any = None,
    ) -> AgentEpisode:
        """The episode in this slot; it has a fault, if learning failed."""
        episode = self._episodes.get(slot)
        if episode is None or episode.action is None:
            episode = self._episodes[slot] = AgentEpisode(self._name)
            episode.fault = "agent.learn", Reason("ValueError: a step without an action before it")
            return episode
        episode.steps += 1
        episode.value += reward
        if episode.learn:
            ends = bool(end & wire.TERMINATED), bool(end & wire.TRUNCATED)
            runtime.learn(episode, episode.stepped(observation, reward, ends=ends, info=info))
        return episode

    def _act(self, runtime: AgentRuntime, episode: AgentEpisode, number: int) -> bytes:
        version = 0 if episode.fault else runtime.act((episode,), explore=episode.explore)
        if episode.fault is not None:
            return wire.encode(wire.fault(number, *episode.fault))
        action = sent(runtime, episode.action)
        return wire.encode(wire.ActedFrame(number, action, version, reported_for(episode)))

    def _save(self, runtime: AgentRuntime, number: int) -> bytes | None:
        work = AgentEpisode(self._name)

        def save() -> bytes:
            runtime.save(work)
            return finished(number, work, self.attribution)

        return runtime.end([], save, session=self._name)

    def _act_many(self, runtime: AgentRuntime, request: wire.ActManyFrame) -> bytes | None:
        observations = wire.rows_of(runtime.spaces[0], request.observations)
        if runtime.received is not None:
            observations = [runtime.received(row) for row in observations]
        ended: dict[int, AgentEpisode] = {}
        acting: dict[int, AgentEpisode] = {}
        numbers = zip_longest(request.episodes, request.seeds, fillvalue=-1)
        infos = request.infos or [None] * len(request.slots)
        reports.phase = request.phase
        self._tell_ends(runtime, request.ended)
        for row, (slot, kind) in enumerate(zip(request.slots, request.kinds, strict=True)):
            if kind == wire.FIRST:
                numbered = next(numbers, (-1, -1))
                acting[row] = self._begin(
                    runtime, request, observations[row], numbers=numbered, slot=slot, worker=slot
                )
                continue
            end = request.ends[row]
            step = observations[row], request.rewards[row]
            episode = self._learn(runtime, slot, *step, end=end, info=infos[row])
            episode.observation = observations[row]
            if kind == wire.LAST:
                ended[row] = self._episodes.pop(slot)
                self._tell_regular_end(runtime, episode, end)
            else:
                acting[row] = episode
        if request.masks is not None:
            for row, episode in acting.items():
                episode.mask = request.masks[row]
        rows = [row for row, episode in acting.items() if episode.fault is None]
        version = 0
        if rows:
            version = runtime.act([acting[row] for row in rows], explore=request.train, at_once=True)
        rows = [row for row in rows if acting[row].fault is None]
        actions = wire.packed_rows(runtime.spaces[1], [sent(runtime, acting[row].action) for row in rows])

        def answer() -> bytes:
            every = acting | ended
            faults = _faults(every)
            reported = [reported_for(every[row]) for row in range(len(request.slots))]
            found = reported if any(reported) else None
            return wire.encode(wire.ActedManyFrame(request.number, rows, actions, version, faults, found))

        return runtime.end([*ended.values()], answer, session=self._name) if ended else answer()

    def _act_together(self, runtime: AgentRuntime, request: frames.ActTogetherFrame) -> bytes | None:
        self._tell_ends(runtime, request.ended)
        finished = {row.slot: row for row in request.finished}
        if request.rewards is not None:
            self._learn_together(runtime, request, finished)
        ended = {slot: self._episodes.pop(slot) for slot in finished}
        for slot, episode in ended.items():
            episode.value, episode.steps = finished[slot].value, finished[slot].steps
            self._tell_regular_end(runtime, episode, finished[slot].end)
        for begun in request.begun:
            numbers = begun.episode, begun.seed
            self._begin(runtime, request, None, numbers=numbers, slot=begun.slot, worker=begun.slot)
        if request.slots is not None:
            self._acting = {slot: self._episodes[slot] for slot in request.slots}
        acting, observations = self._acting, request.observations
        asked = {slot: episode for slot, episode in acting.items() if episode.fault is None}
        if len(asked) < len(observations):
            observations = observations[[slot - request.first for slot in asked]]
        playing, learns = [*asked.values()], request.train and runtime.learns
        for episode, observation in zip(playing, observations, strict=True) if learns else ():
            episode.observation = value_of(observation)  # before the agent may write to it
        found, version = (
            runtime.act_batch(playing, observations, explore=request.train) if playing else (None, 0)
        )
        actions, extras = found or (np.empty(0), None)
        if learns:
            for episode, action, beside in zip(playing, actions, extras or repeat(NO_EXTRAS), strict=False):
                episode.action, episode.extras = value_of(action), beside

        def answer() -> bytes:
            faults = _faults(acting)
            failed = {fault.row for fault in faults}  # also to learn, after it has acted
            rows = [row for row, slot in enumerate(asked) if slot not in failed]
            frame = frames.ActedTogetherFrame(
                request.number,
                actions if len(rows) == len(actions) else actions[rows],
                version,
                faults,
                _faults(ended),
                reports.take_each({slot: episode.reported for slot, episode in acting.items()}),
                reports.take_each({slot: episode.reported for slot, episode in ended.items()}),
            )
            return wire.encode(frame)

        return runtime.end([*ended.values()], answer, session=self._name) if ended else answer()

    def _learn_together(
        self, runtime: AgentRuntime, request: frames.ActTogetherFrame, finished: Mapping[int, FinishedRow]
    ) -> None:
        following = request.observations if request.following is None else request.following
        for slot, episode in self._acting.items():
            if slot in request.without:
                continue
            row, end = slot - request.first, finished[slot].end if slot in finished else 0
            reward = float(request.rewards[row])
            episode.steps += 1
            episode.value += reward
            if episode.learn:
                ends = bool(end & wire.TERMINATED), bool(end & wire.TRUNCATED)
                stepped = episode.stepped(value_of(following[row]), reward, ends=ends, info=None)
                runtime.learn(episode, stepped)


def _faults(episodes: Mapping[int, AgentEpisode]) -> list[frames.RowFault]:
    """By the rows of an answer."""
    found = [(row, episode.fault) for row, episode in episodes.items() if episode.fault is not None]
    return [frames.RowFault(row, where, str(reason), reason.traceback) for row, (where, reason) in found]
