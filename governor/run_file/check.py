"""Every fault of a run at once, as paths and messages: shape, names, references, cycles. Imports no user code.

Rules:
1. `faults` takes any value, from a file or from a socket, and never raises: whatever does not fit is a fault.
2. A fault of the shape hides no fault elsewhere: references are checked on the plain data, where that is sound.
3. A message tells what was found and what is expected; for a misspelling it suggests the nearest right word.
"""

from __future__ import annotations

import difflib
from typing import TYPE_CHECKING, Any, Final, get_args

from pydantic import BaseModel, ValidationError

from governor.messages import TaskSpec
from governor.run_file import check_language_models, check_rules
from governor.run_file.model import Phase, Run
from governor.run_file.phase_inheritance import PhaseInheritance
from governor.tasks.scheduling import graph
from governor.units.fields import LIST, MAPPING

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence

    from pydantic_core import ErrorDetails

    from governor.run_file.yaml_lines import Path

_KINDS: Final = {"environments": "environment", "agents": "agent"}
_SHAPES: Final = {
    "string_type": "must be a text",
    "int_type": "must be a whole number",
    "float_type": "must be a number",
    "finite_number": "must be a finite number",
    "bool_type": "must be true or false",
    "dict_type": "must be a mapping (key: value)",
    "model_type": "must be a mapping (key: value)",
    "tuple_type": "must be a list",
    "recursion_loop": "contains itself",
}
_LONGEST_MISSPELLING: Final = 64
_TASK_KEYS: Final = (
    "min_num",
    "over_rollout",
    "wait_after_min",
    "max_repeat_per_runner",
    "dynamic_timeout",
    "grace",
)
_PATTERNS: Final = {
    "entry": "must look like 'module:attribute' (or 'gymnasium:ID' for an environment)",
    "call": "must look like 'module:attribute'",
}


def faults(data: object) -> list[tuple[Path, str]]:
    """All faults of a run given as plain data; with an empty list ``Run.model_validate(data)`` succeeds."""
    if data is None:
        return [((), "is empty: a run needs at least 'name' and 'phases'")]
    if not isinstance(data, dict):
        return [((), f"must be a mapping (key: value), not {_shown(data)}")]
    inheritance = PhaseInheritance(data)
    found = _shape(inheritance.data)
    known = {path for path, _ in found}
    found += [fault for fault in _references(inheritance.data) if fault[0] not in known]
    return [*inheritance.faults, *inheritance.without_inherited(found)]


def spell(path: Path) -> str:
    """``("phases", 1, "tasks")`` as ``phases[1].tasks``."""
    text = ""
    for step in path:
        text += f"[{step}]" if isinstance(step, int) else f".{step}" if text else step
    return text


# -- shape: pydantic's errors, in plain words ---------------------------------------------------------------------


def _shape(data: dict[Any, Any], model: type[BaseModel] = Run) -> list[tuple[Path, str]]:
    try:
        model.model_validate(data)
    except ValidationError as invalid:
        errors = invalid.errors(include_url=False)
    else:
        return []
    places = [error["loc"] for error in errors]
    found = []
    for error in errors:
        place = error["loc"]
        # pydantic counts only the valid items of a list: one that it reports as too short may have faulty items.
        inner = any(len(other) > len(place) and other[: len(place)] == place for other in places)
        if not (error["type"] == "too_short" and inner):
            found.append((_place(place), _message(error, model)))
    return found


def _place(loc: Path) -> Path:
    place = loc[:-1] if loc and loc[-1] == "[key]" else loc
    return tuple(step for step in place if step not in {LIST, MAPPING})


def _message(error: ErrorDetails, model: type[BaseModel]) -> str:
    loc, given, context = error["loc"], error["input"], error.get("ctx", {})
    field = str(loc[-1]) if loc else ""
    match error["type"]:
        case "extra_forbidden":
            text = f"unknown key {field!r}{_suggestion(field, _fields(loc[:-1], model))}"
        case "missing":
            text = f"{field!r} is missing"
        case "literal_error":
            options = context["expected"].replace("'", "").replace(" or ", ", ").split(", ")
            text = f"must be one of {', '.join(options)}, not {_shown(given)}{_suggestion(given, options)}"
        case "string_pattern_mismatch":
            rule = _PATTERNS.get(field, "must be letters, digits, '-', '_' and begin with a letter or digit")
            text = f"{rule}, not {given!r}"
        case "too_short":
            text = f"must have at least {context['min_length']} item"
        case "string_too_long":
            text = f"must be at most {context['max_length']} characters long"
        case "value_error":
            text = str(context["error"])
        case kind if kind in _SHAPES:
            text = f"{_SHAPES[kind]}, not {_shown(given)}"
        case _:
            text = f"{error['msg'].replace('Input should', 'must')}, not {_shown(given)}"
    return text


def _fields(loc: Path, section: type[BaseModel]) -> list[str]:
    """The keys of the section at `loc`, below `section`."""
    for step in loc:
        if isinstance(step, str) and step in section.model_fields:
            section = next(_models(section.model_fields[step].annotation), section)
    return list(section.model_fields)


def _models(annotation: object) -> Iterator[type[BaseModel]]:
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        yield annotation
    for part in get_args(annotation):
        yield from _models(part)


def _shown(value: object) -> str:
    if isinstance(value, str):
        return f"the text {value!r}" if len(value) <= 40 else f"the text {value[:37]!r}..."
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, int | float):
        return repr(value)[:40]
    names = {type(None): "nothing", list: "a list", tuple: "a list", dict: "a mapping"}
    return names.get(type(value), f"a {type(value).__name__}")


def _suggestion(given: object, options: Iterable[object]) -> str:
    # The search is quadratic, and a long text is no misspelling.
    if not isinstance(given, str) or len(given) > _LONGEST_MISSPELLING:
        return ""
    near = difflib.get_close_matches(given, [option for option in options if isinstance(option, str)], n=1)
    return f"; did you mean {near[0]!r}?" if near else ""


# -- references: what must hold between the sections ---------------------------------------------------------------


def _references(data: Mapping[str, Any]) -> Iterator[tuple[Path, str]]:
    conductors = _mapping(data.get("conductors"))
    yield from _conductor_names(conductors)
    yield from _one_transport(_list(data.get("phases")))
    environments, agents = (_mapping(conductors.get(kind)) for kind in _KINDS)
    yield from check_language_models.faults(environments, agents, _list(data.get("phases")), shape=_shape)
    first: dict[str, int] = {}
    for index, phase in enumerate(_list(data.get("phases"))):
        if not isinstance(phase, dict):
            continue
        path: Path = ("phases", index)
        name = phase.get("name")
        if isinstance(name, str) and first.setdefault(name, index) != index:
            yield (*path, "name"), f"the phase name {name!r} is already used by phases[{first[name]}]"
        if not phase.get("simulate") and not phase.get("tasks") and not _list(phase.get("tasks")):
            yield path, "has neither 'simulate' nor 'tasks': there is nothing to do"
        yield from _simulation(phase, path, conductors)
        yield from check_rules.faults(phase, path)
        yield from _graph(_list(phase.get("tasks")), path)
        yield from _batch(phase, path)


def _batch(phase: Mapping[str, Any], path: Path) -> Iterator[tuple[Path, str]]:
    tasks = _list(phase.get("tasks"))
    for key in _TASK_KEYS if not tasks else ():
        if phase.get(key, default := Phase.model_fields[key].default) != default:
            yield (*path, key), "has no meaning without 'tasks'"
    enough = phase.get("min_num")
    if type(enough) is int and tasks and enough > len(tasks):
        yield (*path, "min_num"), f"is {enough}, and there are only {len(tasks)} tasks"
    if phase.get("wait_after_min") is not None and not (enough or phase.get("over_rollout")):
        yield (*path, "wait_after_min"), "has no meaning without 'min_num' or 'over_rollout'"


def _conductor_names(conductors: Mapping[str, Any]) -> Iterator[tuple[Path, str]]:
    environments, agents = (_mapping(conductors.get(kind)) for kind in _KINDS)
    for name in agents:
        if name in environments:
            yield ("conductors", "agents", name), f"the name {name!r} is already used by an environment"


def _one_transport(phases: Sequence[Any]) -> Iterator[tuple[Path, str]]:
    """An agent must not be in two processes: what it learns in one would be missing in the other. Agents on Ray do not
    learn: they load a saved state.
    """
    first: dict[str, tuple[int, str]] = {}
    for index, phase in enumerate(phases):
        simulate = _mapping(_mapping(phase).get("simulate"))
        transport = simulate.get("transport", "conductors")
        for place, name in _agents(simulate):
            if not isinstance(name, str) or not isinstance(transport, str) or transport == "ray":
                continue
            at, other = first.setdefault(name, (index, transport))
            if other != transport:
                yield (
                    ("phases", index, "simulate", "agents", place),
                    f"agent {name!r} plays with transport: {transport} here and with {other} in phases[{at}]; it must be one",
                )


def _simulation(
    phase: Mapping[str, Any], path: Path, conductors: Mapping[str, Any]
) -> Iterator[tuple[Path, str]]:
    simulate = phase.get("simulate")
    if not isinstance(simulate, dict):
        return
    place = (*path, "simulate")
    environments = _mapping(conductors.get("environments"))
    yield from _reference(simulate.get("environment"), (*place, "environment"), "environment", environments)
    seen: set[str] = set()
    for step, name in _agents(simulate):
        yield from _reference(name, (*place, "agents", step), "agent", _mapping(conductors.get("agents")))
        if isinstance(step, int) and isinstance(name, str) and name in seen:
            yield (
                (*place, "agents", step),
                f"agent {name!r} stands twice; say whom it plays: {{player: {name}}}",
            )
        seen |= {name} if isinstance(name, str) else set()
    chosen = simulate.get("environment")
    section = _mapping(environments.get(chosen)) if isinstance(chosen, str) else {}
    pool = section.get("pool", 1) if isinstance(chosen, str) else None
    workers = simulate.get("workers", 1)
    transport = simulate.get("transport", "conductors")
    conducted = transport == "conductors"
    if conducted and _is_count(workers) and _is_count(pool) and workers > pool:
        yield (
            (*place, "workers"),
            f"{workers} workers need a pool of {workers}; environment {chosen!r} has pool: {pool}",
        )
    yield from _by_transport(transport, phase, path, section)


def _by_transport(
    transport: object, phase: Mapping[str, Any], path: Path, environment: Mapping[str, Any]
) -> Iterator[tuple[Path, str]]:
    """Settings that only some transports support."""
    simulate = _mapping(phase.get("simulate"))
    place = (*path, "simulate")
    if transport == "ray" and environment.get("vector", 1) != 1:
        yield (
            (*place, "environment"),
            f"environment {simulate.get('environment')!r} has a 'vector', which is not for transport: ray",
        )
    if isinstance(simulate.get("agents"), dict) or len(_agents(simulate)) > 1:
        yield from _players(transport, environment, (*place, "agents"))
    if transport == "ray":
        for key in ("evaluate", "checkpoint"):
            if phase.get(key) is not None:
                yield (*path, key), "has no meaning with 'transport: ray': no agent learns there"
    elif simulate.get("chunk") is not None:
        yield (*place, "chunk"), "has no meaning without 'transport: ray'"


def _players(transport: object, environment: Mapping[str, Any], path: Path) -> Iterator[tuple[Path, str]]:
    if transport != "in_process":
        yield path, "are for several players: that needs transport: in_process"
    elif environment.get("vector", 1) != 1:
        yield path, "are for several players: their environment can have no 'vector'"


def _graph(tasks: Sequence[Any], path: Path) -> Iterator[tuple[Path, str]]:
    """Checks faulty tasks too, by their valid fields, so that no fault hides another."""
    places: list[int] = []
    specs: list[TaskSpec] = []
    for index, task in enumerate(tasks):
        if isinstance(task, dict) and isinstance(task.get("id"), str):
            places.append(index)
            needs = tuple(
                name if isinstance(name, str) else task["id"] + " " for name in _list(task.get("depends_on"))
            )
            specs.append(TaskSpec(id=task["id"], call="", depends_on=needs))
    ids = [spec.id for spec in specs]
    for fault in graph.faults(specs):
        index = places[fault.task_index]
        field, _, rest = fault.field.partition("[")
        place = int(rest[:-1]) if rest else None
        name = specs[fault.task_index].depends_on[place] if place is not None else ""
        if name.endswith(" "):
            continue
        hint = _suggestion(name, ids) if name and name not in ids else ""
        step: Path = (field,) if place is None else (field, place)
        yield (*path, "tasks", index, *step), f"{fault.message}{hint}"


def _agents(simulate: Mapping[str, Any]) -> list[tuple[int | str, object]]:
    """The agents of a simulation, each with its step in the path: its index in the list, or the player."""
    agents = simulate.get("agents")
    if isinstance(agents, dict):
        return [(player, name) for player, name in agents.items() if isinstance(player, str)]
    return list(enumerate(_list(agents)))


def _reference(name: object, path: Path, kind: str, among: Mapping[str, Any]) -> Iterator[tuple[Path, str]]:
    if isinstance(name, str) and name not in among:
        there = f"there is {', '.join(map(repr, among))}" if among else f"the run has no {kind}s"
        yield path, f"unknown {kind} {name!r}{_suggestion(name, among) or f'; {there}'}"


def _mapping(value: object) -> Mapping[str, Any]:
    return value if isinstance(value, dict) else {}


def _list(value: object) -> Sequence[Any]:
    return value if isinstance(value, list | tuple) else ()


def _is_count(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool)
