"""Messages from a process that is neither daemon nor conductor and has no secret: the real classes, sent to every socket."""

from __future__ import annotations

import asyncio
import contextlib
import os
from typing import TYPE_CHECKING, Any, Final

from governor import messages
from governor.messages import conductor_service, encode, run_service
from tests.faults.checks import FORGED_RETURN, FORGERY
from transport.client import Client
from transport.errors import TransportError
from transport.worker import Worker

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence
    from pathlib import Path

    from governor.messages import ConductorStatus
    from transport.worker import Request

LATER: Final = 1_000_000
"""The sequence number of a forged event, far above those of real events."""
SECRET_BYTES: Final = 32
ANSWER_SECONDS: Final = 2.0
PARTS: Final = {"simulation": "simulation", "task": "tasks"}


async def send(
    what: str, *, sockets: Iterable[Path], uid: str, conductors: Sequence[ConductorStatus]
) -> None:
    """Sends forged ``reports`` or ``commands`` to all sockets; answers are ignored."""
    letters = [letter for each in conductors for letter in _forged_messages(what, uid, each)]
    secrets = ((), (os.urandom(SECRET_BYTES),))  # no secret, and a random one
    async with asyncio.TaskGroup() as group:
        for path in sockets:
            for service, message in letters:
                for secret in secrets:
                    group.create_task(_send(path, service, encode(message), *secret))


async def answer(
    *, sockets: Iterable[Path], uid: str, conductors: Sequence[ConductorStatus], seconds: float
) -> None:
    """For `seconds`, a forged worker of the services of daemon and conductors accepts requests on each socket."""
    commands = [conductor_service(uid, each.name, each.incarnation) for each in conductors]
    async with contextlib.AsyncExitStack() as stack:
        for path in sockets:
            for service in (messages.SERVICE, run_service(uid), *commands):
                worker = Worker(f"ipc://{path}", service, _answer(service), credit=16)
                await stack.enter_async_context(worker)
        await asyncio.sleep(seconds)  # the fault itself


def _forged_messages(what: str, uid: str, conductor: ConductorStatus) -> list[tuple[str, object]]:
    if what == "commands":
        service = conductor_service(uid, conductor.name, conductor.incarnation)
        stop = messages.StopPartCommand(phase=0, reason=FORGERY)
        return [(service, stop), (service, messages.Shutdown(grace=0.0))]
    if (part := PARTS.get(conductor.kind)) is not None:
        event = messages.PartEndedReport(
            phase=0, part=part, end=FORGERY, metrics={"return_mean": FORGED_RETURN}
        )
    else:
        event = messages.FailedReport(reason=FORGERY)
    report = messages.Report(
        conductor=conductor.name,
        incarnation=conductor.incarnation,
        seq=LATER,
        events=(event,),
    )
    return [(run_service(uid), report)]


def _answer(service: str) -> Any:
    """Acknowledges reports and commands, so that they are lost; answers executors that the run does not exist."""
    if service == messages.SERVICE:
        reply: object = messages.Refused(code="no_such_run", message=FORGERY, exit_code=4)
    elif service.startswith("run."):
        reply = messages.Acknowledged()
    else:
        reply = messages.Done()

    async def handler(_: Request) -> Sequence[bytes]:
        return [encode(reply)]

    return handler


async def _send(path: Path, service: str, *body: bytes) -> None:
    with contextlib.suppress(TransportError):
        async with Client(f"ipc://{path}") as client:
            await client.request(service, *body, timeout=ANSWER_SECONDS, idempotent=True)
