"""Reads plain data that may be of any shape: what is not as it should be counts as empty, because its fault is reported elsewhere."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TypeGuard

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from governor.units.sections import Path


def mapping(value: object) -> Mapping[str, Any]:
    return value if isinstance(value, dict) else {}


def items(value: object) -> Sequence[Any]:
    return value if isinstance(value, list | tuple) else ()


def is_count(value: object) -> TypeGuard[int]:
    return isinstance(value, int) and not isinstance(value, bool)


def entry_of(section: object) -> str:
    entry = mapping(section).get("entry")
    return entry if isinstance(entry, str) else ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Simulated:
    """A phase with a simulation, given as plain data. `section` is that of its environment; `agents` are their names, each
    with its step in the path: its index in the list, or the player.
    """

    index: int
    phase: Mapping[str, Any]
    simulate: Mapping[str, Any]
    section: Mapping[str, Any]
    agents: list[tuple[int | str, str]]

    @property
    def path(self) -> Path:
        return ("phases", self.index, "simulate")

    @property
    def environment(self) -> Any:
        return self.simulate.get("environment")

    @property
    def transport(self) -> Any:
        return self.simulate.get("transport", "conductors")

    @property
    def has_players(self) -> bool:
        """Whether it is for several players."""
        agents = self.simulate.get("agents")
        return isinstance(agents, dict) or len(items(agents)) > 1


def simulations(data: object) -> Iterator[Simulated]:
    """Of a run."""
    environments = mapping(mapping(mapping(data).get("conductors")).get("environments"))
    for index, phase in enumerate(items(mapping(data).get("phases"))):
        if not isinstance(simulate := mapping(phase).get("simulate"), dict):
            continue
        chosen, agents = simulate.get("environment"), simulate.get("agents")
        kind = str if isinstance(agents, dict) else int
        places = agents.items() if isinstance(agents, dict) else enumerate(items(agents))
        yield Simulated(
            index=index,
            phase=phase,
            simulate=simulate,
            section=mapping(environments.get(chosen)) if isinstance(chosen, str) else {},
            agents=[
                (step, name) for step, name in places if isinstance(step, kind) and isinstance(name, str)
            ],
        )


def vector_of(section: object) -> tuple[object, object]:
    """The number of environments and the mode of an environment's `vector`, as they stand there."""
    given = mapping(section).get("vector", 1)
    return (given.get("num_envs"), given.get("mode", "sync")) if isinstance(given, dict) else (given, "sync")
