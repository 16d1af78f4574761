"""One environment of the pool in a thread of its own: reset and step for whoever holds the lease. Of a vector, all of it.

Whatever an environment raises or returns that is no proper value is a `Fault` with where and why, in one line; in a
vector it is one slot's alone.
"""

from __future__ import annotations

from contextlib import suppress
from typing import TYPE_CHECKING, Any

import numpy as np

from governor.episodes import exits, spaces
from governor.episodes.arrays import WireError
from governor.episodes.entries import Environment, make_environment, one_line
from governor.episodes.remote import wire
from governor.episodes.remote.host import Abandoned, ThreadHost
from governor.errors import ConductorError

if TYPE_CHECKING:
    from pathlib import Path


class EnvironmentHost(ThreadHost):
    """`lease` is who may reset and step; the event loop sets it, the thread reads it. `at_work` is the slot whose code the
    thread is in, None between two requests; the event loop may look at it.
    """

    observation_space: spaces.SpaceSpec
    action_space: spaces.SpaceSpec

    def __init__(self, *, entry: str, params: dict[str, Any], name: str, path: Path, vector: int = 1) -> None:
        super().__init__(name=name, path=path)
        self.lease: bytes | None = None
        self.at_work: int | None = None
        self._entry = entry
        self._params = params
        self._vector = vector
        self._environments: list[Environment] = []
        self._episodes: dict[int, int] = {}
        """By slot: that of its last reset."""
        self._method = "reset"

    def _prepare(self) -> None:
        exits.tells(self._at_work)
        self._environments = [make_environment(self._entry, self._params) for _ in range(self._vector)]
        environment = self._environments[0]
        try:
            self.observation_space = spaces.describe(environment.observation_space, role="observation_space")
            self.action_space = spaces.describe(environment.action_space, role="action_space")
        except ConductorError as error:
            raise ConductorError(f"environment {self._entry!r}: {error.reason}") from error
        self._conform = spaces.conformer(self.observation_space)
        self._blank = spaces.blank(self.observation_space)
        self._plain = isinstance(self.action_space, spaces.Discrete)

    def _answer(self, peer: bytes, data: bytes) -> bytes | None:
        try:
            request = wire.decode_environment_request(data)
        except WireError:
            return None
        self.at_work = 0  # before the lease is looked at: whoever ends it sees that it was in time
        try:
            if peer != self.lease:
                return wire.encode(wire.FaultFrame(request.number, "environment", "the lease is over"))
            if isinstance(request, wire.StepFrame):
                return wire.encode(wire.SteppedFrame(request.number, *self._step(0, request.action)))
            if isinstance(request, wire.ResetFrame):
                self._episodes[0] = request.episode
                return wire.encode(wire.ObservedFrame(request.number, self._reset(0, request.seed)))
            return wire.encode(self._many(request))
        except Abandoned:
            raise
        except BaseException as error:  # noqa: BLE001  # user code: whatever it raises is this episode's fault
            where = "environment.step" if type(request) is wire.StepFrame else "environment.reset"
            return wire.encode(wire.FaultFrame(request.number, where, one_line(error)))
        finally:
            self.at_work = None

    def _many(self, request: wire.ResetManyFrame | wire.StepManyFrame) -> wire.SteppedManyFrame:
        stepping = isinstance(request, wire.StepManyFrame)
        if isinstance(request, wire.ResetManyFrame):
            self._episodes |= zip(request.slots, request.episodes, strict=False)
        told: Any = request.actions if isinstance(request, wire.StepManyFrame) else request.seeds
        told = told.tolist() if self._plain and stepping else told
        observations, rewards, ends, faults = [], [], [], []
        for row, slot in enumerate(request.slots):
            observation, reward, end = self._blank, 0.0, 0
            self.at_work = slot
            try:
                if stepping:
                    observation, reward, terminated, truncated = self._step(slot, told[row])
                    end = wire.TERMINATED * terminated | wire.TRUNCATED * truncated
                else:
                    observation = self._reset(slot, told[row])
            except Abandoned:
                raise
            except BaseException as error:  # noqa: BLE001  # as in `_answer`
                where = "environment.step" if stepping else "environment.reset"
                faults.append(wire.RowFault(row, where, one_line(error)))
            observations.append(observation)
            rewards.append(reward)
            ends.append(end)
        return wire.SteppedManyFrame(request.number, np.array(observations), rewards, ends, faults)

    def _reset(self, slot: int, seed: int) -> Any:
        self._method = "reset"
        returned: Any = self._environments[slot].reset(seed=seed)
        try:
            observation, _ = returned
        except (TypeError, ValueError):
            raise ValueError("it did not return (observation, info)") from None
        return self._observation(observation)

    def _step(self, slot: int, action: Any) -> tuple[Any, float, bool, bool]:
        self._method = "step"
        returned: Any = self._environments[slot].step(action)
        try:
            observation, reward, terminated, truncated, _ = returned
        except (TypeError, ValueError):
            raise ValueError("it did not return (observation, reward, terminated, truncated, info)") from None
        return (
            self._observation(observation),
            spaces.finite_reward(reward),
            spaces.flag(terminated, "terminated"),
            spaces.flag(truncated, "truncated"),
        )

    def _at_work(self) -> str:
        slot = self.at_work
        return "" if slot is None else f"environment.{self._method} of episode {self._episodes.get(slot)}"

    def _observation(self, value: Any) -> Any:
        try:
            return self._conform(value)
        except ValueError as error:
            raise ValueError(f"observation: {error}") from None

    def _finish(self) -> None:
        for environment in self._environments:
            close = getattr(environment, "close", None)
            if close is not None:
                with suppress(Exception):  # it is thrown away: what it says when it goes helps nobody
                    close()
