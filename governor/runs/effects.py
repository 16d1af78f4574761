"""The performer: effect -> deed -> event, for one run.

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
"""In which a conductor takes a command. It answers at once; one that does not is replaced."""
TARGET: Final = "governor.conductors.conductor:main"

log = logs.get_logger()


class Fence(Protocol):
    """Who takes the reports of conductors (`RunDesk`)."""

    def open(self, conductor: str, incarnation: int) -> None: ...
    async def close(self, conductor: str, incarnation: int) -> None: ...


class Post(Protocol):
    """Where events go."""

    def __call__(self, event: events.Event, detail: dict[str, Any] | None = None) -> None: ...


@dataclass(slots=True, kw_only=True)
class _Life:
    """One incarnation of a conductor. `child` is None until it was started. `stuck`: the pid that could not be killed."""

    name: str
    incarnation: int
    child: ChildProcess | None = None
    birth: asyncio.Task[None] | None = None
    descent: asyncio.Task[None] | None = None
    stuck: int | None = None
    over: asyncio.Event = field(default_factory=asyncio.Event)


class EffectRunner:
    """Performs the effects of one run; `aclose` when the run is over."""

    def __init__(self, *, assignment: Assignment, site: RunContext, post: Post, fence: Fence) -> None:
        self._assignment = assignment
        self._uid = assignment.uid
        self._site = site
        self._post = post
        self._fence = fence
        self._lives: dict[str, _Life] = {}
        self._timers: dict[tuple[str, str], asyncio.TimerHandle] = {}
        self._tasks: set[asyncio.Task[None]] = set()

    @property
    def processes(self) -> dict[str, ChildProcess]:
        """The conductors that live, by name."""
        return {
            name: life.child
            for name, life in self._lives.items()
            if life.child is not None and life.child.exit_code is None
        }

    @property
    def deadlines(self) -> dict[tuple[str, str], float]:
        """Seconds from now of each that is armed, by its name and, for ``restart``, the conductor."""
        now = asyncio.get_running_loop().time()
        return {key: timer.when() - now for key, timer in self._timers.items() if timer.when() > now}

    def perform(self, effect: Effect) -> None:
        match effect:
            case Wake():
                self._wake(effect)
            case StartConductor(conductor=name, incarnation=incarnation):
                life = self._lives[name] = _Life(name=name, incarnation=incarnation)
                life.birth = self._spawn(self._start(effect, life), f"start.{name}.{incarnation}")
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
                raise TypeError(f"no deed for {effect!r}")

    def accompany(self, deed: Coroutine[None, None, None], name: str) -> None:
        """A deed that lasts as long as the run."""
        self._spawn(deed, name)

    def left_behind(self) -> dict[asyncio.Task[None], frozenset[int]]:
        """Who could not be killed: the pids, by the task that ends when nothing of it is left; `aclose` does not touch it."""
        found: dict[asyncio.Task[None], frozenset[int]] = {}
        for life in self._lives.values():
            if life.child is not None and life.descent is not None and not life.over.is_set():
                self._tasks.discard(life.descent)
                found[life.descent] = frozenset({life.child.pid, life.stuck or life.child.pid})
        return found

    async def aclose(self) -> None:
        """Forgets timers and waits for the deeds under way, all of which are bounded."""
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

        def ring() -> None:
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
        self._timers[key] = loop.call_later(max(0.0, effect.at - time.monotonic()), ring)

    # -- conductors --------------------------------------------------------------------------------------------

    async def _start(self, effect: StartConductor, life: _Life) -> None:
        try:
            if effect.delay:
                await asyncio.sleep(effect.delay)
            settings = self._assignment.settings(effect.conductor)
            if effect.kind == "task":
                settings = {**settings, "ray": await self._site.ray.settings()}
            self._fence.open(life.name, life.incarnation)
            life.child = await process.start(
                name=f"{self._uid}.{effect.conductor}",
                target=TARGET,
                payload=encode(self._spec(effect, settings)),
            )
        except (GovernorError, OSError) as error:
            log.warning("conductor.not_started", run=self._uid, conductor=life.name, reason=str(error))
            forkserver = error.pid if isinstance(error, ForkserverDied) else None
            await self._excuse()
            self._exited(life, None, str(error), forkserver=forkserver)
            return
        child = life.child
        log.info("conductor.started", run=self._uid, conductor=life.name, pid=child.pid)
        self._post(
            events.ConductorStarted(
                run=self._uid,
                at=time.monotonic(),
                conductor=life.name,
                incarnation=life.incarnation,
                pid=child.pid,
                ticks=child.birth.ticks,
                boot=child.birth.boot,
            ),
            {"kind": effect.kind, "mark": f"{child.mark:x}"},
        )
        self._spawn(self._outlive(life, child), f"life.{life.name}.{life.incarnation}")

    def _spec(self, effect: StartConductor, settings: dict[str, Any]) -> ConductorSpec:
        return ConductorSpec(
            uid=self._uid,
            run_name=self._assignment.run.name,
            name=effect.conductor,
            kind=effect.kind,
            incarnation=effect.incarnation,
            client_endpoint=self._site.private_endpoint,
            worker_endpoint=self._site.worker_endpoint,
            secret=self._site.run_secret(self._uid),
            run_folder=str(self._site.run_folder(self._uid)),
            socket_folder=str(self._site.socket_folder(self._uid)),
            import_folder=self._assignment.folder,
            seed=self._assignment.run.seed,
            settings=settings,
            log_format=self._site.log_format,
            log_level=self._site.log_level,
        )

    async def _outlive(self, life: _Life, child: ChildProcess) -> None:
        """Sees it dead, and what it left behind; a ladder that is under way does both."""
        code = await child.wait()
        if life.descent is None:
            await self._excuse()
        if life.descent is None:  # a stop may have begun its ladder while the disk was tried
            life.descent = self._spawn(self._descend(life, child, "SIGKILL"), f"sweep.{life.name}")
        await asyncio.wait({life.descent})
        log.info("conductor.exited", run=self._uid, conductor=life.name, pid=child.pid, exit_code=code)
        await self._fence.close(life.name, life.incarnation)
        forkserver = child.lost_forkserver
        reason = f"its forkserver (pid {forkserver}) died" if forkserver is not None else ""
        self._exited(life, code, reason, forkserver=forkserver)

    async def _excuse(self) -> None:
        """What dies while the disk is full may have died of that: before it counts, the run is interrupted."""
        if await asyncio.to_thread(
            lambda: self._site.journal.is_out_of_room
        ):  # it tries a file: some milliseconds
            self._post(events.StopRequested(run=self._uid, at=time.monotonic(), reason="the disk is full"))

    def _exited(self, life: _Life, code: int | None, reason: str, *, forkserver: int | None = None) -> None:
        if life.over.is_set():
            return
        life.over.set()
        self._post(
            events.ConductorExited(
                run=self._uid,
                at=time.monotonic(),
                conductor=life.name,
                incarnation=life.incarnation,
                exit_code=code,
                reason=reason,
                forkserver=forkserver,
            )
        )

    def _stop(self, effect: StopConductor) -> None:
        life = self._lives.get(effect.conductor)
        if life is None or life.incarnation != effect.incarnation:
            return
        if life.child is None:
            if life.birth is not None and not life.birth.done():
                life.birth.cancel()
                life.birth.add_done_callback(
                    lambda _: self._exited(life, None, "stopped before it was started")
                )
            return
        if life.descent is not None:
            if effect.first != "SIGKILL" or life.descent.done() or life.stuck is not None:
                return
            life.descent.cancel()
        life.descent = self._spawn(self._descend(life, life.child, effect.first), f"stop.{life.name}")

    async def _descend(self, life: _Life, child: ChildProcess, first: str) -> None:
        """Down the ladder; the run's `stop` deadline is divided among the rungs."""
        grace = self._assignment.plan.deadlines.stop
        rungs = GracePeriods(
            ask=0.3 * grace if first == "message" else 0.0,
            terminate=0.2 * grace if first != "SIGKILL" else 0.0,
            kill=0.3 * grace,
        )

        async def ask() -> object:
            command = Shutdown(grace=rungs.ask)
            return await self._command(life.name, life.incarnation, command, seconds=rungs.ask)

        def stuck(error: ProcessError) -> None:
            life.stuck = error.pid or child.pid
            log.error(
                "conductor.stuck", run=self._uid, conductor=life.name, pid=life.stuck, reason=str(error)
            )
            self._post(
                events.ConductorStuck(
                    run=self._uid,
                    at=time.monotonic(),
                    conductor=life.name,
                    incarnation=life.incarnation,
                    pid=life.stuck,
                )
            )

        await terminate(child, ask if first == "message" else None, rungs, on_stuck=stuck)

    # -- parts -------------------------------------------------------------------------------------------------

    async def _start_part(self, effect: StartPart) -> None:
        journal = self._site.journal
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
        except TransportError as error:  # the deadline `close` answers it
            log.warning("part.not_stopped", run=self._uid, part=effect.part, reason=str(error))

    async def _command(
        self, conductor: str, incarnation: int, command: ConductorCommand, *, seconds: float
    ) -> object:
        service = conductor_service(self._uid, conductor, incarnation)
        shown = self._site.run_secret(self._uid).value
        answer = await self._site.client.request(
            service, encode(command), shown, timeout=seconds, idempotent=True
        )
        return decode_command_reply(answer[0])

    # -- the end -----------------------------------------------------------------------------------------------

    async def _write_result(self, effect: WriteResult) -> None:
        folder = self._site.run_folder(self._uid)
        try:
            result = await asyncio.to_thread(
                build_result,
                journal=self._site.journal,
                assignment=self._assignment,
                outcome=effect.outcome,
                reason=effect.reason,
                folder=folder,
            )
            file = await asyncio.to_thread(save_result, result, folder)
            outcome = await self._site.journal.write(
                lambda transaction: transaction.outcome(result, file=file), run=self._uid
            )
        except (JournalError, OSError) as error:
            self._site.journal.make_room(error)
            log.warning("result.not_written", run=self._uid, reason=str(error))
            self._post(events.ResultFailed(run=self._uid, at=time.monotonic(), reason=str(error)))
            return
        self._post(events.ResultWritten(run=self._uid, at=time.monotonic(), outcome=outcome))

    async def _remove_traces(self) -> None:
        left: list[str] = []
        folder = self._site.socket_folder(self._uid)
        await asyncio.to_thread(
            shutil.rmtree, folder, onerror=lambda _function, path, _error: left.append(str(path))
        )
        self._post(events.TracesRemoved(run=self._uid, at=time.monotonic(), left=tuple(left)))

    def _spawn(self, deed: Any, name: str) -> asyncio.Task[None]:
        task: asyncio.Task[None] = asyncio.create_task(deed, name=f"{self._uid}.{name}")
        self._tasks.add(task)
        task.add_done_callback(self._done)
        return task

    def _done(self, task: asyncio.Task[None]) -> None:
        self._tasks.discard(task)
        if not task.cancelled() and (error := task.exception()) is not None:
            log.error("effect.failed", run=self._uid, effect=task.get_name(), exc_info=error)
            self._site.journal.make_room(error)
