"""One incarnation of a conductor as a process: its start, its exit, its termination.

Rules:
1. It is started from the main thread and watched by its sentinel.
2. Its exit is reported once, when nothing of it is left and none of its reports is being applied.
"""

from __future__ import annotations

import asyncio
from signal import SIGKILL
from time import monotonic
from typing import TYPE_CHECKING, Final

from governor import logs
from governor.errors import ForkserverDied, GovernorError, ProcessError
from governor.failures import one_line
from governor.messages import ConductorSpec, Shutdown, encode
from governor.processes import process
from governor.processes.cgroups import lack_of_memory, memory_kills
from governor.processes.kill_ladder import GracePeriods, terminate
from governor.run_file.model import SERVICE
from states import events
from states.base import RunInWork

if TYPE_CHECKING:
    from governor.processes.process import ChildProcess
    from governor.runs.active_run import ActiveRun
    from states.effects import StartConductor

TARGET: Final = "governor.conductors.conductor:main"

log = logs.get_logger()


class ConductorProcess:
    """Starts at construction. `child` is None until its process has started."""

    def __init__(self, effect: StartConductor, *, run: ActiveRun) -> None:
        self.incarnation = effect.incarnation
        self.child: ChildProcess | None = None
        self._name = effect.conductor
        self._run = run
        self._is_stopping = False
        self._why = ""
        self._stuck_pid: int | None = None
        self._termination: asyncio.Task[None] | None = None
        self._exit_reported = False
        self._life = run.spawn(self._live(effect), f"conductor.{self._name}.{self.incarnation}")

    def stop(self, first: str, reason: str = "") -> None:
        """Terminates it from step `first` of the kill ladder on; SIGKILL overtakes gentler steps. `reason` is for people."""
        self._is_stopping = True
        self._why = reason or self._why
        if self.child is None:
            if not self._life.done():
                self._life.cancel()
                self._life.add_done_callback(lambda _: self._exited(None, "stopped before it was started"))
            return
        if self._termination is not None:
            if first != "SIGKILL" or self._termination.done() or self._stuck_pid is not None:
                return
            self._termination.cancel()
        self._terminate(self.child, first)

    def left_running(self) -> tuple[asyncio.Task[None], frozenset[int]] | None:
        """If it could not be killed: the task that ends when it is gone, and the pids it waits for."""
        if self.child is None or self._termination is None or self._exit_reported:
            return None
        return self._termination, frozenset({self.child.pid, self._stuck_pid or self.child.pid})

    @property
    def _is_replaced(self) -> bool:
        """Whether it was asked to exit in its own time."""
        state = self._run.state
        known = state.conductors.find(self._name) if isinstance(state, RunInWork) else None
        return known is not None and known.incarnation == self.incarnation and known.replacing

    @property
    def _stamp(self) -> tuple[str, float, str, int]:
        """The first fields of an event of this conductor that happens now."""
        return *self._run.stamp, self._name, self.incarnation

    async def _live(self, effect: StartConductor) -> None:
        """From the start until the process and its descendants are dead; a termination under way does both."""
        try:
            child = self.child = await self._start(effect)
        except (GovernorError, OSError) as error:
            log.warning("conductor.not_started", run=self._run.uid, conductor=self._name, reason=str(error))
            forkserver = error.pid if isinstance(error, ForkserverDied) else None
            await self._interrupt_if_disk_full()
            self._exited(None, str(error), forkserver=forkserver)
            return
        except Exception as error:
            log.exception("conductor.not_started", run=self._run.uid, conductor=self._name)
            self._exited(None, one_line(error))
            return
        log.info("conductor.started", run=self._run.uid, conductor=self._name, pid=child.pid)
        identity = child.identity
        self._run.post(
            events.ConductorStarted(*self._stamp, pid=child.pid, ticks=identity.ticks, boot=identity.boot),
            {"kind": effect.kind, "mark": f"{child.mark:x}"},
        )
        kills = memory_kills()
        code = await child.wait()
        reason = lack_of_memory(kills) if code == -SIGKILL and self._termination is None else ""
        if self._termination is None:
            await self._interrupt_if_disk_full()
        termination = self._termination or self._terminate(child, "SIGKILL")
        while not termination.done():  # SIGKILL may replace it
            await asyncio.wait({termination})
            termination = self._termination or termination
        self._run.log.exited(
            self._name,
            pid=child.pid,
            exit_code=code,
            expected=self._is_stopping or self._is_replaced,
            reason=reason,
        )
        await self._run.reports.close(self._name, self.incarnation)
        forkserver = child.lost_forkserver
        if forkserver is not None:
            reason = f"its forkserver (pid {forkserver}) died"
        self._exited(code, reason, forkserver=forkserver)

    async def _start(self, effect: StartConductor) -> ChildProcess:
        await asyncio.sleep(effect.delay)
        run, context = self._run, self._run.context
        settings = run.assignment.settings(effect.conductor)
        needs_ray = effect.kind == "task"
        if needs_ray:
            (await process.warm()).load_ray()  # while its head starts
            settings = {**settings, "ray": await context.ray.settings()}
        if effect.kind != SERVICE:
            await run.services.wait()
        if effect.kind == "environment":
            settings = {**settings, "liveness": run.assignment.run.deadlines.liveness}
        spec = ConductorSpec(
            uid=run.uid,
            name=effect.conductor,
            kind=effect.kind,
            incarnation=effect.incarnation,
            client_endpoint=context.private_endpoint,
            worker_endpoint=context.worker_endpoint,
            secret=run.secret,
            run_folder=str(run.folder),
            socket_folder=str(run.socket_folder),
            import_folder=run.assignment.folder,
            variables=await run.variables.get(),
            seed=run.assignment.run.seed,
            settings=settings,
            log_format=context.log_format,
            log_level=context.log_level,
        )
        run.reports.open(self._name, self.incarnation)
        return await process.start(
            name=f"{run.uid}.{self._name}",
            target=TARGET,
            payload=encode(spec),
            ray=needs_ray,
            starts_processes=effect.kind == "environment",
        )

    async def _interrupt_if_disk_full(self) -> None:
        """A full disk may have caused an exit: the run is interrupted before the exit is counted."""
        if await self._run.is_out_of_room():
            self._run.post(events.StopRequested(*self._run.stamp, reason="the disk is full"))

    def _exited(self, code: int | None, reason: str, *, forkserver: int | None = None) -> None:
        if not self._exit_reported:
            self._exit_reported = True
            self._run.services.is_gone(self._name)
            self._run.post(
                events.ConductorExited(*self._stamp, exit_code=code, reason=reason, forkserver=forkserver)
            )

    def _terminate(self, child: ChildProcess, first: str) -> asyncio.Task[None]:
        self._termination = self._run.spawn(self._escalate(child, first), f"stop.{self._name}")
        return self._termination

    async def _escalate(self, child: ChildProcess, first: str) -> None:
        """Escalates from message to SIGKILL; the run's `stop` deadline is divided among the grace periods."""
        grace = self._run.assignment.plan.deadlines.stop
        grace_periods = GracePeriods(
            ask=0.3 * grace if first == "message" else 0.0,
            terminate=0.2 * grace if first != "SIGKILL" else 0.0,
            kill=0.3 * grace,
        )

        async def ask() -> object:
            command = Shutdown(grace=grace_periods.ask)
            return await self._run.command(self._name, self.incarnation, command, seconds=grace_periods.ask)

        def stuck(error: ProcessError) -> None:
            pid = self._stuck_pid = error.pid or child.pid
            log.error("conductor.stuck", run=self._run.uid, conductor=self._name, pid=pid, reason=str(error))
            self._run.post(events.ConductorStuck(*self._stamp, pid=pid))

        begun = monotonic()

        def signalled(signal: str) -> None:
            waited = None if signal == first else monotonic() - begun
            reason = reason_of_signal(signal, why=self._why, waited=waited)
            self._run.log.signalled(self._name, pid=child.pid, signal=signal, reason=reason)

        await terminate(
            child, ask if first == "message" else None, grace_periods, on_stuck=stuck, on_signal=signalled
        )


def reason_of_signal(signal: str, *, why: str, waited: float | None) -> str:
    """`waited`: seconds since it was asked to end, or sent SIGTERM; None if it was not."""
    if waited is not None:
        return "; ".join(filter(None, (why, f"still there after {waited:.1f} s")))
    return why or ("it was not ready yet" if signal == "SIGTERM" else "")
