"""The one connection to Ray that a process can have, shared by all users of the engine in it, in any thread.

Rules:
1. The first user opens the connection, and starts a local head if no address was given; the last one closes both.
2. A connection that the process had before is used, and left as it is. Another address is an error then.
3. All of it is done in one thread with an event loop of its own, one user after the other. The thread runs as long as
   there are users: a head exits with the thread that has started it.
4. After `ray.shutdown` by other code the next user opens a new connection; the last user of the old one closes its head.
"""

from __future__ import annotations

import asyncio
import os
import secrets
import shutil
import tempfile
import threading
import uuid
from contextlib import AsyncExitStack
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, TypeVar

from governor.errors import ConductorError
from governor.tasks.cluster.cluster import Cluster
from governor.tasks.cluster.joining import worker_id
from governor.tasks.cluster.warm_runners import WARM

if TYPE_CHECKING:
    from collections.abc import Coroutine
    from concurrent.futures import Future

TOKEN: Final = secrets.token_hex(32)
"""For the heads of this process: Ray reads the token of a driver only once."""

T = TypeVar("T")


class NodeLease:
    """One user of the connection. Without `address`: to the Ray of this process, else to a new head with `num_cpus`."""

    def __init__(self, *, address: str | None, num_cpus: int | None) -> None:
        self._address = address or ""
        self._num_cpus = num_cpus or os.cpu_count() or 1
        self._ray_thread: _RayThread | None = None

    @property
    def is_own(self) -> bool:
        """Whether the connection was opened here, not by the caller."""
        return self._ray_thread is not None

    async def take(self) -> None:
        """Initializes Ray. Call once, and `leave` also if this raises ConductorError or ProcessError. A cancelled call does
        not wait for the connection; `leave` does.
        """
        if worker_id() and _RayThread.current is None:  # none was opened here: it is rule 2
            _require(self._address)
            return
        self._ray_thread = _RayThread.enter()
        await asyncio.wrap_future(
            self._ray_thread.submit(self._ray_thread.take(self, self._address, self._num_cpus))
        )

    async def leave(self) -> None:
        """Returns when all that has no other user is closed; a cancelled call is completed in the background. Idempotent."""
        ray_thread, self._ray_thread = self._ray_thread, None
        if ray_thread is None:
            return
        left = ray_thread.submit(ray_thread.leave(self))
        left.add_done_callback(lambda _: ray_thread.exit())
        try:
            await asyncio.shield(asyncio.wrap_future(left))
        finally:
            ray_thread.join()


class _Connection:
    """A connection opened here, and what is closed with it."""

    def __init__(self, worker: str, ends: AsyncExitStack) -> None:
        self.worker = worker
        self.ends = ends
        self.users: set[NodeLease] = set()


class _RayThread:
    """The thread and its loop."""

    lock: threading.Lock = threading.Lock()
    current: _RayThread | None = None

    def __init__(self) -> None:
        self._users = 0
        self._loop = asyncio.new_event_loop()
        self._turn = asyncio.Lock()
        self._connections: list[_Connection] = []
        self._thread = threading.Thread(target=self._run, name="tasks.ray", daemon=True)
        self._thread.start()

    @classmethod
    def enter(cls) -> _RayThread:
        with cls.lock:
            ray_thread = cls.current = cls.current or cls()
            ray_thread._users += 1  # noqa: SLF001  # its own class
            return ray_thread

    def exit(self) -> None:
        """The thread ends with its last user. Called in any thread."""
        with self.lock:
            self._users -= 1
            if not self._users:
                type(self).current = None
                self._loop.call_soon_threadsafe(self._loop.stop)

    def join(self) -> None:
        """Returns when the thread has ended; at once if it has users. Call it after `leave`, so that it takes no time."""
        if not self._users:
            self._thread.join()

    def submit(self, work: Coroutine[Any, Any, T]) -> Future[T]:
        """Runs a coroutine in the thread."""
        return asyncio.run_coroutine_threadsafe(work, self._loop)

    # -- in the thread --------------------------------------------------------------------------------------

    async def take(self, lease: NodeLease, address: str, num_cpus: int) -> None:
        async with self._turn:
            if worker_id():
                _require(address)
            else:
                self._connections.append(await _connect(address, num_cpus))
            for connection in self._connections:
                if connection.worker == worker_id():
                    connection.users.add(lease)

    async def leave(self, lease: NodeLease) -> None:
        async with self._turn:  # waits for a cancelled `take`, and cleans up after it
            for connection in self._connections[:]:
                if lease in connection.users:
                    connection.users.discard(lease)
                    if not connection.users:
                        self._connections.remove(connection)
                        await connection.ends.aclose()

    def _run(self) -> None:
        asyncio.set_event_loop(self._loop)
        try:
            self._loop.run_forever()
        finally:
            self._loop.run_until_complete(self._loop.shutdown_default_executor())
            self._loop.close()


async def _connect(address: str, num_cpus: int) -> _Connection:
    async with AsyncExitStack() as stack:
        token_path = None
        if not address:
            from governor.tasks.cluster.head import RayHead  # noqa: PLC0415  # only where one is needed

            folder = Path(tempfile.mkdtemp(prefix="governor-"))
            stack.callback(shutil.rmtree, folder, ignore_errors=True)
            head = RayHead(state_folder=folder, runtime_folder=folder, num_cpus=num_cpus, token=TOKEN)
            stack.push_async_callback(head.stop)
            started = await head.start()
            address, token_path = started.address, str(started.token_path)
        namespace = f"governor-{uuid.uuid4().hex[:8]}"
        cluster = Cluster(address=address, token_path=token_path, namespace=namespace)
        stack.push_async_callback(
            cluster.disconnect
        )  # pushed first: a cancelled `connect` still runs in its thread
        await cluster.connect()
        stack.push_async_callback(asyncio.to_thread, WARM.end, cluster.worker)
        return _Connection(cluster.worker, stack.pop_all())


def _require(address: str) -> None:
    """Raises ConductorError if the existing connection goes to another cluster."""
    import ray  # noqa: PLC0415  # it has been imported

    found = ray.get_runtime_context().gcs_address
    if address and address != found:
        raise ConductorError(
            f"this process is connected to Ray at {found}, and cannot go to {address} as well"
        )


def _forget_parent() -> None:
    """In a forked child: the thread exists in its parent only."""
    _RayThread.lock, _RayThread.current = threading.Lock(), None


os.register_at_fork(after_in_child=_forget_parent)
