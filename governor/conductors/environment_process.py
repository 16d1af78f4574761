"""The process of one environment, or of one vector of environments: user code in a thread, and beside it the loop that answers
the conductor (`remote.environments.messages`).

`main` is started by the environment conductor's forkserver, and ends with it. What it logs and prints bears the name of the
conductor.
"""

from __future__ import annotations

import asyncio
import contextlib
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Final

from governor.conductors.conductor import flush_output, set_up
from governor.episodes import exits
from governor.episodes.context import Context
from governor.episodes.remote.environments import messages
from governor.episodes.remote.environments.host import EnvironmentHost
from governor.episodes.remote.environments.messages import Built, Ending, FromProcess, Lend, Look, Renew, Seen
from governor.errors import ConductorError, ExitCode
from governor.failures import Reason, reason_of, shortened, utf8
from governor.message_stream import MessageStream, StreamClosed
from governor.messages import Made
from governor.messages.commands import Wrapper
from governor.output import capture
from governor.processes import user_folder

if TYPE_CHECKING:
    import socket

REASON_CHARACTERS: Final = 1_000
EXIT_SECONDS: Final = 1.0
"""Maximum delay of an ``os._exit`` in user code until its message is sent."""
CLOSE_SECONDS: Final = 60.0
"""For the user's `close`: the conductor kills the process before."""


async def main(payload: bytes, connection: socket.socket) -> int:
    order = messages.decode_order(payload)
    set_up(order.spec)
    flushing = asyncio.create_task(flush_output(), name="environment.flush_output")
    try:
        return await _serve(order, MessageStream(connection))
    finally:
        flushing.cancel()
        capture.flush()


async def _serve(order: messages.Order, conductor: MessageStream) -> int:
    loop = asyncio.get_running_loop()
    exits.announce(partial(_report_exit, conductor, loop))
    try:
        host = _host(order)
        await host.start()
    except ConductorError as error:
        _send_ending(conductor, reason_of(error))
        return ExitCode.RUN_ENDED_BADLY
    _send_built(conductor, host)
    closing = asyncio.Event()
    renewals: set[asyncio.Task[None]] = set()
    loop.add_reader(conductor, _answer, host, conductor, closing, renewals)
    ends = [asyncio.create_task(event.wait()) for event in (closing, host.ended)]
    await asyncio.wait(ends, return_when=asyncio.FIRST_COMPLETED)
    if host.fault:
        _send_ending(conductor, Reason(f"it has lost its thread: {host.fault}"))
        return ExitCode.INTERNAL
    await host.close(seconds=CLOSE_SECONDS)
    return ExitCode.DONE


def _host(order: messages.Order) -> EnvironmentHost:
    spec, settings = order.spec, order.spec.settings
    user_folder.enter(spec.import_folder, spec.variables)
    vector = settings.get("vector", 1)
    size, mode = (vector["num_envs"], vector["mode"]) if isinstance(vector, dict) else (vector, None)
    made = Made(
        entry=settings["entry"],
        params=settings.get("params", {}),
        wrappers=tuple(Wrapper.model_validate(each) for each in settings.get("wrappers", ())),
        vector=size,
        vector_mode=mode or "sync",
    )
    return EnvironmentHost(
        order.name,
        Path(order.path),
        made=made,
        context=Context(run_id=spec.uid, run_folder=Path(spec.run_folder), name=spec.name),
    )


def _answer(
    host: EnvironmentHost, conductor: MessageStream, closing: asyncio.Event, renewals: set[asyncio.Task[None]]
) -> None:
    try:
        conductor.receive()
        while (request := conductor.next_message(messages.decode_request)) is not None:
            if isinstance(request, Renew):
                task = asyncio.create_task(_renew(host, conductor, closing), name="environment.renew")
                renewals.add(task)
                task.add_done_callback(renewals.discard)
            else:
                _send(conductor, _seen(host, request))
    except StreamClosed:
        asyncio.get_running_loop().remove_reader(conductor)
        closing.set()


async def _renew(host: EnvironmentHost, conductor: MessageStream, closing: asyncio.Event) -> None:
    await host.run_in_thread(host.close_environments)
    _send(conductor, Seen())
    try:
        await host.run_in_thread(host.build)
    except Exception as error:  # noqa: BLE001  # user code
        _send_ending(conductor, reason_of(error))
        closing.set()
    else:
        _send_built(conductor, host)


def _seen(host: EnvironmentHost, request: Lend | Look) -> Seen:
    match request:
        case Lend(lease=""):
            host.lease_ended()
        case Lend():
            host.lease = request.lease.encode()
        case Look():
            at = host.stack("")
            return Seen(slot=host.current_slot, place=str(at), stack=at.traceback)
    return Seen(slot=host.current_slot)


def _report_exit(conductor: MessageStream, loop: asyncio.AbstractEventLoop, reason: Reason) -> None:
    """Called in the thread of user code, which then ends the process with ``os._exit``."""

    async def send() -> None:
        _send_ending(conductor, reason)

    asyncio.run_coroutine_threadsafe(send(), loop).result(timeout=EXIT_SECONDS)


def _send_built(conductor: MessageStream, host: EnvironmentHost) -> None:
    built = Built(
        observation_space=host.observation_space,
        action_space=host.action_space,
        players=host.players,
        turns=host.turns,
    )
    _send(conductor, built)


def _send_ending(conductor: MessageStream, reason: Reason) -> None:
    """Users' messages may contain invalid UTF-8, names of files for example."""
    text, traceback = utf8(str(reason)[:REASON_CHARACTERS]), shortened(utf8(reason.traceback))
    _send(conductor, Ending(reason=text, traceback=traceback))


def _send(conductor: MessageStream, message: FromProcess) -> None:
    """In the event loop: the spaces of pictures do not fit into the kernel's buffer."""
    conductor.send(messages.encode(message))
    if conductor.unsent:
        asyncio.get_running_loop().add_writer(conductor, _flush, conductor)


def _flush(conductor: MessageStream) -> None:
    with contextlib.suppress(StreamClosed):  # its reader sees that, too
        conductor.flush()
        if conductor.unsent:
            return
    asyncio.get_running_loop().remove_writer(conductor)
