"""Another node of a Ray cluster on this machine: `python second_node.py SETTINGS`; cf. `governor.tasks.cluster.head_process`.

When it has joined the cluster it writes the pid of its raylet to standard output; it ends when standard input is closed.
"""

from __future__ import annotations

import asyncio
import json
import os
import signal
import subprocess
import sys

from governor.tasks.cluster.head import environment


class SecondNode:
    """A separate raylet that can be killed."""

    def __init__(self, head, *, num_cpus, resources, temp_dir):
        self._settings = {
            "address": head.address,
            "num_cpus": num_cpus,
            "resources": resources,
            "temp_dir": str(temp_dir),
        }
        self._environment = {**os.environ, **environment(head.token_path)}
        self._process = None
        self.raylet = 0
        self.id = ""

    async def start(self):
        self._process = await asyncio.create_subprocess_exec(
            *(sys.executable, __file__, json.dumps(self._settings)),
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            env={**self._environment, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))},
        )
        async with asyncio.timeout(60):
            started = json.loads(await self._process.stdout.readline())
        self.raylet, self.id = started["raylet"], started["id"]
        return self

    def kill(self):
        """As a power failure of the node, except that its workers are not killed."""
        os.kill(self.raylet, signal.SIGKILL)

    async def stop(self):
        self._process.stdin.close()
        await self._process.wait()


def main(settings):
    import ray._private.node as ray_node
    from ray._private.parameter import RayParams

    wanted = json.loads(settings)
    params = RayParams(
        gcs_address=wanted["address"],
        node_ip_address="127.0.0.1",
        num_cpus=wanted["num_cpus"],
        resources=wanted["resources"],
        temp_dir=wanted["temp_dir"],
        object_store_memory=100_000_000,
        include_log_monitor="",
    )
    node = ray_node.Node(params, head=False, shutdown_at_exit=True, spawn_reaper=True)
    raylet = node.all_processes["raylet"][0].process.pid
    sys.stdout.write(json.dumps({"raylet": raylet, "id": node.node_id}) + "\n")
    sys.stdout.flush()
    sys.stdin.read()


if __name__ == "__main__":
    main(sys.argv[1])
