"""The agent's objects: the one that acts, the one that learns, and how far the first may be behind.

Without `max_staleness` both are one object, and a step is learned when `learn` returns. With it they are two
(`async_learner`). All methods run user code.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, TypeVar

from governor.episodes.entries import one_line
from governor.episodes.learned import Learned
from governor.episodes.remote.async_learner import AsyncLearner, EpisodeTicket
from governor.episodes.remote.thread_host import Abandoned
from governor.errors import ConductorError

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from pathlib import Path

    from governor.episodes.agents import Agent
    from governor.episodes.transition import Transition

T = TypeVar("T")


class AgentRuntime:
    """`make` builds an agent from its saved state. `ask` and `ask_many` are the `act` and `act_many` of the acting object;
    `ask_many` is None for an agent without `act_many`.
    """

    def __init__(
        self, make: Callable[[], Agent], *, state_path: Path, first_state: str | None, entry: str, name: str
    ) -> None:
        """Raises ConductorError with one line, as all methods but `act` do."""
        self.agent: Any = make()
        self._make = make
        self._entry = entry
        self._name = name
        self._async_learner: AsyncLearner | None = None
        self._bound = 0
        try:
            self._learned = Learned(self.agent, state_path, given=first_state)
        except Exception as error:
            raise ConductorError(f"agent {entry!r}: weight_version: {one_line(error)}") from error
        self.learns = self._learned.learn is not None
        self._use(self.agent)

    def bind(self, max_staleness: int) -> None:
        """Sets the bound of staleness, in versions of the weights; all transitions so far are learned first."""
        if max_staleness == self._bound:
            return
        self._close_learner()
        if max_staleness:
            if not all(getattr(self.agent, name, None) for name in ("state_dict", "load_state_dict")):
                raise ConductorError(
                    f"agent {self._entry!r} has no state_dict and load_state_dict: max_staleness needs both"
                )
            actor = self._make()
            try:
                self._async_learner = AsyncLearner(
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
    def current(self) -> EpisodeTicket | None:
        """The episode that the asynchronous learner works on; for any thread."""
        learner = self._async_learner
        return None if learner is None else learner.current

    def act(self, call: Callable[[], T], *, explore: bool) -> tuple[T, int]:
        """The result of `call`, which calls `ask` or `ask_many`, and the version of the weights that it used: the latest one,
        unless `explore` is true. Raises what `call` raises.
        """
        if self._async_learner is None:
            return call(), self._learned.version
        result = self._async_learner.act(call, latest=not explore)
        return result, self._async_learner.version

    def learn(self, ticket: EpisodeTicket, transition: Transition) -> None:
        """Sets `ticket.fault` if it fails: at once, or when the asynchronous learner reaches the transition."""
        if self._async_learner is not None:
            self._async_learner.learn(ticket, transition)
            return
        try:
            self._learned.learn(transition)  # type: ignore[misc]  # called only if it `learns`
        except Abandoned:
            raise
        except BaseException as error:  # noqa: BLE001  # user code: whatever it raises is this episode's fault
            ticket.fault = "agent.learn", one_line(error)

    def end_episodes(
        self,
        tickets: Sequence[EpisodeTicket],
        answer: Callable[[], bytes],
        reply: Callable[[bytes, bytes], None],
        *,
        session: bytes,
    ) -> bytes | None:
        """Learns these episodes to their end and saves the state as `learned` says. Returns the answer for the `session`, or
        None if the learner's thread replies later.
        """
        if self._async_learner is None:
            self._end_episodes(tickets)
            return answer()

        def finish() -> None:
            self._end_episodes(tickets)
            reply(session, answer())

        self._async_learner.call_when_learned(finish, session=session)
        return None

    def copy(self, path: Path) -> None:
        """As `Learned.copy`; to be called while no episode is being learned."""
        self._learned.copy(path, name=self._name)

    def save(self, ticket: EpisodeTicket) -> None:
        """Writes what was learned in ended episodes to disk; sets `ticket.fault` if that fails."""
        try:
            self._learned.save()
        except Abandoned:
            raise
        except BaseException as error:  # noqa: BLE001  # as in `learn`
            ticket.fault = "agent.state_dict", one_line(error)

    def close(self) -> None:
        """Learns all queued transitions and writes the state to disk; no other call may follow."""
        self._close_learner()
        last = EpisodeTicket(b"")
        self.save(last)
        if last.fault is not None:
            raise ConductorError(f"agent {self._entry!r} cannot be saved: {last.fault[1]}")

    def _end_episodes(self, tickets: Sequence[EpisodeTicket]) -> None:
        for ticket in tickets:
            if ticket.fault is None:
                try:
                    self._learned.episode_ended()
                except Abandoned:
                    raise
                except BaseException as error:  # noqa: BLE001  # as in `learn`
                    ticket.fault = "agent.state_dict", one_line(error)

    def _close_learner(self) -> None:
        if self._async_learner is not None:
            self._async_learner.close()
            self._async_learner = None
            self._bound = 0
            self._use(self.agent)

    def _use(self, actor: Any) -> None:
        self.ask: Callable[..., Any] = actor.act
        self.ask_many: Callable[..., Any] | None = getattr(actor, "act_many", None)
