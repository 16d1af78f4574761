"""Every fault of a run at once, as paths and messages: shape, names, references, cycles. Imports no user code.

Rules:
1. `examine` takes any value, from a file or from a socket, and never raises: whatever does not fit is a fault.
2. A fault of the shape hides no fault elsewhere: references are checked on the plain data, where that is sound.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from governor.messages import TaskSpec
from governor.run_file import check_language_models, check_programs, check_rules, check_sb3, services
from governor.run_file.model import Run
from governor.run_file.phase_inheritance import PhaseInheritance
from governor.run_file.phase_model import Phase
from governor.run_file.plain_data import is_count, items, mapping, simulations, vector_of
from governor.tasks.scheduling import graph
from governor.units.sections import shown, suggestion, validated

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence

    from governor.run_file.plain_data import Simulated
    from governor.units.sections import Path

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
    yield from services.faults(data)
    yield from check_programs.faults(data)
    data = services.with_ports(data, lambda _: 1)  # addresses are looked at below
    conductors = mapping(data.get("conductors"))
    environments, agents = (mapping(conductors.get(kind)) for kind in ("environments", "agents"))
    for agent in agents:
        if agent in environments:
            yield ("conductors", "agents", agent), f"the name {agent!r} is already used by an environment"
    simulated = {one.index: one for one in simulations(data)}
    yield from _one_transport(simulated.values())
    yield from check_language_models.faults(environments, agents, simulated.values())
    yield from check_sb3.faults(agents)
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
        if index in simulated:
            yield from _simulation(simulated[index], environments, agents)
            yield from _by_transport(simulated[index])
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


def _one_transport(simulated: Iterable[Simulated]) -> Iterator[tuple[Path, str]]:
    """An agent must not be in two processes: what it learns in one would be missing in the other. Agents on Ray do not
    learn: they load a saved state.
    """
    first: dict[str, tuple[int, str]] = {}
    for one in simulated:
        if not isinstance(one.transport, str) or one.transport == "ray":
            continue
        for place, name in one.agents:
            at, other = first.setdefault(name, (one.index, one.transport))
            if other != one.transport:
                yield (
                    (*one.path, "agents", place),
                    f"agent {name!r} plays with transport: {one.transport} here and with {other} in phases[{at}]; it must be one",
                )


def _simulation(
    one: Simulated, environments: Mapping[str, Any], agents: Mapping[str, Any]
) -> Iterator[tuple[Path, str]]:
    yield from _reference(one.environment, (*one.path, "environment"), "environment", environments)
    seen: set[str] = set()
    for step, name in one.agents:
        yield from _reference(name, (*one.path, "agents", step), "agent", agents)
        if isinstance(step, int) and name in seen:
            yield (
                (*one.path, "agents", step),
                f"agent {name!r} stands twice; say whom it plays: {{player: {name}}}",
            )
        seen.add(name)
    pool, workers = one.section.get("pool", 1), one.simulate.get("workers", 1)
    conducted = one.transport == "conductors" and isinstance(one.environment, str)
    if conducted and is_count(workers) and is_count(pool) and workers > pool:
        yield (
            (*one.path, "workers"),
            f"{workers} workers need a pool of {workers}; environment {one.environment!r} has pool: {pool}",
        )


def _vector(one: Simulated) -> Iterator[tuple[Path, str]]:
    size, stepped = vector_of(one.section)
    is_together = stepped in ("native", "async")  # it may be a list
    if is_together and one.simulate.get("info"):
        yield (*one.path, "info"), f"is not for a 'vector' of mode {stepped!r}: say mode: sync"
    elif (is_together or size != 1) and one.transport == "ray":
        yield (
            (*one.path, "environment"),
            f"environment {one.environment!r} has a 'vector', which is not for transport: ray",
        )
    if size != 1 and one.has_players and one.transport != "ray":
        yield (*one.path, "agents"), "are for several players: their environment can have no 'vector'"


def _by_transport(one: Simulated) -> Iterator[tuple[Path, str]]:
    """Settings that only some transports support."""
    yield from _vector(one)
    if one.has_players and one.transport == "ray":
        yield (
            (*one.path, "agents"),
            "are for several players: that needs transport: conductors or in_process",
        )
    if one.transport == "ray":
        for key in ("evaluate", "checkpoint"):
            if one.phase.get(key) is not None:
                yield (
                    ("phases", one.index, key),
                    "has no meaning with 'transport: ray': no agent learns there",
                )
    elif one.simulate.get("chunk") is not None:
        yield (*one.path, "chunk"), "has no meaning without 'transport: ray'"
    if one.simulate.get("max_staleness") and one.transport in ("in_process", "ray"):
        yield (
            (*one.path, "max_staleness"),
            f"has no meaning with 'transport: {one.transport}', where no agent acts while it learns (if it is inherited, say 'max_staleness: null')",
        )


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
