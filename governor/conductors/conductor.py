"""What every conductor is: a process that registers with the broker, gets ready, takes commands, reports events.

Rules:
1. A conductor keeps each event until the governor has acknowledged it; order is kept, numbers count from 1 for
   each incarnation.
2. A command that shows the run's secret is answered at once; the end of what it began is an event. Others are refused.
3. User code never runs in this thread: it keeps the heartbeat.
4. The process leaves by `os._exit`, so a daemon thread stuck in user code cannot hold it back.
"""

from __future__ import annotations

import asyncio
import os
import signal
import sys
import traceback
from abc import ABC, abstractmethod
from functools import partial
from importlib import import_module
from typing import TYPE_CHECKING, Any, Final, TypeVar

import msgspec

from governor import logs
from governor.conductors.outbox import Outbox
from governor.conductors.verifier import Verifier
from governor.episodes import exits
from governor.errors import ConductorError, ExitCode, text_of
from governor.messages import (
    Alive,
    ConductorCommand,
    ConductorEvent,
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
from transport.client import Client
from transport.connection import last_words
from transport.worker import Worker

if TYPE_CHECKING:
    from collections.abc import Awaitable, Sequence

    from governor.messages.link import Link
    from transport.worker import Request

CLASSES: Final = {
    "environment": "governor.conductors.environment:EnvironmentConductor",
    "agent": "governor.conductors.agent:AgentConductor",
    "simulation": "governor.conductors.simulation:SimulationController",
    "task": "governor.conductors.task:TaskConductor",
}
FAREWELL_SECONDS: Final = 5.0
"""How long a conductor that fails tries to get its last words to the governor."""
EXIT_SECONDS: Final = 1.0
"""For user code that leaves by ``os._exit``: so long it is held up, if nobody hears it."""
CLOSE_SECONDS: Final = 3.0
"""For a conductor to give back what it has; then its process ends all the same."""
HANDOVER_SECONDS: Final = 2.0
"""The governor begins the next phase as soon as it knows the end of this one; the acknowledgement of that end may
still be on its way to the conductor then."""
LAST_WORDS_SECONDS: Final = 2.0
"""For what was sent to leave the process."""

REASON_CHARACTERS: Final = 1_000
TRACEBACK_CHARACTERS: Final = 20_000

log = logs.get_logger()
E = TypeVar("E", bound=ConductorEvent)
T = TypeVar("T")


class Conductor(ABC):
    """A subprocess that lives as long as its run needs it."""

    def __init__(self, *, spec: ConductorSpec, link: Link) -> None:
        self.spec = spec
        self.link = link
        self.failed: asyncio.Future[str] = asyncio.get_running_loop().create_future()

    def give_up(self, reason: str) -> None:
        """It can't work any more: the governor hears the reason, then the process ends with 1."""
        if not self.failed.done():
            self.failed.set_result(reason)

    async def while_alive(self, work: Awaitable[T]) -> T:
        """What `work` comes to; never, once this conductor has given up: who asked learns that it is gone, and asks the next."""
        done = await work
        if self.failed.done():
            await asyncio.get_running_loop().create_future()
        return done

    async def handed_over(self, work: asyncio.Task[None] | None) -> bool:
        """Whether the work of the phase before is over, or is within the time that a hand-over may take."""
        if work is not None and not work.done():
            await asyncio.wait({work}, timeout=HANDOVER_SECONDS)
        return work is None or work.done()

    @property
    def progress(self) -> int:
        """A count that changes as its work goes on, between two reports too."""
        return 0

    @abstractmethod
    async def prepare(self) -> dict[str, Any]:
        """Gets ready for commands; what it returns is logged. Raises ConductorError with one line."""

    @abstractmethod
    async def perform(self, command: ConductorCommand) -> Done | Refused:
        """Begins what the command asks and returns at once."""

    @abstractmethod
    async def close(self) -> None:
        """Gives everything back; the process ends when this returns."""


async def main(payload: bytes) -> int:
    """The life of a conductor process, from its `ConductorSpec` to its exit code."""
    spec = decode_spec(payload)
    os.dup2(
        sys.stderr.fileno(), sys.stdout.fileno()
    )  # standard output belongs to the verbs of the command line
    logs.configure(
        log_format=spec.log_format,
        level=spec.log_level,
        run=spec.uid,
        conductor=spec.name,
        incarnation=spec.incarnation,
    )
    closing = asyncio.Event()
    try:
        return await _run(spec, closing)
    finally:
        await last_words(timeout=LAST_WORDS_SECONDS)


async def _run(spec: ConductorSpec, closing: asyncio.Event) -> int:
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, closing.set)
    async with Client(spec.client_endpoint) as client, Outbox(spec=spec, client=client) as outbox:
        conductor: Conductor | None = None
        try:
            conductor = _build(spec, outbox)
            exits.announce(partial(_say_exit, outbox, asyncio.get_running_loop()))
            await _live(conductor, outbox, closing)
        except Exception as error:  # noqa: BLE001  # whatever it is, the governor hears the reason before the process ends
            await _say_farewell(outbox, error)
            return ExitCode.RUN_ENDED_BADLY
        finally:
            if conductor is not None:
                await _close(conductor)
    return ExitCode.DONE


async def _live(conductor: Conductor, outbox: Outbox, closing: asyncio.Event) -> None:
    """Returns when it was asked to close; raises what it failed of."""
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
        ready = asyncio.create_task(_get_ready(conductor, worker, outbox), name="conductor.ready")
        ends: set[asyncio.Future[Any]] = {stop, conductor.failed}
        try:
            await asyncio.wait({ready, *ends}, return_when=asyncio.FIRST_COMPLETED)
            if ready.done():
                ready.result()
                await asyncio.wait(ends, return_when=asyncio.FIRST_COMPLETED)
            if conductor.failed.done():
                raise ConductorError(conductor.failed.result())
        finally:
            ready.cancel()
            stop.cancel()


async def _say_farewell(outbox: Outbox, error: Exception) -> None:
    reason = error.reason if isinstance(error, ConductorError) else _one_line(error)
    told = "".join(traceback.format_exception(error))
    farewell = FailedReport(
        reason=_fit(reason[:REASON_CHARACTERS]), traceback=_fit(told[-TRACEBACK_CHARACTERS:])
    )
    try:
        async with asyncio.timeout(FAREWELL_SECONDS):
            await outbox.report(farewell)
    except (TimeoutError, ConductorError) as unheard:
        log.warning("conductor.farewell_unheard", reason=str(unheard))
    # After the farewell: a long traceback takes its time to render.
    log.error(
        "conductor.failed",
        reason=farewell.reason,
        exc_info=None if isinstance(error, ConductorError) else error,  # the reason of such a one says all
    )


async def _close(conductor: Conductor) -> None:
    """What hangs in there ends with the process."""
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
    if spec.import_folder not in sys.path:
        sys.path.insert(0, spec.import_folder)
    module, _, name = CLASSES[spec.kind].partition(":")
    conductor: Conductor = getattr(import_module(module), name)(spec=spec, link=link)
    return conductor


def _say_exit(outbox: Outbox, loop: asyncio.AbstractEventLoop, reason: str, stack: str) -> None:
    """In a thread of user code, which leaves by ``os._exit`` then."""
    told = FailedReport(
        reason=_fit(reason[:REASON_CHARACTERS]), traceback=_fit(stack[-TRACEBACK_CHARACTERS:])
    )
    asyncio.run_coroutine_threadsafe(outbox.report(told), loop).result(timeout=EXIT_SECONDS)


def _one_line(error: BaseException) -> str:
    text = text_of(error)
    return f"{type(error).__name__}: {text}" if text else type(error).__name__


def _fit(text: str) -> str:
    """Users' messages may hold what is no UTF-8, names of files for one."""
    return text.encode(errors="backslashreplace").decode()
