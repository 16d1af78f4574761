"""The agent in a thread of its own: it acts for every worker that has a seat, and learns from each of them.

Rules:
1. It is built when its spaces are known, at the first join; a saved state is loaded into it then.
2. What a seat saw and did last is kept here, so that the next observation alone makes a transition.
3. At the end of an episode in train mode its state is on disk before the episode is answered.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from governor.episodes import spaces, state_file, wire
from governor.episodes.agents import make_agent
from governor.episodes.arrays import WireError
from governor.episodes.entries import load, one_line
from governor.episodes.host import Abandoned, Host
from governor.episodes.transition import Transition
from governor.errors import ConductorError

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path


class _Seat:
    """What one worker's agent saw and did last; `train` holds for its episode."""

    __slots__ = ("acted", "action", "observation", "train")

    def __init__(self) -> None:
        self.acted = False
        self.train = False
        self.observation: Any = None
        self.action: Any = None


class AgentHost(Host):
    """`at_work` is the (seat, number) of the request in the agent's hands; the event loop may look at it."""

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
        self.at_work: tuple[bytes, int] | None = None
        self.loaded = False
        self.spaces: tuple[spaces.SpaceSpec, spaces.SpaceSpec] | None = None
        self._entry = entry
        self._params = params
        self._seed = seed
        self._state_path = state_path
        self._first_state = first_state
        self._agent: Any = None
        self._where = "agent"
        self._seats: dict[bytes, _Seat] = {}

    # -- called through `do`: in the thread -----------------------------------------------------------------

    def seat(
        self,
        seat: bytes,
        *,
        observation: spaces.SpaceSpec,
        action: spaces.SpaceSpec,
        renew: bool,
        old: bytes | None,
    ) -> None:
        """Makes a seat; builds the agent where it is needed. Raises ConductorError with one line."""
        if self.spaces is None or renew:
            self._build(observation, action)
        elif self.spaces != (observation, action):
            raise ConductorError(
                f"{self.name} was built for other spaces: {self.spaces[0]}, {self.spaces[1]}"
            )
        if old is not None:
            self._seats.pop(old, None)
        self._seats[seat] = _Seat()

    def _build(self, observation: spaces.SpaceSpec, action: spaces.SpaceSpec) -> None:
        agent = make_agent(
            self._factory,
            entry=self._entry,
            params=self._params,
            seed=self._seed,
            observation=observation,
            action=action,
            state_path=self._state_path,
            first_state=self._first_state,
        )
        self._agent = agent
        self._act = agent.act
        self._learn: Callable[[Transition], Any] | None = getattr(agent, "learn", None)
        self._state_dict: Callable[[], dict[str, Any]] | None = getattr(agent, "state_dict", None)
        self._conform = spaces.conformer(action)
        self.spaces = (observation, action)

    def copy(self, path: Path) -> None:
        """Its state as it is now is at `path`; what was saved, where it has not been built in this life.

        Raises ConductorError, OSError, TypeError and what its `state_dict` raises.
        """
        state_file.copy(path, self._agent, saved=self._state_path, name=self.name)

    # -- Host -----------------------------------------------------------------------------------------------

    def _prepare(self) -> None:
        self._factory = load(self._entry)
        self.loaded = state_file.first(self._state_path, self._first_state) is not None

    def _answer(self, peer: bytes, data: bytes) -> bytes | None:
        try:
            request = wire.decode_agent_request(data)
        except WireError:
            return None
        seat = self._seats.get(peer)
        if seat is None:
            return wire.encode(wire.Fault(request.number, "agent", "nobody sits there"))
        self.at_work = (peer, request.number)
        try:
            if isinstance(request, wire.Act):
                return wire.encode(self._go_on(seat, request))
            if isinstance(request, wire.Begin):
                seat.train = request.train and self._learn is not None
                return wire.encode(self._choose(seat, request, explore=request.train))
            return wire.encode(self._end(seat, request))
        except Abandoned:
            raise
        except BaseException as error:  # noqa: BLE001  # user code: whatever it raises is this episode's fault
            seat.acted = False
            return wire.encode(wire.Fault(request.number, self._where, one_line(error)))
        finally:
            self.at_work = None

    def _finish(self) -> None:
        self._agent = None

    # -- steps ----------------------------------------------------------------------------------------------

    def _go_on(self, seat: _Seat, request: wire.Act) -> wire.Acted:
        if seat.train:
            self._learn_from(seat, request, terminated=False, truncated=False)
            return self._choose(seat, request, explore=True)
        return self._choose(seat, request, explore=False)

    def _choose(self, seat: _Seat, request: wire.Begin | wire.Act, *, explore: bool) -> wire.Acted:
        self._where = "agent.act"
        action = self._conform(self._act(request.observation, explore=explore))
        seat.observation = request.observation
        seat.action = action
        seat.acted = True
        return wire.Acted(request.number, action)

    def _learn_from(
        self, seat: _Seat, request: wire.Act | wire.Finish, *, terminated: bool, truncated: bool
    ) -> None:
        self._where = "agent.learn"
        if not seat.acted:
            raise ValueError("a step without an action before it")
        self._learn(  # type: ignore[misc]  # a seat trains only where there is one
            Transition(
                observation=seat.observation,
                action=seat.action,
                reward=request.reward,
                next_observation=request.observation,
                terminated=terminated,
                truncated=truncated,
            )
        )

    def _end(self, seat: _Seat, request: wire.Finish) -> wire.Finished:
        if seat.train:
            self._learn_from(seat, request, terminated=request.terminated, truncated=request.truncated)
        seat.acted = False
        if self._state_dict is not None:
            self._where = "agent.state_dict"
            state_file.save(self._state_path, self._state_dict())
        return wire.Finished(request.number)
