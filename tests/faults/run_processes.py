"""The processes of a run: its conductors, the runners of its tasks, and those that its user code started in other sessions.

The journal has the identities of conductors. User code writes the others into the run's register, a file outside the state
folder, so that a full disk hides no process: `WHAT` and a line of /proc/PID/stat for each. A process writes its line itself
before it does anything else, so none is missed if its parent dies, or if its environment is empty.
"""

from __future__ import annotations

import asyncio
import os
import select
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING

from governor.processes.identity import ProcessIdentity, boot_id

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Sequence
    from pathlib import Path

    from governor.messages import RunEvent

RUNNER = "runner"


@dataclass(frozen=True, slots=True)
class RunProcess:
    """`what`: a conductor's name, `RUNNER`, or the kind of its parent. `parent`: its pid, 0 where it is not needed."""

    what: str
    identity: ProcessIdentity
    parent: int = 0

    def __str__(self) -> str:
        return f"{self.identity.pid} {self.what}"


def conductors(events: Iterable[RunEvent]) -> dict[tuple[str, int], RunProcess]:
    """Conductors by name and incarnation."""
    return {
        (event.data["conductor"], event.data["incarnation"]): RunProcess(
            what=f"conductor {event.data['conductor']}",
            identity=ProcessIdentity(
                pid=event.data["pid"], ticks=event.data["ticks"], boot=event.data["boot"]
            ),
        )
        for event in events
        if event.kind == "conductor.started"
    }


def registered(register: Path) -> list[RunProcess]:
    """The processes in the register; none before user code has started."""
    if not register.exists():
        return []
    return [_read(line) for line in register.read_text().splitlines() if line.endswith(";")]


def earlier(events: Sequence[RunEvent], register: Path, ready: RunEvent) -> list[RunProcess]:
    """Processes that earlier incarnations started; they must be dead when the next is `ready`. Runners belong to ``tasks``."""
    name, incarnation = ready.data["conductor"], ready.data["incarnation"]
    started = conductors(events)
    if (successor := started.get((name, incarnation))) is None:
        return []
    before = [process for (of, number), process in started.items() if of == name and number < incarnation]
    pids = {process.identity.pid for process in before}
    others = registered(register)
    if name == "tasks":
        pids |= {each.identity.pid for each in others if each.what == RUNNER}
    return before + [
        each
        for each in others
        if (each.parent in pids or (name == "tasks" and each.what == RUNNER))
        and each.identity.ticks < successor.identity.ticks
    ]


async def alive(processes: Collection[RunProcess], *, within: float) -> list[RunProcess]:
    """The processes that are not dead `within` this time in seconds; returns early when all are dead."""
    return await asyncio.to_thread(_alive, processes, within)


def _alive(processes: Collection[RunProcess], within: float) -> list[RunProcess]:
    end = time.monotonic() + within
    waiting = {handle: each for each in processes if (handle := each.identity.open()) is not None}
    handles = list(waiting)
    try:
        while waiting:
            poll = select.poll()
            for handle in waiting:
                poll.register(handle, select.POLLIN)
            left = max(0.0, end - time.monotonic())
            for handle, _ in poll.poll(left * 1000):
                del waiting[handle]
            if not left:
                break
        return list(waiting.values())
    finally:
        for handle in handles:
            os.close(handle)


def _read(line: str) -> RunProcess:
    what, _, stat = line.rstrip(";").partition(" ")
    fields = stat.rpartition(")")[2].split()
    identity = ProcessIdentity(pid=int(stat.split(maxsplit=1)[0]), ticks=int(fields[19]), boot=boot_id())
    return RunProcess(what=what, identity=identity, parent=int(fields[1]))
