"""The nodes of a Ray cluster, and which runners they can hold."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Mapping

    from governor.tasks.scheduling.events import Shape

RAY_NAMES: Final = {"cpus": "CPU", "cpu": "CPU", "gpus": "GPU", "gpu": "GPU"}
"""Names of `resources` in a run file for Ray's own; `memory` (bytes) and custom ones keep their names."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RayNode:
    """One node that is alive; `resources` are its totals by Ray's names."""

    id: str
    host: str
    port: int
    resources: Mapping[str, float]


class Nodes(tuple[RayNode, ...]):
    """Those of one moment."""

    __slots__ = ()

    def slots(self, shape: Shape) -> int:
        """How many runners of this shape fit on all nodes at once; plain ones: the number of CPUs."""
        if not shape:
            return max(1, int(sum(node.resources.get("CPU", 0.0) for node in self)))
        return sum(_fits(node, demand(shape)) for node in self)

    def why_never(self, shape: Shape) -> str:
        """Why no node can ever hold a runner of this shape, in one line."""
        wanted = demand(shape)
        missing = [
            f"{name} {amount:g} (the most a node has: {max((n.resources.get(name, 0.0) for n in self), default=0.0):g})"
            for name, amount in wanted.items()
            if all(node.resources.get(name, 0.0) < amount for node in self)
        ]
        what = ", ".join(missing) or f"{dict(wanted)} together on one node"
        return f"can never be scheduled: no node of the Ray cluster has {what}"

    def next_node(self, taken: Mapping[str, int]) -> str | None:
        """The node for the next plain runner: the one with the fewest for each of its CPUs. Ray would spread runners that
        hold no resources without regard to either. None if there is only one node.
        """
        if len(self) < 2:
            return None
        cpus = {node.id: node.resources.get("CPU", 0.0) for node in self}
        some = [node_id for node_id, number in cpus.items() if number > 0] or list(cpus)
        return min(some, key=lambda node_id: (taken.get(node_id, 0) + 1) / (cpus[node_id] or 1.0))


def demand(shape: Shape) -> dict[str, float]:
    """The resources of a shape by Ray's names."""
    return {RAY_NAMES.get(name, name): amount for name, amount in shape}


def _fits(node: RayNode, wanted: Mapping[str, float]) -> int:
    rooms = [math.floor(node.resources.get(name, 0.0) / amount + 1e-9) for name, amount in wanted.items()]
    return min(rooms, default=0)
