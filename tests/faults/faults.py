"""What is done: each fault as a function of a house, a run and a scenario."""

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
from typing import TYPE_CHECKING, Final

import psutil
from house import hold
from plan import CONDUCTORS, RAY

if TYPE_CHECKING:
    from house import House
    from plan import Fault, Scenario

    from governor.executor import Executor
    from governor.messages import RunEvent

PROGRESS: Final = frozenset(
    {
        "episode.ended", "task.started", "task.attempt_ended", "task.ended", "conductor.ready", "part.ended",
        "phase.started", "phase.ended", "run.transition", "run.ended",
    }
)  # fmt: skip
"""Events that show a run going on."""
REPLACED: Final = frozenset({"kill", "stop_long"})
"""After these there is another in the place of who was struck."""
CLOCK_STEP: Final = 3600.0
SPARE_FILES: Final = 3


@dataclass(frozen=True, slots=True, kw_only=True)
class Struck:
    """`daemon_dies`: another one is to be started, after `kills` without a chance to do anything in order."""

    daemon_dies: bool = False
    kills: bool = False
    skipped: str = ""


def shows_recovery(fault: Fault, event: RunEvent) -> bool:
    """Whether by this event what was struck is there again: as far as that can be told, else the run goes on at all."""
    if fault.action in REPLACED and fault.victim in (*CONDUCTORS, "forkserver"):
        kind = event.data.get("conductor", "").partition(".")[0]
        return event.kind == "conductor.ready" and fault.victim in (kind, "forkserver")
    return event.kind.startswith("task.") if is_of_ray(fault) else event.kind in PROGRESS


def is_of_ray(fault: Fault) -> bool:
    return fault.action in REPLACED and fault.victim in RAY


def may_end_daemon(fault: Fault) -> bool:
    """Whether the daemon ends of it at once, or may end in order and leave the rest to the next one."""
    if fault.action == "kill":
        return fault.victim in ("guard", "daemon")
    return fault.action in ("term", "disk_full")


def starts(event: RunEvent, conductor: str) -> bool:
    return event.kind == "conductor.started" and event.data.get("conductor") == conductor


async def submit(house: House, executor: Executor, run: dict[str, object], chosen: Scenario) -> str:
    """The run's uid. Where the executor is to be killed, a client is, and the same is asked again."""
    key = secrets.token_hex(8)
    if chosen.fault.action == "submit_killed":
        await _client(house, _SUBMIT, run, key, seconds=0.4 + chosen.hold / 2)
    uid = await executor.submit(run, key=key, folder=house.folder)
    if await executor.submit(run, key=key, folder=house.folder) != uid:
        raise AssertionError("one key gave two runs")
    return uid


async def strike(house: House, uid: str, chosen: Scenario, over: asyncio.Task[None]) -> Struck:  # noqa: PLR0911  # one for each
    """Returns when the fault is over, or when there is nothing to do harm to before the run is `over`."""
    action, victim = chosen.fault.action, chosen.fault.victim
    match action:
        case "kill":
            return await _kill(house, uid, victim, over)
        case "stop_short" | "stop_long":
            return await _stop(house, uid, victim, over, chosen.hold)
        case "term":
            house.guard.terminate()
            return Struck(daemon_dies=True)
        case "submit_killed":
            return Struck()  # it was, before there was a run
        case "watch_killed":
            await _client(house, _WATCH, uid, "", seconds=0.4 + chosen.hold / 2)
            return Struck()
        case "disk_full":
            return await _fill(house, chosen.hold)
        case "clock":
            house.step_clock(CLOCK_STEP if chosen.run_seed % 2 else -CLOCK_STEP)
            return Struck()
        case "no_files":
            return await _without_files(house, uid, chosen.hold)
    raise ValueError(f"no fault is called {action}")


async def _victims(house: House, uid: str, victim: str, over: asyncio.Task[None]) -> list[psutil.Process]:
    """As soon as there is one."""
    while not (found := await house.victims(victim, uid)) and not over.done():
        await asyncio.wait({over}, timeout=0.1)
    return found


async def _kill(house: House, uid: str, victim: str, over: asyncio.Task[None]) -> Struck:
    found = await _victims(house, uid, victim, over)
    if victim == "ray_worker":
        found = found[:1]
    hold(found, signal.SIGKILL)
    if victim in ("guard", "daemon"):
        return Struck(daemon_dies=True, kills=True)
    return Struck(skipped="" if found else "nobody goes by this name at that moment")


async def _stop(house: House, uid: str, victim: str, over: asyncio.Task[None], seconds: float) -> Struck:
    found = await _victims(house, uid, victim, over)
    hold(found, signal.SIGSTOP)
    try:
        await asyncio.sleep(seconds)  # the fault itself
    finally:
        hold(found, signal.SIGCONT)
    return Struck(skipped="" if found else "nobody goes by this name at that moment")


async def _fill(house: House, seconds: float) -> Struck:
    """The daemon may go down in order; when there is room again the next one goes on."""
    with house.full_disk(), contextlib.suppress(TimeoutError):
        await house.ended(seconds + 20.0)
    return Struck(daemon_dies=not house.is_up)


async def _without_files(house: House, uid: str, seconds: float) -> Struck:
    [daemon] = await house.victims("daemon", uid)
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


async def _client(house: House, program: str, about: object, key: str, *, seconds: float) -> None:
    """A client that is killed after so long, in whatever it is."""
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-c", program, house.endpoint, str(house.folder), json.dumps(about), key),
        env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)},
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    with contextlib.suppress(TimeoutError):
        async with asyncio.timeout(seconds):
            await process.wait()
    with contextlib.suppress(ProcessLookupError):
        process.kill()
    await process.wait()
