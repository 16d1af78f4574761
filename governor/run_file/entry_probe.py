"""The process that imports user code, to check it: `python -m governor.run_file.entry_probe FD FOLDER JSON`.

It sends JSON texts to FD, a `Connection` that user code does not know: first "" when it has started, then a verdict for
each question, "" when the entry is good. It exits without Python's clean-up, which threads of user code could delay.
Modules resolve as in a conductor (`shadowing`).
"""

from __future__ import annotations

import difflib
import inspect
import json
import os
import sys
from importlib import import_module
from multiprocessing.connection import Connection
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from types import ModuleType

from governor.errors import ConductorError
from governor.failures import one_line
from governor.processes import user_folder
from governor.run_file.shadowing import Shadowing
from governor.tasks.runner_process import calls
from governor.units.sections import suggestion


def main() -> None:
    """Checks the entries that the command line names."""
    os.set_inheritable(int(sys.argv[1]), False)
    answers = Connection(int(sys.argv[1]), readable=False)
    folder = Path(sys.argv[2])
    shadowing = Shadowing(folder)
    shadowing.watch()
    gone = ""
    try:
        user_folder.enter(sys.argv[2])
    except ConductorError as error:
        gone = error.reason
    answers.send_bytes(b'""')
    for kind, target, params in json.loads(sys.argv[3]):
        verdict = gone or (
            _check_state(folder / target) if kind == "state" else _verdict(kind, target, params, shadowing)
        )
        answers.send_bytes(json.dumps(verdict).encode())
    os._exit(0)


def _verdict(kind: str, target: str, params: list[str], shadowing: Shadowing) -> str:
    module_name, _, attribute = target.partition(":")
    if "environment" in kind and module_name == "gymnasium":
        return _load(kind, module_name, attribute, params)
    if fault := shadowing.fault(module_name):
        return fault
    shadowing.imported = ""
    fault = _load(kind, module_name, attribute, params)
    return shadowing.imported or fault  # shadowing may have caused any other fault


def _load(kind: str, module_name: str, attribute: str, params: list[str]) -> str:
    try:
        if "environment" in kind and module_name == "gymnasium":
            return _check_gymnasium(attribute)
        try:
            module = import_module(module_name)
        except ModuleNotFoundError as error:
            if error.name is not None and (
                module_name == error.name or module_name.startswith(f"{error.name}.")
            ):
                return (
                    f"no module named {error.name!r} in the run file's folder or among the installed packages"
                )
            return f"module {module_name!r} does not import: {one_line(error)}"
        return _check_attribute(kind, module, attribute, params)
    except SystemExit as error:
        return f"module {module_name!r} ends Python when it is imported: {one_line(error)}"
    except BaseException as error:  # noqa: BLE001  # whatever user code raises is the verdict
        return f"module {module_name!r} does not import: {one_line(error)}"


def _check_state(path: Path) -> str:
    """The fault of the file of an agent's state, or ""."""
    from governor.episodes.records import state_file  # noqa: PLC0415  # numpy, for this kind alone

    try:
        return "" if state_file.load(path) is not None else f"the agent's state {path} is not there"
    except ConductorError as error:
        return error.reason


def _check_attribute(kind: str, module: ModuleType, attribute: str, params: list[str]) -> str:
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
    if kind == "condition" and callable(found):
        wrong = _check_condition(found, params)
        return f"'{module.__name__}:{attribute}' {wrong}" if wrong else ""
    methods = ("run", "arun") if kind == "task" else ()
    if callable(found) or any(callable(getattr(found, method, None)) for method in methods):
        return (
            _check_checkpoint(found, attribute)
            if kind == "checkpointed"
            else _check_on_ray(kind, found, attribute)
        )
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


def _check_condition(made: Any, params: list[str]) -> str:
    """The fault of what builds a condition, or "". The result of a function is unknown, and so is a class that is not in Python."""
    from governor.episodes.rules.conditions import METHODS  # noqa: PLC0415  # pydantic, for this kind alone

    try:
        parameters = inspect.signature(made).parameters
    except (TypeError, ValueError):
        return ""
    given = {*params, *({"context"} & parameters.keys())}
    try:
        inspect.signature(made).bind(**dict.fromkeys(given))
    except TypeError as error:
        known = ", ".join(name for name in parameters if name != "context")
        near = [suggestion(name, parameters) for name in params if name not in parameters]
        return f"does not take these params: {error}{''.join(near[:1])} (it takes {known or 'none'})"
    if not isinstance(made, type) or hasattr(made, "__getattr__"):
        return ""
    found = [name for name in METHODS if callable(getattr(made, name, None))]
    if not found:
        return f"has neither {' nor '.join(METHODS)}: a condition answers by one of them"
    for name in found:
        try:
            inspect.signature(getattr(made, name)).bind(None, None)
        except TypeError:
            what = "the record of an episode" if name == METHODS[0] else "the metrics of the phase"
            return f"must have {name}(self, x), where x is {what}"
        except ValueError:
            continue
    return ""


def _check_on_ray(kind: str, agent: Any, name: str) -> str:
    """The fault of an agent that can't be in several runners at once, or "". The result of a factory is unknown."""
    learns = hasattr(agent, "learn")
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


def _check_gymnasium(identifier: str) -> str:
    """The fault of an id that `gymnasium.make` does not know, or whose code does not load (a missing extra), or ""."""
    import gymnasium  # noqa: PLC0415  # 0.2 s, for this kind of entry only
    from gymnasium.envs.registration import load_env_creator  # noqa: PLC0415

    module_name, colon, name = identifier.partition(":")
    if colon:
        import_module(module_name)
    wanted = name if colon else identifier
    try:
        spec = gymnasium.spec(wanted)
    except gymnasium.error.Error as error:
        near = difflib.get_close_matches(wanted, list(gymnasium.registry), n=3, cutoff=0.7)
        hint = f"; did you mean {' or '.join(map(repr, near))}?" if near else f" ({one_line(error)})"
        return f"gymnasium has no environment {wanted!r}{hint}"
    try:
        if isinstance(spec.entry_point, str):
            load_env_creator(spec.entry_point)
    except Exception as error:  # noqa: BLE001  # whatever the environment's module raises is the verdict
        return f"gymnasium environment {wanted!r} does not load: {one_line(error)}"
    return ""


if __name__ == "__main__":
    main()
