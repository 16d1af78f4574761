"""An agent at work: what acts, what learns, and how far the one may be behind the other.

Without `max_staleness` both are one object, and a step is learned when `learn` returns. With it they are two (`brain`).
It runs user code.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, TypeVar

from governor.episodes.entries import one_line
from governor.episodes.learned import Learned
from governor.episodes.remote.brain import AsyncLearner, EpisodeTicket
from governor.episodes.remote.host import Abandoned
from governor.errors import ConductorError

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from pathlib import Path

    from governor.episodes.agents import Agent
    from governor.episodes.transition import Transition

T = TypeVar("T")


class AgentRuntime:
    """`make` builds an agent with its saved state. `act_many` is None for an agent that has none."""

    def __init__(
        self, make: Callable[[], Agent], *, state_path: Path, first_state: str | None, entry: str, name: str
    ) -> None:
        """Raises ConductorError with one line, as all but `act`."""
        self.agent: Any = make()
        self._make = make
        self._entry = entry
        self._name = name
        self._brain: AsyncLearner | None = None
        self._bound = 0
        try:
            self._learned = Learned(self.agent, state_path, given=first_state)
        except Exception as error:
            raise ConductorError(f"agent {entry!r}: weight_version: {one_line(error)}") from error
        self.learns = self._learned.learn is not None
        self._use(self.agent)

    def bind(self, max_staleness: int) -> None:
        """From here on; all that came before is learned first."""
        if max_staleness == self._bound:
            return
        self._leave_brain()
        if max_staleness:
            if not all(getattr(self.agent, name, None) for name in ("state_dict", "load_state_dict")):
                raise ConductorError(
                    f"agent {self._entry!r} has no state_dict and load_state_dict: max_staleness needs both"
                )
            actor = self._make()
            try:
                self._brain = AsyncLearner(
                    learner=self.agent,
                    learned=self._learned,
                    actor=actor,
                    bound=max_staleness,
                    name=self._name,
                )
            except Exception as error:
                raise ConductorError(f"agent {self._entry!r}: no snapshot: {one_line(error)}") from error
            self._use(actor)
        self._bound = max_staleness

    @property
    def in_hand(self) -> EpisodeTicket | None:
        """What the learner beside the actor is at; for any thread."""
        brain = self._brain
        return None if brain is None else brain.at_work

    def act(self, call: Callable[[], T], *, explore: bool) -> tuple[T, int]:
        """What `call` gets of `ask` or `ask_many`, and the version of the weights that it asked: the latest one, unless it
        may `explore`. Raises what they raise.
        """
        if self._brain is None:
            return call(), self._learned.version
        found = self._brain.act(call, latest=not explore)
        return found, self._brain.version

    def learn(self, trace: EpisodeTicket, transition: Transition) -> None:
        """A fault is in the trace: at once, or when the learner has come to it."""
        if self._brain is not None:
            self._brain.learn(trace, transition)
            return
        try:
            self._learned.learn(transition)  # type: ignore[misc]  # asked only where it `learns`
        except Abandoned:
            raise
        except BaseException as error:  # noqa: BLE001  # user code: whatever it raises is this episode's fault
            trace.fault = "agent.learn", one_line(error)

    def ended(
        self,
        traces: Sequence[EpisodeTicket],
        answer: Callable[[], bytes],
        reply: Callable[[bytes, bytes], None],
        *,
        seat: bytes,
    ) -> bytes | None:
        """The episodes that were trained with are learned and kept, as `learned` says; then there is an answer for the
        `seat`, or None when it is replied later.
        """
        if self._brain is None:
            self._close(traces)
            return answer()

        def later() -> None:
            self._close(traces)
            reply(seat, answer())

        self._brain.afterwards(later, seat=seat)
        return None

    def copy(self, path: Path) -> None:
        """As `Learned.copy`; no episode is being learned."""
        self._learned.copy(path, name=self._name)

    def keep(self, trace: EpisodeTicket) -> None:
        """All that was learned of episodes that ended is on disk; else the trace has the fault."""
        try:
            self._learned.keep()
        except Abandoned:
            raise
        except BaseException as error:  # noqa: BLE001  # as in `learn`
            trace.fault = "agent.state_dict", one_line(error)

    def put_down(self) -> None:
        """The last thing that is done with it: all is learned, and on disk."""
        self._leave_brain()
        last = EpisodeTicket(b"")
        self.keep(last)
        if last.fault is not None:
            raise ConductorError(f"agent {self._entry!r} cannot be saved: {last.fault[1]}")

    def _close(self, traces: Sequence[EpisodeTicket]) -> None:
        for trace in traces:
            if trace.fault is None:
                try:
                    self._learned.episode_ended()
                except Abandoned:
                    raise
                except BaseException as error:  # noqa: BLE001  # as in `learn`
                    trace.fault = "agent.state_dict", one_line(error)

    def _leave_brain(self) -> None:
        if self._brain is not None:
            self._brain.close()
            self._brain = None
            self._bound = 0
            self._use(self.agent)

    def _use(self, actor: Any) -> None:
        self.ask: Callable[..., Any] = actor.act
        self.ask_many: Callable[..., Any] | None = getattr(actor, "act_many", None)
