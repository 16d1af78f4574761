"""What is asked of groups: submit one, end, pause, continue and resume its runs.

Rules:
1. A group is accepted whole or not at all, once for a client's key.
2. Each verb may be sent again, and does what is missing. An abort is on record before the first run ends, and so completed by the next
   daemon; the others are on record run by run when they are answered.
3. Runs that must end, by an abort or `fail_fast`, are ended here, in the background.
"""

from __future__ import annotations

import asyncio
import secrets
from contextlib import suppress
from functools import partial
from typing import TYPE_CHECKING, Any, Final

import msgspec

from governor import clock, logs
from governor.daemon.submission.files import CodeRecorder
from governor.errors import AlreadyEnded, GoingDown, NoSuchRun, TryAgain, UsageError
from governor.journal.groups import GroupRow, NewRun
from governor.messages import (
    GROUP_PREFIX,
    Abort,
    Changed,
    ChangeRun,
    Continue,
    GroupChanged,
    Pause,
    Resume,
    Submitted,
    SubmittedGroup,
)
from governor.run_file.load import digest, parse_group
from governor.runs.assignment import UID_ALPHABET, UID_LENGTH, Waiting, new_uid, owner_of
from governor.runs.record import snapshot
from governor.runs.variables import require_secrets

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable
    from pathlib import Path

    from governor.daemon.queries import DaemonState, RunQueries
    from governor.daemon.steering import Steering
    from governor.daemon.submission.allowed import AllowedEntries
    from governor.journal.runs_table import RunLine
    from governor.messages import ChangeGroup, SubmitGroup
    from governor.run_file.cells import Cell
    from governor.runs.active_run import RunContext
    from governor.runs.record.code import Submission

KEY_LENGTH: Final = 256
"""Maximum length of a client's key in characters: keys are stored permanently."""
AT_ONCE: Final = 16
"""Runs that are changed at the same time: the journal commits their changes together."""
RETRY_SECONDS: Final = 1.0
"""A run between queue and slot has arrived by then."""
ATTEMPTS: Final = 5

log = logs.get_logger()


class Groups:
    """`resume` is the request for one run."""

    def __init__(
        self,
        *,
        daemon: DaemonState,
        context: RunContext,
        queries: RunQueries,
        allowed: AllowedEntries,
        steering: Steering,
        resume: Callable[[Resume, dict[str, Any]], Awaitable[Submitted]],
    ) -> None:
        self._allowed = allowed
        self._daemon = daemon
        self._context = context
        self._journal = context.journal
        self._queries = queries
        self._steering = steering
        self._resume_run = resume
        self._few = asyncio.Semaphore(AT_ONCE)
        self._code = CodeRecorder()
        self._asked: set[str] = set()
        """Runs that must end, and were asked to."""

    async def submit(self, asked: SubmitGroup, by: dict[str, Any]) -> SubmittedGroup:
        """Raises NotPermitted for code that it may not name, RunFileError, UsageError for a key of another run file, TryAgain."""
        run, cells = await asyncio.to_thread(parse_group, asked.run)
        runs = [cell.run for cell in cells if cell.run is not None]
        await asyncio.to_thread(self._allowed.require, *runs)
        if run.matrix is None:
            raise UsageError("the run file has no matrix: submit it as a run")
        this = await asyncio.to_thread(digest, run)
        if (known := await self._find_known(asked.key, this)) is not None:
            return known
        uid = GROUP_PREFIX + "".join(secrets.choice(UID_ALPHABET) for _ in range(UID_LENGTH))
        group = GroupRow(
            uid=uid,
            key=asked.key,
            name=run.name,
            submitted_at=clock.wall(),
            runs=len(cells),
            digest=this,
            paths=tuple(dict.fromkeys(path for cell in cells for path in cell.params)),
            max_parallel=run.matrix.max_parallel,
            fail_fast=run.matrix.fail_fast,
        )
        copied = self._context.run_folder if run.code == "snapshot" else None
        new = await asyncio.to_thread(lambda: [_new_run(cell, asked.folder, copied) for cell in cells])
        for made in runs:
            self._daemon.sharing.machine.require_possible(made.requires)
        await asyncio.to_thread(require_secrets, runs)
        with self._daemon.queue.place(len(new), owner=owner_of(by)):
            recorded = await self._record(group, new, asked.folder, by=by, copies=copied is not None)
        if recorded.uid != uid:
            return await self._known(recorded, this)
        log.info("group.accepted", group=uid, group_name=run.name, runs=len(new), key=asked.key, by=by)
        self._daemon.limits.know(group)
        for each, cell in zip(new, cells, strict=True):
            of_cell = run if cell.run is None else cell.run
            waiting = Waiting(
                uid=each.uid,
                group=uid,
                owner=owner_of(by),
                priority=of_cell.priority,
                requires=of_cell.requires,
            )
            self._context.metrics.count("runs_accepted")
            self._daemon.queue.append(waiting)
        self._daemon.dispatch()
        return SubmittedGroup(uid=uid, runs=tuple(each.uid for each in new))

    async def _record(
        self, group: GroupRow, new: list[NewRun], folder: str, *, by: dict[str, Any], copies: bool
    ) -> GroupRow:
        """Returns the group on record. Raises UsageError for code that can't be copied, TryAgain."""
        folders = [self._context.run_folder(each.uid) for each in new]

        async def record(submission: Submission) -> GroupRow:
            return await self._journal.write(
                lambda transaction: transaction.submit_group(group, new, by=by, code=submission.data)
            )

        return await self._code.record(
            folders, folder, copies=copies, record=record, is_new=lambda recorded: recorded.uid == group.uid
        )

    async def _find_known(self, key: str | None, this: bytes) -> SubmittedGroup | None:
        """Raises TryAgain when there is none and no run can be accepted, UsageError for a key of another run file, or a long one."""
        require_key(key)
        known = None if key is None else await self._journal.read(partial(self._journal.group_of_key, key))
        if known is not None:
            return await self._known(known, this)
        self._daemon.require_room()
        if self._daemon.is_stopping:
            raise GoingDown("the daemon is shutting down and accepts no more runs")
        return None

    async def _known(self, group: GroupRow, this: bytes) -> SubmittedGroup:
        if (group.digest or this) != this:
            raise UsageError(
                f"the key {group.key!r} is that of group {group.uid}, which was submitted with another run file: choose "
                "another key for this one"
            )
        first: dict[int | None, str] = {}
        for line in await self._lines(group.uid):
            first.setdefault(line.cell, line.uid)
        return SubmittedGroup(uid=group.uid, runs=tuple(first.values()), known=True)

    async def _lines(self, uid: str) -> list[RunLine]:
        return await self._journal.read(lambda: [*self._journal.lines_of_group(uid)])

    # -- its runs ----------------------------------------------------------------------------------------------

    async def change(self, asked: ChangeGroup, by: dict[str, Any]) -> GroupChanged:
        """Raises NoSuchRun, TryAgain, UsageError."""
        group = await self._journal.read(partial(self._queries.find_group, asked.uid))
        if not asked.dry_run:
            log.info(
                "group.change_requested",
                verb=asked.verb,
                group=group.uid,
                group_name=group.name,
                by=by,
                reason=asked.reason,
            )
        match asked.verb:
            case "abort":
                return await self._abort(group, asked, by)
            case "resume":
                return await self._resume(group, asked, by)
            case "pause":
                request = partial(Pause, reason=asked.reason, hard=asked.hard, dry_run=asked.dry_run)
                return await self._change(
                    group, asked, lambda uid: self._steering.pause(request(uid=uid), by)
                )
            case "set":
                return await self._set(group, asked, by)
            case "continue":
                again = partial(Continue, reason=asked.reason, dry_run=asked.dry_run)
                return await self._change(group, asked, lambda uid: self._steering.go_on(again(uid=uid), by))

    async def _abort(self, group: GroupRow, asked: ChangeGroup, by: dict[str, Any]) -> GroupChanged:
        unended = await self._journal.read(partial(self._journal.unended_of_group, group.uid))
        limits = self._daemon.limits
        left = [uid for uid, _, _ in unended if uid not in limits.ending]
        if left and not asked.dry_run:
            reason = asked.reason or "its group was aborted by request"
            changed = await self._journal.write(
                lambda transaction: transaction.abort_group(group.uid, reason, by)
            )
            limits.know(changed)
            await limits.settle()
        return GroupChanged(uid=group.uid, changed=len(left), dry_run=asked.dry_run)

    async def _set(self, group: GroupRow, asked: ChangeGroup, by: dict[str, Any]) -> GroupChanged:
        """None of them, where one refuses it. Raises RunFileError, too."""
        found = GroupChanged(uid=group.uid, changed=0)
        for dry_run in (True, False)[: 1 if asked.dry_run else 2]:
            wanted = partial(ChangeRun, values=asked.values, reason=asked.reason, dry_run=dry_run)
            found = await self._change(
                group,
                asked,
                lambda uid, wanted=wanted: self._steering.change_run(wanted(uid=uid), by),  # type: ignore[misc]
            )
        return found

    async def _change(
        self, group: GroupRow, asked: ChangeGroup, change: Callable[[str], Awaitable[Changed]]
    ) -> GroupChanged:
        """Runs in the queue first, so that none of them begins meanwhile."""
        unended = await self._journal.read(partial(self._journal.unended_of_group, group.uid))
        uids = sorted((uid for uid, _, _ in unended), key=lambda uid: uid not in self._daemon.queue)
        found = await asyncio.gather(*(self._change_run(uid, change) for uid in uids))
        return GroupChanged(uid=group.uid, changed=sum(found), dry_run=asked.dry_run)

    async def _change_run(self, uid: str, change: Callable[[str], Awaitable[Changed]]) -> bool:
        async with self._few:
            for attempt in range(ATTEMPTS):
                try:
                    return (await change(uid)).changed
                except (AlreadyEnded, NoSuchRun):
                    return False
                except TryAgain:
                    if attempt == ATTEMPTS - 1:
                        raise
                    await self._until_moved()
        return False

    async def _resume(self, group: GroupRow, asked: ChangeGroup, by: dict[str, Any]) -> GroupChanged:
        """The runs of cells whose last run has not finished."""
        last = {line.cell: line for line in await self._lines(group.uid)}
        bad = [line for line in last.values() if line.ended_at is not None and line.outcome != "finished"]
        if not bad or asked.dry_run:
            return GroupChanged(uid=group.uid, changed=len(bad), dry_run=asked.dry_run)
        changed = await self._journal.write(lambda transaction: transaction.resume_group(group.uid))
        self._daemon.limits.know(changed)
        new = [await self._resume_run(Resume(uid=line.uid), by) for line in bad]
        return GroupChanged(uid=group.uid, changed=len(new), runs=tuple(each.uid for each in new))

    # -- runs that must end ------------------------------------------------------------------------------------

    async def serve(self) -> None:
        """Ends them, until it is cancelled; raises JournalError."""
        limits = self._daemon.limits
        while True:
            await limits.has_ending.wait()
            limits.has_ending.clear()
            while left := [uid for uid in limits.ending if uid not in self._asked]:
                await asyncio.gather(*map(self._end_run, left))
            self._asked &= limits.ending.keys()

    async def _end_run(self, uid: str) -> None:
        limits = self._daemon.limits
        async with self._few:
            governor = self._queries.governor_of(uid)
            try:
                if governor is not None and governor.stopping:  # for whatever reason
                    await self._until_moved()
                    return
                if (why := limits.ending.get(uid)) is not None:
                    await self._steering.abort(Abort(uid=uid, reason=why.reason), why.by)
            except (AlreadyEnded, NoSuchRun):
                limits.ending.pop(uid, None)
            except TryAgain:  # it is between queue and slot
                await self._until_moved()
            else:
                self._asked.add(uid)  # one in a slot takes a while to end
                limits.moved(is_free=governor is None)

    async def _until_moved(self) -> None:
        with suppress(TimeoutError):
            async with asyncio.timeout(RETRY_SECONDS):
                await self._daemon.limits.movement.wait()


def require_key(key: str | None) -> None:
    """Raises UsageError for a client's key that is too long."""
    if key is not None and len(key) > KEY_LENGTH:
        raise UsageError(
            f"a key has at most {KEY_LENGTH} characters, and {key[:16]!r}... has {len(key)}: choose a shorter one"
        )


def _new_run(cell: Cell, folder: str, copied: Callable[[str], Path] | None) -> NewRun:
    """`copied`: the folder of a run by its uid, where that gets a copy of its code."""
    assert cell.run is not None  # noqa: S101  # its group has no faults
    spec, uid = cell.run.raw(), new_uid()
    return NewRun(
        uid=uid,
        folder=folder if copied is None else str(copied(uid) / snapshot.FOLDER),
        name=cell.run.name,
        spec=msgspec.msgpack.encode(spec),
        phases=len(cell.run.phases),
        cell=cell.number,
        digest=digest(cell.run),
        params=cell.params,
        labels=cell.run.labels,
    )
