"""The agent in a thread of its own: it acts for every worker that has a seat, and learns from each of them.

Rules:
1. It is built when its spaces are known, at the first join; a saved state is loaded into it then.
2. What a seat saw and did last is kept here, for each of its slots, so that the next observation alone makes a transition.
3. A step is learned before the next action is chosen, in the order of the requests and of their rows; with
   `max_staleness` it is learned beside. The end of an episode in train mode is answered when all of it is learned.
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
from governor.episodes.remote.brain import EpisodeTicket
from governor.episodes.remote.host import Abandoned, ThreadHost
from governor.episodes.remote.mind import AgentRuntime
from governor.episodes.transition import Transition
from governor.errors import ConductorError

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from pathlib import Path

log = logs.get_logger()


class _Slot:
    """What the agent saw and did last in an episode; `explore` and `learn` hold for all of it."""

    __slots__ = ("action", "explore", "learn", "observation", "trace")

    def __init__(self, trace: EpisodeTicket, observation: Any, *, explore: bool, learn: bool) -> None:
        self.trace = trace
        self.explore = explore
        self.learn = learn
        self.observation = observation
        self.action: Any = None


class AgentHost(ThreadHost):
    """Each seat is in as many episodes at once as its worker has environments: `slots`, by their numbers."""

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
        self._at_work: tuple[bytes, int] | None = None
        self._slot_at_work: int | None = None
        self._calls: str = ""
        self._called_for: Sequence[EpisodeTicket] = ()
        """The method of the agent that the thread is in, and for which episodes."""
        self._mind: AgentRuntime
        self._seats: dict[bytes, dict[int, _Slot]] = {}

    def at_work(self, seat: bytes, number: int) -> EpisodeTicket | None:
        """What is in the agent's hands, if that is this very request or the learning of its seat's steps; for any thread."""
        if self._at_work == (seat, number):
            return EpisodeTicket(seat, self._slot_at_work)
        trace = self._mind.in_hand if self.spaces is not None else None
        return trace if trace is not None and trace.seat == seat else None

    # -- called through `do`: in the thread -----------------------------------------------------------------

    def seat(
        self,
        seat: bytes,
        *,
        observation: spaces.SpaceSpec,
        action: spaces.SpaceSpec,
        renew: bool,
        old: bytes | None,
        max_staleness: int = 0,
    ) -> None:
        """Makes a seat; builds the agent where it is needed. Raises ConductorError with one line."""
        if self.spaces is None or renew:
            self._build(observation, action)
        elif self.spaces != (observation, action):
            other = spaces.difference(self.spaces, (observation, action))
            raise ConductorError(f"{self.name} was built for other spaces: {other}")
        self._mind.bind(max_staleness)
        if old is not None:
            self._seats.pop(old, None)
        self._seats[seat] = {}

    def _build(self, observation: spaces.SpaceSpec, action: spaces.SpaceSpec) -> None:
        if self.spaces is not None:
            self._mind.put_down()
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
        self._mind = AgentRuntime(
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
        """Its state as it is now is at `path`; what was saved, where it has not been built in this life.

        Raises ConductorError, OSError, TypeError and what its `state_dict` raises.
        """
        if self.spaces is not None:
            self._mind.copy(path)
        else:
            state_file.copy(path, saved=self._state_path, name=self.name)

    # -- Host -----------------------------------------------------------------------------------------------

    def _prepare(self) -> None:
        exits.tells(self._place)
        self._factory = load(self._entry)
        self.loaded = state_file.first(self._state_path, self._first_state) is not None

    def _answer(self, peer: bytes, data: bytes) -> bytes | None:
        try:
            request = wire.decode_agent_request(data)
        except WireError:
            return None
        slots = self._seats.get(peer)
        if slots is None:
            return wire.encode(wire.FaultFrame(request.number, "agent", "nobody sits there"))
        self._at_work = (peer, request.number)
        try:
            return self._answer_to(request, peer, slots)
        except Abandoned:
            raise
        except BaseException as error:  # noqa: BLE001  # of a message that makes no sense: the thread is for all
            return wire.encode(wire.FaultFrame(request.number, "agent", one_line(error)))
        finally:
            self._at_work = None
            self._called_for = ()

    def _place(self) -> str:
        return exits.place(self._calls, [it.episode for it in self._called_for if it.episode >= 0])

    def _call(self, method: str, traces: Sequence[EpisodeTicket]) -> None:
        """The agent's code begins."""
        self._calls, self._called_for = method, traces

    def _answer_to(self, request: wire.AgentRequest, peer: bytes, slots: dict[int, _Slot]) -> bytes | None:
        match request:
            case wire.ActFrame():
                return self._go_on(slots, request)
            case wire.BeginFrame():
                trace = EpisodeTicket(peer, 0, request.episode)
                slots[0] = self._slot(trace, request.observation, train=request.train)
                return self._act(slots[0], request.number)
            case wire.FinishFrame():
                return self._end(peer, slots, request)
            case wire.KeepFrame():
                return self._keep(peer, request)
            case wire.ActManyFrame():
                return self._many(peer, slots, request)

    def _finish(self) -> None:
        """What was interrupted in the middle is not saved."""
        if self.spaces is not None and not self._abandoned:
            try:
                self._mind.put_down()
            except ConductorError as error:
                log.warning("agent.not_saved", agent=self.name, reason=error.reason)

    # -- one episode at a time ------------------------------------------------------------------------------

    def _go_on(self, slots: dict[int, _Slot], request: wire.ActFrame) -> bytes:
        slot = self._learn(slots, 0, request.observation, request.reward, 0)
        if slot.trace.fault is not None:
            return wire.encode(wire.FaultFrame(request.number, *slot.trace.fault))
        slot.observation = request.observation
        return self._act(slot, request.number)

    def _slot(self, trace: EpisodeTicket, observation: Any, *, train: bool) -> _Slot:
        return _Slot(trace, observation, explore=train, learn=train and self._mind.learns)

    def _act(self, slot: _Slot, number: int) -> bytes:
        mind = self._mind
        self._call("agent.act", (slot.trace,))
        try:
            action, version = mind.act(
                partial(mind.ask, slot.observation, explore=slot.explore), explore=slot.explore
            )
            slot.action = self._conform(action)
        except Abandoned:
            raise
        except BaseException as error:  # noqa: BLE001  # user code: whatever it raises is this episode's fault
            return wire.encode(wire.FaultFrame(number, "agent.act", one_line(error)))
        return wire.encode(wire.ActedFrame(number, slot.action, version))

    def _end(self, peer: bytes, slots: dict[int, _Slot], request: wire.FinishFrame) -> bytes | None:
        end = wire.TERMINATED * request.terminated | wire.TRUNCATED * request.truncated
        trace = self._learn(slots, 0, request.observation, request.reward, end).trace
        del slots[0]
        self._call("agent.state_dict", (trace,))
        return self._mind.ended([trace], lambda: _finished(request.number, trace), self.reply, seat=peer)

    def _keep(self, peer: bytes, request: wire.KeepFrame) -> bytes | None:
        trace = EpisodeTicket(peer)

        def answer() -> bytes:
            self._mind.keep(trace)
            return _finished(request.number, trace)

        return self._mind.ended([], answer, self.reply, seat=peer)

    def _learn(
        self, slots: dict[int, _Slot], number: int, observation: Any, reward: float, end: int
    ) -> _Slot:
        """The slot; its trace has the fault, if there is one."""
        slot = slots.get(number)
        if slot is None or slot.action is None:
            slot = slots[number] = _Slot(EpisodeTicket(b""), None, explore=False, learn=False)
            slot.trace.fault = "agent.learn", "ValueError: a step without an action before it"
        elif slot.learn:
            transition = Transition(
                observation=slot.observation,
                action=slot.action,
                reward=reward,
                next_observation=observation,
                terminated=bool(end & wire.TERMINATED),
                truncated=bool(end & wire.TRUNCATED),
            )
            self._call("agent.learn", (slot.trace,))
            self._mind.learn(slot.trace, transition)
        return slot

    # -- a vector -------------------------------------------------------------------------------------------

    def _many(self, peer: bytes, slots: dict[int, _Slot], request: wire.ActManyFrame) -> bytes | None:
        seen = request.observations.tolist() if self._plain else request.observations
        ended: dict[int, _Slot] = {}
        acting: dict[int, _Slot] = {}
        episodes = iter(request.episodes)
        for row, (number, kind) in enumerate(zip(request.slots, request.kinds, strict=True)):
            if kind == wire.FIRST:
                trace = EpisodeTicket(peer, number, next(episodes, -1))
                acting[row] = slots[number] = self._slot(trace, seen[row], train=request.train)
                continue
            self._slot_at_work = number
            slot = self._learn(slots, number, seen[row], request.rewards[row], request.ends[row])
            slot.observation = seen[row]
            if kind == wire.LAST:
                ended[row] = slots.pop(number)
            else:
                acting[row] = slot
        self._slot_at_work = None
        rows = [row for row, slot in acting.items() if slot.trace.fault is None]
        actions, version = self._act_all([acting[row] for row in rows], explore=request.train)
        told = [row for row in rows if acting[row].trace.fault is None]

        def answer() -> bytes:
            faults = [
                wire.RowFault(row, *slot.trace.fault)
                for row, slot in (acting | ended).items()
                if slot.trace.fault is not None
            ]
            return wire.encode(wire.ActedManyFrame(request.number, told, np.array(actions), version, faults))

        if not ended:
            return answer()
        traces = [slot.trace for slot in ended.values()]
        self._call("agent.state_dict", traces)
        return self._mind.ended(traces, answer, self.reply, seat=peer)

    def _act_all(self, slots: Sequence[_Slot], *, explore: bool) -> tuple[list[Any], int]:
        """The actions of those slots that have no fault then."""
        if not slots:
            return [], 0
        try:
            chosen, version = self._mind.act(partial(self._ask_all, slots, explore=explore), explore=explore)
        except Abandoned:
            raise
        except BaseException as error:  # noqa: BLE001  # as in `_act`
            chosen, version = [error] * len(slots), 0
        actions = []
        for slot, action in zip(slots, chosen, strict=True):
            if isinstance(action, BaseException):
                slot.trace.fault = "agent.act", one_line(action)
            else:
                slot.action = action
                actions.append(action)
        return actions, version

    def _ask_all(self, slots: Sequence[_Slot], *, explore: bool) -> list[Any]:
        """The actions, each with its fault in its place."""
        ask, ask_many = self._mind.ask, self._mind.ask_many
        found = []
        if ask_many is None:
            for slot in slots:
                self._slot_at_work = slot.trace.slot
                self._call("agent.act", (slot.trace,))
                found.append(self._tried(partial(ask, slot.observation, explore=explore)))
            self._slot_at_work = None
            return found
        self._call("agent.act", [slot.trace for slot in slots])
        chosen = ask_many(np.array([slot.observation for slot in slots]), explore=explore)
        if len(chosen) != len(slots):
            raise ValueError(f"{len(chosen)} actions for {len(slots)} observations")
        return [self._tried(partial(_itself, action)) for action in chosen]

    def _tried(self, ask: Callable[[], Any]) -> Any:
        """The action, before the agent can write another one over it; or its fault."""
        try:
            return self._conform(ask())
        except Abandoned:
            raise
        except BaseException as error:  # noqa: BLE001  # as in `_act`
            return error


def _itself(action: Any) -> Any:
    return action


def _finished(number: int, trace: EpisodeTicket) -> bytes:
    if trace.fault is not None:
        return wire.encode(wire.FaultFrame(number, *trace.fault))
    return wire.encode(wire.FinishedFrame(number))
