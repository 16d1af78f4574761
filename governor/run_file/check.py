"""Every fault of a run at once, as paths and messages: shape, names, references, cycles. Imports no user code.

Rules:
1. `examine` takes any value, from a file or from a socket, and never raises: whatever does not fit is a fault.
2. A fault of the shape hides no fault elsewhere: references are checked on the plain data, where that is sound.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from governor.messages import TaskSpec
from governor.run_file import check_language_models, check_rules
from governor.run_file.model import Phase, Run
from governor.run_file.phase_inheritance import PhaseInheritance
from governor.run_file.plain_data import agents_of, is_count, items, mapping
from governor.tasks.scheduling import graph
from governor.units.sections import shown, suggestion, validated

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from governor.units.sections import Path

_KINDS: Final = {"environments": "environment", "agents": "agent"}
_TASK_KEYS: Final = (
    "min_num",
    "over_rollout",
    "wait_after_min",
    "max_repeat_per_runner",
    "dynamic_timeout",
    "grace",
)


def examine(data: object) -> tuple[Run | None, list[tuple[Path, str]]]:
    """The run of plain data, or None and all its faults."""
    if data is None:
        return None, [((), "is empty: a run needs at least 'name' and 'phases'")]
    if not isinstance(data, dict):
        return None, [((), f"must be a mapping (key: value), not {shown(data)}")]
    inheritance = PhaseInheritance(data)
    run, found = validated(inheritance.data, Run)
    known = {path for path, _ in found}
    found += [fault for fault in _references(inheritance.data) if fault[0] not in known]
    found = [*inheritance.faults, *inheritance.without_inherited(found)]
    return None if found else run, found


def _references(data: Mapping[str, Any]) -> Iterator[tuple[Path, str]]:
    conductors = mapping(data.get("conductors"))
    yield from _conductor_names(conductors)
    yield from _one_transport(items(data.get("phases")))
    environments, agents = (mapping(conductors.get(kind)) for kind in _KINDS)
    yield from check_language_models.faults(environments, agents, items(data.get("phases")))
    first: dict[str, int] = {}
    for index, phase in enumerate(items(data.get("phases"))):
        if not isinstance(phase, dict):
            continue
        path: Path = ("phases", index)
        name = phase.get("name")
        if isinstance(name, str) and first.setdefault(name, index) != index:
            yield (*path, "name"), f"the phase name {name!r} is already used by phases[{first[name]}]"
        if not phase.get("simulate") and not phase.get("tasks") and not items(phase.get("tasks")):
            yield path, "has neither 'simulate' nor 'tasks': there is nothing to do"
        yield from _simulation(phase, path, conductors)
        yield from check_rules.faults(phase, path)
        yield from _graph(items(phase.get("tasks")), path)
        yield from _batch(phase, path)


def _batch(phase: Mapping[str, Any], path: Path) -> Iterator[tuple[Path, str]]:
    tasks = items(phase.get("tasks"))
    for key in _TASK_KEYS if not tasks else ():
        if phase.get(key, default := Phase.model_fields[key].default) != default:
            yield (*path, key), "has no meaning without 'tasks'"
    enough = phase.get("min_num")
    if type(enough) is int and tasks and enough > len(tasks):
        yield (*path, "min_num"), f"is {enough}, and there are only {len(tasks)} tasks"
    if phase.get("wait_after_min") is not None and not (enough or phase.get("over_rollout")):
        yield (*path, "wait_after_min"), "has no meaning without 'min_num' or 'over_rollout'"


def _conductor_names(conductors: Mapping[str, Any]) -> Iterator[tuple[Path, str]]:
    environments, agents = (mapping(conductors.get(kind)) for kind in _KINDS)
    for name in agents:
        if name in environments:
            yield ("conductors", "agents", name), f"the name {name!r} is already used by an environment"


def _one_transport(phases: Sequence[Any]) -> Iterator[tuple[Path, str]]:
    """An agent must not be in two processes: what it learns in one would be missing in the other. Agents on Ray do not
    learn: they load a saved state.
    """
    first: dict[str, tuple[int, str]] = {}
    for index, phase in enumerate(phases):
        simulate = mapping(mapping(phase).get("simulate"))
        transport = simulate.get("transport", "conductors")
        for place, name in agents_of(simulate):
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
    environments = mapping(conductors.get("environments"))
    yield from _reference(simulate.get("environment"), (*place, "environment"), "environment", environments)
    seen: set[str] = set()
    for step, name in agents_of(simulate):
        yield from _reference(name, (*place, "agents", step), "agent", mapping(conductors.get("agents")))
        if isinstance(step, int) and isinstance(name, str) and name in seen:
            yield (
                (*place, "agents", step),
                f"agent {name!r} stands twice; say whom it plays: {{player: {name}}}",
            )
        seen |= {name} if isinstance(name, str) else set()
    chosen = simulate.get("environment")
    section = mapping(environments.get(chosen)) if isinstance(chosen, str) else {}
    pool = section.get("pool", 1) if isinstance(chosen, str) else None
    workers = simulate.get("workers", 1)
    transport = simulate.get("transport", "conductors")
    conducted = transport == "conductors"
    if conducted and is_count(workers) and is_count(pool) and workers > pool:
        yield (
            (*place, "workers"),
            f"{workers} workers need a pool of {workers}; environment {chosen!r} has pool: {pool}",
        )
    yield from _by_transport(transport, phase, path, section)


def _by_transport(
    transport: object, phase: Mapping[str, Any], path: Path, environment: Mapping[str, Any]
) -> Iterator[tuple[Path, str]]:
    """Settings that only some transports support."""
    simulate = mapping(phase.get("simulate"))
    place = (*path, "simulate")
    if transport == "ray" and environment.get("vector", 1) != 1:
        yield (
            (*place, "environment"),
            f"environment {simulate.get('environment')!r} has a 'vector', which is not for transport: ray",
        )
    if isinstance(simulate.get("agents"), dict) or len(agents_of(simulate)) > 1:
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
                name if isinstance(name, str) else task["id"] + " " for name in items(task.get("depends_on"))
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
        hint = suggestion(name, ids) if name and name not in ids else ""
        step: Path = (field,) if place is None else (field, place)
        yield (*path, "tasks", index, *step), f"{fault.message}{hint}"


def _reference(name: object, path: Path, kind: str, among: Mapping[str, Any]) -> Iterator[tuple[Path, str]]:
    if isinstance(name, str) and name not in among:
        there = f"there is {', '.join(map(repr, among))}" if among else f"the run has no {kind}s"
        yield path, f"unknown {kind} {name!r}{suggestion(name, among) or f'; {there}'}"
