"""Whether nodes with runners of ours are lost: Ray reports that much later, and the runners do not notice it."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

from governor import logs

if TYPE_CHECKING:
    from collections.abc import Callable

    from governor.tasks.cluster.cluster import Cluster

log = logs.get_logger()


class NodeWatches:
    """Calls `on_lost` with Ray's id of a node whose raylet is gone."""

    def __init__(self, *, cluster: Cluster, on_lost: Callable[[str], None]) -> None:
        self._cluster = cluster
        self._on_lost = on_lost
        self._watches: dict[str, asyncio.Task[None]] = {}

    @property
    def watched(self) -> frozenset[str]:
        """Ray's ids of the nodes."""
        return frozenset(self._watches)

    def follow(self, node: str, host: str) -> None:
        """Watches this node from now on, until it is lost. `host` is its name in the log. Idempotent."""
        if node not in self._watches:
            watch = asyncio.create_task(self._watch(node, host), name=f"node.{node}.watch")
            self._watches[node] = watch
            watch.add_done_callback(lambda _: self._watches.pop(node, None))

    def close(self) -> None:
        """`on_lost` is not called any more."""
        for watch in self._watches.values():
            watch.cancel()

    async def _watch(self, node: str, host: str) -> None:
        try:
            await self._cluster.node_lost(node)
        except Exception as error:  # noqa: BLE001  # whatever Ray raises: the loss of Ray is handled elsewhere
            log.warning("node.watch_failed", node=host, reason=f"{type(error).__name__}: {error}")
            return
        log.warning("node.lost", node=host, ray_node=node)
        self._on_lost(node)
