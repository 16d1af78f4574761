"""One environment of the pool in a thread of its own: reset and step for whoever holds the lease.

Whatever the environment raises or returns that is no proper value is a `Fault` with where and why, in one line.
"""

from __future__ import annotations

from contextlib import suppress
from math import isfinite
from typing import TYPE_CHECKING, Any

from governor.episodes import spaces, wire
from governor.episodes.arrays import WireError
from governor.episodes.entries import Environment, make_environment, one_line
from governor.episodes.host import Abandoned, Host
from governor.errors import ConductorError

if TYPE_CHECKING:
    from pathlib import Path


class EnvironmentHost(Host):
    """`lease` is the routing id that may reset and step; the event loop sets it, the thread reads it."""

    observation_space: spaces.SpaceSpec
    action_space: spaces.SpaceSpec

    def __init__(self, *, entry: str, params: dict[str, Any], name: str, path: Path) -> None:
        super().__init__(name=name, path=path)
        self.lease: bytes | None = None
        self._entry = entry
        self._params = params
        self._environment: Environment | None = None

    def _prepare(self) -> None:
        environment = make_environment(self._entry, self._params)
        try:
            self.observation_space = spaces.describe(environment.observation_space, role="observation_space")
            self.action_space = spaces.describe(environment.action_space, role="action_space")
        except ConductorError as error:
            raise ConductorError(f"environment {self._entry!r}: {error.reason}") from error
        self._conform = spaces.conformer(self.observation_space)
        self._environment = environment

    def _answer(self, peer: bytes, data: bytes) -> bytes | None:
        try:
            request = wire.decode_environment_request(data)
        except WireError:
            return None
        if peer != self.lease:
            return wire.encode(wire.Fault(request.number, "environment", "the lease is over"))
        try:
            if isinstance(request, wire.Step):
                return wire.encode(self._step(request))
            return wire.encode(self._reset(request))
        except Abandoned:
            raise
        except BaseException as error:  # noqa: BLE001  # user code: whatever it raises is this episode's fault
            where = "environment.step" if type(request) is wire.Step else "environment.reset"
            return wire.encode(wire.Fault(request.number, where, one_line(error)))

    def _reset(self, request: wire.Reset) -> wire.Observed:
        returned: Any = self._environment.reset(seed=request.seed)  # type: ignore[union-attr]  # built in _prepare
        try:
            observation, _ = returned
        except (TypeError, ValueError):
            raise ValueError("it did not return (observation, info)") from None
        return wire.Observed(request.number, self._observation(observation))

    def _step(self, request: wire.Step) -> wire.Stepped:
        returned: Any = self._environment.step(request.action)  # type: ignore[union-attr]  # built in _prepare
        try:
            observation, reward, terminated, truncated, _ = returned
        except (TypeError, ValueError):
            raise ValueError("it did not return (observation, reward, terminated, truncated, info)") from None
        return wire.Stepped(
            request.number,
            self._observation(observation),
            finite_reward(reward),
            bool(terminated),
            bool(truncated),
        )

    def _observation(self, value: Any) -> Any:
        try:
            return self._conform(value)
        except ValueError as error:
            raise ValueError(f"observation: {error}") from None

    def _finish(self) -> None:
        close = getattr(self._environment, "close", None)
        if close is not None:
            with suppress(Exception):  # it is thrown away: what it says when it goes helps nobody
                close()


def finite_reward(value: Any) -> float:
    """Raises ValueError in one line."""
    try:
        reward = float(value)
    except (TypeError, ValueError):
        raise ValueError(f"the reward is a {type(value).__name__}, not a number") from None
    if not isfinite(reward):
        raise ValueError(f"the reward is {reward}")
    return reward
