"""The agent in a thread of its own: it acts for every worker that has a session, and learns from all of them.

Rules:
1. It is built at the first join, when its spaces are known; a saved state is loaded then.
2. The host stores the last observation and action of each slot of a session, so the next observation completes a transition.
3. A step is learned before the next action is chosen, in the order of the requests and of their rows; with
   `max_staleness` it is learned asynchronously. The end of an episode in train mode is answered after all of it is learned.
"""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np

from governor import logs
from governor.episodes import exits, spaces
from governor.episodes.agents import make_agent
from governor.episodes.arrays import WireError
from governor.episodes.conforming import copier
from governor.episodes.entries import load, one_line
from governor.episodes.records import state_file
from governor.episodes.remote import wire
from governor.episodes.remote.agent_runtime import AgentRuntime
from governor.episodes.remote.async_learner import EpisodeTicket
from governor.episodes.remote.thread_host import Abandoned, ThreadHost
from governor.episodes.transition import Transition
from governor.errors import ConductorError

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from pathlib import Path

log = logs.get_logger()


class _Slot:
    """The last observation and action of an episode; `explore` and `learn` hold for all of its steps."""

    __slots__ = ("action", "explore", "learn", "observation", "ticket")

    def __init__(self, ticket: EpisodeTicket, observation: Any, *, explore: bool, learn: bool) -> None:
        self.ticket = ticket
        self.explore = explore
        self.learn = learn
        self.observation = observation
        self.action: Any = None


class AgentHost(ThreadHost):
    """A session plays as many episodes at once as its worker has environments, each in a slot with a number."""

    def __init__(
        self,
        *,
        entry: str,
        params: dict[str, Any],
        seed: int,
        state_path: Path,
        name: str,
        path: Path,
        first_state: str | None = None,
    ) -> None:
        super().__init__(name=name, path=path)
        self.loaded = False
        self.spaces: tuple[spaces.SpaceSpec, spaces.SpaceSpec] | None = None
        self._entry = entry
        self._params = params
        self._seed = seed
        self._state_path = state_path
        self._first_state = first_state
        self._current_request: tuple[bytes, int] | None = None
        self._current_slot: int | None = None
        self._current_method: str = ""
        self._current_tickets: Sequence[EpisodeTicket] = ()
        """The method of the agent that runs now, and its episodes."""
        self._runtime: AgentRuntime
        self._sessions: dict[bytes, dict[int, _Slot]] = {}

    def current_ticket(self, session: bytes, number: int) -> EpisodeTicket | None:
        """The ticket of the agent's current work, if that is this request or learning from this session; for any thread."""
        if self._current_request == (session, number):
            return EpisodeTicket(session, self._current_slot)
        ticket = self._runtime.current if self.spaces is not None else None
        return ticket if ticket is not None and ticket.session == session else None

    # -- called through `run_in_thread` -----------------------------------------------------------------

    def open_session(
        self,
        session: bytes,
        *,
        observation: spaces.SpaceSpec,
        action: spaces.SpaceSpec,
        renew: bool,
        old: bytes | None,
        max_staleness: int = 0,
    ) -> None:
        """Opens a session, which replaces `old`; builds the agent if there is none or with `renew`. Raises ConductorError
        with one line.
        """
        if self.spaces is None or renew:
            self._build(observation, action)
        elif self.spaces != (observation, action):
            other = spaces.difference(self.spaces, (observation, action))
            raise ConductorError(f"{self.name} was built for other spaces: {other}")
        self._runtime.bind(max_staleness)
        if old is not None:
            self._sessions.pop(old, None)
        self._sessions[session] = {}

    def _build(self, observation: spaces.SpaceSpec, action: spaces.SpaceSpec) -> None:
        if self.spaces is not None:
            self._runtime.close()
        make = partial(
            make_agent,
            self._factory,
            entry=self._entry,
            params=self._params,
            seed=self._seed,
            observation=observation,
            action=action,
            state_path=self._state_path,
            first_state=self._first_state,
        )
        self._runtime = AgentRuntime(
            make,
            state_path=self._state_path,
            first_state=self._first_state,
            entry=self._entry,
            name=self.name,
        )
        self._conform = copier(action)  # an agent may write its next action over the last one
        self._plain = isinstance(observation, spaces.Discrete)
        self.spaces = (observation, action)

    def copy(self, path: Path) -> None:
        """Writes the agent's current state to `path`; its saved state, if this process has not built the agent.

        Raises ConductorError, OSError, TypeError and what its `state_dict` raises.
        """
        if self.spaces is not None:
            self._runtime.copy(path)
        else:
            state_file.copy(path, saved=self._state_path, name=self.name)

    # -- ThreadHost -----------------------------------------------------------------------------------------------

    def _prepare(self) -> None:
        exits.set_description(self._describe_current)
        self._factory = load(self._entry)
        self.loaded = state_file.initial_state(self._state_path, self._first_state) is not None

    def _answer(self, peer: bytes, data: bytes) -> bytes | None:
        try:
            request = wire.decode_agent_request(data)
        except WireError:
            return None
        slots = self._sessions.get(peer)
        if slots is None:
            return wire.encode(wire.FaultFrame(request.number, "agent", "unknown session"))
        self._current_request = (peer, request.number)
        try:
            return self._answer_to(request, peer, slots)
        except Abandoned:
            raise
        except BaseException as error:  # noqa: BLE001  # a senseless message must not end the thread, which serves all
            return wire.encode(wire.FaultFrame(request.number, "agent", one_line(error)))
        finally:
            self._current_request = None
            self._current_tickets = ()

    def _describe_current(self) -> str:
        return exits.describe(
            self._current_method, [it.episode for it in self._current_tickets if it.episode >= 0]
        )

    def _enter_method(self, method: str, tickets: Sequence[EpisodeTicket]) -> None:
        """Notes that the agent's code begins to run."""
        self._current_method, self._current_tickets = method, tickets

    def _answer_to(self, request: wire.AgentRequest, peer: bytes, slots: dict[int, _Slot]) -> bytes | None:
        match request:
            case wire.ActFrame():
                return self._continue_episode(slots, request)
            case wire.BeginFrame():
                ticket = EpisodeTicket(peer, 0, request.episode)
                slots[0] = self._new_slot(ticket, request.observation, train=request.train)
                return self._act(slots[0], request.number)
            case wire.FinishFrame():
                return self._finish_episode(peer, slots, request)
            case wire.SaveFrame():
                return self._save(peer, request)
            case wire.ActManyFrame():
                return self._act_many(peer, slots, request)

    def _finish(self) -> None:
        """An interrupted agent is not saved."""
        if self.spaces is not None and not self._abandoned:
            try:
                self._runtime.close()
            except ConductorError as error:
                log.warning("agent.not_saved", agent=self.name, reason=error.reason)

    # -- one episode at a time ------------------------------------------------------------------------------

    def _continue_episode(self, slots: dict[int, _Slot], request: wire.ActFrame) -> bytes:
        slot = self._learn(slots, 0, request.observation, request.reward, 0)
        if slot.ticket.fault is not None:
            return wire.encode(wire.FaultFrame(request.number, *slot.ticket.fault))
        slot.observation = request.observation
        return self._act(slot, request.number)

    def _new_slot(self, ticket: EpisodeTicket, observation: Any, *, train: bool) -> _Slot:
        return _Slot(ticket, observation, explore=train, learn=train and self._runtime.learns)

    def _act(self, slot: _Slot, number: int) -> bytes:
        runtime = self._runtime
        self._enter_method("agent.act", (slot.ticket,))
        try:
            action, version = runtime.act(
                partial(runtime.ask, slot.observation, explore=slot.explore), explore=slot.explore
            )
            slot.action = self._conform(action)
        except Abandoned:
            raise
        except BaseException as error:  # noqa: BLE001  # user code: any error is this episode's fault
            return wire.encode(wire.FaultFrame(number, "agent.act", one_line(error)))
        return wire.encode(wire.ActedFrame(number, slot.action, version))

    def _finish_episode(
        self, peer: bytes, slots: dict[int, _Slot], request: wire.FinishFrame
    ) -> bytes | None:
        end = wire.TERMINATED * request.terminated | wire.TRUNCATED * request.truncated
        ticket = self._learn(slots, 0, request.observation, request.reward, end).ticket
        del slots[0]
        self._enter_method("agent.state_dict", (ticket,))
        return self._runtime.end_episodes(
            [ticket], lambda: _finished(request.number, ticket), self.reply, session=peer
        )

    def _save(self, peer: bytes, request: wire.SaveFrame) -> bytes | None:
        ticket = EpisodeTicket(peer)

        def answer() -> bytes:
            self._runtime.save(ticket)
            return _finished(request.number, ticket)

        return self._runtime.end_episodes([], answer, self.reply, session=peer)

    def _learn(
        self, slots: dict[int, _Slot], number: int, observation: Any, reward: float, end: int
    ) -> _Slot:
        """The slot; its ticket has the fault, if learning failed."""
        slot = slots.get(number)
        if slot is None or slot.action is None:
            slot = slots[number] = _Slot(EpisodeTicket(b""), None, explore=False, learn=False)
            slot.ticket.fault = "agent.learn", "ValueError: a step without an action before it"
        elif slot.learn:
            transition = Transition(
                observation=slot.observation,
                action=slot.action,
                reward=reward,
                next_observation=observation,
                terminated=bool(end & wire.TERMINATED),
                truncated=bool(end & wire.TRUNCATED),
            )
            self._enter_method("agent.learn", (slot.ticket,))
            self._runtime.learn(slot.ticket, transition)
        return slot

    # -- a vector -------------------------------------------------------------------------------------------

    def _act_many(self, peer: bytes, slots: dict[int, _Slot], request: wire.ActManyFrame) -> bytes | None:
        observations = request.observations.tolist() if self._plain else request.observations
        ended: dict[int, _Slot] = {}
        acting: dict[int, _Slot] = {}
        episodes = iter(request.episodes)
        for row, (number, kind) in enumerate(zip(request.slots, request.kinds, strict=True)):
            if kind == wire.FIRST:
                ticket = EpisodeTicket(peer, number, next(episodes, -1))
                acting[row] = slots[number] = self._new_slot(ticket, observations[row], train=request.train)
                continue
            self._current_slot = number
            slot = self._learn(slots, number, observations[row], request.rewards[row], request.ends[row])
            slot.observation = observations[row]
            if kind == wire.LAST:
                ended[row] = slots.pop(number)
            else:
                acting[row] = slot
        self._current_slot = None
        rows = [row for row, slot in acting.items() if slot.ticket.fault is None]
        actions, version = self._act_all([acting[row] for row in rows], explore=request.train)
        answered = [row for row in rows if acting[row].ticket.fault is None]

        def answer() -> bytes:
            faults = [
                wire.RowFault(row, *slot.ticket.fault)
                for row, slot in (acting | ended).items()
                if slot.ticket.fault is not None
            ]
            return wire.encode(
                wire.ActedManyFrame(request.number, answered, np.array(actions), version, faults)
            )

        if not ended:
            return answer()
        tickets = [slot.ticket for slot in ended.values()]
        self._enter_method("agent.state_dict", tickets)
        return self._runtime.end_episodes(tickets, answer, self.reply, session=peer)

    def _act_all(self, slots: Sequence[_Slot], *, explore: bool) -> tuple[list[Any], int]:
        """The actions of the slots without a fault, and the version of the weights."""
        if not slots:
            return [], 0
        try:
            chosen, version = self._runtime.act(
                partial(self._ask_all, slots, explore=explore), explore=explore
            )
        except Abandoned:
            raise
        except BaseException as error:  # noqa: BLE001  # as in `_act`
            chosen, version = [error] * len(slots), 0
        actions = []
        for slot, action in zip(slots, chosen, strict=True):
            if isinstance(action, BaseException):
                slot.ticket.fault = "agent.act", one_line(action)
            else:
                slot.action = action
                actions.append(action)
        return actions, version

    def _ask_all(self, slots: Sequence[_Slot], *, explore: bool) -> list[Any]:
        """The action or the fault of each slot."""
        ask, ask_many = self._runtime.ask, self._runtime.ask_many
        found = []
        if ask_many is None:
            for slot in slots:
                self._current_slot = slot.ticket.slot
                self._enter_method("agent.act", (slot.ticket,))
                found.append(self._action_or_fault(partial(ask, slot.observation, explore=explore)))
            self._current_slot = None
            return found
        self._enter_method("agent.act", [slot.ticket for slot in slots])
        chosen = ask_many(np.array([slot.observation for slot in slots]), explore=explore)
        if len(chosen) != len(slots):
            raise ValueError(f"{len(chosen)} actions for {len(slots)} observations")
        return [self._action_or_fault(partial(_identity, action)) for action in chosen]

    def _action_or_fault(self, ask: Callable[[], Any]) -> Any:
        """A copy of the action, because the agent may reuse its array; or its fault."""
        try:
            return self._conform(ask())
        except Abandoned:
            raise
        except BaseException as error:  # noqa: BLE001  # as in `_act`
            return error


def _identity(action: Any) -> Any:
    return action


def _finished(number: int, ticket: EpisodeTicket) -> bytes:
    if ticket.fault is not None:
        return wire.encode(wire.FaultFrame(number, *ticket.fault))
    return wire.encode(wire.FinishedFrame(number))
