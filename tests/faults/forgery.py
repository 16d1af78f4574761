"""Messages of somebody who is neither the daemon nor a conductor, and knows no secret: the real classes, sent to every socket."""

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
"""The number of a forged event: none of those that conductors send comes near it."""
SECRET_BYTES: Final = 32
ANSWER_SECONDS: Final = 2.0
PARTS: Final = {"simulation": "simulation", "task": "tasks"}


async def send(
    what: str, *, sockets: Iterable[Path], uid: str, conductors: Sequence[ConductorStatus]
) -> None:
    """Forged ``reports`` or ``commands`` to all of them; whether anybody answers is all the same."""
    letters = [letter for each in conductors for letter in _letters(what, uid, each)]
    secrets = ((), (os.urandom(SECRET_BYTES),))  # none, and one that is made up
    async with asyncio.TaskGroup() as group:
        for path in sockets:
            for service, message in letters:
                for secret in secrets:
                    group.create_task(_send(path, service, encode(message), *secret))


async def answer(
    *, sockets: Iterable[Path], uid: str, conductors: Sequence[ConductorStatus], seconds: float
) -> None:
    """For so long a worker of the daemon's services, and of the conductors', is on each socket and takes what comes."""
    commands = [conductor_service(uid, each.name, each.incarnation) for each in conductors]
    async with contextlib.AsyncExitStack() as stack:
        for path in sockets:
            for service in (messages.SERVICE, run_service(uid), *commands):
                worker = Worker(f"ipc://{path}", service, _answer(service), credit=16)
                await stack.enter_async_context(worker)
        await asyncio.sleep(seconds)  # the fault itself


def _letters(what: str, uid: str, conductor: ConductorStatus) -> list[tuple[str, object]]:
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
    """Says yes to reports and commands, so that they are lost, and to executors that there is no such run."""
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
