"""The base of all conductors: a process that registers with the broker, gets ready, accepts commands, reports events.

Rules:
1. A conductor keeps each event until the governor has acknowledged it; order is kept, and numbers count from 1 for
   each incarnation.
2. A command with the run's secret is answered at once; an event reports the end of the work that it began. Others are
   refused.
3. User code never runs in this thread, which sends the heartbeat.
4. The process ends with `os._exit`, so a daemon thread that hangs in user code cannot keep it alive.
"""

from __future__ import annotations

import asyncio
import os
import signal
from abc import ABC, abstractmethod
from contextlib import AsyncExitStack
from functools import partial
from importlib import import_module
from typing import TYPE_CHECKING, Any, Final, TextIO, TypeVar

import msgspec

from governor import logs
from governor.conductors.outbox import Outbox
from governor.conductors.verifier import Verifier
from governor.episodes import exits
from governor.episodes.remote import control
from governor.errors import ConductorError, ExitCode
from governor.failures import Reason, reason_of, shortened, utf8
from governor.messages import (
    Alive,
    ConductorCommand,
    ConductorSpec,
    Done,
    FailedReport,
    Ping,
    ReadyReport,
    Refused,
    Shutdown,
    conductor_service,
    decode_command,
    decode_spec,
    encode,
)
from governor.output import capture, spool
from governor.processes import user_folder
from transport.client import Client
from transport.connection import flush_closed
from transport.worker import Worker

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Sequence

    from governor.messages.link import Link
    from transport.worker import Request

CLASSES: Final = {
    "environment": "governor.conductors.environment:EnvironmentConductor",
    "agent": "governor.conductors.agent:AgentConductor",
    "simulation": "governor.conductors.simulation:SimulationController",
    "task": "governor.conductors.task:TaskConductor",
    "service": "governor.conductors.service:ServiceConductor",
}
GOODBYE_SECONDS: Final = 5.0
"""Seconds a failing conductor tries to send its last error to the governor."""
EXIT_SECONDS: Final = 1.0
"""Maximum delay, in seconds, of an ``os._exit`` in user code until its report is acknowledged."""
CLOSE_SECONDS: Final = 3.0
"""Seconds for a conductor to release its resources; then its process ends anyway."""
CONTROL_CREDIT: Final = 64
FLUSH_SECONDS: Final = 2.0
"""Seconds to flush sent messages before the process ends."""

HELD_SECONDS: Final = 0.5
"""Seconds that a line which is not over stays in this process."""

REASON_CHARACTERS: Final = 1_000

log = logs.get_logger()
T = TypeVar("T")


class Conductor(ABC):
    """A subprocess that runs as long as its run needs it."""

    def __init__(self, *, spec: ConductorSpec, link: Link) -> None:
        self.spec = spec
        self.link = link
        self.failed: asyncio.Future[str] = asyncio.get_running_loop().create_future()
        self.retired = asyncio.Event()
        """It has ended what it was asked to, and its process ends with 0."""
        self.services = AsyncExitStack()

    def fail(self, reason: str) -> None:
        """Reports `reason` to the governor, then the process ends with 1."""
        if not self.failed.done():
            self.failed.set_result(reason)

    async def while_alive(self, work: Awaitable[T]) -> T:
        """Returns the result of `work`; after this conductor has failed it never returns, so that the caller loses
        the connection and asks the next one.
        """
        done = await work
        if self.failed.done():
            await asyncio.get_running_loop().create_future()
        return done

    async def offer(
        self,
        service: str,
        decode: Callable[[bytes], T],
        answer: Callable[[T], Awaitable[control.ControlAnswer]],
    ) -> None:
        """Answers the control plane of episodes as `service`, until `services` is closed."""

        async def serve(request: Request) -> Sequence[bytes]:
            try:
                wanted = decode(request.body[0])
            except (IndexError, msgspec.MsgspecError) as error:
                return [control.encode(control.Failed(reason=f"no request for {service}: {error}"))]
            return [control.encode(await answer(wanted))]

        endpoint, secret = self.spec.worker_endpoint, self.spec.secret
        worker = Worker(endpoint, service, serve, credit=CONTROL_CREDIT, secret=secret)
        await self.services.enter_async_context(worker)
        await worker.registered()

    @property
    def progress(self) -> int:
        """A counter that changes with progress of the work, also between two reports."""
        return 0

    @abstractmethod
    async def prepare(self) -> dict[str, Any]:
        """Gets ready for commands; the returned data are logged. Raises ConductorError with a message of one line."""

    async def perform(self, command: ConductorCommand) -> Done | Refused:
        """Begins the work of the command and returns at once."""
        return refused(f"conductor {self.spec.name} does not perform {type(command).__name__}")

    @abstractmethod
    async def close(self) -> None:
        """Releases all resources; the process ends when this returns."""


def refused(reason: str) -> Refused:
    return Refused(code=ConductorError.code, message=reason, exit_code=ExitCode.INTERNAL)


async def main(payload: bytes) -> int:
    """Runs a conductor process, from its `ConductorSpec` to its exit code."""
    spec = decode_spec(payload)
    set_up(spec)
    closing = asyncio.Event()
    flushing = asyncio.create_task(flush_output(), name="conductor.flush_output")
    try:
        return await _run(spec, closing)
    finally:
        flushing.cancel()
        await flush_closed(timeout=FLUSH_SECONDS)


def set_up(spec: ConductorSpec) -> None:
    """Log and output of this process, which is a conductor or one that it has started, for user code."""
    logs.configure(
        log_format=spec.log_format,
        level=spec.log_level,
        stream=_capture_output(spec),
        beside_user_code=True,
        run=spec.uid,
        conductor=spec.name,
        incarnation=spec.incarnation,
    )
    capture.take_handlers("asyncio")


def _capture_output(spec: ConductorSpec) -> TextIO | None:
    """What user code prints goes to the run's files from now on. Returns the daemon's standard error."""
    try:
        former = capture.capture(spool.folder_of(spec.run_folder), conductor=spec.name)
    except OSError:  # a full disk, or the run's folder is gone: the daemon ends the run for that
        former = os.dup(2)
        nowhere = os.open(os.devnull, os.O_WRONLY)
        logs.share_output(nowhere)
        os.close(nowhere)
    if former is None:
        return None
    return os.fdopen(former, "w", encoding="utf-8", errors="backslashreplace", buffering=1)


async def flush_output() -> None:
    """A line that is not over is seen soon, too."""
    while True:
        await asyncio.sleep(HELD_SECONDS)
        capture.flush_soon()


async def _run(spec: ConductorSpec, closing: asyncio.Event) -> int:
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, closing.set)
    async with Client(spec.client_endpoint) as client, Outbox(spec=spec, client=client) as outbox:
        conductor: Conductor | None = None
        try:
            conductor = _build(spec, outbox)
            exits.announce(partial(_report_exit, outbox, asyncio.get_running_loop()))
            await _serve(conductor, outbox, closing)
        except Exception as error:  # noqa: BLE001  # reported to the governor before the process ends
            await _report_failure(outbox, error)
            return ExitCode.RUN_ENDED_BADLY
        finally:
            if conductor is not None:
                await _close(conductor)
    return ExitCode.DONE


async def _serve(conductor: Conductor, outbox: Outbox, closing: asyncio.Event) -> None:
    """Returns when the conductor was asked to close; raises the error with which it failed."""
    spec = conductor.spec
    verifier = Verifier(spec.secret)

    async def command(request: Request) -> Sequence[bytes]:
        if (refusal := verifier.refusal(request.body)) is not None:
            return [encode(refusal)]
        try:
            wanted = decode_command(request.body[0])
        except (IndexError, msgspec.MsgspecError) as error:
            reply: Done | Refused | Alive = Refused(
                code="bad_request", message=f"no command of a conductor: {error}", exit_code=ExitCode.USAGE
            )
        else:
            match wanted:
                case Shutdown():
                    closing.set()
                    reply = Done()
                case Ping():
                    reply = Alive(progress=conductor.progress)
                case _:
                    reply = await conductor.perform(wanted)
        return [encode(reply)]

    service = conductor_service(spec.uid, spec.name, spec.incarnation)
    async with Worker(spec.worker_endpoint, service, command, credit=8, secret=spec.secret) as worker:
        stop = asyncio.create_task(closing.wait(), name="conductor.closing")
        retire = asyncio.create_task(conductor.retired.wait(), name="conductor.retired")
        ready = asyncio.create_task(_get_ready(conductor, worker, outbox), name="conductor.ready")
        ends: set[asyncio.Future[Any]] = {stop, retire, conductor.failed}
        try:
            await asyncio.wait({ready, *ends}, return_when=asyncio.FIRST_COMPLETED)
            if ready.done():
                ready.result()
                await asyncio.wait(ends, return_when=asyncio.FIRST_COMPLETED)
            if conductor.failed.done():
                raise ConductorError(conductor.failed.result())
        finally:
            for task in (ready, stop, retire):
                task.cancel()


async def _report_failure(outbox: Outbox, error: Exception) -> None:
    goodbye = _failed_report(reason_of(error))
    try:
        async with asyncio.timeout(GOODBYE_SECONDS):
            await outbox.report(goodbye)
    except (TimeoutError, ConductorError) as unacknowledged:
        log.warning("conductor.goodbye_not_acknowledged", reason=str(unacknowledged))
    log.error(
        "conductor.failed",
        reason=goodbye.reason,
        exc_info=None if isinstance(error, ConductorError) else error,  # its reason is complete
    )


async def _close(conductor: Conductor) -> None:
    """Closes the conductor; if that hangs, it ends with the process."""
    try:
        async with asyncio.timeout(CLOSE_SECONDS):
            await conductor.close()
    except TimeoutError:
        log.warning("conductor.close_too_slow", seconds=CLOSE_SECONDS)


async def _get_ready(conductor: Conductor, worker: Worker, outbox: Outbox) -> None:
    detail = await conductor.prepare()
    await worker.registered()
    await outbox.report(ReadyReport(detail=detail))
    log.debug("conductor.ready", pid=os.getpid(), **detail)


def _build(spec: ConductorSpec, link: Link) -> Conductor:
    user_folder.enter(spec.import_folder, spec.variables)
    module, _, name = CLASSES[spec.kind].partition(":")
    conductor: Conductor = getattr(import_module(module), name)(spec=spec, link=link)
    return conductor


def _report_exit(outbox: Outbox, loop: asyncio.AbstractEventLoop, reason: Reason) -> None:
    """Called in a thread of user code, which then ends the process with ``os._exit``."""
    report = _failed_report(reason)
    asyncio.run_coroutine_threadsafe(outbox.report(report), loop).result(timeout=EXIT_SECONDS)


def _failed_report(reason: Reason) -> FailedReport:
    """Users' messages may contain invalid UTF-8, names of files for example."""
    return FailedReport(
        reason=utf8(str(reason)[:REASON_CHARACTERS]), traceback=shortened(utf8(reason.traceback))
    )
