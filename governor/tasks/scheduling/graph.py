"""Faults of a task graph, all of them, before anything runs.

Rules:
1. Pure and iterative: a chain of 10,000 tasks is an ordinary graph.
2. Every fault names the ids involved, and the index of the task to correct.
"""

from __future__ import annotations

import graphlib
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Sequence

    from governor.messages import TaskSpec

# Finding a cycle costs a walk over the whole graph; users correct them one at a time anyway.
MOST_CYCLES: Final = 20
# Ids of a long cycle in a message; the others are counted.
MOST_NAMES: Final = 12


@dataclass(frozen=True, slots=True, kw_only=True)
class GraphFault:
    """One fault. `task_index` counts in the order given; `field` is like ``id`` or ``depends_on[2]``."""

    task_index: int
    field: str
    message: str


def faults(tasks: Sequence[TaskSpec], *, noun: str = "task") -> list[GraphFault]:
    """All faults of the graph in the order of the tasks: duplicate ids, unknown or own id in `depends_on`, cycles.

    An empty list means that the graph can run. At most `MOST_CYCLES` cycles are listed. `noun`: what the messages call
    a task.
    """
    first: dict[str, int] = {}
    found: list[GraphFault] = []
    for index, task in enumerate(tasks):
        if task.id in first:
            message = f'{noun} id "{task.id}" is already used by {noun}s[{first[task.id]}]'
            found.append(GraphFault(task_index=index, field="id", message=message))
        else:
            first[task.id] = index
    for index, task in enumerate(tasks):
        for place, name in enumerate(task.depends_on):
            if name == task.id:
                message = f'{noun} "{task.id}" depends on itself'
            elif name not in first:
                message = f'{noun} "{task.id}" depends on "{name}", which is none of the {noun}s'
            else:
                continue
            found.append(GraphFault(task_index=index, field=f"depends_on[{place}]", message=message))
    found += _cycles(tasks, first, noun)
    return sorted(found, key=lambda fault: fault.task_index)


def _cycles(tasks: Sequence[TaskSpec], first: dict[str, int], noun: str) -> list[GraphFault]:
    """One fault for each cycle, at the first of its tasks; a task is named in one cycle only."""
    edges: dict[str, set[str]] = {task.id: set() for task in tasks if task.depends_on}
    for task in tasks if edges else ():
        for name in task.depends_on:
            if name in edges and name != task.id:
                edges[task.id].add(name)
    found: list[GraphFault] = []
    while len(found) < MOST_CYCLES:
        try:
            graphlib.TopologicalSorter(edges).prepare()
        except graphlib.CycleError as error:
            # graphlib gives predecessors first and the first id again at the end: turn it into "depends on".
            cycle_ids = list(reversed(error.args[1]))[:-1]
        else:
            break
        start = cycle_ids.index(min(cycle_ids, key=first.__getitem__))
        cycle_ids = cycle_ids[start:] + cycle_ids[:start]
        for name in cycle_ids:
            edges.pop(name)
        for needs in edges.values():
            needs.difference_update(cycle_ids)
        found.append(_cycle_fault(tasks, first[cycle_ids[0]], cycle_ids, noun))
    return found


def _cycle_fault(tasks: Sequence[TaskSpec], index: int, cycle_ids: list[str], noun: str) -> GraphFault:
    names = cycle_ids[:MOST_NAMES]
    if len(cycle_ids) > MOST_NAMES:
        names.append(f"... ({len(cycle_ids)} tasks)")
    cycle = " -> ".join([*names, cycle_ids[0]])
    place = tasks[index].depends_on.index(cycle_ids[1]) if cycle_ids[1] in tasks[index].depends_on else 0
    return GraphFault(
        task_index=index,
        field=f"depends_on[{place}]",
        message=f"the {noun}s depend on each other in a cycle: {cycle}",
    )
