"""A vector of environments that step together: `gymnasium.vector.VectorEnv`, EnvPool, and what has their methods.

Rules:
1. Values are brought into the form of their spaces all at once, on their way into the row of a `StepBuffer`; only if that fails is each
   looked at: a fault is that of its row. One of all rows is an error of the vector.
2. The three ways to reset (`AutoresetMode`) look the same from outside: `fresh` says whose observation is the first one of an episode.
   By ``NextStep`` that is the step after an end, whose action counts for nothing; by ``SameStep`` the end itself, whose last
   observation is in the infos; by ``Disabled`` what `reset` was asked for. One that has ended and was not reset is reset before it is
   stepped.
3. After a process of `mode: async` has died, the others are ended without being asked: who was waited for and who waits is not known.
"""

from __future__ import annotations

from functools import partial
from math import inf, isnan, nan
from typing import TYPE_CHECKING, Any, Final, NamedTuple

import numpy as np

from governor.episodes import spaces
from governor.episodes.conforming import finite_reward
from governor.episodes.entries import make_environment, make_vector
from governor.episodes.records.step_buffer import StepBuffer
from governor.episodes.spaces.conformers import named, rows_conformer
from governor.errors import ConductorError
from governor.failures import reason_of

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from numpy.typing import NDArray

    from governor.episodes.context import Context
    from governor.episodes.spaces import SpaceSpec
    from governor.episodes.spaces.specs import Numbers
    from governor.messages import Made

NEXT_STEP: Final = "NextStep"
SAME_STEP: Final = "SameStep"
DISABLED: Final = "Disabled"
ROLES: Final = ("observation_space", "action_space")
ARRAYS_ALONE: Final = "infos and action masks (info, needs_info, action_mask) are not for vectors of mode native and async: say mode: sync"
"""The fault of an agent that needs more."""
PARTS: Final = "(observations, rewards, terminated, truncated, infos)"


class Stepped(NamedTuple):
    """A step of all. `following` are the observations that it led to, also where another episode has begun since; `has_ended`: whether
    any episode has. `faults` by environment: its values are none, and zero in the buffer.
    """

    following: NDArray[Any]
    has_ended: bool
    faults: dict[int, ValueError]


class VectorEnvironment:
    """`made.vector` environments, whose steps go into a buffer: their first observations, and those that a step starts from, are in its
    row, those that it leads to in the row behind it.
    """

    def __init__(self, made: Made, context: Context | None) -> None:
        """Raises ConductorError."""
        self.size = made.vector
        self._has_died = False
        self._environment = _async(made, context) if made.vector_mode == "async" else _native(made, context)
        try:
            self.observation, self.action = _spaces(self._environment, entry=made.entry)
        except ConductorError:
            self.close()
            raise
        self._mode = _mode_of(self._environment)
        self._nobody = np.zeros(self.size, np.bool_)
        self._nobody.flags.writeable = False
        self._none = self._nobody.tobytes()
        self.fresh = self._nobody
        self._is_reset = False
        self._over = self._nobody
        """Those that have ended, and were not reset."""
        self._is_array = spaces.is_array(self.observation)
        self._conform_all, self._conform = (
            rows_conformer(self.observation),
            spaces.conformer(self.observation),
        )

    @property
    def user_spaces(self) -> tuple[Any, Any]:
        """Observations and actions of one of its environments, as it has them."""
        observation, action = (_single(self._environment, role) for role in ROLES)
        return observation, action

    @property
    def resets_single(self) -> bool:
        return self._mode == DISABLED and self._is_reset

    def reset(self, seeds: Mapping[int, int], buffer: StepBuffer) -> dict[int, ValueError]:
        """Resets the environments with these seeds, and all others too if single ones can't be; faults by environment. Raises what
        it raises, and ValueError.
        """
        asked: dict[str, Any] = {"seed": next(iter(seeds.values()))}
        chosen = np.ones(self.size, np.bool_)
        if self._mode == DISABLED:
            asked["seed"] = [seeds.get(each) for each in range(self.size)]
            if self._is_reset:
                chosen = np.isin(np.arange(self.size), list(seeds))
                asked["options"] = {"reset_mask": chosen.copy()}
        return self._reset(asked, chosen, buffer)

    def _reset(
        self, asked: dict[str, Any], chosen: NDArray[np.bool_], buffer: StepBuffer
    ) -> dict[int, ValueError]:
        returned = self._call(self._environment.reset, **asked)
        try:
            observations, _ = returned
        except (TypeError, ValueError):
            raise ValueError("it did not return (observations, infos)") from None
        faults = self._put(observations, buffer, buffer.row)
        self._is_reset = True
        over = self._over & ~chosen
        self.fresh, self._over = self.fresh | chosen, over if over.any() else self._nobody
        return {row: fault for row, fault in faults.items() if chosen[row]}

    def begin(self, slots: list[int]) -> None:
        """Episodes begin with the observations of these environments."""
        fresh = self.fresh.copy()
        fresh[slots] = False
        self.fresh = fresh if fresh.any() else self._nobody

    def step(self, actions: NDArray[Any], buffer: StepBuffer) -> Stepped:
        """Raises what it raises, and ValueError."""
        if self._mode == DISABLED and self._over is not self._nobody:
            seeds, over = [None] * self.size, self._over
            self._reset({"seed": seeds, "options": {"reset_mask": over.copy()}}, over, buffer)
        returned = self._call(self._environment.step, actions)
        try:
            observations, rewards, terminated, truncated, infos = returned
        except (TypeError, ValueError):
            raise ValueError(f"it did not return {PARTS}") from None
        row, none = buffer.row, self._none
        faults = self._put(observations, buffer, row + 1)
        odd = self._put_rewards(rewards, buffer.rewards[row])
        terminated, truncated = self._flags(terminated, "terminated"), self._flags(truncated, "truncated")
        has_ended = terminated.tobytes() != none or truncated.tobytes() != none
        following = buffer.observations[row + 1]
        if has_ended or self._over is not self._nobody or self.fresh is not self._nobody:
            over = terminated | truncated if has_ended else self._nobody
            if self._mode == SAME_STEP:
                self.fresh = over
                following, of_final = self._with_final(infos, over, following)
                odd |= of_final
            else:
                self.fresh = self._over if self._mode == NEXT_STEP else self._nobody
                self._over = over
        if faults:  # no episode begins with one of a first observation, and none has ended by it
            first = [row for row in faults if self.fresh[row]]
            self.begin(first)
            faults = {row: fault for row, fault in faults.items() if row not in first}
        if has_ended:
            buffer.terminated[row], buffer.truncated[row] = terminated, truncated
        return Stepped(following, has_ended, odd | faults)

    def _call(self, method: Callable[..., Any], *args: Any, **keywords: Any) -> Any:
        try:
            return method(*args, **keywords)
        except (EOFError, OSError):
            # One of the user's own leaves no pipe to its environment: the others are asked to close.
            self._has_died = None not in getattr(self._environment, "parent_pipes", ())
            raise

    def close(self) -> None:
        """Also of processes of which one has died. Raises what it raises."""
        processes = getattr(self._environment, "processes", ())
        try:
            if not (processes and self._has_died):
                self._environment.close()
        finally:
            for process in processes:
                process.kill()
            self._environment.closed = True  # else Gymnasium's would try it again when it is collected

    def _put(self, observations: Any, buffer: StepBuffer, row: int) -> dict[int, ValueError]:
        """The faults of environments."""
        into = buffer.observations[row]
        if (
            self._is_array
            and observations.__class__ is np.ndarray
            and observations.dtype is into.dtype
            and observations.shape == into.shape
        ):
            buffer.observations[row] = observations  # into[:] would take twice as long
            numbers = buffer.flat[row]
            # NaN times NaN is NaN, and no other square is, nor a sum of them.
            if numbers.dtype.kind != "f" or not isnan(numbers.dot(numbers)):
                return {}
        try:
            array = self._conform_all(observations)
        except ValueError as error:
            if _length(observations) != self.size:
                raise named("observations", error) from None
        else:
            if len(array) != self.size:
                raise ValueError(f"{len(array)} observations of {self.size} environments")
            into[:] = array
            return {}
        into[:], faults = 0, {}
        for place, value in enumerate(observations):
            try:
                into[place] = self._conform(value)
            except ValueError as error:
                faults[place] = named("observation", error)
        if len(faults) == self.size:
            raise faults[0]
        return faults

    def _put_rewards(self, rewards: Any, into: NDArray[np.float64]) -> dict[int, ValueError]:
        """Likewise."""
        array = np.asarray(rewards)
        if array.shape != into.shape:
            self._require_rows(array, "rewards")
        faults: dict[int, ValueError] = {}
        into[...] = array if array.dtype.kind in "biuf" else nan  # then each is looked at below
        if not into.dot(into) < inf:
            for row in np.flatnonzero(~np.isfinite(into)).tolist():
                try:
                    into[row] = finite_reward(rewards[row])
                except ValueError as error:
                    faults[row], into[row] = error, 0.0
        return faults

    def _flags(self, flags: Any, name: str) -> NDArray[np.bool_]:
        array = np.asarray(flags)
        if array.shape == self._nobody.shape and array.dtype is self._nobody.dtype:
            return array
        self._require_rows(array, name)
        if array.dtype != np.bool_:
            if array.dtype.kind not in "iu":
                raise ValueError(f"{name} is an array of {array.dtype}, not of bool")
            array = array.astype(np.bool_)
        return array

    def _require_rows(self, array: NDArray[Any], name: str) -> None:
        if array.shape != (self.size,):
            raise ValueError(f"{name} has the shape {array.shape}, not {(self.size,)}")

    def _with_final(
        self, infos: Any, over: NDArray[np.bool_], following: NDArray[Any]
    ) -> tuple[NDArray[Any], dict[int, ValueError]]:
        """With the last observations of the episodes that are over, in place of the first ones of the next; and the faults of environments."""
        following, faults = following.copy(), {}
        known = infos if isinstance(infos, dict) else {}
        final = known.get("final_obs", known.get("final_observation"))
        for row in np.flatnonzero(over).tolist():
            if final is None or final[row] is None:
                text = "its infos have no final_obs, and it has been reset in the same step"
                faults[row] = ValueError(text)
                continue
            try:
                following[row] = self._conform(final[row])
            except ValueError as error:
                faults[row] = named("final_obs", error)
        return following, faults


class OneOfVector:
    """A native vector of one environment, as this environment: for what plays one alone."""

    def __init__(self, made: Made, context: Context | None) -> None:
        """Raises ConductorError."""
        self._vector = VectorEnvironment(made, context)
        self.observation_space, self.action_space = self._vector.user_spaces
        self._buffer = StepBuffer(self._vector.observation, self._vector.action, slots=1, rounds=1)

    def reset(self, *, seed: int) -> tuple[Any, dict[str, Any]]:
        if faults := self._vector.reset({0: seed}, self._buffer):
            raise faults[0]
        return self._buffer.observations[0, 0], {}

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        buffer = self._buffer
        stepped = self._vector.step(np.asarray([action]), buffer)
        if stepped.faults:
            raise stepped.faults[0]
        terminated, truncated = bool(buffer.terminated[0, 0]), bool(buffer.truncated[0, 0])
        return stepped.following[0], float(buffer.rewards[0, 0]), terminated, truncated, {}

    def close(self) -> None:
        self._vector.close()


def value_of(row: Any) -> Any:
    """An observation or an action as agents take one: an int for Discrete, else an array of their own."""
    return int(row) if isinstance(row, np.integer) else np.array(row)


def idle_actions(action: SpaceSpec, *, size: int) -> NDArray[Any]:
    """Those of environments for which nobody acts."""
    dtype, shape = spaces.storage(action)  # type: ignore[arg-type]  # as `_spaces` has it
    idle = np.zeros((size, *shape), dtype)
    if isinstance(action, spaces.Discrete):
        idle += action.start
    return idle


def _native(made: Made, context: Context | None) -> Any:
    return make_vector(made.entry, made.params, made.vector, context, made.wrappers)


def _async(made: Made, context: Context | None) -> Any:
    """A process for each environment, which ends with this one: the pipe that it reads is closed then."""
    from gymnasium.vector import AsyncVectorEnv, AutoresetMode  # noqa: PLC0415  # 0.2 s, only where such a vector is used

    build: Any = partial(make_environment, made.entry, made.params, context, made.wrappers)
    try:
        return AsyncVectorEnv([build] * made.vector, autoreset_mode=AutoresetMode.DISABLED, context="spawn")
    except BaseException as error:  # user code in its processes
        raise ConductorError(
            reason_of(error).within(f"environment {made.entry!r} does not start in processes of its own")
        ) from error


def _spaces(environment: Any, *, entry: str) -> tuple[Numbers, Numbers]:
    """Those of one of its environments. Raises ConductorError."""
    found: list[Numbers] = []
    for role in ROLES:
        try:
            spec = spaces.describe(_single(environment, role), role=role)
        except ConductorError as error:
            raise ConductorError(f"environment {entry!r}: {error.reason}") from error
        if not (spaces.is_array(spec) or isinstance(spec, spaces.Discrete)):
            raise ConductorError(
                f"environment {entry!r}: its {role} is {spaces.summary(spec)}; vectors of mode native and async are for Box, "
                "Discrete, MultiDiscrete and MultiBinary: say vector: {num_envs: N, mode: sync}"
            )
        found.append(spec)
    return found[0], found[1]


def _single(environment: Any, role: str) -> Any:
    space = getattr(environment, f"single_{role}", None)
    return getattr(environment, role) if space is None else space


def _length(values: Any) -> int | None:
    try:
        return len(values)
    except TypeError:
        return None


def _mode_of(environment: Any) -> str:
    """How it resets; as Gymnasium does if it does not say."""
    mode = (getattr(environment, "metadata", None) or {}).get("autoreset_mode", NEXT_STEP)
    return str(getattr(mode, "value", mode))
