"""What a group allows its runs: so many at work at once (`max_parallel`), none more after a failure (`fail_fast`) or an abort.

Rules:
1. What is allowed follows from the journal and the slots alone, so that every daemon holds to it: `load` at its start, `settle` before a
   run is taken from the queue.
2. A run that must end does not begin: `ending` has it from the moment on at which that is decided, until it has ended.
3. `fail_fast` ends runs that have never begun; an abort ends all that the group has then.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from governor import logs
from governor.journal.schema import UNENDED

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from governor.journal.groups import GroupRow
    from governor.journal.journal import Journal
    from governor.runs.assignment import Waiting
    from governor.runs.run_governor import RunGovernor

log = logs.get_logger()


@dataclass(frozen=True, slots=True, kw_only=True)
class Ending:
    """Why a run must end; `by`: who asked for it, nobody where it follows from a failure."""

    reason: str
    by: dict[str, Any] = field(default_factory=dict)


class GroupLimits:
    """A rule of the queue. `slots` gives the governors of the daemon."""

    def __init__(self, slots: Callable[[], Sequence[RunGovernor]]) -> None:
        self.ending: dict[str, Ending] = {}
        """Runs that must end, by their uids, until they have ended."""
        self.has_ending = asyncio.Event()
        self._slots = slots
        self._groups: dict[str, GroupRow] = {}
        """Those with runs that have not ended."""
        self._is_settled = True
        self._at_work: Counter[str | None] | None = None
        """Runs at work by group, as long as none has moved: the queue asks for each of its runs."""
        self._journal: Journal
        self._moved = asyncio.Event()

    async def load(self, journal: Journal) -> None:
        """At the daemon's start, before the first run begins."""
        self._journal = journal
        open_ones = f"uid IN (SELECT group_uid FROM runs WHERE {UNENDED} AND group_uid IS NOT NULL)"  # noqa: S608  # our own
        for group in await journal.read(lambda: journal.groups(open_ones)):
            self.know(group)

    def know(self, group: GroupRow | None) -> None:
        """A group that is new, or has changed; None where it is gone."""
        if group is None:
            return
        self._groups[group.uid] = group
        self._is_settled = False

    def moved(self, *, is_free: bool = False) -> None:
        """A run has moved; if a slot `is_free`, it may have failed."""
        self._is_settled = self._is_settled and not is_free
        self._at_work = None
        self._moved.set()
        self._moved = asyncio.Event()

    @property
    def movement(self) -> asyncio.Event:
        """Set when a run moves next."""
        return self._moved

    def obstacle(self, run: Waiting) -> str:
        """What the run waits for, "" if for nothing."""
        if run.group is None:
            return ""
        if run.uid in self.ending:
            return f"its end: {self.ending[run.uid].reason}"
        group = self._groups.get(run.group)
        if group is None or group.max_parallel is None:
            return ""
        if self._at_work is None:
            self._at_work = Counter(slot.group for slot in self._slots())
        if self._at_work[run.group] < group.max_parallel:
            return ""
        return f"another run of its group {run.group} to end (max_parallel: {group.max_parallel})"

    async def settle(self) -> None:
        """Finds the runs that must end. Raises JournalError."""
        while not self._is_settled:
            self._is_settled = True
            ending = set(self.ending)
            for group in [*self._groups.values()]:
                ending -= await self._settle(group)
            for uid in ending:  # they have ended
                self.ending.pop(uid, None)

    async def _settle(self, group: GroupRow) -> set[str]:
        """Returns the runs of the group that must end, and have not."""
        journal = self._journal

        def read() -> tuple[list[tuple[str, int, bool]], str | None]:
            failed = journal.failed_run(group.uid) if group.fail_fast else None
            must_end = failed is not None or group.aborted_to > 0
            return journal.unended_of_group(group.uid, limit=-1 if must_end else 1), failed

        unended, failed = await journal.read(read)
        if not unended and self._groups.get(group.uid) is group:
            del self._groups[group.uid]
        for uid, position, is_begun in unended:
            if position <= group.aborted_to:
                self._end(uid, Ending(reason=group.abort_reason, by=group.abort_by))
            elif failed is not None and not is_begun:
                self._end(uid, Ending(reason=f"run {failed} of its group has failed (fail_fast)"))
        return {uid for uid, _, _ in unended}

    def _end(self, uid: str, why: Ending) -> None:
        if uid not in self.ending:
            self.ending[uid] = why
            self.has_ending.set()
