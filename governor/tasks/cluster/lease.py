"""The one connection to Ray that a process can have, shared by all who use the engine in it, in whatever thread.

Rules:
1. The first user makes the connection, and a local head where no address was given; the last one closes both.
2. A connection that the process had before is used, and left as it is. To ask for another address is an error.
3. All of it is done in one thread with an event loop of its own, one user after the other. The thread is there for as
   long as there are users: a head dies with the thread that has started it.
4. After `ray.shutdown` by others the next user makes a new connection; what the old one had is closed by its last user.
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

if TYPE_CHECKING:
    from collections.abc import Coroutine
    from concurrent.futures import Future

TOKEN: Final = secrets.token_hex(32)
"""For the heads of this process: Ray reads a driver's token once, and keeps it."""

T = TypeVar("T")


class NodeLease:
    """One user's share of the connection, without an `address` of what there is, or of a head with `num_cpus`."""

    def __init__(self, *, address: str | None, num_cpus: int | None) -> None:
        self._address = address or ""
        self._num_cpus = num_cpus or os.cpu_count() or 1
        self._ray_thread: _RayThread | None = None

    async def take(self) -> None:
        """Call once. Ray is initialized afterwards. Raises ConductorError or ProcessError; `leave` all the same. Who is
        cancelled meanwhile does not wait for the end of it; `leave` does.
        """
        self._ray_thread = _RayThread.enter()
        await asyncio.wrap_future(
            self._ray_thread.submit(self._ray_thread.take(self, self._address, self._num_cpus))
        )

    async def leave(self) -> None:
        """Returns when nothing is left that nobody else uses; who is cancelled meanwhile leaves all the same. Again:
        nothing.
        """
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
    """One that was made here, and what ends with it."""

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
        """The thread ends with its last guest. Called in any."""
        with self.lock:
            self._users -= 1
            if not self._users:
                type(self).current = None
                self._loop.call_soon_threadsafe(self._loop.stop)

    def join(self) -> None:
        """Returns when the thread has ended, unless there are guests: their last one has left all that took time."""
        if not self._users:
            self._thread.join()

    def submit(self, work: Coroutine[Any, Any, T]) -> Future[T]:
        """Does it in the thread."""
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
        async with self._turn:  # behind a `take` that was cancelled, and tidies up
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
        stack.push_async_callback(cluster.disconnect)  # before: who is cancelled meanwhile has a thread at it
        await cluster.connect()
        return _Connection(worker_id(), stack.pop_all())


def _require(address: str) -> None:
    """Raises ConductorError when the connection that there is goes to another cluster."""
    import ray  # noqa: PLC0415  # it has been imported

    found = ray.get_runtime_context().gcs_address
    if address and address != found:
        raise ConductorError(
            f"this process is connected to Ray at {found}, and cannot go to {address} as well"
        )


def _forget_parent() -> None:
    """In a child that was forked: the thread is its parent's."""
    _RayThread.lock, _RayThread.current = threading.Lock(), None


os.register_at_fork(after_in_child=_forget_parent)
