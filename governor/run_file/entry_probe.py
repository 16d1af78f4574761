"""The process that imports user code, to check it: `python -m governor.run_file.entry_probe`, started as `supervisor` says.

Its order is the run file's folder, the run's environment variables, and the questions. It sends JSON texts: first [] when it has started, then a verdict for each
question: the faults of the entry, as of `signatures`. It exits without Python's clean-up, which threads of user code could
delay. Modules resolve as in a conductor (`shadowing`).
"""

from __future__ import annotations

import difflib
import json
import os
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from types import ModuleType

    from governor.run_file.signatures import Faults

from governor.episodes import gymnasium_ids
from governor.errors import ConductorError
from governor.failures import reason_of
from governor.processes import supervisor, user_folder
from governor.run_file import signatures
from governor.run_file.shadowing import Shadowing
from governor.tasks.runner_process import calls


def main() -> None:
    """Checks the entries that the order names."""
    answers, order = supervisor.enter()
    place, variables, questions = json.loads(order)
    folder = Path(place)
    shadowing = Shadowing(folder)
    shadowing.watch()
    gone = ""
    try:
        user_folder.enter(place, variables)
    except ConductorError as error:
        gone = error.reason
    answers.send_bytes(b"[]")
    for kind, target, params in questions:
        verdict: str | Faults = gone or (
            _check_state(folder / target) if kind == "state" else _verdict(kind, target, params, shadowing)
        )
        found = [("", verdict)] if isinstance(verdict, str) and verdict else verdict or ()
        answers.send_bytes(json.dumps(found).encode())
    os._exit(0)


def _verdict(kind: str, target: str, params: list[str], shadowing: Shadowing) -> str | Faults:
    """A text is a fault of the whole entry, "" is none."""
    module_name, _, attribute = target.partition(":")
    if "environment" in kind and module_name == "gymnasium":
        return _load(kind, module_name, attribute, params)
    if fault := shadowing.fault(module_name):
        return fault
    shadowing.imported = ""
    found = _load(kind, module_name, attribute, params)
    return shadowing.imported or found  # shadowing may have caused any other fault


def _load(kind: str, module_name: str, attribute: str, params: list[str]) -> str | Faults:
    try:
        if "environment" in kind and module_name == "gymnasium":
            return _check_gymnasium(kind, attribute, params)
        try:
            module = import_module(module_name)
        except ModuleNotFoundError as error:
            if error.name is not None and (
                module_name == error.name or module_name.startswith(f"{error.name}.")
            ):
                return (
                    f"no module named {error.name!r} in the run file's folder or among the installed packages"
                )
            return f"module {module_name!r} does not import: {reason_of(error)}"
        return _check_attribute(kind, module, attribute, params)
    except SystemExit as error:
        return f"module {module_name!r} ends Python when it is imported: {reason_of(error)}"
    except BaseException as error:  # noqa: BLE001  # whatever user code raises is the verdict
        return f"module {module_name!r} does not import: {reason_of(error)}"


def _check_state(path: Path) -> str:
    """The fault of the file of an agent's state, or ""."""
    from governor.episodes.records import state_file  # noqa: PLC0415  # numpy, for this kind alone

    try:
        return "" if state_file.load(path) is not None else f"the agent's state {path} is not there"
    except ConductorError as error:
        return error.reason


def _check_attribute(kind: str, module: ModuleType, attribute: str, params: list[str]) -> str | Faults:
    found: Any = module
    for name in attribute.split("."):
        if not hasattr(found, name):
            near = difflib.get_close_matches(
                name, [known for known in dir(found) if not known.startswith("_")], n=1
            )
            hint = f"; did you mean {near[0]!r}?" if near else ""
            return f"module {module.__name__!r} has no {attribute!r}{hint}"
        found = getattr(found, name)
    if "environment" in kind and isinstance(found, type) and (wrong := _wrong_kind(kind, found)):
        return f"'{module.__name__}:{attribute}' {wrong}"
    if kind == "task" and calls.lacks_run(found):
        return f"'{module.__name__}:{attribute}' {calls.WITHOUT_RUN}"
    methods = ("run", "arun") if kind == "task" else ()
    if callable(found) or any(callable(getattr(found, method, None)) for method in methods):
        use = {
            "checkpointed": _check_checkpoint,
            "learner of several": _check_streams,
            "player of all at once": _check_infos,
        }.get(kind)
        if use is not None:
            return use(found, attribute)
        name = f"'{module.__name__}:{attribute}'"
        return _check_on_ray(kind, found, attribute) or _check_calls(kind, found, params, name=name)
    return f"'{module.__name__}:{attribute}' is of type {type(found).__name__}, which can't be called"


def _wrong_kind(kind: str, made: type) -> str:
    """The fault of a class that is not an environment of this kind, or "". The result of a function is unknown."""
    if kind == "text environment":
        missing = [name for name in ("get_task_prompt", "step") if not hasattr(made, name)]
        if missing:
            return f"has no {', '.join(missing)}: a language model plays text environments alone"
    elif hasattr(made, "get_task_prompt") and not hasattr(made, "observation_space"):
        return "speaks text: it needs an agent with the entry 'openai:MODEL'"
    return ""


def _check_calls(kind: str, made: Any, params: list[str], *, name: str) -> Faults:  # noqa: PLR0911  # one for each kind
    """The faults of how a run will call it."""
    match kind:
        case "task":
            return signatures.of_task(made, params, name=name)
        case "environment" | "wrapped environment":
            wrapped = kind == "wrapped environment"
            return signatures.of_environment(made, params, name=name, wrapped=wrapped)
        case "text environment":
            return signatures.of_text_environment(made, params, name=name)
        case "wrapper":
            return signatures.of_wrapper(made, params, name=name)
        case "agent":
            return signatures.of_agent(made, params, name=name)
        case "condition":
            from governor.episodes.rules.conditions import METHODS  # noqa: PLC0415  # pydantic, for this kind alone

            return signatures.of_condition(made, params, METHODS, name=name)
    return ()


def _check_on_ray(kind: str, agent: Any, name: str) -> str:
    """The fault of an agent that can't be in several runners at once, or "". The result of a factory is unknown."""
    learns = hasattr(agent, "learn") or hasattr(agent, "learn_batch")
    if kind == "actor" and learns:
        return (
            f"agent {name!r} learns, and with transport: ray there is one of it in each runner: train with transport: "
            "conductors or in_process, and use ray with mode: eval"
        )
    if (
        kind == "trained"
        and learns
        and not (hasattr(agent, "state_dict") and hasattr(agent, "load_state_dict"))
    ):
        return (
            f"agent {name!r} has no state_dict() and load_state_dict(state): with transport: ray it would not know what it "
            "has learned in an earlier phase"
        )
    return ""


def _check_checkpoint(agent: Any, name: str) -> str:
    """The fault of an agent of which no checkpoint can be taken, or "". Unknown for factories and dynamic attributes."""
    if not isinstance(agent, type) or hasattr(agent, "state_dict") or hasattr(agent, "__getattr__"):
        return ""
    return f"agent {name!r} has no state_dict(): no checkpoint of it can be taken"


def _check_streams(agent: Any, name: str) -> str:
    """The fault of an agent that cannot learn from several workers, or "". Known of a class that says so."""
    if getattr(agent, "streams", None) != "one":
        return ""
    return (
        f"agent {name!r} learns from one stream of steps (streams = 'one'), and here those of several environments alternate: say "
        "workers: 1, and no vector"
    )


def _check_infos(agent: Any, name: str) -> str:
    """The fault of an agent that takes what a vector of mode native and async does not give, or ""."""
    asked = [
        each for each in ("act", "act_many") if signatures.takes(getattr(agent, each, None), "action_mask")
    ]
    if not asked and not getattr(agent, "needs_info", False):
        return ""
    what = f"{asked[0]} takes action_mask" if asked else "it has needs_info"
    return f"agent {name!r}: {what}, and in a 'vector' of mode native or async there is none: say mode: sync"


def _check_gymnasium(kind: str, identifier: str, params: list[str]) -> str | Faults:
    """The faults of an id that `gymnasium.make` does not know, whose code does not load (a missing extra), or takes other params."""
    try:
        spec = gymnasium_ids.spec_of(identifier)
    except ConductorError as error:
        return error.reason
    try:
        made = gymnasium_ids.creator_of(identifier)
    except Exception as error:  # noqa: BLE001  # whatever the environment's module raises is the verdict
        return f"gymnasium environment {identifier!r} does not load: {reason_of(error)}"
    given = [each for each in params if each not in gymnasium_ids.MAKE]
    wrapped = kind != "environment" or bool(getattr(spec, "additional_wrappers", ()))
    name = f"gymnasium environment {identifier!r}"
    return signatures.of_registered(made, given, spec.kwargs, name=name, wrapped=wrapped)


if __name__ == "__main__":
    main()
