"""Runs the effects of one run: effect -> work -> event.

Rules:
1. Each effect runs as a named task of its own; one that fails cancels nothing else.
2. Each effect, also one that fails, ends in the event that `states.effects` names for it.
3. Processes are started from the main thread and watched by their sentinel.
"""

from __future__ import annotations

import asyncio
import shutil
import time
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final, Protocol

from governor import logs
from governor.errors import ForkserverDied, GovernorError, JournalError, ProcessError
from governor.messages import (
    ConductorCommand,
    ConductorSpec,
    Refused,
    Shutdown,
    StopPartCommand,
    conductor_service,
    decode_command_reply,
    encode,
)
from governor.processes import process
from governor.processes.kill_ladder import GracePeriods, terminate
from governor.runs.result import build_result, save_result
from states import events
from states.effects import (
    Effect,
    RemoveTraces,
    StartConductor,
    StartPart,
    StopConductor,
    StopPart,
    Wake,
    WriteResult,
)
from transport.errors import TransportError

if TYPE_CHECKING:
    from collections.abc import Coroutine

    from governor.processes.process import ChildProcess
    from governor.runs.assignment import Assignment
    from governor.runs.run_context import RunContext

COMMAND_SECONDS: Final = 10.0
"""Seconds a conductor has to accept a command. It answers at once; one that does not is replaced."""
TARGET: Final = "governor.conductors.conductor:main"

log = logs.get_logger()


class Fence(Protocol):
    """Admits reports of one incarnation of a conductor; `ReportHandler` implements it."""

    def open(self, conductor: str, incarnation: int) -> None: ...
    async def close(self, conductor: str, incarnation: int) -> None: ...


class Post(Protocol):
    """Puts an event into the inbox of the run governor."""

    def __call__(self, event: events.Event, detail: dict[str, Any] | None = None) -> None: ...


@dataclass(slots=True, kw_only=True)
class _ConductorProcess:
    """One incarnation of a conductor. `child` is None until its process started; `stuck_pid` could not be killed."""

    name: str
    incarnation: int
    child: ChildProcess | None = None
    start_task: asyncio.Task[None] | None = None
    kill_task: asyncio.Task[None] | None = None
    stuck_pid: int | None = None
    exited: asyncio.Event = field(default_factory=asyncio.Event)


class EffectRunner:
    """Performs the effects of one run; call `aclose` when the run is over."""

    def __init__(self, *, assignment: Assignment, context: RunContext, post: Post, fence: Fence) -> None:
        self._assignment = assignment
        self._uid = assignment.uid
        self._context = context
        self._post = post
        self._fence = fence
        self._conductors: dict[str, _ConductorProcess] = {}
        self._timers: dict[tuple[str, str], asyncio.TimerHandle] = {}
        self._tasks: set[asyncio.Task[None]] = set()

    @property
    def processes(self) -> dict[str, ChildProcess]:
        """The conductors whose process is alive, by name."""
        return {
            name: conductor.child
            for name, conductor in self._conductors.items()
            if conductor.child is not None and conductor.child.exit_code is None
        }

    @property
    def deadlines(self) -> dict[tuple[str, str], float]:
        """Seconds until each armed deadline, by deadline name and, for ``restart``, conductor."""
        now = asyncio.get_running_loop().time()
        return {key: timer.when() - now for key, timer in self._timers.items() if timer.when() > now}

    def perform(self, effect: Effect) -> None:
        match effect:
            case Wake():
                self._wake(effect)
            case StartConductor(conductor=name, incarnation=incarnation):
                conductor = self._conductors[name] = _ConductorProcess(name=name, incarnation=incarnation)
                conductor.start_task = self._spawn(
                    self._start(effect, conductor), f"start.{name}.{incarnation}"
                )
            case StopConductor():
                self._stop(effect)
            case StartPart():
                self._spawn(self._start_part(effect), f"begin.{effect.part}.{effect.phase}")
            case StopPart():
                self._spawn(self._stop_part(effect), f"end.{effect.part}.{effect.phase}")
            case WriteResult():
                self._spawn(self._write_result(effect), "result")
            case RemoveTraces():
                self._spawn(self._remove_traces(), "traces")
            case _:
                raise TypeError(f"no such effect: {effect!r}")

    def run_alongside(self, work: Coroutine[None, None, None], name: str) -> None:
        """Runs `work` as a task until the run is over."""
        self._spawn(work, name)

    def stuck_processes(self) -> dict[asyncio.Task[None], frozenset[int]]:
        """The pids that could not be killed, by the task that ends when they are gone; `aclose` leaves these tasks
        alone.
        """
        found: dict[asyncio.Task[None], frozenset[int]] = {}
        for conductor in self._conductors.values():
            if (
                conductor.child is not None
                and conductor.kill_task is not None
                and not conductor.exited.is_set()
            ):
                self._tasks.discard(conductor.kill_task)
                found[conductor.kill_task] = frozenset(
                    {conductor.child.pid, conductor.stuck_pid or conductor.child.pid}
                )
        return found

    async def aclose(self) -> None:
        """Cancels timers and tasks, and waits for the tasks, all of which are bounded."""
        for timer in self._timers.values():
            timer.cancel()
        current = asyncio.current_task()
        pending = {task for task in self._tasks if task is not current}
        for task in pending:
            task.cancel()
        if pending:
            await asyncio.wait(pending)

    # -- time --------------------------------------------------------------------------------------------------

    def _wake(self, effect: Wake) -> None:
        key = (effect.name, effect.conductor)
        if (earlier := self._timers.get(key)) is not None:
            earlier.cancel()

        def post_deadline() -> None:
            self._post(
                events.DeadlinePassed(
                    run=self._uid,
                    at=time.monotonic(),
                    name=effect.name,
                    conductor=effect.conductor,
                    incarnation=effect.incarnation,
                )
            )

        loop = asyncio.get_running_loop()
        self._timers[key] = loop.call_later(max(0.0, effect.at - time.monotonic()), post_deadline)

    # -- conductors --------------------------------------------------------------------------------------------

    async def _start(self, effect: StartConductor, conductor: _ConductorProcess) -> None:
        try:
            if effect.delay:
                await asyncio.sleep(effect.delay)
            settings = self._assignment.settings(effect.conductor)
            if effect.kind == "task":
                settings = {**settings, "ray": await self._context.ray.settings()}
            self._fence.open(conductor.name, conductor.incarnation)
            conductor.child = await process.start(
                name=f"{self._uid}.{effect.conductor}",
                target=TARGET,
                payload=encode(self._spec(effect, settings)),
            )
        except (GovernorError, OSError) as error:
            log.warning("conductor.not_started", run=self._uid, conductor=conductor.name, reason=str(error))
            forkserver = error.pid if isinstance(error, ForkserverDied) else None
            await self._interrupt_if_disk_full()
            self._exited(conductor, None, str(error), forkserver=forkserver)
            return
        child = conductor.child
        log.info("conductor.started", run=self._uid, conductor=conductor.name, pid=child.pid)
        self._post(
            events.ConductorStarted(
                run=self._uid,
                at=time.monotonic(),
                conductor=conductor.name,
                incarnation=conductor.incarnation,
                pid=child.pid,
                ticks=child.identity.ticks,
                boot=child.identity.boot,
            ),
            {"kind": effect.kind, "mark": f"{child.mark:x}"},
        )
        self._spawn(self._watch_exit(conductor, child), f"conductor.{conductor.name}.{conductor.incarnation}")

    def _spec(self, effect: StartConductor, settings: dict[str, Any]) -> ConductorSpec:
        return ConductorSpec(
            uid=self._uid,
            run_name=self._assignment.run.name,
            name=effect.conductor,
            kind=effect.kind,
            incarnation=effect.incarnation,
            client_endpoint=self._context.private_endpoint,
            worker_endpoint=self._context.worker_endpoint,
            secret=self._context.run_secret(self._uid),
            run_folder=str(self._context.run_folder(self._uid)),
            socket_folder=str(self._context.socket_folder(self._uid)),
            import_folder=self._assignment.folder,
            seed=self._assignment.run.seed,
            settings=settings,
            log_format=self._context.log_format,
            log_level=self._context.log_level,
        )

    async def _watch_exit(self, conductor: _ConductorProcess, child: ChildProcess) -> None:
        """Waits until the process and its descendants are dead; a termination under way does both."""
        code = await child.wait()
        if conductor.kill_task is None:
            await self._interrupt_if_disk_full()
        if conductor.kill_task is None:  # a stop may have begun during the disk check
            conductor.kill_task = self._spawn(
                self._terminate(conductor, child, "SIGKILL"), f"sweep.{conductor.name}"
            )
        await asyncio.wait({conductor.kill_task})
        log.info("conductor.exited", run=self._uid, conductor=conductor.name, pid=child.pid, exit_code=code)
        await self._fence.close(conductor.name, conductor.incarnation)
        forkserver = child.lost_forkserver
        reason = f"its forkserver (pid {forkserver}) died" if forkserver is not None else ""
        self._exited(conductor, code, reason, forkserver=forkserver)

    async def _interrupt_if_disk_full(self) -> None:
        """A full disk may have caused an exit: the run is interrupted before the exit is counted."""
        if await asyncio.to_thread(
            lambda: self._context.journal.is_out_of_room
        ):  # writes a file, which takes some milliseconds
            self._post(events.StopRequested(run=self._uid, at=time.monotonic(), reason="the disk is full"))

    def _exited(
        self, conductor: _ConductorProcess, code: int | None, reason: str, *, forkserver: int | None = None
    ) -> None:
        if conductor.exited.is_set():
            return
        conductor.exited.set()
        self._post(
            events.ConductorExited(
                run=self._uid,
                at=time.monotonic(),
                conductor=conductor.name,
                incarnation=conductor.incarnation,
                exit_code=code,
                reason=reason,
                forkserver=forkserver,
            )
        )

    def _stop(self, effect: StopConductor) -> None:
        conductor = self._conductors.get(effect.conductor)
        if conductor is None or conductor.incarnation != effect.incarnation:
            return
        if conductor.child is None:
            if conductor.start_task is not None and not conductor.start_task.done():
                conductor.start_task.cancel()
                conductor.start_task.add_done_callback(
                    lambda _: self._exited(conductor, None, "stopped before it was started")
                )
            return
        if conductor.kill_task is not None:
            if effect.first != "SIGKILL" or conductor.kill_task.done() or conductor.stuck_pid is not None:
                return
            conductor.kill_task.cancel()
        conductor.kill_task = self._spawn(
            self._terminate(conductor, conductor.child, effect.first), f"stop.{conductor.name}"
        )

    async def _terminate(self, conductor: _ConductorProcess, child: ChildProcess, first: str) -> None:
        """Escalates from message to SIGKILL; the run's `stop` deadline is divided among the grace periods."""
        grace = self._assignment.plan.deadlines.stop
        grace_periods = GracePeriods(
            ask=0.3 * grace if first == "message" else 0.0,
            terminate=0.2 * grace if first != "SIGKILL" else 0.0,
            kill=0.3 * grace,
        )

        async def ask() -> object:
            command = Shutdown(grace=grace_periods.ask)
            return await self._command(
                conductor.name, conductor.incarnation, command, seconds=grace_periods.ask
            )

        def stuck(error: ProcessError) -> None:
            conductor.stuck_pid = error.pid or child.pid
            log.error(
                "conductor.stuck",
                run=self._uid,
                conductor=conductor.name,
                pid=conductor.stuck_pid,
                reason=str(error),
            )
            self._post(
                events.ConductorStuck(
                    run=self._uid,
                    at=time.monotonic(),
                    conductor=conductor.name,
                    incarnation=conductor.incarnation,
                    pid=conductor.stuck_pid,
                )
            )

        await terminate(child, ask if first == "message" else None, grace_periods, on_stuck=stuck)

    # -- parts -------------------------------------------------------------------------------------------------

    async def _start_part(self, effect: StartPart) -> None:
        journal = self._context.journal
        if effect.part == "simulation":
            command: ConductorCommand = self._assignment.simulation(
                effect.phase, done=journal.episodes(self._uid, effect.phase)
            )
        else:
            command = self._assignment.tasks(effect.phase, done=journal.tasks(self._uid, effect.phase))
        try:
            reply = await self._command(
                effect.conductor, effect.incarnation, command, seconds=COMMAND_SECONDS
            )
            reason = reply.message if isinstance(reply, Refused) else ""
        except TransportError as error:
            reason = str(error)
        if reason:
            self._post(
                events.PartFailed(
                    run=self._uid,
                    at=time.monotonic(),
                    conductor=effect.conductor,
                    incarnation=effect.incarnation,
                    phase=effect.phase,
                    part=effect.part,
                    reason=reason,
                )
            )

    async def _stop_part(self, effect: StopPart) -> None:
        command = StopPartCommand(phase=effect.phase, reason=effect.reason)
        try:
            await self._command(effect.conductor, effect.incarnation, command, seconds=COMMAND_SECONDS)
        except TransportError as error:  # the deadline `close` bounds the wait
            log.warning("part.not_stopped", run=self._uid, part=effect.part, reason=str(error))

    async def _command(
        self, conductor: str, incarnation: int, command: ConductorCommand, *, seconds: float
    ) -> object:
        service = conductor_service(self._uid, conductor, incarnation)
        secret = self._context.run_secret(self._uid).value
        answer = await self._context.client.request(
            service, encode(command), secret, timeout=seconds, idempotent=True
        )
        return decode_command_reply(answer[0])

    # -- the end -----------------------------------------------------------------------------------------------

    async def _write_result(self, effect: WriteResult) -> None:
        folder = self._context.run_folder(self._uid)
        try:
            result = await asyncio.to_thread(
                build_result,
                journal=self._context.journal,
                assignment=self._assignment,
                outcome=effect.outcome,
                reason=effect.reason,
                folder=folder,
            )
            file = await asyncio.to_thread(save_result, result, folder)
            outcome = await self._context.journal.write(
                lambda transaction: transaction.outcome(result, file=file), run=self._uid
            )
        except (JournalError, OSError) as error:
            self._context.journal.make_room(error)
            log.warning("result.not_written", run=self._uid, reason=str(error))
            self._post(events.ResultFailed(run=self._uid, at=time.monotonic(), reason=str(error)))
            return
        self._post(events.ResultWritten(run=self._uid, at=time.monotonic(), outcome=outcome))

    async def _remove_traces(self) -> None:
        left: list[str] = []
        folder = self._context.socket_folder(self._uid)
        await asyncio.to_thread(
            shutil.rmtree, folder, onerror=lambda _function, path, _error: left.append(str(path))
        )
        self._post(events.TracesRemoved(run=self._uid, at=time.monotonic(), left=tuple(left)))

    def _spawn(self, work: Any, name: str) -> asyncio.Task[None]:
        task: asyncio.Task[None] = asyncio.create_task(work, name=f"{self._uid}.{name}")
        self._tasks.add(task)
        task.add_done_callback(self._done)
        return task

    def _done(self, task: asyncio.Task[None]) -> None:
        self._tasks.discard(task)
        if not task.cancelled() and (error := task.exception()) is not None:
            log.error("effect.failed", run=self._uid, effect=task.get_name(), exc_info=error)
            self._context.journal.make_room(error)
