"""Read-only queries of the daemon's API: the runs, and the daemon itself."""

from __future__ import annotations

import asyncio
import os
import time
from contextlib import suppress
from dataclasses import replace
from functools import partial
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, Final, Protocol

import msgspec

from governor import clock
from governor.daemon.groups import listing
from governor.errors import GovernorError, NoSuchRun, RecordDamaged
from governor.journal.run_filter import RunFilter
from governor.messages import Explanation, RunCounts, RunList, RunStatus, StatusReport
from governor.messages.files import FileList
from governor.network import run_files
from governor.output import reader
from governor.processes import kill_tree
from governor.run_file.load import parse
from governor.runs import explain
from governor.version import __version__
from states.at_work import Pause

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from governor.config import Config
    from governor.daemon.draining import Draining
    from governor.daemon.groups.limits import GroupLimits
    from governor.daemon.run_queue import RunQueue
    from governor.daemon.sharing.capacity import Sharing
    from governor.journal.groups import GroupRow
    from governor.journal.runs_table import RunLine, RunRow
    from governor.messages import (
        ListFiles,
        ListRuns,
        LoopTime,
        OutputPage,
        Prune,
        Pruned,
        ReadFile,
        ReadOutput,
        Reloaded,
        RunEvent,
    )
    from governor.messages.files import FilePiece
    from governor.runs.active_run import RunContext
    from governor.runs.assignment import Waiting
    from governor.runs.run_governor import RunGovernor

SHOWN: Final = 100
"""Queued runs that `status` shows."""
AT_ONCE: Final = 500
"""Runs that are described before the event loop does something else."""
_NOT_ASKED: Final = MappingProxyType[int, "Sequence[int]"]({})


class DaemonState(Protocol):
    """The part of the daemon that its API needs."""

    config: Config
    governors: list[RunGovernor]
    queue: RunQueue
    limits: GroupLimits
    sharing: Sharing
    held: Mapping[str, str]
    damaged: dict[str, str]
    draining: Draining

    def loop_time(self) -> LoopTime | None:
        """None where it is not measured."""

    @property
    def is_stopping(self) -> bool: ...
    def dispatch(self) -> None:
        """A slot or a queued run may be available."""

    def requeue(self, uid: str, left: asyncio.Event) -> None:
        """Queues a run again once it has `left` its slot."""

    def require_room(self) -> None:
        """Raises NoRoom when the disk has no room for another run."""

    async def prune(self, asked: Prune) -> Pruned: ...

    async def reload(self) -> Reloaded:
        """Raises ConfigError with all faults, UsageError when there is no configuration to reload."""

    def stop(self, reason: str) -> None:
        """Ends the runs as aborted, then itself. Raises UsageError when requests do not stop it."""


class RunQueries:
    """Answers queries. The journal is read in its threads, the daemon's state in the event loop. The methods raise NoSuchRun
    and JournalError; those that are not async block.
    """

    def __init__(self, *, daemon: DaemonState, context: RunContext) -> None:
        self._daemon = daemon
        self._context = context
        self._journal = context.journal
        self._started_at = time.monotonic()

    async def status(self, uid: str | None) -> StatusReport:
        """The daemon, and one run; or those in work, and the first of the others that have not ended."""
        in_work = self._in_work()
        marked = await asyncio.to_thread(kill_tree.marked) if in_work else _NOT_ASKED
        if uid is not None:
            rows: list[RunLine] = [await self._journal.read(partial(self.whole, uid))]
            if (governor := self.governor_of(rows[0].uid)) is not None:
                await governor.measure(marked)
        else:
            names = [*in_work, *self._daemon.queue.uids(SHOWN)]
            rows = await self._journal.read(partial(self._unended, names))
        runs = await self._describe_all(rows, marked)
        return StatusReport(
            pid=os.getpid(),
            version=__version__,
            endpoint=self._context.client_endpoint,
            uptime=time.monotonic() - self._started_at,
            slots=len(self._daemon.governors),
            state="stopping" if self._daemon.is_stopping else self._daemon.draining.state,
            runs=runs,
            ray=str(self._context.ray),
            quarantined=self._quarantined(),
            counts=RunCounts(
                in_work=len(self._in_work()),
                queued=len(self._daemon.queue),
                held=len(self._daemon.held),
                damaged=len(self._daemon.damaged),
            ),
            loop=self._daemon.loop_time(),
        )

    async def page(self, asked: ListRuns) -> RunList:
        """Raises BadRequest, UsageError for what no list has."""
        listing.require(asked)
        group = None
        if asked.group is not None:
            group = (await self._journal.read(partial(self.find_group, asked.group))).uid
        only = RunFilter(
            group=group,
            labels=asked.labels,
            outcome=asked.state if asked.state in listing.OUTCOMES else None,
            unended=None if asked.state in (None, *listing.OUTCOMES) else asked.state != "ended",
        )
        if asked.sort is not None:
            found, _ = await self._listed(only, asked, limit=listing.LIST_LIMIT)
            runs = listing.in_order(found, asked.sort, descending=asked.descending)
            return RunList(runs=tuple(runs[: asked.limit]), more=len(runs) > asked.limit)
        found, more = await self._listed(only, asked, limit=asked.limit)
        return RunList(runs=tuple(found), more=more)

    async def _listed(self, only: RunFilter, asked: ListRuns, *, limit: int) -> tuple[list[RunStatus], bool]:
        """The first runs of the list, and whether there are more. Those that have not ended are looked through for their state."""
        found: list[RunStatus] = []
        after = (
            None if asked.after is None else await self._journal.read(partial(self._position, asked.after))
        )
        while len(found) <= limit:
            rows = await self._journal.read(
                partial(self._journal.runs, limit=limit + 1, after=after, only=only)
            )
            described = await self._describe_all(rows)
            found += [run for run in described if not only.unended or listing.is_in(run, str(asked.state))]
            if not only.unended or len(rows) <= limit:
                break
            after = rows[-1].position
        return found[:limit], len(found) > limit

    async def explain(self, uid: str) -> Explanation:
        row: RunLine = await self._journal.read(partial(self.whole, uid))
        events: list[RunEvent] = []
        latest: RunEvent | None = None
        if row.uid in self._in_work():
            events, latest = await self._journal.read(
                lambda: (self._journal.events_of(row.uid, explain.KINDS), self._journal.latest(row.uid))
            )
        [status] = await self._describe_all([row])
        governor = self.governor_of(row.uid) if status.ended_at is None else None
        now = clock.wall()
        run = governor.experiment_run if governor is not None else None
        lines = explain.explain(
            status,
            events=events,
            latest=latest,
            deadlines={key: now + left for key, left in governor.deadlines.items()} if governor else {},
            phase=run.phases[status.phase_index] if run and status.phase_index is not None else None,
        )
        return Explanation(uid=row.uid, name=row.name, at=now, lines=lines)

    async def output(self, asked: ReadOutput) -> OutputPage:
        """Raises UsageError for a conductor that does not exist."""
        row: RunRow = await self._journal.read(partial(self.find_row, asked.uid))
        has_ended = row.ended_at is not None and not self._context.output.is_collecting(row.uid)
        return await asyncio.to_thread(self._read_output, row, asked, ended=has_ended)

    async def status_of(self, row: RunLine) -> RunStatus:
        """The run, as `status` shows it."""
        [described] = await self._describe_all([row])
        return described

    # -- in the event loop -------------------------------------------------------------------------------------

    def governor_of(self, uid: str) -> RunGovernor | None:
        """The governor that has the run in work."""
        return self._in_work().get(uid)

    def damage_of(self, row: RunLine) -> str:
        """The part of a run's record that can't be read; "" if all can, or if it was not checked."""
        return row.damage or self._daemon.damaged.get(row.uid, "")

    def _in_work(self) -> dict[str, RunGovernor]:
        governors = self._daemon.governors
        return {uid: governor for governor in governors if (uid := governor.experiment_run_id) is not None}

    def _quarantined(self) -> dict[str, str]:
        return {slot.uid: slot.quarantine for slot in self._daemon.governors if slot.quarantine}

    async def settled(self, rows: list[RunLine]) -> list[RunLine]:
        """The rows, up to date: a run that moved on while its row was read is read once more."""
        daemon, in_work = self._daemon, self._in_work()
        moved = [
            row.uid
            for row in rows
            if row.ended_at is None
            and not any(row.uid in those for those in (in_work, daemon.queue, daemon.held, daemon.damaged))
        ]
        if not moved:
            return rows
        found = {row.uid: row for row in await self._journal.read(partial(self._journal.lines, moved))}
        return [found.get(row.uid, row) for row in rows]

    async def _describe_all(
        self, rows: list[RunLine], marked: Mapping[int, Sequence[int]] = _NOT_ASKED
    ) -> tuple[RunStatus, ...]:
        rows = await self.settled(rows)
        by = await self._journal.read(partial(self._journal.submitters, [row.uid for row in rows]))
        described: list[RunStatus] = []
        for start in range(0, len(rows), AT_ONCE):
            if start:
                await asyncio.sleep(0)
            in_work = self._in_work()
            slots = "".join(f"; {slot}: {waits}" for slot, waits in self._quarantined().items())
            for row in rows[start : start + AT_ONCE]:
                known = self._describe(row, slots, by.get(row.uid, {}))
                # A run whose end is recorded has ended, even if its governor is still cleaning up.
                governor = in_work.get(row.uid) if row.ended_at is None else None
                described.append(known if governor is None else governor.status(known, marked))
        return tuple(described)

    def _describe(self, row: RunLine, slots: str, by: dict[str, Any]) -> RunStatus:
        """A run that is not in work. `slots`: why some of them accept no run."""
        damage, waiting = self.damage_of(row), None
        if damage:
            state, waits_for = "damaged", f"an abort, or a journal that this daemon can read: {damage}"
        elif row.ended_at is not None:
            state, waits_for = "ended", "nothing"
        elif (waiting := self._daemon.queue.find(row.uid)) is not None:
            state, waits_for = "queued", self._place_of(waiting) + slots
        else:
            state, waits_for = "interrupted", self._daemon.held.get(row.uid, "the next start of the daemon")
        return RunStatus(
            uid=row.uid,
            name=row.name,
            state=state,
            outcome=row.outcome,
            reason=f"its record is damaged ({damage})" if damage else row.reason,
            waits_for=waits_for,
            submitted_at=row.submitted_at,
            started_at=row.started_at,
            ended_at=row.ended_at,
            phases=row.phases or 0,
            metrics=row.metrics,
            paused=waiting is not None and waiting.pause is not None,
            parent=row.parent,
            seconds=row.seconds,
            submitted_by=by,
            group=row.group_uid,
            params=row.params,
            labels=row.labels,
        )

    def _place_of(self, waiting: Waiting) -> str:
        if waiting.pause is not None:
            return Pause(since=0.0, reason=waiting.pause).waits_for(waiting.uid)
        if waits_for := self._daemon.draining.waits_for:
            return waits_for
        if obstacle := self._daemon.queue.obstacle(waiting):
            return obstacle
        before = self._daemon.queue.position(waiting.uid)
        return f"a free slot ({before} run{'' if before == 1 else 's'} before it)"

    # -- in threads --------------------------------------------------------------------------------------------

    def _read_output(self, row: RunRow, asked: ReadOutput, *, ended: bool) -> OutputPage:
        folder = reader.folder_of(self._context.run_folder(row.uid))

        def planned() -> list[str]:
            with suppress(GovernorError):  # a run file of an older version
                return [one.name for one in parse(row.spec, row.name).to_plan(row.uid).conductors]
            return []

        named = asked.conductor
        conductors = None if named is None else reader.conductors_named(folder, named, planned)
        page = reader.page_of(folder, asked, conductors)
        if page.more:
            return page
        accepts = reader.filter_of(asked, conductors)
        unfinished = tuple(filter(accepts, self._context.output.unfinished(row.uid)))
        return msgspec.structs.replace(page, unfinished=unfinished, ended=ended)

    async def files(self, asked: ListFiles) -> FileList:
        uid = (await self._journal.read(partial(self.find, asked.uid))).uid
        folder = self._context.run_folder(uid)
        files, more = await asyncio.to_thread(run_files.listing, folder, asked.after)
        return FileList(uid=uid, folder=str(folder), files=files, more=more)

    async def file_piece(self, asked: ReadFile) -> FilePiece:
        """Raises UsageError for what is no file of the run."""
        uid = (await self._journal.read(partial(self.find, asked.uid))).uid
        folder = self._context.run_folder(uid)
        return await asyncio.to_thread(run_files.piece, folder, asked.path, asked.offset)

    def find(self, uid: str) -> RunLine:
        """The run with this uid, or the only one whose uid begins with it."""
        candidates = self._journal.find(uid) if uid else []
        if uid in candidates:
            candidates = [uid]
        if len(candidates) > 1:
            raise NoSuchRun(uid, f"{uid!r} is the beginning of several runs: {', '.join(candidates)}")
        row = self._journal.line(candidates[0]) if candidates else None
        if row is None and uid and (gone := self._journal.pruned(uid)) is not None:
            on = time.strftime("%Y-%m-%d", time.localtime(gone.pruned_at))
            raise NoSuchRun(uid, f"run {gone.uid} was pruned on {on}: its record and its files are gone")
        if row is None and (groups := self._journal.find_groups(uid) if uid else []):
            raise NoSuchRun(
                uid, f"{groups[0].uid} is a group of runs: `governor list --group {groups[0].uid}` has them"
            )
        if row is None:
            raise NoSuchRun(uid)
        return row

    def find_group(self, uid: str) -> GroupRow:
        """The group with this uid, or the only one whose uid begins with it."""
        found = self._journal.find_groups(uid) if uid else []
        found = [group for group in found if group.uid == uid] or found
        if len(found) > 1:
            names = ", ".join(group.uid for group in found)
            raise NoSuchRun(uid, f"{uid!r} is the beginning of several groups: {names}")
        if not found:
            raise NoSuchRun(
                uid, f"no group {uid!r}; `governor list` shows the runs of this daemon with their groups"
            )
        return found[0]

    def find_row(self, uid: str) -> RunRow:
        """As `find`, with the run file."""
        row = self._journal.run(self.find(uid).uid)
        if row is None:
            raise NoSuchRun(uid)
        return row

    def find_sound(self, uid: str) -> RunRow:
        """As `find_row`; raises RecordDamaged when part of its row can't be read."""
        row = self.find_row(uid)
        if row.damage:
            raise RecordDamaged(row.uid, "runs", row.damage)
        return row

    def whole(self, uid: str) -> RunRow:
        """As `find_row`; its `damage` is that of its result, too."""
        row = self.find_row(uid)
        if row.damage or row.ended_at is None:
            return row
        try:
            self._journal.result(row.uid)
        except RecordDamaged as error:
            return replace(row, damage=f"{error.place}: {error.what}")
        return row

    def _position(self, after: str) -> int:
        return (self._journal.line(after) or self.find(after)).position  # it may have been pruned meanwhile

    def _unended(self, uids: Sequence[str]) -> list[RunLine]:
        """These runs and the first ones of all, in the order of their submission."""
        rows = {row.position: row for row in self._journal.lines(uids) if row.ended_at is None}
        rows |= {row.position: row for row in self._journal.first_unended(SHOWN)}
        return [rows[position] for position in sorted(rows)]
