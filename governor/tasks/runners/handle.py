"""One runner as the driver knows it: how it starts, and how it ends.

Rules:
1. Whatever ends a runner comes to `RunnerHandle.end`; what is done then stands in `states.TABLE`.
2. Killed or exited: what remains of the runner and of its tasks is killed, here or by the node's agent, and then its end
   is announced.
3. All messages of a runner are delivered before its end.
   An idle one that is not needed any more is ended by Ray, which tells of no death then, or kept for another driver.
4. An asyncio task that fails is logged, and ends its runner, so that nothing waits for that runner for ever.
"""

from __future__ import annotations

import asyncio
from contextlib import suppress
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING, Any, Final

from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

from governor import logs
from governor.episodes.entries import call_in_loop
from governor.processes import kill_tree
from governor.processes.cgroups import lack_of_memory, memory_kills
from governor.tasks.cluster.nodes import demand
from governor.tasks.cluster.warm_runners import ActorCall, IdleRunner
from governor.tasks.protocol.ticket_pipe import RunnerControl
from governor.tasks.runner_process import settings
from governor.tasks.runners.process import LocalProcess
from governor.tasks.runners.states import Action, Cause, RunnerState, step

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine
    from concurrent.futures import Future

    from governor.tasks.cluster.cluster import Cluster
    from governor.tasks.protocol.wire import Hello
    from governor.tasks.runners.process import RunnerProcess
    from governor.tasks.scheduling.events import Shape

RAY_REASON_SECONDS: Final = 1.0
"""Longest wait after a crash for the reason that Ray gives."""
BACK_SECONDS: Final = 5.0
"""For a runner that was kept to connect to its next driver."""
EXIT_SECONDS: Final = 1.0
"""Between the end of a runner's stream and that of its process."""

log = logs.get_logger()


@dataclass(kw_only=True, eq=False)
class RunnerHandle:
    """One runner.

    Args:
        number: part of its process mark: unique among running runners. planned: the preferred node; Ray may choose
            another. tasks: holds the asyncio tasks of all runners. on_gone: called once, with the reason.
    """

    id: int
    shape: Shape
    number: int
    planned: str | None
    cluster: Cluster
    tasks: set[asyncio.Task[None]]
    on_gone: Callable[[RunnerHandle, str], None]
    state: RunnerState = RunnerState.STARTING
    process: RunnerProcess | None = None
    """Of a runner that has connected."""
    kept: IdleRunner | None = None
    """Until it connects: the runner of an earlier driver that it was."""
    is_kept: bool = False
    """Whether it lives on for another driver."""
    settings: str = ""
    """The name of what Ray's store has for its process, which takes it when it starts."""
    _loop: asyncio.AbstractEventLoop = field(default_factory=asyncio.get_running_loop)
    _actor: Any = None
    _call_of_actor: ActorCall | None = None
    _call: asyncio.Future[str] = field(default_factory=asyncio.Future)
    """Done with the error or "" when its one Ray call has ended."""
    _back_timer: asyncio.TimerHandle | None = None
    """For the return of one that was kept."""
    _kill_reason: str = ""
    _memory_kills: int = field(default_factory=memory_kills)
    _ending: asyncio.Task[None] | None = None

    @property
    def node(self) -> str:
        return self.process.hello.node if self.process is not None else self.planned or ""

    @property
    def lost(self) -> bool:
        """Whether it has ended because its node was lost."""
        return self.process is not None and self.process.lost and not self._kill_reason

    @property
    def is_to_be_replaced(self) -> bool:
        """Whether it was kept by an earlier driver, and has not come back though nobody has ended it."""
        return self.kept is not None and not self._kill_reason

    def start(self, create: Callable[[RunnerHandle], None]) -> None:
        """Creates its actor; `create` is called in Ray's thread, and calls `follow_actor`."""
        self.track(self._start(create), "start")

    def follow_actor(self, actor: Any, call: ActorCall) -> None:
        """In Ray's thread: its actor, and the one call of that. Before a runner that was kept is told to connect: it may be
        used and let go of before the next line.
        """
        self._actor, self._call_of_actor = actor, call
        call.follow(lambda outcome: call_in_loop(self._loop, partial(self._call_ended, outcome)))

    def control_of(self, hello: Hello) -> RunnerControl:
        """For a process of this machine that has connected: one that was kept is known."""
        if self.kept is None or self.kept.pid != hello.pid or self.state is not RunnerState.STARTING:
            return RunnerControl(hello)
        control, self.kept = self.kept.control, None
        return control

    def connect(self, process: RunnerProcess) -> bool:
        """Whether it is ready; else it is to be killed, or has exited."""
        self.process = process
        if self.state is not RunnerState.STARTING:
            return False
        if self.kept is not None:
            self.kept.close()
            self.kept = None
        if self._back_timer is not None:
            self._back_timer.cancel()
        self.state = process.state
        return True

    def keep(self, import_path: tuple[str, ...]) -> IdleRunner | None:
        """Lets go of an idle runner, which the caller has from now on; None if it is not fit for another driver."""
        call = self._call_of_actor
        if not isinstance(self.process, LocalProcess) or self.shape or self._actor is None or call is None:
            return None
        if (
            step(self.state, Cause.KEPT)[1] is not Action.ANNOUNCE
            or (detached := self.process.detach()) is None
        ):
            return None
        control, sock = detached
        kept = IdleRunner(
            worker=self.cluster.worker,
            import_path=import_path,
            actor=self._actor,
            call=call,
            pid=self.process.hello.pid,
            control=control,
            sock=sock,
        )
        self.is_kept, self.planned, self.process = True, self.process.hello.node, None
        call.follow(None)
        self.end(Cause.KEPT, "it is kept for the next driver")
        return kept

    def end(self, cause: Cause, reason: str = "") -> None:
        """Whatever ends the runner. `reason` is for people; of CALL_ENDED it is Ray's error."""
        self.state, action = step(self.state, cause)
        if cause in (Cause.CALL_ENDED, Cause.NOT_CREATED) and not self._call.done():
            self._call.set_result(reason)
        match action:
            case Action.WAIT_FOR_EXIT:
                cut_off = "the runner's connection was closed by the code of its task"
                asyncio.get_running_loop().call_later(EXIT_SECONDS, self.end, Cause.STILL_RUNNING, cut_off)
            case Action.KILL | Action.DISMISS:
                self._kill_reason = reason
                self._ending = self.track(self._kill(by_ray=action is Action.DISMISS), "kill")
            case Action.CLEAN_UP:
                self._ending = self.track(self._clean_up_after_exit(), "crash")
            case Action.ANNOUNCE:
                try:
                    if self.process is not None:
                        self.process.close()
                finally:
                    self.on_gone(self, reason)

    def track(self, work: Coroutine[Any, Any, None], name: str) -> asyncio.Task[None]:
        """Runs a coroutine for the runner; if it fails, the runner is ended."""
        task = asyncio.create_task(work, name=f"runner.{self.id}.{name}")
        self.tasks.add(task)
        task.add_done_callback(self._task_done)
        return task

    def _task_done(self, task: asyncio.Task[None]) -> None:
        self.tasks.discard(task)
        error = None if task.cancelled() else task.exception()
        if error is not None:
            log.error("runner.failed", runner=self.id, step=task.get_name(), exc_info=error)
            cause = Cause.CLEANED_UP if task is self._ending else Cause.TASK_FAILED
            self.end(cause, f"{task.get_name()} failed: {type(error).__name__}: {error}")

    # -- start ----------------------------------------------------------------------------------------------

    async def _start(self, create: Callable[[RunnerHandle], None]) -> None:
        def in_ray() -> None:
            if self.state is not RunnerState.STARTING:
                raise RuntimeError(self._kill_reason)
            create(self)

        try:
            await self.cluster.call(in_ray)
            if self.kept is not None:
                self._back_timer = self._loop.call_later(BACK_SECONDS, self.end, Cause.NOT_BACK)
        except Exception as error:  # noqa: BLE001  # whatever Ray raises, the runner did not start
            refused = f"Ray refused the runner: {type(error).__name__}: {error}"
            self.end(Cause.NOT_CREATED, self._kill_reason or refused)
            if self.settings:
                await self._ray_kill()

    def _call_ended(self, call: Future[None]) -> None:
        self.end(Cause.CALL_ENDED, str(call.exception() or ""))

    # -- end ------------------------------------------------------------------------------------------------

    async def _kill(self, *, by_ray: bool) -> None:
        if by_ray or self.process is None:  # it is still starting
            await self._kill_by_ray()
        if by_ray and self.process is not None:  # Ray's error comes before the death
            with suppress(TimeoutError):
                async with asyncio.timeout(EXIT_SECONDS):
                    await self.process.exited()
        await self._clean_up()

    async def _clean_up_after_exit(self) -> None:
        """Waits for the reason from Ray; messages sent before the exit are read meanwhile."""
        await asyncio.wait({self._call}, timeout=RAY_REASON_SECONDS)
        await self._clean_up()

    async def _clean_up(self) -> None:
        """Kills all that is left of the runner: one that never connected has started nothing. Then announces its end."""
        process, left = self.process, None
        if self.kept is not None:
            await asyncio.to_thread(self.kept.end)
        if process is not None:
            left = await process.kill_tree()
            if left is None:
                await self._kill_by_ray()
        reason = self._kill_reason or self._exit_reason()
        if left:
            log.error("runner.unkillable", runner=self.id, pids=left, seconds=kill_tree.KILL_SECONDS)
            reason = f"{reason}; processes {left} could not be killed"
        if process is not None and process.file_receiver is not None:
            process.connection.drain()
            await process.file_receiver.drained()
        self.end(Cause.CLEANED_UP, reason)
        await self._ray_kill()

    async def _kill_by_ray(self) -> None:
        if await self._ray_kill():
            await asyncio.wait({self._call}, timeout=kill_tree.KILL_SECONDS)

    async def _ray_kill(self) -> bool:
        """Kills the actor, and removes the settings that it has not taken; False if the request to Ray failed. Idempotent."""

        def kill() -> None:
            """In Ray's thread, behind the actor's creation."""
            actor, self._actor = self._actor, None
            if actor is not None:
                self.cluster.ray.kill(actor, no_restart=True)
            if self.settings and self.process is None:
                settings.drop(self.settings)
                self.settings = ""

        try:
            await self.cluster.call(kill)
        except Exception as error:  # noqa: BLE001  # whatever Ray raises: Ray is lost, and its actors with it
            log.warning("runner.ray_kill_failed", runner=self.id, reason=f"{type(error).__name__}: {error}")
            return False
        return True

    def _exit_reason(self) -> str:
        """Why the runner exited without being killed by us, in one line."""
        ray_error = self._call.result() if self._call.done() else ""
        process = self.process
        if process is None:
            lines = " ".join(filter(None, map(str.strip, ray_error.splitlines())))
            return f"the runner exited before it was ready: {lines[-500:] or 'Ray does not say why'}"
        if process.lost:
            return f"the node {process.hello.host} was lost"
        name = f"the runner's process {process.hello.pid}"
        if process.exit_code is not None:
            return f"{name} ended by os._exit({process.exit_code})"
        if "memory" in ray_error and "OOM" not in ray_error:
            return f"{name} was killed by Ray: {' '.join(ray_error.split())[:500]}"
        why = lack_of_memory(self._memory_kills) if process.connection.local else ""
        return f"{name} was killed{f': {why}' if why else ' by a signal or crashed in native code'}"


def ray_options(shape: Shape, *, planned: str | None, nodes: int) -> dict[str, Any]:
    """Ray's options for the actor of a runner, in a cluster of so many nodes."""
    wanted = demand(shape)
    options: dict[str, Any] = {
        "num_cpus": wanted.pop("CPU", 0),
        "num_gpus": wanted.pop("GPU", 0),
    }
    if "memory" in wanted:
        options["memory"] = int(wanted.pop("memory"))
    if planned is not None:
        options["scheduling_strategy"] = NodeAffinitySchedulingStrategy(planned, soft=True)
        options["memory"] = 1  # byte: for actors without any resource Ray ignores the strategy
    elif nodes > 1:
        options["scheduling_strategy"] = "SPREAD"
    return {**options, "resources": wanted}
