"""When memory or disk run short, of what all runs have together: the run that has most ends, with that as reason, before the kernel kills any
process, or a full disk ends the daemon.

Rules:
1. Memory is that of the cgroup that the daemon was started in (systemd: `MemoryMax=`), or of one above. With less than a twentieth of it
   left, the run with most memory ends. The next one follows only when that run is gone.
2. The room on the disk is `disk_reserve`, also where a quota sets it that the file system tells of. Once less than that is left, the
   folders of the runs at work are measured. Once half of that is left, the run that has taken most since then ends, and the next one once
   half of what was left then is gone, too. A run that has taken less than a third of what is gone is not ended: somebody else fills the disk.
3. What is faster than these looks, or goes on below `RESERVE_BYTES`, stays with the kernel (`cgroups.lack_of_memory`) and with the full disk
   (`journal.disk_reserve`).
4. A thread looks: a hung disk holds up nothing.
"""

from __future__ import annotations

import asyncio
import shutil
import time
from typing import TYPE_CHECKING, Final

from governor import logs
from governor.episodes.entries import in_daemon_thread
from governor.journal.disk_reserve import RESERVE_BYTES
from governor.processes import cgroups
from governor.runs.resource_usage import disk_of, memory_of, run_pids
from states.at_work import AtWork
from states.events import LimitExceeded

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence
    from pathlib import Path

    from governor.config import Config
    from governor.runs.active_run import ActiveRun
    from governor.runs.run_governor import RunGovernor
    from states.amounts import Shared

LOOK_SECONDS: Final = 1.0
TELL_SECONDS: Final = 60.0
MEMORY_SHARE: Final = 20
PART_OF_THE_LOSS: Final = 3

log = logs.get_logger()


class Shortage:
    """Of the runs in these slots. `group` is the cgroup of the service."""

    def __init__(
        self,
        config: Callable[[], Config],
        slots: Callable[[], Sequence[RunGovernor]],
        *,
        group: Path | None = None,
    ) -> None:
        self._config, self._slots = config, slots
        self._group = group or cgroups.of_service()
        self._ended_for_memory = ""
        self._before: Mapping[str, int] = {}
        """What the folders of runs had when less than the reserve was left for the first time, or when a run was ended for it."""
        self._left_before: int | None = None
        self._tell_again = 0.0
        self._next = 0
        """With less than this left on the disk another run ends."""

    async def watch(self) -> None:
        """Looks until it is cancelled."""
        failed = False
        while True:
            await asyncio.sleep(LOOK_SECONDS)
            try:
                await self.look()
                failed = False
            except Exception:
                if not failed:
                    log.exception("shortage.not_measured")
                failed = True

    async def look(self) -> None:
        """Raises OSError."""
        memory = await in_daemon_thread(lambda: cgroups.memory(self._group), name="shortage")
        if memory is not None and memory.limit - memory.used < memory.limit // MEMORY_SHARE:
            await self._end_for_memory(memory)
        config = self._config()
        left = (await in_daemon_thread(lambda: shutil.disk_usage(config.state_dir), name="shortage")).free
        if left >= config.disk_reserve:
            self._left_before = None
        elif left >= RESERVE_BYTES:
            await self._look_at_disk(left, config.disk_reserve)

    async def _end_for_memory(self, memory: cgroups.Memory) -> None:
        if self._ended_for_memory in {slot.experiment_run_id for slot in self._slots()}:
            return
        if not (runs := self._at_work()):
            return
        pids = {
            run.uid: {child.pid: child.mark for child in run.effects.processes.values()}
            for run in runs.values()
        }
        sizes = await in_daemon_thread(
            lambda: {uid: memory_of(run_pids(marks)) for uid, marks in pids.items()}, name="shortage"
        )
        most = max(sizes, key=sizes.__getitem__)
        self._ended_for_memory = most
        self._end(runs[most], "memory of the service", memory.limit, memory.used, sizes)

    async def _look_at_disk(self, left: int, reserve: int) -> None:
        runs = self._at_work()
        if self._left_before is not None and left >= self._next:
            return
        folders = {run.uid: run.folder for run in runs.values()}
        sizes = await in_daemon_thread(
            lambda: {uid: disk_of(folder) for uid, folder in folders.items()}, name="shortage"
        )
        before, left_before = self._before, self._left_before
        self._before, self._left_before = sizes, left
        self._next = (reserve if left_before is None else left) // 2
        if left_before is None:
            if (now := time.monotonic()) >= self._tell_again:
                log.warning("disk.reserve_touched", left=left, reserve=reserve, sizes=dict(sizes))
                self._tell_again = now + TELL_SECONDS
            return
        taken = {uid: size - before.get(uid, 0) for uid, size in sizes.items()}
        most = max(taken, key=taken.__getitem__, default="")
        if most and taken[most] * PART_OF_THE_LOSS >= left_before - left:
            self._end(runs[most], "room on the disk", reserve, left, taken)
        else:
            log.warning("disk.filled_by_others", left=left, taken=taken)

    def _at_work(self) -> dict[str, ActiveRun]:
        uids = {slot.experiment_run_id: slot for slot in self._slots()}
        runs = (slot.in_work(uid) for uid, slot in uids.items() if uid)
        return {run.uid: run for run in runs if isinstance(run.state, AtWork)}

    def _end(self, run: ActiveRun, limit: Shared, value: int, reached: int, sizes: Mapping[str, int]) -> None:
        log.warning(
            "run.takes_most", run=run.uid, limit=limit, value=value, reached=reached, sizes=dict(sizes)
        )
        run.post(LimitExceeded(*run.stamp, limit=limit, value=value, reached=reached))
