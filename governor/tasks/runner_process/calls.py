"""How the callable of a task is found and called.

A call is named ``module:attribute``, or it is an object that was sent through Ray. It gets its `args` as keyword
arguments, and `inputs` and `context` if it has parameters of these names. A class, or an object that has ``run()``
or ``arun()``, is called through these: a class, or a partial of one, is built from the arguments first, and may have
``__call__`` instead. A class with none of them is refused: building an object does no work. Coroutines are awaited.
"""

from __future__ import annotations

import asyncio
import inspect
import os
import reprlib
import sys
import sysconfig
from contextlib import suppress
from functools import cache, lru_cache, partial
from importlib import import_module
from types import BuiltinFunctionType, FunctionType, MethodType
from typing import TYPE_CHECKING, Any, Final

from governor.failures import OURS

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Mapping
    from types import FrameType

OFFERS: Final = ("inputs", "context")
WITHOUT_RUN: Final = "is a class without run() or arun(): there is nothing to run"
_KEYWORDS: Final = (inspect.Parameter.POSITIONAL_OR_KEYWORD, inspect.Parameter.KEYWORD_ONLY)
_brief: Final = reprlib.Repr()
_brief.maxother = _brief.maxstring = 200
_INSTALLED: Final = ("stdlib", "platstdlib", "purelib", "platlib")
"""Folders of `sysconfig`; its ``data`` is the whole virtual environment, which may hold a user's code."""
_coroutine: Coroutine | None = None
"""That of the current call."""
_waited_for: Coroutine | None = None
"""The last one that was cancelled in a loop of a plain function."""


def is_loaded(call: str) -> bool:
    """Whether the module of the call has been imported already."""
    return call.partition(":")[0] in sys.modules


def changed_since(moment: float) -> bool:
    """Whether a file of a module that is imported here was changed after this moment (seconds since the epoch). Not of the
    standard library, of installed packages, and of our own, which the driver has imported as well.
    """
    installed = _folders_of_libraries()
    for module in list(sys.modules.values()):
        file = getattr(module, "__file__", None)
        if isinstance(file, str) and not file.startswith(installed):
            with suppress(OSError):  # it was removed: what is imported may go on
                found = os.stat(file)  # noqa: PTH116  # there may be hundreds
                if (
                    max(found.st_mtime, found.st_ctime) > moment
                ):  # a copy may have the older time of its original
                    return True
    return False


@cache
def _folders_of_libraries() -> tuple[str, ...]:
    return (*(sysconfig.get_path(kind) + os.sep for kind in _INSTALLED), *OURS)


@lru_cache(maxsize=256)
def find(call: str) -> Any:
    """The object with this name. Raises ValueError, ImportError, AttributeError or TypeError, each naming the call."""
    module, colon, attribute = call.partition(":")
    if not (module and colon and attribute):
        raise ValueError(f'"{call}" is not of the form module:attribute')
    found: Any = import_module(module)
    for name in attribute.split("."):
        try:
            found = getattr(found, name)
        except AttributeError:
            raise AttributeError(f'module "{module}" has no "{attribute}"') from None
    require_callable(found, f'"{call}"')
    return found


def require_callable(thing: Any, name: str | None = None) -> None:
    """Raises TypeError for an object that cannot be called in any of the ways above."""
    if lacks_run(thing):
        raise TypeError(f"{name or brief(thing)} {WITHOUT_RUN}")
    if not (callable(thing) or _method(thing)):
        raise TypeError(
            f"{name or brief(thing)} is a {type(thing).__name__}, which cannot be called and has no run() or arun()"
        )


def runs_by_class(thing: Any) -> bool:
    """Whether every object of its class can be called that has no `run` among its own attributes, `__dict__`."""
    if isinstance(thing, type | partial) or not hasattr(thing, "__dict__"):
        return False
    return isinstance(getattr(type(thing), "run", None), FunctionType)


def lacks_run(thing: Any) -> bool:
    """Whether it is a class (or a partial of one) whose objects visibly can't be run."""
    made = _class_of(thing)
    if made is None or hasattr(made, "__getattr__") or _method(made):
        return False
    return not any("__call__" in vars(each) for each in made.__mro__)


def _class_of(thing: Any) -> type | None:
    """The class that a call builds; None for functions and builtins (``builtins:dict``), whose return value is the result."""
    made = thing.func if isinstance(thing, partial) else thing
    return made if isinstance(made, type) and made.__module__ != "builtins" else None


def brief(thing: Any) -> str:
    """A short repr in one line; never raises, whatever its class does."""
    return " ".join(_brief.repr(thing).split())


def call_it(target: Any, *, args: Mapping[str, Any], offers: Mapping[str, Callable[[], Any]]) -> Any:
    """Calls an object that `find` returned, awaits it if it is a coroutine, and returns the result.

    `offers` are built only if the callable has parameters of their names.
    """
    if _class_of(target):
        built = target(**arguments(target, args, offers))
        method = _method(built)
        if method is None:
            if not callable(built):
                raise TypeError(f"{brief(target)} {WITHOUT_RUN}")
            return _finish(built())
        return _finish(method(**arguments(method, {}, offers)))
    kind: Any = type(target)
    function = None if _is_routine(kind) else _method(target)
    function = function or target
    if not callable(function):
        raise TypeError(f"{target!r} cannot be called")
    return _finish(function(**arguments(function, args, offers)))


@lru_cache(maxsize=1024)
def _is_routine(kind: type) -> bool:
    """As `inspect.isroutine`, for objects of this class."""
    return issubclass(kind, BuiltinFunctionType | FunctionType | MethodType) or (
        hasattr(kind, "__get__") and not hasattr(kind, "__set__")
    )


def _method(thing: Any) -> Callable[..., Any] | None:
    for name in ("run", "arun"):
        method: Callable[..., Any] | None = getattr(thing, name, None)
        if callable(method):
            return method
    return None


def arguments(
    function: Any, args: Mapping[str, Any], offers: Mapping[str, Callable[[], Any]]
) -> Mapping[str, Any]:
    """`args`, and those of `offers` for which the function has a parameter."""
    function = getattr(function, "__func__", function)
    try:
        wanted = _taken(function)
    except TypeError:  # an unhashable object of user code
        wanted = _taken.__wrapped__(function)
    return args if not wanted else {**{name: offers[name]() for name in wanted}, **args}


@lru_cache(maxsize=1024)
def _taken(function: Any) -> tuple[str, ...]:
    """The names of the offers for which the function has a parameter."""
    try:
        takes = inspect.signature(function).parameters
    except (TypeError, ValueError):  # builtins may have no signature
        return ()
    return tuple(name for name in OFFERS if name in takes and takes[name].kind in _KEYWORDS)


def _finish(returned: Any) -> Any:
    if returned is None or not inspect.isawaitable(returned):
        return returned
    global _coroutine  # noqa: PLW0603  # there is one main thread, which works on one call
    mine = _coroutine = Coroutine()
    try:
        return asyncio.run(mine.wait_for(returned))
    finally:
        _coroutine = None


class Coroutine:
    """The coroutine of a call, in an event loop of its own; or what such a loop waits for that a plain function runs, `task`."""

    def __init__(self, task: asyncio.Future[Any] | None = None) -> None:
        self.task = task
        self._cancelled = False
        self._is_scheduled = False
        """The loop cancels it when no code blocks it; `_is_delivered`: it has done so."""
        self._is_delivered = False

    async def wait_for(self, awaitable: Awaitable[Any]) -> Any:
        self.task = asyncio.current_task()
        if self._cancelled:
            raise asyncio.CancelledError
        return await awaitable

    def cancel(self, frame: FrameType | None) -> bool:
        """Called by a signal handler that has interrupted `frame`. False if user code blocks the loop: then an exception
        must be raised in it. An exception in the loop's own code would be lost, or leave a task that is never woken.
        """
        self._cancelled = True
        if self.task is None or self.task.done() or self._is_delivered:
            return True
        loop = self.task.get_loop()
        at_work = asyncio.current_task(loop)
        own = _is_of_loop(frame)
        if (own or at_work is not self.task) and not self._is_scheduled:
            self._is_scheduled = True
            loop.call_soon_threadsafe(self._deliver, self.task)
        return own or at_work is None

    def _deliver(self, task: asyncio.Future[Any]) -> None:
        self._is_delivered = True
        task.cancel()


def _is_of_loop(frame: FrameType | None) -> bool:
    """Whether it runs code of an event loop. Others wait in `selectors`, too: `subprocess.run` for what its child writes."""
    while frame is not None and (module := frame.f_globals.get("__name__", "")) == "selectors":
        frame = frame.f_back
    return frame is None or module.partition(".")[0] == "asyncio"


def cancel_coroutine(frame: FrameType | None) -> bool:
    """Cancels the coroutine of the current call, as `Coroutine.cancel` does; False if there is none."""
    coroutine = _coroutine or _of_own_loop(frame)
    return coroutine is not None and coroutine.cancel(frame)


def _of_own_loop(frame: FrameType | None) -> Coroutine | None:
    """Where a plain function has called `asyncio.run`, or a loop's `run_until_complete`."""
    global _waited_for  # noqa: PLW0603  # as `_coroutine`
    while frame is not None and frame.f_code is not _RUN:
        frame = frame.f_back
    task = None if frame is None else frame.f_locals.get("future")
    if not isinstance(task, asyncio.Future) or task.done():
        return None
    if _waited_for is None or _waited_for.task is not task:
        _waited_for = Coroutine(task)
    return _waited_for


_RUN: Final = asyncio.BaseEventLoop.run_until_complete.__code__
