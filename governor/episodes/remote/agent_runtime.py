"""An agent in its process: what it is asked, by which object, and when it learns. All methods run user code.

There are two strategies. `LearnInStep`: one object acts and learns, and a step is learned when `learn` returns. `LearnBeside`,
for `max_staleness`: the actor uses a snapshot of the weights while the learner learns. Its rules:
1. The learner runs in a thread of its own and learns from one transition at a time, in the order of their arrival.
2. The actor is a second instance of the agent. While it acts it is never more than `bound` versions behind the learner:
   a learner that would exceed the bound during an action waits for its end, an actor that is too far behind waits for a
   snapshot. A call of `learn` counts as one version: an agent whose own `weight_version` grows by more in one call exceeds
   the bound by that much while an action runs.
3. An error of the learner is the fault of the episode of that transition; later transitions of that episode are not learned.
   Both objects are told of the begin and end of episodes: the actor at once, the learner in its order.
4. A snapshot is serialized to bytes, because the learner may write to its arrays at any time. The actor loads it with
   `load_weights`, if it has that method: `load_state_dict` would also reset the actor's random generator. With
   `weights` besides it is made of that, not of the whole `state_dict`.
"""

from __future__ import annotations

import queue
import threading
from functools import partial
from typing import TYPE_CHECKING, Any

from governor import logs
from governor.episodes import exits
from governor.episodes.agent_calls import AgentCalls
from governor.episodes.context import reports
from governor.episodes.entries import Abandoned
from governor.episodes.records import state_file
from governor.episodes.remote.agent_episode import AgentEpisode
from governor.episodes.spaces import receiver, sender, stack
from governor.errors import ConductorError
from governor.failures import reason_of

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from pathlib import Path

    from governor.episodes.agents import AgentSource
    from governor.episodes.learned import Learned
    from governor.episodes.metrics import Reported
    from governor.episodes.spaces import SpaceSpec
    from governor.episodes.transition import Episode, Transition

log = logs.get_logger()


class LearnInStep:
    """`actor` is what acts. `current` is the episode that is learned beside others, for any thread."""

    current: AgentEpisode | None = None

    def __init__(self, learned: Learned, calls: AgentCalls) -> None:
        """`calls` are those of the agent of `learned`."""
        self.actor = calls
        self._learned = learned

    def begin(self, episode: AgentEpisode, told: Episode) -> None:
        """Sets `episode.fault` if it fails, as the other methods do."""
        if episode.learn:
            self._learned.begin(told)
        episode.attempt("agent.begin", self.actor.begin, told)

    def tell_end(self, episode: AgentEpisode, over: Episode, *, counts: bool) -> None:
        """`counts`: an error is the fault of the episode; else it is logged."""
        _tell_end(self.actor, episode, over, counts=counts)

    def act(self, call: Callable[[], object], *, latest: bool) -> int:  # noqa: ARG002  # there is only one
        """Runs `call`, which asks the actor; returns the version of the weights that it used: the `latest`, or at most `bound`
        versions older. Raises what `call` raises.
        """
        call()
        return self._learned.version

    def learn(self, episode: AgentEpisode, transition: Transition) -> None:
        """Sets `episode.fault` if it fails: at once, or when the learner reaches the transition."""
        episode.attempt(self._learned.where, self._learned.learn, transition)  # type: ignore[arg-type]  # it learns

    def when_learned(self, session: bytes, answer: Callable[[], bytes]) -> bytes | None:  # noqa: ARG002  # for `LearnBeside`
        """The answer to the session, made when all transitions so far are learned; None if it is sent later."""
        return answer()

    def close(self) -> None:
        """Learns what is queued. For any thread but the learner's."""


class LearnBeside(LearnInStep):
    """`reply` sends an answer to a session later; for any thread."""

    def __init__(
        self,
        learned: Learned,
        calls: AgentCalls,
        actor: AgentCalls,
        *,
        bound: int,
        name: str,
        reply: Callable[[bytes, bytes], None],
    ) -> None:
        """Raises what the learner's `state_dict` and the actor's `load_state_dict` raise."""
        super().__init__(learned, calls)
        self.actor, self._learner = actor, calls
        self._bound = bound
        self._reply = reply
        self._queue: queue.SimpleQueue[Callable[[], None] | None] = queue.SimpleQueue()
        self._condition = threading.Condition()
        self._learning = self._acting = self._wanted = False
        learner = learned.agent
        alone = hasattr(learner, "weights") and hasattr(learner, "load_weights")
        self._snapshot: Callable[[], dict[str, Any]] = learner.weights if alone else learner.state_dict
        self._load: Callable[[dict[str, Any]], Any] = getattr(
            actor.agent, "load_weights", actor.agent.load_state_dict
        )
        self._refresh()
        self._thread = threading.Thread(target=self._run, name=f"{name}.learner", daemon=True)
        self._thread.start()

    def act(self, call: Callable[[], object], *, latest: bool) -> int:
        with self._condition:
            if self._versions_ahead() > (0 if latest else self._bound):
                self._wanted = True
                self._condition.wait_for(lambda: not self._learning)
                try:
                    self._refresh()
                finally:
                    self._wanted = False
                    self._condition.notify_all()
            self._acting = True
        try:
            call()
        finally:
            with self._condition:
                self._acting = False
                self._condition.notify_all()
        return self.version

    def begin(self, episode: AgentEpisode, told: Episode) -> None:
        def begin() -> None:
            if episode.learn:
                self._learned.begin(told)
            self._as_current(episode, "agent.begin", partial(self._learner.begin, told, acts=False))

        self._queue.put(begin)
        episode.attempt("agent.begin", self.actor.begin, told)

    def tell_end(self, episode: AgentEpisode, over: Episode, *, counts: bool) -> None:
        def tell() -> None:
            self.current = episode
            _tell_end(self._learner, episode, over, counts=counts and episode.fault is None)
            self.current = None

        super().tell_end(episode, over, counts=counts)
        self._queue.put(tell)

    def _as_current(self, episode: AgentEpisode, where: str, call: Callable[[], object]) -> None:
        self.current = episode
        episode.attempt(where, call)
        self.current = None

    def learn(self, episode: AgentEpisode, transition: Transition) -> None:
        self._queue.put(partial(self._learn, episode, transition))

    def when_learned(self, session: bytes, answer: Callable[[], bytes]) -> bytes | None:
        """`answer` runs in the learner's thread, as work for this session; it must not raise."""

        def work() -> None:
            self.current = AgentEpisode(session)
            self._reply(session, answer())
            self.current = None

        self._queue.put(work)
        return None

    def close(self) -> None:
        self._queue.put(None)
        self._thread.join()

    def _versions_ahead(self) -> int:
        """By how many versions the learner is ahead, its current transition included."""
        return self._learned.version + self._learning - self.version

    def _refresh(self) -> None:
        self._load(state_file.loads(state_file.dumps(self._snapshot())))
        self.version: int = self._learned.version

    def _run(self) -> None:
        exits.set_description(lambda: _describe("agent.learn", [self.current] if self.current else []))
        reports.bind(lambda: _current([self.current] if self.current else []))
        while (work := self._queue.get()) is not None:
            work()

    def _learn(self, episode: AgentEpisode, transition: Transition) -> None:
        if episode.fault is not None and episode.fault[0].startswith(self._learned.where):
            return
        with self._condition:
            self._condition.wait_for(
                lambda: not self._wanted and (not self._acting or self._versions_ahead() < self._bound)
            )
            self._learning = True
        self.current = episode
        super().learn(episode, transition)
        self.current = None
        with self._condition:
            self._learning = False
            self._condition.notify_all()


class AgentRuntime:
    """One agent, built for these `spaces`. `learned` is what it has learned; `learns`: it has `learn` or `learn_batch`. `calls` are its methods. `working_on` are the
    episodes for which its code runs. `received` makes an observation of what was sent, `sent` what is sent of an action; None where
    both are the same.
    """

    def __init__(
        self,
        source: AgentSource,
        *,
        spaces: tuple[SpaceSpec, SpaceSpec],
        name: str,
        reply: Callable[[bytes, bytes], None],
    ) -> None:
        """`reply` as in `LearnBeside`. Raises ConductorError with one line, as `bind` and `close` do."""
        self.spaces = spaces
        self.working_on: Sequence[AgentEpisode] = ()
        self._method = ""
        self._source = source
        self._name = name
        self._reply = reply
        self.learned = source.build(*spaces)
        self.learns = self.learned.learn is not None
        reports.bind(lambda: _current(self.working_on))
        self.received, self.sent = receiver(spaces[0]), sender(spaces[1])
        self.calls = AgentCalls(self.learned.agent, spaces[1])
        self._hears_begins = self.calls.hears or self.learned.rollouts is not None
        self._strategy = LearnInStep(self.learned, self.calls)
        self._bound = 0

    def require_streams(self, workers: int) -> None:
        """As of `Learned`."""
        self.learned.require_streams(workers, of=self._name)

    def bind(self, max_staleness: int) -> None:
        """Sets the bound of staleness, in versions of the weights; all transitions so far are learned first."""
        if max_staleness == self._bound:
            return
        self._strategy.close()
        self._strategy, self._bound = LearnInStep(self.learned, self.calls), 0
        if max_staleness:
            entry = self._source.entry
            if not all(getattr(self.learned.agent, name, None) for name in ("state_dict", "load_state_dict")):
                raise ConductorError(
                    f"agent {entry!r} has no state_dict and load_state_dict: max_staleness needs both"
                )
            actor = AgentCalls(self._source.make(*self.spaces), self.spaces[1])
            try:
                self._strategy = LearnBeside(
                    self.learned,
                    self.calls,
                    actor,
                    bound=max_staleness,
                    name=self._name,
                    reply=self._reply,
                )
            except Exception as error:
                raise ConductorError(reason_of(error).within(f"agent {entry!r}: no snapshot")) from error
        self._bound = max_staleness

    @property
    def learning(self) -> AgentEpisode | None:
        """The episode that is learned beside others; for any thread."""
        return self._strategy.current

    def describe(self) -> str:
        """What its code is doing, as in `exits`."""
        return _describe(self._method, self.working_on)

    def act(self, episodes: Sequence[AgentEpisode], *, explore: bool, at_once: bool = False) -> int:
        """Sets the action of each of these episodes, or its fault; returns the version of the weights. `at_once` asks `act_many`, if
        the agent has it.
        """
        self._enter("agent.act", episodes)  # it may wait for the learner, and load a snapshot
        many = at_once and self._strategy.actor.has_act_many
        call = partial(self._act_at_once if many else self._act_in_turn, episodes, explore=explore)
        try:
            return self._strategy.act(call, latest=not explore)
        except Abandoned:
            raise
        except BaseException as error:  # noqa: BLE001  # no snapshot, from user code
            for episode in episodes:
                episode.fail("agent.act", error)
            return 0

    def begin(self, episode: AgentEpisode, *, settled: int = 0) -> None:
        """Tells the agent, if it wants to know; sets the fault of the episode if that fails. `settled` as of `Learned`."""
        self.learned.begin_told(episode.number)
        episode.attempt("agent.state_dict", self.learned.settle, settled)
        if self._hears_begins and episode.told is not None:
            self._enter("agent.begin", (episode,))
            self._strategy.begin(episode, episode.told)

    def tell_end(self, episode: AgentEpisode, over: Episode | None, *, counts: bool) -> None:
        """Tells the agent that an episode is `over`, if it wants to know; `counts` as of `LearnInStep.tell_end`."""
        if self.calls.hears_ends and over is not None:
            self._enter("agent.end", (episode,))
            self._strategy.tell_end(episode, over, counts=counts)

    def learn(self, episode: AgentEpisode, transition: Transition) -> None:
        """As `LearnInStep.learn`."""
        self._enter(self.learned.where, (episode,))
        self._strategy.learn(episode, transition)

    def end(
        self,
        episodes: Sequence[AgentEpisode],
        answer: Callable[[], bytes],
        *,
        session: bytes,
        ticket: int = 0,
    ) -> bytes | None:
        """Ends these episodes when they are learned, and saves the state as `learned` says. As `LearnInStep.when_learned`."""
        self._enter("agent.state_dict", episodes)

        def end() -> bytes:
            for episode in episodes:
                if episode.fault is None:
                    episode.attempt("agent.metrics", self._report, episode)
                if episode.fault is None:
                    ended = partial(self.learned.episode_ended, episode.number, ticket=ticket)
                    episode.attempt("agent.state_dict", ended)
            return answer()

        return self._strategy.when_learned(session, end)

    def _report(self, episode: AgentEpisode) -> None:
        if values := self.learned.metrics():
            prefix = episode.prefix
            named = {f"{prefix}{name}": value for name, value in values.items()} if prefix else values
            reports.add(named, of="metrics()", to=episode.reported)

    def save(self, work: AgentEpisode) -> None:
        """The agent's part in the phase is over: writes what was learned to disk; sets the fault of `work` if that fails."""
        work.attempt("agent.state_dict", partial(self.learned.save, over=True))

    def copy(self, path: Path) -> None:
        """As `Learned.copy`; to be called while no episode is being learned."""
        self.learned.copy(path, name=self._name)

    def close(self) -> None:
        """Learns all queued transitions and writes the state to disk; no other call may follow."""
        self.bind(0)
        last = AgentEpisode(b"")
        last.attempt("agent.state_dict", self.learned.save)
        if last.fault is not None:
            raise ConductorError(last.fault[1].within(f"agent {self._source.entry!r} cannot be saved"))

    def _enter(self, method: str, episodes: Sequence[AgentEpisode]) -> None:
        """Notes that the agent's code begins to run."""
        self._method, self.working_on = method, episodes

    def _act_in_turn(self, episodes: Sequence[AgentEpisode], *, explore: bool) -> None:
        for episode in episodes:
            self._enter("agent.act", (episode,))
            episode.attempt("agent.act", self._act_for, episode, explore)

    def _act_for(self, episode: AgentEpisode, explore: bool) -> None:  # noqa: FBT001  # for `attempt`
        worker, player = _worker_of(episode), episode.player
        act = self._strategy.actor.act_of(explore=explore, worker=worker, player=player)
        episode.action, episode.extras = act(episode.observation, episode.mask)

    def _act_at_once(self, episodes: Sequence[AgentEpisode], *, explore: bool) -> None:
        self._enter("agent.act", episodes)
        observations = stack(self.spaces[0], [episode.observation for episode in episodes])
        workers = [_worker_of(episode) for episode in episodes]
        masks = [episode.mask for episode in episodes] if self.calls.is_masked else []
        found = self._strategy.actor.act_many(observations, workers, masks, explore=explore)
        for episode, acted in zip(episodes, found, strict=True):
            if isinstance(acted, BaseException):
                episode.fail("agent.act", acted)
            else:
                episode.action, episode.extras = acted


def _worker_of(episode: AgentEpisode) -> int:
    return 0 if episode.told is None else episode.told.worker


def _tell_end(calls: AgentCalls, episode: AgentEpisode, over: Episode, *, counts: bool) -> None:
    work = episode if counts else AgentEpisode(episode.session)
    work.attempt("agent.end", calls.end, over)
    if not counts and work.fault is not None:
        log.warning("agent.end_failed", episode=episode.number, reason=str(work.fault[1]))


def _describe(method: str, episodes: Sequence[AgentEpisode]) -> str:
    return exits.describe(method, [episode.number for episode in episodes if episode.number >= 0])


def _current(episodes: Sequence[AgentEpisode]) -> list[tuple[int, Reported]]:
    return [(episode.number, episode.reported) for episode in episodes if episode.slot is not None]
