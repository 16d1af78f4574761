"""Nodes that are lost, without Ray."""

from __future__ import annotations

import asyncio

from structlog.testing import capture_logs

from governor.tasks.runners.node_loss import NodeWatches


class AllLost:
    async def node_lost(self, node_id):
        pass


async def test_a_lost_node_has_its_host_in_the_log_as_everywhere_else():
    lost = asyncio.get_running_loop().create_future()
    watches = NodeWatches(cluster=AllLost(), on_lost=lost.set_result)
    with capture_logs() as lines:
        watches.follow("98469c8c", "worker-3")
        async with asyncio.timeout(10):
            assert await lost == "98469c8c"
    assert lines == [
        {"event": "node.lost", "node": "worker-3", "ray_node": "98469c8c", "log_level": "warning"}
    ]
