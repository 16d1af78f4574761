"""The learner beside the actor, for `max_staleness`: acting goes on with a snapshot of the weights while the learner learns.

Rules:
1. The learner learns in a thread of its own, from one transition after the other, in the order in which they came.
2. The actor is a second instance of the agent. While it acts it is never more than `bound` versions behind the learner:
   a learner that would get ahead of an action waits for it, an actor that is too far behind waits for a snapshot. What a
   call of `learn` adds is taken for one version: an agent whose own `weight_version` then grows by more is that much further
   behind while an action goes on.
3. What the learner raises is the fault of the episode that the transition is of; no further one of it is learned.
4. A snapshot goes through bytes, as it would between machines: the learner may write to its arrays at any time. The actor
   takes it with `load_weights`, if it has that: `load_state_dict` would also set back what the actor draws numbers from.
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
    """One episode on its way through the learner, of one slot of a seat or, with None, of whichever; `fault` is where and
    why no more of it is learned. `episode` is its number in the phase, negative where that is not known.
    """

    __slots__ = ("episode", "fault", "seat", "slot")

    def __init__(self, seat: bytes, slot: int | None = None, episode: int = -1) -> None:
        self.seat = seat
        self.slot = slot
        self.episode = episode
        self.fault: tuple[str, str] | None = None


class AsyncLearner:
    """`at_work` is the episode that the learner has in its hands; for any thread."""

    def __init__(self, *, learner: Any, learned: Learned, actor: Any, bound: int, name: str) -> None:
        """Raises what `state_dict` of the one and `load_state_dict` of the other raise."""
        self.at_work: EpisodeTicket | None = None
        self._learner = learner
        self._learned = learned
        self._bound = bound
        self._work: queue.SimpleQueue[Callable[[], None] | None] = queue.SimpleQueue()
        self._turn = threading.Condition()
        self._learning = self._acting = self._wanted = False
        self._load: Callable[[dict[str, Any]], Any] = getattr(actor, "load_weights", actor.load_state_dict)
        self._refresh()
        self._thread = threading.Thread(target=self._live, name=f"{name}.learner", daemon=True)
        self._thread.start()

    def act(self, call: Callable[[], Any], *, latest: bool) -> Any:
        """`call` asks the actor; `version` is what it acts with: the `latest`, or one within the bound."""
        with self._turn:
            if self._ahead() > (0 if latest else self._bound):
                self._wanted = True
                self._turn.wait_for(lambda: not self._learning)
                try:
                    self._refresh()
                finally:
                    self._wanted = False
                    self._turn.notify_all()
            self._acting = True
        try:
            return call()
        finally:
            with self._turn:
                self._acting = False
                self._turn.notify_all()

    def learn(self, trace: EpisodeTicket, transition: Transition) -> None:
        """Returns at once."""
        self._work.put(partial(self._learn, trace, transition))

    def afterwards(self, call: Callable[[], None], *, seat: bytes) -> None:
        """In the learner's thread, when all that came before is learned, as work for this seat; it must not raise."""

        def work() -> None:
            self.at_work = EpisodeTicket(seat)
            call()
            self.at_work = None

        self._work.put(work)

    def close(self) -> None:
        """What came before is still learned. May be called in any thread but the learner's."""
        self._work.put(None)
        self._thread.join()

    def _ahead(self) -> int:
        """Versions that the learner will be ahead when what it does now is done."""
        return self._learned.version + self._learning - self.version

    def _refresh(self) -> None:
        self._load(state_file.loads(state_file.dumps(self._learner.state_dict())))
        self.version: int = self._learned.version

    def _live(self) -> None:
        exits.tells(self._place)
        while (work := self._work.get()) is not None:
            work()

    def _place(self) -> str:
        trace = self.at_work
        return exits.place("agent.learn", [trace.episode] if trace is not None and trace.episode >= 0 else [])

    def _learn(self, trace: EpisodeTicket, transition: Transition) -> None:
        if trace.fault is not None:
            return
        with self._turn:
            self._turn.wait_for(
                lambda: not self._wanted and (not self._acting or self._ahead() < self._bound)
            )
            self._learning = True
        self.at_work = trace
        try:
            self._learned.learn(transition)  # type: ignore[misc]  # a seat trains only where there is one
        except BaseException as error:  # noqa: BLE001  # user code: whatever it raises is that episode's fault
            trace.fault = "agent.learn", one_line(error)
        finally:
            self.at_work = None
            with self._turn:
                self._learning = False
                self._turn.notify_all()
