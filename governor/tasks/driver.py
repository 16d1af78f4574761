"""A Ray driver with an engine in the caller's own process: for those who use the engine without a daemon.

Rules:
1. Ray that was initialized before is used and left as it is; to ask for another address is an error then. Otherwise the driver connects to `address`, or starts a
   head of its own on the loopback interface, which ends with it.
2. `close` leaves nothing: runners are dead, the head is gone, the folder is removed unless it was given.
"""

from __future__ import annotations

import asyncio
import os
import secrets
import shutil
import sys
import tempfile
import uuid
from contextlib import AsyncExitStack
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from governor import logs
from governor.errors import ConductorError
from governor.tasks.engine import Engine
from governor.tasks.fleet.cluster import Cluster
from governor.tasks.fleet.nodes import follow

if TYPE_CHECKING:
    from collections.abc import Sequence

    from governor.tasks.actor.functions import Functions
    from governor.tasks.api import SchedulerConfig

TOKEN: Final = secrets.token_hex(32)
"""For the heads of this process: Ray reads a driver's token once, and keeps it."""

log = logs.get_logger()


class Driver:
    """Cluster, runners and engine of this process.

    Args:
        places: plain runners; None: the CPUs of the cluster.
        folder: where values that do not travel are kept; None: a temporary one.
    """

    engine: Engine
    functions: Functions

    def __init__(
        self,
        config: SchedulerConfig,
        *,
        places: int | None = None,
        models: Sequence[Any] = (),
        folder: Path | None = None,
    ) -> None:
        self._config = config
        self._places = places
        self._models = models
        self._given = folder
        self._stack = AsyncExitStack()
        self._watching: asyncio.Task[None] | None = None
        self._closing: asyncio.Task[None] | None = None
        self.cluster: Cluster | None = None
        self.folder = folder or Path()

    async def open(self) -> None:
        """Returns when every plain place has its runner. Raises ConductorError, and leaves nothing then."""
        async with AsyncExitStack() as stack:
            scratch = Path(tempfile.mkdtemp(prefix="governor-"))
            stack.callback(shutil.rmtree, scratch, ignore_errors=True)
            self.folder = self._given or scratch / "run"
            self.folder.mkdir(parents=True, exist_ok=True)
            self.cluster = cluster = await self._connect(stack, scratch)
            # Ray is imported by now, with its variables set
            from governor.tasks.actor.functions import Functions  # noqa: PLC0415  # as said above
            from governor.tasks.runners import Runners  # noqa: PLC0415  # as said above

            self.functions = Functions(cluster.namespace)
            stack.push_async_callback(cluster.call_at_end, self.functions.close)
            runners = Runners(
                cluster=cluster,
                run=f"driver-{uuid.uuid4().hex[:8]}",
                run_folder=self.folder,
                socket_folder=scratch,
                import_path=[*self._config.import_path, *sys.path],
            )
            self.engine = Engine(
                runners=runners,
                cluster=cluster,
                folder=self.folder,
                places=self._places,
                grace=self._config.grace,
                models=self._models,
                max_pending=self._config.max_pending,
                age=self._config.max_timeout,
            )
            stack.push_async_callback(self.engine.close)
            await self.engine.start()
            self._watching = asyncio.create_task(follow(cluster, self.engine), name="tasks.nodes")
            self._stack = stack.pop_all()

    async def close(self, *, seconds: float) -> None:
        """Returns within `seconds`; what takes longer to end goes on to do so, and that is logged. Again: nothing."""
        if self._watching is not None:
            self._watching.cancel()
        self._closing = self._closing or asyncio.create_task(self._stack.aclose(), name="tasks.close")
        done, _ = await asyncio.wait({self._closing}, timeout=seconds)
        if done:
            self._closing.result()
        else:
            log.error("driver.unclosed", seconds=seconds)

    async def _connect(self, stack: AsyncExitStack, scratch: Path) -> Cluster:
        address, token_path = self._config.address or "", None
        if _ray_is_here():
            address = _adopted(address)
        elif not address:
            from governor.ray_head import RayHead  # noqa: PLC0415  # only where one is needed

            head = RayHead(
                state_folder=scratch,
                runtime_folder=scratch,
                num_cpus=self._config.num_cpus or os.cpu_count() or 1,
                token=TOKEN,
            )
            stack.push_async_callback(head.stop)
            started = await head.start()
            address, token_path = started.address, str(started.token_path)
        cluster = Cluster(
            address=address, token_path=token_path, namespace=f"governor-{uuid.uuid4().hex[:8]}"
        )
        stack.push_async_callback(cluster.disconnect)  # before: who is cancelled meanwhile has a thread at it
        await cluster.connect()
        return cluster


def _ray_is_here() -> bool:
    """Whether this process is a driver of Ray already; does not import Ray to find out."""
    ray = sys.modules.get("ray")
    return ray is not None and bool(ray.is_initialized())


def _adopted(address: str) -> str:
    """No address: the connection that there is will be used. Raises ConductorError when it is to another cluster."""
    import ray  # noqa: PLC0415  # it has been imported

    found = ray.get_runtime_context().gcs_address
    if address and address != found:
        raise ConductorError(
            f"this process is connected to Ray at {found}, and cannot go to {address} as well"
        )
    return ""
