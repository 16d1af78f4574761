"""The injection of each fault, as a function of an instance, a run and a scenario."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import secrets
import signal
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Final

import psutil

from tests.faults import forgery
from tests.faults.instance import signal_all
from tests.faults.plan import CONDUCTORS, RAY
from tests.faults.steering import steer

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Awaitable, Callable

    from governor.executor import Executor
    from governor.messages import RunEvent
    from tests.faults.instance import Instance
    from tests.faults.plan import Fault, Scenario

PROGRESS: Final = frozenset(
    {
        "episode.ended", "task.started", "task.attempt_ended", "task.ended", "conductor.ready", "part.ended",
        "phase.started", "phase.ended", "run.transition", "run.ended",
    }
)  # fmt: skip
"""Events that show progress of a run."""
REPLACED: Final = frozenset({"kill", "stop_long"})
"""Actions after which another process replaces the victim."""
REPLACED_EVENTS: Final = ("broker.exited", "broker.silent", "conductor.silent", "daemon.fatal")
"""Log events of a daemon that has lost a process."""
ANSWER_SECONDS: Final = 10.0
"""A new client must receive an answer within this time, whatever other clients do."""
ASK_AGAIN_SECONDS: Final = 0.2
FLOOD_SECONDS: Final = 20.0
"""Deadline for sending the whole flood."""
CLOCK_STEP: Final = 3600.0
SPARE_FILES: Final = 3


@dataclass(frozen=True, slots=True, kw_only=True)
class Struck:
    """`daemon_dies`: another daemon must be started; `kills`: the old one had no chance of an orderly end. `found`: violations
    during the injection.
    """

    daemon_dies: bool = False
    kills: bool = False
    skipped: str = ""
    found: tuple[str, ...] = ()


def shows_recovery(fault: Fault, event: RunEvent) -> bool:
    """Whether this event shows that the victim is replaced or, if no event shows that, that the run progresses."""
    if fault.action in REPLACED and fault.victim in (*CONDUCTORS, "forkserver"):
        kind = event.data.get("conductor", "").partition(".")[0]
        return event.kind == "conductor.ready" and fault.victim in (kind, "forkserver")
    return event.kind.startswith("task.") if is_of_ray(fault) else event.kind in PROGRESS


def is_of_ray(fault: Fault) -> bool:
    return fault.action in REPLACED and fault.victim in RAY


def may_end_daemon(fault: Fault) -> bool:
    """Whether the fault ends the daemon, at once or in order, so that the next daemon continues."""
    if fault.action == "kill":
        return fault.victim in ("guard", "guards", "daemon")
    return fault.action in ("term", "steer", "disk_full", "inodes_full", "remove")


def starts(event: RunEvent, conductor: str) -> bool:
    return event.kind == "conductor.started" and event.data.get("conductor") == conductor


async def submit(instance: Instance, executor: Executor, run: dict[str, object], chosen: Scenario) -> str:
    """Submits the run. Returns its uid. If the fault kills the executor, a client is killed first and the submit is repeated."""
    key = secrets.token_hex(8)
    if chosen.fault.action == "submit_killed":
        await _client(instance, _SUBMIT, run, key, seconds=0.4 + chosen.hold / 2)
    uid = await executor.submit(run, key=key, folder=instance.folder)
    if await executor.submit(run, key=key, folder=instance.folder) != uid:
        raise AssertionError("one key gave two runs")
    return uid


async def strike(  # noqa: C901, PLR0911  # one for each
    instance: Instance,
    uid: str,
    chosen: Scenario,
    over: asyncio.Task[None],
    revive: Callable[[], Awaitable[None]],
) -> Struck:
    """Returns when the fault is over, or when the run is `over` before a victim exists. `revive`, where the daemon dies several
    times, returns when the next one is there.
    """
    action, victim = chosen.fault.action, chosen.fault.victim
    match action:
        case "kill":
            return await _kill(instance, uid, victim, over)
        case "stop_short" | "stop_long":
            return await _stop(instance, uid, victim, over, chosen.hold)
        case "term":
            instance.guard.terminate()
            return Struck(daemon_dies=True)
        case "submit_killed":
            return Struck()  # done by `submit`, before the run existed
        case "watch_killed":
            await _client(instance, _WATCH, uid, "", seconds=0.4 + chosen.hold / 2)
            return Struck()
        case "disk_full" | "inodes_full":
            full = instance.full_disk() if action == "disk_full" else instance.no_inodes()
            return await _fill(instance, full, chosen.hold, over)
        case "remove":
            return await _remove(instance, victim)
        case "forge":
            return await _forge(instance, uid, victim, chosen.hold)
        case "flood":
            return await _flood(instance, victim, chosen.hold)
        case "clock":
            instance.step_clock(CLOCK_STEP if chosen.run_seed % 2 else -CLOCK_STEP)
            return Struck()
        case "steer":
            steered = await steer(instance, uid, seed=chosen.run_seed, revive=revive)
            return Struck(found=tuple(steered.found), skipped="" if steered.verbs else "the run was over")
        case "no_files":
            return await _without_files(instance, uid, chosen.hold)
    raise ValueError(f"unknown fault {action}")


async def _victims(
    instance: Instance, uid: str, victim: str, over: asyncio.Task[None]
) -> list[psutil.Process]:
    """Waits until at least one victim exists, or the run is over."""
    while not (found := await instance.victims(victim, uid)) and not over.done():
        await asyncio.wait({over}, timeout=0.1)
    return found


async def _kill(instance: Instance, uid: str, victim: str, over: asyncio.Task[None]) -> Struck:
    found = await _victims(instance, uid, victim, over)
    if victim == "ray_worker":
        found = found[:1]
    if victim == "guards":
        signal_all(found, signal.SIGSTOP)  # neither may observe the death of the other
    signal_all(found, signal.SIGKILL)
    if victim in ("guard", "guards", "daemon"):
        return Struck(daemon_dies=True, kills=True)
    return Struck(skipped="" if found else "no such process existed at that moment")


async def _stop(
    instance: Instance, uid: str, victim: str, over: asyncio.Task[None], seconds: float
) -> Struck:
    found = await _victims(instance, uid, victim, over)
    signal_all(found, signal.SIGSTOP)
    try:
        await asyncio.sleep(seconds)  # the fault itself
    finally:
        signal_all(found, signal.SIGCONT)
    return Struck(skipped="" if found else "no such process existed at that moment")


async def _fill(
    instance: Instance,
    full: contextlib.AbstractContextManager[None],
    seconds: float,
    over: asyncio.Task[None],
) -> Struck:
    """The daemon may end in order; the next one continues when there is room again."""
    with full:
        ended = asyncio.create_task(instance.ended(seconds + 20.0))
        await asyncio.wait({ended, over}, return_when=asyncio.FIRST_COMPLETED)
        ended.cancel()
        await asyncio.wait({ended})
    return Struck(daemon_dies=not instance.is_up)


async def _remove(instance: Instance, what: str) -> Struck:
    """The daemon binds its sockets again, or ends in order and the next one binds them."""
    instance.remove(what)
    answers = await instance.answers(ANSWER_SECONDS)
    deaf = () if answers or not instance.is_up else (f"no new client was answered for {ANSWER_SECONDS:g} s",)
    return Struck(daemon_dies=not instance.is_up, found=deaf)


async def _forge(instance: Instance, uid: str, what: str, seconds: float) -> Struck:
    conductors = await instance.conductors(uid)
    if not conductors:
        return Struck(skipped="no process of the run existed at that moment")
    if not (sockets := instance.sockets()):
        return Struck(skipped="nothing listens at that moment")
    if what == "answers":
        await forgery.answer(sockets=sockets, uid=uid, conductors=conductors, seconds=seconds)
    else:
        await forgery.send(what, sockets=sockets, uid=uid, conductors=conductors)
    return Struck()


async def _flood(instance: Instance, what: str, seconds: float) -> Struck:
    """Other clients must be answered meanwhile. The flood is killed when it was sent completely, read or not; connections after
    `seconds`.
    """
    log_size = instance.log_size
    async with _process(Path(__file__).with_name("flood.py"), what, instance.client_socket) as process:
        sent = asyncio.create_task(_read_line(process, FLOOD_SECONDS))
        answers = True
        while answers and not (await asyncio.wait({sent}, timeout=ASK_AGAIN_SECONDS))[0]:
            answers = await instance.answers(ANSWER_SECONDS)
        await sent
        if what == "connections":
            await asyncio.sleep(seconds)  # the fault itself
            answers = answers and await instance.answers(ANSWER_SECONDS)
    answers = await instance.answers(ANSWER_SECONDS) and answers
    found = [f"in the log: {event}" for event in instance.logged(*REPLACED_EVENTS, since=log_size)]
    if not answers:
        found.append(f"another client was not answered for {ANSWER_SECONDS:g} s")
    return Struck(daemon_dies=not instance.is_up, found=tuple(found))


async def _read_line(process: asyncio.subprocess.Process, seconds: float) -> None:
    """Reads one line, or returns after `seconds`."""
    if process.stdout is None:
        raise RuntimeError("its output is not read")
    with contextlib.suppress(TimeoutError):
        async with asyncio.timeout(seconds):
            await process.stdout.readline()


async def _without_files(instance: Instance, uid: str, seconds: float) -> Struck:
    [daemon] = await instance.victims("daemon", uid)
    before = daemon.rlimit(psutil.RLIMIT_NOFILE)
    daemon.rlimit(psutil.RLIMIT_NOFILE, (daemon.num_fds() + SPARE_FILES, before[1]))
    try:
        await asyncio.sleep(seconds)  # the fault itself
    finally:
        with contextlib.suppress(psutil.Error):
            daemon.rlimit(psutil.RLIMIT_NOFILE, before)
    return Struck()


_SUBMIT: Final = """
import asyncio, json, sys
from governor.executor import Executor
async def main(endpoint, folder, run, key):
    async with Executor(endpoint) as executor:
        await executor.submit(json.loads(run), key=key, folder=folder)
asyncio.run(main(*sys.argv[1:]))
"""
_WATCH: Final = """
import asyncio, json, sys
from governor.executor import Executor
async def main(endpoint, folder, uid, _):
    async with Executor(endpoint) as executor:
        async for event in executor.watch(json.loads(uid)):
            pass
asyncio.run(main(*sys.argv[1:]))
"""


async def _client(instance: Instance, program: str, about: object, key: str, *, seconds: float) -> None:
    """Starts a client and kills it after `seconds`, at any point of its work."""
    about_it = (instance.endpoint, instance.folder, json.dumps(about), key)
    async with _process("-c", program, *about_it) as process:
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(seconds):
                await process.wait()


@contextlib.asynccontextmanager
async def _process(*arguments: str | Path) -> AsyncIterator[asyncio.subprocess.Process]:
    """A Python process outside the instance; it is killed at the end of the context."""
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, *map(str, arguments)),
        env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)},
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
    )
    try:
        yield process
    finally:
        with contextlib.suppress(ProcessLookupError):
            process.kill()
        await process.wait()
