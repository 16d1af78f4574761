"""Experiments of AgentLab as tasks of the engine: `exp_id`, `depends_on`, ``run()`` or ``arun()``.

Ids may be anything that a dict takes as a key; the engine knows them by their text, so 1 and "1" are one id.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from governor.messages import TaskSpec
from governor.tasks.errors import GraphError
from governor.tasks.scheduling import graph
from governor.tasks.scheduling.graph import GraphFault

if TYPE_CHECKING:
    from collections.abc import Sequence

NOUN = "experiment"


def label(experiment: str) -> str:
    """What an error calls it."""
    return f'{NOUN} "{experiment}"'


def specs_of(experiments: Sequence[Any], timeouts: Sequence[float]) -> list[TaskSpec]:
    """Tasks without their calls. Raises GraphError with all faults."""
    found: list[GraphFault] = []
    specs: list[TaskSpec] = []
    for index, (each, timeout) in enumerate(zip(experiments, timeouts, strict=True)):
        name = getattr(each, "exp_id", None)
        if name is None:
            message = f"{NOUN}s[{index}] has no exp_id"
            found.append(GraphFault(task_index=index, field="id", message=message))
            continue
        needs = getattr(each, "depends_on", None) or ()
        if isinstance(needs, str):
            message = f"{label(name)} has depends_on={needs!r}, which is a text and not a list of ids"
            found.append(GraphFault(task_index=index, field="depends_on", message=message))
            needs = ()
        specs.append(TaskSpec(id=str(name), call="", depends_on=tuple(map(str, needs)), timeout=timeout))
    if not found:
        found = graph.faults(specs, noun=NOUN)
    if found:
        raise GraphError(found)
    return specs
