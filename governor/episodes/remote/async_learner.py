"""The asynchronous learner, for `max_staleness`: the actor uses a snapshot of the weights while the learner learns.

Rules:
1. The learner runs in a thread of its own and learns from one transition at a time, in the order of their arrival.
2. The actor is a second instance of the agent. While it acts it is never more than `bound` versions behind the learner:
   a learner that would exceed the bound during an action waits for its end, an actor that is too far behind waits for a
   snapshot. A call of `learn` counts as one version: an agent whose own `weight_version` grows by more in one call exceeds
   the bound by that much while an action runs.
3. An error of the learner is the fault of the episode of that transition; later transitions of that episode are not learned.
4. A snapshot is serialized to bytes, because the learner may write to its arrays at any time. The actor loads it with
   `load_weights`, if it has that method: `load_state_dict` would also reset the actor's random generator.
"""

from __future__ import annotations

import queue
import threading
from functools import partial
from typing import TYPE_CHECKING, Any

from governor.episodes import exits
from governor.episodes.entries import one_line
from governor.episodes.records import state_file

if TYPE_CHECKING:
    from collections.abc import Callable

    from governor.episodes.learned import Learned
    from governor.episodes.transition import Transition


class EpisodeTicket:
    """One episode that the agent learns from, in `slot` of a session (None: any slot). `fault` is (where, reason) once
    learning from it has failed. `episode` is its number in the phase, negative if unknown.
    """

    __slots__ = ("episode", "fault", "session", "slot")

    def __init__(self, session: bytes, slot: int | None = None, episode: int = -1) -> None:
        self.session = session
        self.slot = slot
        self.episode = episode
        self.fault: tuple[str, str] | None = None


class AsyncLearner:
    """`current` is the episode that the learner works on; for any thread. `version` is the actor's version of the weights."""

    def __init__(self, *, learner: Any, learned: Learned, actor: Any, bound: int, name: str) -> None:
        """Raises what the learner's `state_dict` and the actor's `load_state_dict` raise."""
        self.current: EpisodeTicket | None = None
        self._learner = learner
        self._learned = learned
        self._bound = bound
        self._queue: queue.SimpleQueue[Callable[[], None] | None] = queue.SimpleQueue()
        self._condition = threading.Condition()
        self._learning = self._acting = self._wanted = False
        self._load: Callable[[dict[str, Any]], Any] = getattr(actor, "load_weights", actor.load_state_dict)
        self._refresh()
        self._thread = threading.Thread(target=self._run, name=f"{name}.learner", daemon=True)
        self._thread.start()

    def act(self, call: Callable[[], Any], *, latest: bool) -> Any:
        """The result of `call`, which asks the actor; the weights are the `latest`, or at most `bound` versions older."""
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
            return call()
        finally:
            with self._condition:
                self._acting = False
                self._condition.notify_all()

    def learn(self, ticket: EpisodeTicket, transition: Transition) -> None:
        """Queues the transition and returns at once."""
        self._queue.put(partial(self._learn, ticket, transition))

    def call_when_learned(self, call: Callable[[], None], *, session: bytes) -> None:
        """Runs `call` in the learner's thread after everything queued before, as work for this session; it must not raise."""

        def work() -> None:
            self.current = EpisodeTicket(session)
            call()
            self.current = None

        self._queue.put(work)

    def close(self) -> None:
        """Learns what is queued, then ends the thread. For any thread but the learner's."""
        self._queue.put(None)
        self._thread.join()

    def _versions_ahead(self) -> int:
        """By how many versions the learner is ahead, its current transition included."""
        return self._learned.version + self._learning - self.version

    def _refresh(self) -> None:
        self._load(state_file.loads(state_file.dumps(self._learner.state_dict())))
        self.version: int = self._learned.version

    def _run(self) -> None:
        exits.set_description(self._describe_current)
        while (work := self._queue.get()) is not None:
            work()

    def _describe_current(self) -> str:
        ticket = self.current
        return exits.describe(
            "agent.learn", [ticket.episode] if ticket is not None and ticket.episode >= 0 else []
        )

    def _learn(self, ticket: EpisodeTicket, transition: Transition) -> None:
        if ticket.fault is not None:
            return
        with self._condition:
            self._condition.wait_for(
                lambda: not self._wanted and (not self._acting or self._versions_ahead() < self._bound)
            )
            self._learning = True
        self.current = ticket
        try:
            self._learned.learn(transition)  # type: ignore[misc]  # a session trains only an agent with `learn`
        except BaseException as error:  # noqa: BLE001  # user code: whatever it raises is that episode's fault
            ticket.fault = "agent.learn", one_line(error)
        finally:
            self.current = None
            with self._condition:
                self._learning = False
                self._condition.notify_all()
