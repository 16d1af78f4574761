"""From an `entry` of the run file to the user's object.

`gymnasium:ID` is `gymnasium.make(ID, **params)`, without its checker of the first step: `spaces` checks the values of every
step. `module:Class` is `Class(**params)`, and a wrapper is `Class(environment, **params)`. Everything here runs user code: call it from a separate thread, never from the one
that sends heartbeats.
"""

from __future__ import annotations

import asyncio
import threading
from functools import partial
from importlib import import_module
from typing import TYPE_CHECKING, Any, Protocol, TypeVar

from governor.episodes import gymnasium_ids
from governor.episodes.context import with_context
from governor.errors import ConductorError
from governor.failures import reason_of

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from governor.episodes.context import Context
    from governor.messages.commands import Wrapper

T = TypeVar("T")


class Abandoned(BaseException):
    """Raised inside an abandoned thread (`remote.thread_host`); no `except Exception` of user code catches it."""


class Environment(Protocol):
    """The protocol of an environment: Gymnasium's own.

    Observations and actions have the dtype and shape of their space, without a batch axis: int for Discrete, else an array.
    `reset` returns (observation, info). `step` returns (observation, reward, terminated, truncated, info); `reward` is a finite
    float, both flags are bool. `vector` steps several such environments, one by one.
    """

    observation_space: Any
    action_space: Any

    def reset(self, *, seed: int | None = None) -> tuple[Any, dict[str, Any]]: ...

    def step(self, action: Any) -> tuple[Any, Any, Any, Any, dict[str, Any]]: ...


def load(entry: str) -> Callable[..., Any]:
    """The callable behind `entry`. Raises ConductorError with one line."""
    module_name, _, attribute = entry.partition(":")
    if not module_name or not attribute:
        raise ConductorError(f"entry {entry!r} is not of the form module:attribute")
    if module_name == "gymnasium":
        return _gymnasium(attribute)
    try:
        found: Any = import_module(module_name)
        for name in attribute.split("."):
            found = getattr(found, name)
    except BaseException as error:  # user code, which may also exit
        raise ConductorError(reason_of(error).within(f"entry {entry!r} does not load")) from error
    if not callable(found):
        raise ConductorError(f"entry {entry!r} is a {type(found).__name__}, not a class")
    made: Callable[..., Any] = found
    return made


def _gymnasium(identifier: str) -> Callable[..., Any]:
    import gymnasium  # noqa: PLC0415  # 0.2 s, only where such an environment is used

    def make(**params: Any) -> Any:
        gymnasium_ids.spec_of(identifier)
        return gymnasium.make(identifier, **{"disable_env_checker": True, **params})

    def makes() -> Any:
        """The class of the environment. Raises ValueError."""
        try:
            return gymnasium_ids.creator_of(identifier)
        except BaseException as error:  # `make` says what is wrong
            raise ValueError(identifier) from error

    make.makes = makes  # type: ignore[attr-defined]  # for `context.with_context`
    return make


def make_environment(
    entry: str, params: dict[str, Any], context: Context | None = None, wrappers: Sequence[Wrapper] = ()
) -> Environment:
    """The first of the `wrappers` is the innermost one. Raises ConductorError with one line, whatever the user's code raises."""
    factory = load(entry)
    try:
        environment = factory(**with_context(factory, params, context))
    except BaseException as error:  # as in `load`
        raise ConductorError(reason_of(error).within(f"environment {entry!r} does not start")) from error
    environment = _wrapped(environment, entry, wrappers, context)
    missing = [
        name
        for name in ("observation_space", "action_space", "reset", "step")
        if not hasattr(environment, name)
    ]
    if missing:
        raise ConductorError(f"environment {entry!r} has no {', '.join(missing)}")
    made: Environment = environment
    return made


def make_vector(
    entry: str,
    params: dict[str, Any],
    num_envs: int,
    context: Context | None = None,
    wrappers: Sequence[Wrapper] = (),
) -> Any:
    """A vector of environments that step together: `entry` is called with `num_envs`; of ``gymnasium:ID`` it is what Gymnasium has
    registered as its vector. Raises ConductorError with one line.
    """
    module_name, _, attribute = entry.partition(":")
    factory = _gymnasium_vector(attribute) if module_name == "gymnasium" else load(entry)
    try:
        vector = factory(**with_context(factory, {"num_envs": num_envs, **params}, context))
    except BaseException as error:  # as in `load`
        raise ConductorError(reason_of(error).within(f"vector of {entry!r} does not start")) from error
    vector = _wrapped(vector, entry, wrappers, context)
    missing = [
        name
        for name in ("observation_space", "action_space", "reset", "step", "close")
        if not hasattr(vector, name)
    ]
    if missing:
        raise ConductorError(f"vector of {entry!r} has no {', '.join(missing)}")
    if (size := getattr(vector, "num_envs", num_envs)) != num_envs:
        raise ConductorError(f"vector of {entry!r} has {size} environments, not {num_envs}")
    return vector


def _gymnasium_vector(identifier: str) -> Callable[..., Any]:
    import gymnasium  # noqa: PLC0415  # as in `_gymnasium`

    spec = gymnasium_ids.spec_of(identifier)
    if spec.vector_entry_point is None:
        raise ConductorError(
            f"gymnasium has no vector of {identifier!r} that steps by itself: say mode: sync, or mode: async"
        )
    return partial(gymnasium.make_vec, identifier, vectorization_mode="vector_entry_point")


def _wrapped(environment: Any, entry: str, wrappers: Sequence[Wrapper], context: Context | None) -> Any:
    for index, wrapper in enumerate(wrappers):
        try:
            factory = load(wrapper.entry)
            environment = factory(environment, **with_context(factory, wrapper.params, context))
        except BaseException as error:  # as in `load`
            place = f"environment {entry!r}: wrappers[{index}] {wrapper.entry!r} does not start"
            raise ConductorError(reason_of(error).within(place)) from error
    return environment


async def in_daemon_thread(work: Callable[[], T], *, name: str) -> T:
    """Runs blocking user code in a daemon thread. Unlike `asyncio.to_thread`, a hang does not block the exit."""
    loop = asyncio.get_running_loop()
    ended: asyncio.Future[T] = loop.create_future()
    threading.Thread(target=answer, args=(loop, ended, work), name=name, daemon=True).start()
    return await ended


def answer(loop: asyncio.AbstractEventLoop, ended: asyncio.Future[T], work: Callable[[], T]) -> None:
    """Runs `work` in this thread; `ended`, a future of `loop`, gets its result or exception."""
    try:
        result = work()
    except Abandoned:
        raise
    except BaseException as error:  # noqa: BLE001  # also SystemExit of user code: the waiting task gets it
        failure = error if isinstance(error, Exception) else ConductorError(reason_of(error))
        settle(loop, ended, failure=failure)
    else:
        settle(loop, ended, result)


def settle(
    loop: asyncio.AbstractEventLoop,
    future: asyncio.Future[Any],
    result: object = None,
    *,
    failure: Exception | None = None,
) -> None:
    """Sets the result or the exception of a future of `loop` from a thread; one that is cancelled stays so."""

    def call() -> None:
        if future.done():
            return
        if failure is not None:
            future.set_exception(failure)
        else:
            future.set_result(result)

    call_in_loop(loop, call)


def call_in_loop(loop: asyncio.AbstractEventLoop, call: Callable[[], None]) -> None:
    """`call_soon_threadsafe` that a thread may use after the loop has closed: the call is dropped then."""
    try:
        loop.call_soon_threadsafe(call)
    except RuntimeError:
        if not loop.is_closed():
            raise
