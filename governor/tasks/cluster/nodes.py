"""Adapts the number of runners to nodes that join and leave a cluster while tasks run."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Final

from governor import logs

if TYPE_CHECKING:
    from governor.tasks.cluster.cluster import Cluster
    from governor.tasks.engine import Engine

REFRESH_SECONDS: Final = 5.0
"""Between two queries for the nodes: Ray does not notify its drivers of nodes that join."""

log = logs.get_logger()


async def follow(cluster: Cluster, engine: Engine) -> None:
    """Runs until it is cancelled. Lost runners of a node are handled elsewhere; this reduces the number of slots."""
    while True:
        await asyncio.sleep(REFRESH_SECONDS)
        try:
            changed = await cluster.refresh()
        except Exception as error:  # noqa: BLE001  # Ray raises many types; it may answer again
            log.warning("ray.request_failed", reason=f"{type(error).__name__}: {error}")
            continue
        if changed:
            log.info("ray.nodes", nodes=len(cluster.nodes))
            engine.resize(engine.shapes())
