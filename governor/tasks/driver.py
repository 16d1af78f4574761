"""A Ray driver with an engine in the caller's own process: the engine without a daemon.

Rules:
1. If Ray is initialized already, it is used and left as it is; another address is an error then. Otherwise the first
   driver connects to `address`, or starts a head of its own on the loopback interface; other drivers share it, and it
   ends with the last one.
2. `close` removes all that no other driver uses: the folder is removed unless it was given, and runners have exited; idle ones
   are kept for the next driver, as long as the connection to Ray stays (`cluster.warm_runners`).
"""

from __future__ import annotations

import asyncio
import shutil
import sys
import tempfile
import uuid
from contextlib import AsyncExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self

from governor import logs
from governor.tasks.cluster.cluster import Cluster
from governor.tasks.cluster.lease import NodeLease
from governor.tasks.cluster.warm_runners import WARM
from governor.tasks.engine import Engine
from governor.tasks.script_output import ScriptOutput, wants_output

if TYPE_CHECKING:
    from collections.abc import Sequence

    from governor.tasks.api import SchedulerConfig
    from governor.tasks.pickle_store import PickleStore

log = logs.get_logger()


@dataclass(eq=False)
class Driver:
    """Cluster, runners and engine of this process. `folder` is for values that are too large for a message."""

    cluster: Cluster
    engine: Engine
    pickle_store: PickleStore
    folder: Path
    _stack: AsyncExitStack
    _output: ScriptOutput | None = None
    _closing: asyncio.Task[None] | None = None

    @classmethod
    async def open(
        cls,
        config: SchedulerConfig,
        *,
        capacity: int | None = None,
        models: Sequence[Any] = (),
        folder: Path | None = None,
        wait: bool = True,
    ) -> Self:
        """Returns when every plain slot has its runner. Raises ConductorError, and leaves nothing behind then.

        `capacity`: plain runners; None: the CPUs of the cluster. `folder`: None: a temporary one. Without `wait`, runners
        are starting.
        """
        logs.default()
        async with AsyncExitStack() as stack:
            scratch = Path(tempfile.mkdtemp(prefix="governor-"))
            stack.callback(shutil.rmtree, scratch, ignore_errors=True)
            folder = folder or scratch / "run"
            folder.mkdir(parents=True, exist_ok=True)
            lease = NodeLease(address=config.address, num_cpus=config.num_cpus)
            stack.push_async_callback(lease.leave)  # pushed first: a cancelled `take` is still at work
            await lease.take()
            cluster = Cluster(address="", token_path=None, namespace=f"governor-{uuid.uuid4().hex[:8]}")
            stack.push_async_callback(cluster.disconnect)
            await cluster.connect()
            # Ray is imported by now, with its variables set
            from governor.tasks.pickle_store import PickleStore  # noqa: PLC0415  # as said above
            from governor.tasks.runner_process.pickled import FOLDER  # noqa: PLC0415  # as said above
            from governor.tasks.runners.pool import Runners  # noqa: PLC0415  # as said above

            output: ScriptOutput | None = None
            if lease.is_own or wants_output():
                output = ScriptOutput(scratch / "output")
                stack.push_async_callback(asyncio.to_thread, output.close)
            (pickles := scratch / FOLDER).mkdir()
            pickle_store = PickleStore(cluster.namespace, pickles)
            stack.callback(cluster.call_unawaited, pickle_store.close)
            runners = Runners(
                cluster=cluster,
                run=f"driver-{uuid.uuid4().hex[:8]}",
                run_folder=folder,
                socket_folder=scratch,
                import_path=[*config.import_path, *sys.path],
                spools=None if output is None else output.folder,
                conductor="",
                warm=WARM,
                keep_seconds=config.idle_timeout,
                before_remote=lambda: cluster.call(pickle_store.publish),
            )
            engine = Engine(
                runners=runners,
                cluster=cluster,
                folder=folder,
                capacity=capacity,
                grace=config.grace,
                models=models,
                max_pending=config.max_pending,
                age=config.max_timeout,
            )
            stack.push_async_callback(engine.close)
            if wait:
                await engine.start()
            else:
                engine.warm()
            watching = asyncio.create_task(cluster.follow(engine), name="tasks.nodes")
            stack.callback(watching.cancel)
            return cls(cluster, engine, pickle_store, folder, stack.pop_all(), output)

    def show_output(self) -> None:
        """Returns when all is shown that tasks have printed. Blocks; in any thread."""
        if self._output is not None:
            self._output.flush()

    async def close(self, *, seconds: float) -> None:
        """Returns within `seconds`; if closing takes longer, that is logged and it goes on. Idempotent."""
        self._closing = self._closing or asyncio.create_task(self._stack.aclose(), name="tasks.close")
        done, _ = await asyncio.wait({self._closing}, timeout=seconds)
        if done:
            self._closing.result()
        else:
            log.error("driver.close_timeout", seconds=seconds)
