"""Idle runners that a process keeps between its drivers: a new runner takes Ray half a second, a warm one a millisecond.

Rules:
1. A kept runner holds no resource of Ray, has no task and no process below it. It is used for plain tasks by any driver of this
   process with the same connection to Ray and the same import path.
2. It ends after its idle time, with the connection to Ray, and with this process, however that ends: Ray kills the actors of a
   driver that is gone.
3. Ray ends it, by `ray.kill`: of any other death Ray tells the user's terminal. What is left then is killed.
4. A fork has none of them.
"""

from __future__ import annotations

import os
import sys
import threading
import time
from contextlib import suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from governor import logs
from governor.processes import kill_tree
from governor.tasks.cluster.joining import worker_id
from governor.tasks.protocol.wire import frames

if TYPE_CHECKING:
    import socket
    from collections.abc import Callable, Sequence
    from concurrent.futures import Future

    from governor.tasks.protocol.ticket_pipe import RunnerControl
    from governor.tasks.protocol.wire import Serve

EXIT_SECONDS: Final = 5.0
"""For Ray to end a runner; then it is killed."""

LOOK_SECONDS: Final = 3600.0
"""The longest wait: idle times may be endless."""

log = logs.get_logger()


class ActorCall:
    """The one call of a runner's actor, which outlives its drivers: one of them at a time hears of its end."""

    def __init__(self, reference: Any) -> None:
        self._then: Callable[[Future[Any]], object] | None = None
        self._outcome: Future[Any] | None = None
        reference.future().add_done_callback(self._ended)

    def follow(self, then: Callable[[Future[Any]], object] | None) -> None:
        """`then` is called with the outcome, in any thread, at least once; None: nothing is."""
        self._then = then
        if then is not None and self._outcome is not None:
            then(self._outcome)

    def _ended(self, outcome: Future[Any]) -> None:
        self._outcome = outcome
        if (then := self._then) is not None:
            then(outcome)


@dataclass(frozen=True, kw_only=True, eq=False)
class IdleRunner:
    """A runner of this machine without a driver. `worker` is the id that Ray has for this process."""

    worker: str
    import_path: tuple[str, ...]
    actor: Any
    call: ActorCall
    pid: int
    control: RunnerControl
    sock: socket.socket

    def serve(self, driver: Serve) -> bool:
        """Hands it to a driver, to which it connects then; False if it has exited."""
        try:
            self.sock.sendall(frames([driver]))
        except OSError:
            return False
        self.sock.close()
        return True

    def is_dead(self) -> bool:
        return self.control.pidfd is None or kill_tree.is_dead(self.control.pidfd)

    def end(self) -> None:
        """Returns when it, and all that it has left behind, is dead. Blocks."""
        end_all([self])

    def close(self) -> None:
        """Lets go of it, as it is. Idempotent."""
        self.sock.close()
        self.control.close()


class WarmRunners:
    """The idle runners of this process. Thread-safe."""

    def __init__(self) -> None:
        self._changed = threading.Condition()
        self._until: dict[IdleRunner, float] = {}
        """The end of each one's idle time, in seconds of the monotonic clock."""
        self._thread: threading.Thread | None = None
        self._late: list[IdleRunner] = []
        """Those that the thread is ending."""
        self._looks_at = 0.0
        """The moment to which the thread waits."""
        self._is_registered = False
        self._is_closed = False

    def is_open(self) -> bool:
        """False if the interpreter ends: none is kept any more."""
        with self._changed:
            return self._is_open()

    def keep(self, runner: IdleRunner, *, seconds: float) -> bool:
        """Keeps it for so long; False if the interpreter ends."""
        with self._changed:
            if not self._is_open():
                return False
            self._until[runner] = until = time.monotonic() + seconds
            if self._thread is None:
                self._thread = threading.Thread(target=self._end_late, name="tasks.warm", daemon=True)
                self._thread.start()
            elif until < self._looks_at:
                self._changed.notify_all()
        return True

    def take(self, *, worker: str, import_path: tuple[str, ...]) -> IdleRunner | None:
        """The runner that was kept last, of those that fit."""
        dead: list[IdleRunner] = []
        found: IdleRunner | None = None
        with self._changed:
            for runner in reversed(list(self._until)):
                if (runner.worker, runner.import_path) != (worker, import_path):
                    continue
                del self._until[runner]
                if not runner.is_dead():
                    found = runner
                    break
                dead.append(runner)
        end_all(dead)
        return found

    def end(self, worker: str | None = None) -> None:
        """Ends those of a connection to Ray, None: all, and returns when they are dead. Blocks."""
        with self._changed:
            ending = [runner for runner in self._until if worker in (None, runner.worker)]
            for runner in ending:
                del self._until[runner]
            thread = self._thread if self._is_closed and not self._until else None
            self._changed.notify_all()
        end_all(ending)
        with self._changed:  # not until the thread ends: another one may keep runners meanwhile
            self._changed.wait_for(lambda: not self._late)
        if thread is not None:
            thread.join()

    def forget(self) -> list[IdleRunner]:
        """In a forked child: they are its parent's."""
        inherited, self._until, self._late = list(self._until), {}, []
        for runner in inherited:
            runner.close()
        self._changed, self._thread = threading.Condition(), None  # the lock may be held
        return inherited

    def _is_open(self) -> bool:
        if not self._is_registered:
            self._is_registered = True
            try:
                # As for the session of `run_exp`: `atexit` is too late for what waits on threads.
                threading._register_atexit(self._close)  # type: ignore[attr-defined]  # noqa: SLF001  # as said above
            except RuntimeError:
                self._is_closed = True
        return not self._is_closed

    def _close(self) -> None:
        with self._changed:
            self._is_closed = True
        self.end()

    def _end_late(self) -> None:
        """In the thread, which ends at the first look without any."""
        while True:
            with self._changed:
                now = time.monotonic()
                self._late = late = [runner for runner, until in self._until.items() if until <= now]
                for runner in late:
                    del self._until[runner]
                self._changed.notify_all()
                if not late:
                    if not self._until:
                        self._thread = None
                        return
                    self._looks_at = min(*self._until.values(), now + LOOK_SECONDS)
                    self._changed.wait(self._looks_at - now)
            try:
                end_all(late)
            except Exception:  # the thread goes on: others wait for it
                log.exception("runner.end_failed", pids=[runner.pid for runner in late])


def end_all(runners: Sequence[IdleRunner]) -> None:
    """Returns when they, and all that they have left behind, are dead. Blocks."""
    if not runners:
        return
    asked: list[IdleRunner] = []
    # In a thread of its own: a call into a Ray that is frozen never returns.
    asking = threading.Thread(target=_ask_ray, args=(runners, asked), name="tasks.ray_kill", daemon=True)
    asking.start()
    asking.join(EXIT_SECONDS)
    handles = {runner.pid: handle for runner in asked if (handle := runner.control.pidfd) is not None}
    kill_tree.await_deaths(handles, seconds=EXIT_SECONDS)
    for runner in runners:
        try:
            left: object = runner.control.kill_tree()
        except OSError as error:  # no descriptors are left to look at the tree
            left = str(error)
        if left:
            log.error("runner.unkillable", pid=runner.pid, left=left)
        runner.close()


def _ask_ray(runners: Sequence[IdleRunner], asked: list[IdleRunner]) -> None:
    for runner in runners:
        if (
            runner.is_dead() or worker_id() != runner.worker
        ):  # another Ray: with the old one its actors have ended
            continue
        with suppress(Exception):  # whatever Ray raises: it is lost, or was shut down a moment ago
            sys.modules["ray"].kill(runner.actor, no_restart=True)
            asked.append(runner)


WARM: Final = WarmRunners()


def release_runners() -> None:
    """Ends the idle runners that this process keeps for its next call, and returns when they are dead. Those at work go on."""
    WARM.end()


_inherited: list[IdleRunner] = []
"""Of the parent of a forked child: to release an actor is a call into Ray, which the child has not."""

os.register_at_fork(after_in_child=lambda: _inherited.extend(WARM.forget()))
