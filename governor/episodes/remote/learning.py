"""When an agent learns, and with which weights it acts.

`LearnInStep`: one object acts and learns, and a step is learned when `learn` returns. `LearnBeside`,
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
from governor.episodes.context import reports
from governor.episodes.records import state_file
from governor.episodes.remote.agent_episode import AgentEpisode

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from governor.episodes.agent_calls import AgentCalls
    from governor.episodes.learned import Learned
    from governor.episodes.metrics import Reported
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
            self.current = episode
            episode.attempt("agent.begin", partial(self._learner.begin, told, acts=False))
            self.current = None

        self._queue.put(begin)
        episode.attempt("agent.begin", self.actor.begin, told)

    def tell_end(self, episode: AgentEpisode, over: Episode, *, counts: bool) -> None:
        def tell() -> None:
            self.current = episode
            _tell_end(self._learner, episode, over, counts=counts and episode.fault is None)
            self.current = None

        super().tell_end(episode, over, counts=counts)
        self._queue.put(tell)

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
        exits.set_description(lambda: describe("agent.learn", [self.current] if self.current else []))
        reports.bind(lambda: current([self.current] if self.current else []))
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


def _tell_end(calls: AgentCalls, episode: AgentEpisode, over: Episode, *, counts: bool) -> None:
    work = episode if counts else AgentEpisode(episode.session)
    work.attempt("agent.end", calls.end, over)
    if not counts and work.fault is not None:
        log.warning("agent.end_failed", episode=episode.number, reason=str(work.fault[1]))


def describe(method: str, episodes: Sequence[AgentEpisode]) -> str:
    return exits.describe(method, [episode.number for episode in episodes if episode.number >= 0])


def current(episodes: Sequence[AgentEpisode]) -> list[tuple[int, Reported]]:
    return [(episode.number, episode.reported) for episode in episodes if episode.slot is not None]
