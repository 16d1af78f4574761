"""What runs at the same time share: the machine, by what they require, and its slots, by whose they are. Two rules of the queue.

Rules:
1. A run that requires something holds it from its start until the last of its processes is gone. One without `requires` holds nothing.
2. Runs that require something begin in the order of the queue: none of them passes another one that waits for its part of the machine, so
   that a large one gets it. Those without `requires` pass.
3. A GPU is one run's alone. Which ones are held follows from the runs in the slots: after a death of the daemon none is.
"""

from __future__ import annotations

import os
import re
from collections import Counter
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Final, Protocol

from governor.errors import UsageError
from governor.processes import cgroups
from governor.units import sizes

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

    from governor.config import Config, MachineConfig
    from governor.daemon.run_queue import RunQueue
    from governor.run_file.model import Requires
    from governor.runs.assignment import Assignment, Waiting

VISIBLE: Final = "CUDA_VISIBLE_DEVICES"


class Slot(Protocol):
    """A slot of the daemon."""

    @property
    def holding(self) -> Assignment | None:
        """The run of which a process may be alive."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Capacity:
    """Of the machine: `memory` in bytes; `gpus` are their names, as CUDA_VISIBLE_DEVICES has them."""

    cpus: float
    memory: int
    gpus: tuple[str, ...]

    def without(self, held: Iterable[Assignment]) -> Capacity:
        """What is left beside these runs."""
        cpus, memory, taken = self.cpus, self.memory, set[str]()
        for run in held:
            if run.requires is not None:
                cpus -= run.requires.cpus
                memory -= run.requires.memory or 0
                taken |= {*run.gpus}
        return replace(
            self, cpus=cpus, memory=memory, gpus=tuple(each for each in self.gpus if each not in taken)
        )

    def lacking(self, requires: Requires) -> str:
        """What is too little for it, as ``2 gpus (1 of 4 are free)``; "" if it fits."""
        if requires.gpus > len(self.gpus):
            return f"{requires.gpus} gpu{'s' * (requires.gpus > 1)} ({len(self.gpus)} free)"
        if requires.cpus > self.cpus + 1e-9:
            return f"{requires.cpus:g} cpu{'s' * (requires.cpus != 1)} ({self.cpus:g} free)"
        if (requires.memory or 0) > self.memory:
            return f"{sizes.text(requires.memory or 0)} of memory ({sizes.text(max(self.memory, 0))} free)"
        return ""


class Machine:
    """A rule of the `queue`. `slots` gives the governors."""

    def __init__(self, capacity: Capacity, *, slots: Callable[[], Sequence[Slot]], queue: RunQueue) -> None:
        self.capacity = capacity
        self._slots, self._queue = slots, queue
        self._found: tuple[tuple[int, tuple[str, ...]], Waiting | None] = ((-1, ()), None)
        """Of this state of queue and slots, the first run that would begin but for the machine."""

    def require_possible(self, requires: Requires | None) -> None:
        """Raises UsageError for what never fits."""
        if requires is not None and (lacking := self.capacity.lacking(requires)):
            told = lacking.replace(" free)", " on this machine)")
            raise UsageError(f"the run requires {told}: see [machine] in the daemon's configuration")

    @property
    def free(self) -> Capacity:
        return self.capacity.without(self._held())

    def _held(self) -> list[Assignment]:
        return [run for slot in self._slots() if (run := slot.holding) is not None]

    def gpus_for(self, run: Waiting) -> tuple[str, ...]:
        """Those that it gets when it begins now."""
        return self.free.gpus[: run.requires.gpus] if run.requires is not None else ()

    def obstacle(self, run: Waiting) -> str:
        if run.requires is None:
            return ""
        if lacking := self.free.lacking(run.requires):
            holders = ", ".join(each.uid for each in self._held() if each.requires is not None)
            return f"{lacking}{f'; held by {holders}' if holders else ''}"
        first = self._first()
        if first is None or first.requires is None or first.uid == run.uid:
            return ""
        wanted = self.free.lacking(first.requires) or "a free slot"
        return f"run {first.uid}, which is before it and waits for {wanted}"

    def _first(self) -> Waiting | None:
        """The first run in the queue that requires something, and waits for nothing else."""
        now = (self._queue.changes, tuple(run.uid for run in self._held()))
        if self._found[0] != now:
            runs = (run for run in self._queue if run.requires is not None and run.pause is None)
            found = next((run for run in runs if not self._queue.obstacle(run, beside=self)), None)
            self._found = (now, found)
        return self._found[1]

    async def settle(self) -> None:
        """It looks when it is asked."""


class Owners:
    """A rule of the queue: `running` runs of one user at the same time; None: as many as there are slots."""

    def __init__(self, slots: Callable[[], Sequence[Slot]]) -> None:
        self.running: int | None = None
        self._slots = slots

    def obstacle(self, run: Waiting) -> str:
        if self.running is None or run.owner is None:
            return ""
        at_work = Counter(held.owner for slot in self._slots() if (held := slot.holding) is not None)
        if at_work[run.owner] < self.running:
            return ""
        return f"another run of user {run.owner} to end (owners.running: {self.running})"

    async def settle(self) -> None:
        """It looks when it is asked."""


class Sharing:
    """Both rules, as configured. `slots` gives the governors."""

    def __init__(self, queue: RunQueue, config: Config, *, slots: Callable[[], Sequence[Slot]]) -> None:
        self._queue = queue
        self._owners = Owners(slots)
        self.machine = Machine(capacity(config.machine), slots=slots, queue=queue)
        queue.rules += [self._owners, self.machine]
        self.apply(config)

    def apply(self, config: Config) -> None:
        """The configuration has changed."""
        self._queue.limit, self._queue.owner_limit = config.queue_limit, config.owners.queued
        self._owners.running = config.owners.running
        self.machine.capacity = capacity(config.machine)


def capacity(config: MachineConfig) -> Capacity:
    """As configured, else as found: what this process may use."""
    found = len(os.sched_getaffinity(0))
    gpus = config.gpus if config.gpus is not None else _gpus()
    return Capacity(
        cpus=config.cpus if config.cpus is not None else float(found),
        memory=config.memory if config.memory is not None else _memory(),
        gpus=tuple(map(str, range(gpus))) if isinstance(gpus, int) else tuple(gpus),
    )


def _gpus() -> tuple[str, ...]:
    if (visible := os.environ.get(VISIBLE)) is not None:
        return tuple(filter(None, (each.strip() for each in visible.split(","))))
    numbers = (re.fullmatch(r"nvidia(\d+)", each.name) for each in Path("/dev").glob("nvidia*"))
    return tuple(map(str, sorted(int(found[1]) for found in numbers if found)))


def _memory() -> int:
    """Bytes of the machine, or of a cgroup that this process is in where that has less."""
    whole = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    limit = cgroups.memory_limit(cgroups.of_process())
    return whole if limit is None else min(whole, limit)
