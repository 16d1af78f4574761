"""How the callable of a task is found and called.

A call is named ``module:attribute``. It gets its `args` as keyword arguments, and `inputs` and `context` where it
has parameters of these names. A class, or an object that has ``run()`` or ``arun()``, is called that way: a class is
built from the arguments first. Coroutines are awaited.
"""

from __future__ import annotations

import asyncio
import inspect
import sys
from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping


def is_loaded(call: str) -> bool:
    """Whether the module of the call has been imported already."""
    return call.partition(":")[0] in sys.modules


def find(call: str) -> Any:
    """What the name stands for. Raises ValueError, ImportError or AttributeError, each naming the call."""
    module, colon, attribute = call.partition(":")
    if not (module and colon and attribute):
        raise ValueError(f'"{call}" is not of the form module:attribute')
    found: Any = import_module(module)
    for name in attribute.split("."):
        try:
            found = getattr(found, name)
        except AttributeError:
            raise AttributeError(f'module "{module}" has no "{attribute}"') from None
    if not (callable(found) or _method(found)):
        raise TypeError(
            f'"{call}" is a {type(found).__name__}, which cannot be called and has no run() or arun()'
        )
    return found


def call_it(target: Any, *, args: Mapping[str, Any], offers: Mapping[str, Any]) -> Any:
    """Calls what `find` found, waits for it where it is a coroutine, and gives what it returned."""
    if inspect.isclass(target):
        built = target(**_arguments(target, args, offers))
        method = _method(built)
        if method is None:
            return built() if callable(built) else built
        return _finish(method(**_arguments(method, {}, offers)))
    function = target if callable(target) else _method(target)
    if function is None:
        raise TypeError(f"{target!r} cannot be called")
    return _finish(function(**_arguments(function, args, offers)))


def _method(thing: Any) -> Callable[..., Any] | None:
    for name in ("run", "arun"):
        method: Callable[..., Any] | None = getattr(thing, name, None)
        if callable(method):
            return method
    return None


def _arguments(function: Any, args: Mapping[str, Any], offers: Mapping[str, Any]) -> dict[str, Any]:
    """`args`, and of `offers` what the function has a parameter of that name for."""
    try:
        takes = inspect.signature(function).parameters
    except (TypeError, ValueError):  # builtins may have no signature
        return dict(args)
    keywords = (inspect.Parameter.POSITIONAL_OR_KEYWORD, inspect.Parameter.KEYWORD_ONLY)
    wanted = {name: value for name, value in offers.items() if name in takes and takes[name].kind in keywords}
    return {**wanted, **args}


def _finish(returned: Any) -> Any:
    if not inspect.isawaitable(returned):
        return returned

    async def waited() -> Any:
        return await returned

    return asyncio.run(waited())
