"""Compares user code with how a run will call it, by its signatures: arguments that are missing or unknown, methods that lack.

Rules:
1. What would run is never refused. A verdict is given on functions and classes that are plain Python alone. In doubt there is
   none: on decorated functions (the wrapper may take other arguments than it shows), on constructors of classes with a `__new__`
   or a metaclass of their own, on methods that the class's code sets or that `__getattr__` may find, and on what is written in C.
2. Nothing is called.
3. A fault has the name of the argument that it is about, "" for the whole entry.
"""

from __future__ import annotations

import dis
import functools
import inspect
from inspect import Parameter
from types import CodeType, FunctionType, MethodType
from typing import TYPE_CHECKING, Any, Final, TypeAlias

from governor.tasks.runner_process import calls
from governor.units.sections import suggestion

if TYPE_CHECKING:
    from collections.abc import Collection, Iterator, Sequence

Faults: TypeAlias = "tuple[tuple[str, str], ...]"
"""Of one entry: the argument, or "", and the message."""
FOR_AGENTS: Final = ("observation_space", "action_space", "seed")
"""What every agent's constructor is given."""
_FOR_CALLS: Final = frozenset({"player", "worker", "action_mask"})
"""Arguments that methods of an agent are given if they have them."""
_CONTEXT: Final = frozenset({"context"})
_NAMED: Final = (Parameter.POSITIONAL_OR_KEYWORD, Parameter.KEYWORD_ONLY)
_BY_PLACE: Final = (Parameter.POSITIONAL_ONLY, Parameter.POSITIONAL_OR_KEYWORD)
_KNOWN: Final = frozenset({"abc", "gymnasium", "typing"})
"""Modules whose base classes set none of the attributes that are looked for."""
_RUN: Final = ("run", "arun")
_SETTERS: Final = frozenset({"setattr", "__setattr__", "__dict__", "vars"})


def of_task(call: Any, args: Sequence[str], *, name: str) -> Faults:
    """Of a callable of `calls`."""
    target = call
    if not isinstance(call, type | FunctionType | MethodType | functools.partial):  # an object with run()
        target = next(filter(callable, (getattr(call, each, None) for each in _RUN)), call)
    found = list(_bound(target, args, offered=calls.OFFERS, name=name))
    made = call.func if isinstance(call, functools.partial) else call
    if isinstance(made, type):
        method = next((each for each in _RUN if callable(getattr(made, each, None))), "")
        if method:
            what = f"{name}.{method}() is given nothing but inputs and context"
            found += [("", f"{what}: {wrong}") for wrong in _method(made, method, (), offered=calls.OFFERS)]
    return tuple(found)


def of_environment(made: Any, params: Sequence[str], *, name: str, wrapped: bool) -> Faults:
    """`wrapped`: wrappers of the run file are around it, and what it lacks may be theirs."""
    found = [*_bound(made, params, offered=_CONTEXT, name=name)]
    if not wrapped and _is_plain(made):
        found += [("", f"{name} {wrong}") for wrong in _of_environment_class(made)]
    return tuple(found)


def of_registered(
    made: Any, params: Sequence[str], kwargs: Collection[str], *, name: str, wrapped: bool
) -> Faults:
    """The same of a class that is registered with Gymnasium, with these `kwargs`."""
    found = [*_bound(made, params, offered=_CONTEXT | {*kwargs}, name=name)]
    if not wrapped and _is_plain(made):
        found += [("", f"{name} {wrong}") for wrong in _of_environment_class(made)]
    return tuple(found)


def of_text_environment(made: Any, params: Sequence[str], *, name: str) -> Faults:
    found = [*_bound(made, params, offered=_CONTEXT, name=name)]
    if _is_plain(made):
        forms = (("reset", ("seed",), 0), ("step", (), 1), ("get_task_prompt", (), 0))
        for method, named, first in forms:
            wrong = next(_method(made, method, named, first=first), "")
            if wrong:
                found.append(("", f"{name} cannot be called as a run does: {method}: {wrong}"))
    return tuple(found)


def of_wrapper(made: Any, params: Sequence[str], *, name: str) -> Faults:
    return tuple(_bound(made, params, first=1, offered=_CONTEXT, name=name))


def of_agent(made: Any, params: Sequence[str], *, name: str) -> Faults:
    twice = [
        (each, f"{each!r} is given by the run itself: leave it out") for each in params if each in FOR_AGENTS
    ]
    given = [each for each in params if each not in FOR_AGENTS]
    found = [*twice, *_bound(made, given, always=FOR_AGENTS, offered=_CONTEXT, name=name)]
    if _is_plain(made):
        found += [("", f"{name} {wrong}") for wrong in _of_agent_class(made)]
    return tuple(found)


def of_condition(made: Any, params: Sequence[str], methods: Sequence[str], *, name: str) -> Faults:
    """Of `until`: it has one of these methods, which takes one argument."""
    found = [*_bound(made, params, offered=_CONTEXT, name=name)]
    if _is_plain(made):
        if all(_lacks(made, each) for each in methods):
            found.append(
                ("", f"{name} has neither {' nor '.join(methods)}: a condition answers by one of them")
            )
        for method in methods:
            what = "the record of an episode" if method == methods[0] else "the metrics of the phase"
            if any(_method(made, method, (), first=1)):
                found.append(("", f"{name} must have {method}(self, x), where x is {what}"))
    return tuple(found)


# -- classes ------------------------------------------------------------------------------------------------


def _of_environment_class(made: type) -> Iterator[str]:
    lacking = [each for each in ("reset", "step") if _lacks(made, each) or _is_abstract(made, each)]
    if not _builds_itself(made):  # nothing sets an attribute of its objects before they are asked for it
        lacking += [each for each in ("observation_space", "action_space") if _lacks(made, each)]
    if lacking:
        yield f"has no {', '.join(lacking)}"
    if "reset" not in lacking and any(_method(made, "reset", ("seed",))):
        yield "has a reset() that takes no seed: reset(self, *, seed=None, options=None) returns (observation, info)"
    if "step" not in lacking and any(_method(made, "step", (), first=1)):
        yield "cannot be called as a run does: step takes one action: step(self, action)"


def _of_agent_class(made: type) -> Iterator[str]:
    if _lacks(made, "act"):
        yield "has no act: act(self, observation, *, explore) returns an action"
    forms: tuple[tuple[str, tuple[str, ...], int, str], ...] = (
        ("act", ("explore",), 1, "act(self, observation, *, explore)"),
        ("act_many", ("explore",), 1, "act_many(self, observations, *, explore)"),
        ("learn", (), 1, "learn(self, transition): a transition has observation, action, reward, next_observation, ..."),
        ("learn_batch", (), 1, "learn_batch(self, rollout)"),
        ("begin", (), 1, "begin(self, episode)"),
        ("end", (), 1, "end(self, episode)"),
        ("reset_states", (), 1, "reset_states(self, worker)"),
        ("state_dict", (), 0, "state_dict(self)"),
        ("load_state_dict", (), 1, "load_state_dict(self, state)"),
        ("metrics", (), 0, "metrics(self)"),
    )  # fmt: skip
    for method, named, first, form in forms:
        wrong = next(_method(made, method, named, first=first, offered=_FOR_CALLS), "")
        if wrong:
            yield f"cannot be called as a run does: {method}: {wrong}; write {form}"


def _is_plain(made: Any) -> bool:
    """Whether its objects are of this class, and find methods as Python does."""
    return (
        isinstance(made, type)
        and _is_built_plainly(made)
        and not any("__getattribute__" in vars(each) for each in _bases(made))
    )


def _is_built_plainly(made: type) -> bool:
    return type(made).__call__ is type.__call__ and inspect.getattr_static(made, "__new__") is object.__new__


def _bases(made: type) -> list[type]:
    return [each for each in made.__mro__ if each is not object]


def _lacks(made: type, name: str) -> bool:
    """Whether it has no such attribute, and its objects get none."""
    if hasattr(made, name) or any("__getattr__" in vars(each) for each in _bases(made)):
        return False
    return not _sets(made, name) and not any(_SETTERS & {*code.co_names} for code in _codes(made))


def _sets(made: type, name: str) -> bool:
    """Whether code of the class sets the attribute of its objects."""
    return any(
        each.opname == "STORE_ATTR" and each.argval == name
        for code in _codes(made)
        if name in code.co_names
        for each in dis.get_instructions(code)
    )


@functools.lru_cache(maxsize=16)
def _codes(made: type) -> list[CodeType]:
    """Of its methods and properties, and of the functions in these."""
    found: list[CodeType] = []
    for each in _bases(made):
        if each.__module__.partition(".")[0] in _KNOWN:
            continue
        for value in vars(each).values():
            inner = value.fget if isinstance(value, property) else getattr(value, "__func__", value)
            code = getattr(inspect.unwrap(inner), "__code__", None) if callable(inner) else None
            todo = [code] if isinstance(code, CodeType) else []
            while todo:
                found.append(todo.pop())
                todo += [const for const in found[-1].co_consts if isinstance(const, CodeType)]
    return found


def _builds_itself(made: type) -> bool:
    """Whether code of its own runs when it is built."""
    return any(name in vars(each) for each in _bases(made) for name in ("__init__", "__getattr__"))


def _is_abstract(made: type, name: str) -> bool:
    """Whether it is that of `gymnasium.Env`, which raises NotImplementedError."""
    found = getattr(made, name, None)
    return (
        getattr(found, "__module__", "") == "gymnasium.core"
        and getattr(found, "__qualname__", "") == f"Env.{name}"
    )


# -- calls --------------------------------------------------------------------------------------------------


def _bound(
    made: Any,
    given: Sequence[str],
    *,
    name: str,
    first: int = 0,
    always: Collection[str] = (),
    offered: Collection[str] = (),
) -> Iterator[tuple[str, str]]:
    """The faults of a call with keywords: those `given` in the run file, `always` by the run, and `offered` to parameters of these
    names; behind `first` positional arguments.
    """
    parameters = _parameters(made)
    if parameters is None:
        return
    by_place = (Parameter.POSITIONAL_OR_KEYWORD, Parameter.VAR_POSITIONAL)
    if first and not any(each.kind in by_place for each in parameters):
        yield "", f"{name} takes no environment as its first argument"
        return
    names = {each.name for each in parameters if each.kind in _NAMED}
    names -= {each.name for each in parameters[:first]}
    takes_any = any(each.kind is Parameter.VAR_KEYWORD for each in parameters)
    free = [each for each in names if each not in {*always, *offered}]
    listed = ", ".join(each.name for each in parameters if each.name in free) or "none"
    near = set()
    for each in given if not takes_any else ():
        if each not in names:
            hint = suggestion(each, [one for one in free if one not in given])
            near |= {one for one in free if hint and f"{one!r}?" in hint}
            yield each, f"{name} takes no {each!r}{hint} (it takes {listed})"
    untaken = [each for each in always if each not in names] if not takes_any else []
    if untaken:
        yield "", f"{name} takes no {', '.join(untaken)}: it is built with {', '.join(always)} as keywords"
    known = {*given, *always, *offered}
    missing = [each.name for each in _required(parameters, first) if each.name not in known | near]
    if missing:
        yield "", f"{name} needs {', '.join(map(repr, missing))}"


def takes(method: Any, name: str) -> bool:
    """Whether it is a Python function that is called as it shows, with a parameter of this name."""
    return _is_trusted(method) and name in inspect.signature(method, follow_wrapped=False).parameters


def _required(parameters: list[Parameter], first: int) -> list[Parameter]:
    return [each for each in parameters[first:] if each.kind in _NAMED and each.default is Parameter.empty]


def _method(
    made: type, name: str, named: Sequence[str], *, first: int = 0, offered: Collection[str] = ()
) -> Iterator[str]:
    """Why its method cannot be called with `first` positional arguments, these `named` ones, and what is `offered`."""
    function = inspect.getattr_static(made, name, None)
    if not _is_trusted(function) or _sets(made, name):
        return
    own = list(inspect.signature(function, follow_wrapped=False).parameters.values())
    given = [*named, *(each.name for each in own if each.name in offered and each.kind in _NAMED)]
    try:
        inspect.Signature(own).bind(*[None] * (first + 1), **dict.fromkeys(given))
    except TypeError as error:
        yield str(error)


def _parameters(made: Any) -> list[Parameter] | None:
    """Those of a call, without `self`; None where they are not certain."""
    bound = 0
    if isinstance(made, functools.partial):
        return list(inspect.signature(made).parameters.values()) if _is_trusted(made.func) else None
    if isinstance(made, type):
        function: Any = inspect.getattr_static(made, "__init__") if _is_built_plainly(made) else None
        if function is object.__init__:
            return []
        bound = 1
    else:
        function = getattr(made, "__func__", made)
        bound = int(isinstance(made, MethodType))
    if not _is_trusted(function):
        return None
    found = list(inspect.signature(function, follow_wrapped=False).parameters.values())
    if bound and not (found and found[0].kind in _BY_PLACE):
        return None
    found = found[bound:]
    return None if any(each.kind is Parameter.POSITIONAL_ONLY for each in found) else found


def _is_trusted(function: Any) -> bool:
    """Whether it is a Python function that is called as it shows."""
    return isinstance(function, FunctionType) and not {"__wrapped__", "__signature__"} & vars(function).keys()
