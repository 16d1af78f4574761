"""The processes of a run: its conductors, the runners of its tasks, and what its user code has started in sessions of its own.

Conductors are on record with their births. User code writes the others into the run's register, a file outside the state
folder, so that a full disk hides nobody: `WHAT` and a line of /proc/PID/stat for each, written by the process itself before it
does anything else. So none is missed, whenever its parent dies, and an empty environment hides it no more than a session of
its own.
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
    """`what` it is: a conductor's name, `RUNNER`, or whose child it is. `parent` is 0 where nobody asks for it."""

    what: str
    birth: ProcessIdentity
    parent: int = 0

    def __str__(self) -> str:
        return f"{self.birth.pid} {self.what}"


def conductors(events: Iterable[RunEvent]) -> dict[tuple[str, int], RunProcess]:
    """By name and incarnation."""
    return {
        (event.data["conductor"], event.data["incarnation"]): RunProcess(
            what=f"conductor {event.data['conductor']}",
            birth=ProcessIdentity(pid=event.data["pid"], ticks=event.data["ticks"], boot=event.data["boot"]),
        )
        for event in events
        if event.kind == "conductor.started"
    }


def registered(register: Path) -> list[RunProcess]:
    """Those that user code has written there; none where it has not begun."""
    if not register.exists():
        return []
    return [_read(line) for line in register.read_text().splitlines() if line.endswith(";")]


def earlier(events: Sequence[RunEvent], register: Path, ready: RunEvent) -> list[RunProcess]:
    """What the incarnations before the one that is `ready` have started: dead by then. Runners are of ``tasks``."""
    name, incarnation = ready.data["conductor"], ready.data["incarnation"]
    lives = conductors(events)
    if (successor := lives.get((name, incarnation))) is None:
        return []
    before = [life for (of, number), life in lives.items() if of == name and number < incarnation]
    pids = {life.birth.pid for life in before}
    others = registered(register)
    if name == "tasks":
        pids |= {each.birth.pid for each in others if each.what == RUNNER}
    return before + [
        each
        for each in others
        if (each.parent in pids or (name == "tasks" and each.what == RUNNER))
        and each.birth.ticks < successor.birth.ticks
    ]


async def alive(processes: Collection[RunProcess], *, within: float) -> list[RunProcess]:
    """Those that are not dead `within` so many seconds; returns as soon as all are."""
    return await asyncio.to_thread(_alive, processes, within)


def _alive(processes: Collection[RunProcess], within: float) -> list[RunProcess]:
    end = time.monotonic() + within
    waiting = {handle: each for each in processes if (handle := each.birth.open()) is not None}
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
    birth = ProcessIdentity(pid=int(stat.split(maxsplit=1)[0]), ticks=int(fields[19]), boot=boot_id())
    return RunProcess(what=what, birth=birth, parent=int(fields[1]))
