"""Single runs that are handed in: submitted anew, or to do what is missing of an earlier one.

Rules:
1. A run is in the journal, with its files, before it is acknowledged; the client's key makes that idempotent.
2. What cannot be accepted changes nothing.
"""

from __future__ import annotations

import asyncio
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from governor import logs
from governor.daemon.groups.verbs import require_key
from governor.daemon.submission.files import CodeRecorder, recorded_with_files
from governor.errors import AlreadyEnded, GoingDown, NotEnded, TryAgain, UsageError
from governor.messages import Submitted
from governor.run_file.load import digest, parse
from governor.runs.assignment import Waiting, new_uid, owner_of
from governor.runs.record import code, environment, resume, snapshot
from governor.runs.variables import require_secrets

if TYPE_CHECKING:
    from governor.daemon.queries import DaemonState, RunQueries
    from governor.daemon.submission.allowed import AllowedEntries
    from governor.journal.runs_table import RunRow
    from governor.journal.tables import Transaction
    from governor.messages import Resume, Submit
    from governor.run_file.model import Run
    from governor.runs.active_run import RunContext
    from governor.runs.record.resume import KeptWork

log = logs.get_logger()


class Submissions:
    """Answers `Submit` and `Resume`."""

    def __init__(
        self, *, daemon: DaemonState, context: RunContext, queries: RunQueries, allowed: AllowedEntries
    ) -> None:
        self._allowed = allowed
        self._daemon = daemon
        self._context = context
        self._journal = context.journal
        self._queries = queries
        self._code = CodeRecorder()

    async def submit(self, asked: Submit, by: dict[str, Any]) -> Submitted:
        """Raises NotPermitted for code that it may not name, RunFileError, UsageError, TryAgain."""
        run = parse(asked.run, "run file")
        await asyncio.to_thread(self._allowed.require, run)
        if run.matrix is not None:
            raise UsageError("the run file has a matrix: submit it as a group")
        this = digest(run)
        if (known := await self._find_known(asked.key, this)) is not None:
            return known
        self._daemon.sharing.machine.require_possible(run.requires)
        await asyncio.to_thread(require_secrets, [run])
        uid = new_uid()
        with self._daemon.queue.place(owner=owner_of(by)):
            recorded = await self._record(uid, asked, run, digest=this, by=by)
        if recorded != uid:
            await self._find_known(asked.key, this)
        waiting = Waiting(uid=uid, owner=owner_of(by), priority=run.priority, requires=run.requires)
        return self._accepted(waiting, recorded, run_name=run.name, key=asked.key, by=by)

    async def _record(self, uid: str, asked: Submit, run: Run, *, digest: bytes, by: dict[str, Any]) -> str:
        """Returns the uid of the run on record. Raises UsageError for code that can't be copied, TryAgain."""
        folder = self._context.run_folder(uid)
        copies = run.code == "snapshot"

        async def record(submission: code.Submission) -> str:
            def change(transaction: Transaction) -> str:
                return transaction.submit(
                    uid=uid,
                    key=asked.key,
                    name=run.name,
                    spec=run.raw(),
                    folder=str(folder / snapshot.FOLDER) if copies else asked.folder,
                    digest=digest,
                    by=by,
                    code=submission.data,
                    params=asked.params,
                )

            return await self._journal.write(change)

        return await self._code.record(
            [folder], asked.folder, copies=copies, record=record, is_new=uid.__eq__
        )

    async def resume(self, asked: Resume, by: dict[str, Any], *, of_group: bool = False) -> Submitted:
        """`of_group`: its whole group is being resumed. Raises as `submit`."""
        row = await self._journal.read(partial(self._queries.find_sound, asked.uid))
        if (known := await self._find_known(asked.key, parent=row.uid)) is not None:
            return known
        if row.outcome is None or row.ended_at is None:
            raise NotEnded(row.uid, (await self._queries.status_of(row)).state)
        run, old = parse(row.spec, row.name), self._context.run_folder(row.uid)
        await asyncio.to_thread(self._allowed.require, run, folder=row.folder)
        kept = await asyncio.to_thread(resume.find_kept_work, self._journal, row, run, old)
        if kept.is_complete and row.outcome == "finished":
            why = "nothing of it failed or is missing, so there is nothing to resume"
            raise AlreadyEnded(row.uid, message=f"run {row.uid} has ended already: finished; {why}")
        uid = new_uid()
        with self._daemon.queue.place(owner=owner_of(by)):
            recorded = await self._record_rest(uid, asked, (row, run, kept), by=by, of_group=of_group)
        failed, failure = kept.failed_phases
        waiting = Waiting(
            uid=uid,
            first_phase=kept.first_phase,
            failed=failed,
            failure=failure,
            group=row.group_uid,
            owner=owner_of(by),
            priority=run.priority,
            requires=run.requires,
        )
        if row.group_uid is not None:
            group = await self._journal.read(partial(self._journal.group, row.group_uid))
            self._daemon.limits.know(group)
        about = {"run_name": run.name, "key": asked.key, "parent": row.uid, "by": by}
        return self._accepted(waiting, recorded, **about)

    async def _record_rest(
        self,
        uid: str,
        asked: Resume,
        old: tuple[RunRow, Run, KeptWork],
        *,
        by: dict[str, Any],
        of_group: bool,
    ) -> str:
        """Records a run that resumes the `old` one, and has its files. Returns the uid of the run on record."""
        row, run, kept = old
        folder = self._context.run_folder(uid)
        has_copy = run.code == "snapshot"
        submission, changed = await self._code_of(row, kept, has_copy=has_copy)

        def change(transaction: Transaction) -> str:
            other = transaction.resumed_by(row.uid)
            if row.group_uid is not None and not of_group:
                transaction.resume_group(row.group_uid)
            recorded = transaction.submit(
                uid=uid,
                key=asked.key,
                name=run.name,
                spec=row.spec,
                folder=str(folder / snapshot.FOLDER) if has_copy else row.folder,
                parent=row.uid,
                by=by,
                code=submission.data,
                group=row.group_uid,
                cell=row.cell,
                params=row.params,
            )
            if recorded == uid:
                if other is not None:
                    raise TryAgain(f"run {other} resumes run {row.uid} right now; `governor watch {other}`")
                kept.record(transaction, uid)
                if changed is not None:
                    transaction.event(uid, code.CHANGED, changed)
            return recorded

        async def record() -> str:
            await kept.record_tasks(self._journal, uid)
            recorded = await self._journal.write(change)
            self._journal.reserved.discard(uid)
            return recorded

        try:
            recorded = await recorded_with_files(
                [folder],
                stage=partial(resume.stage, kept, folder),
                record=record,
                is_new=uid.__eq__,
                what=f"the files of {kept.folder} can't be taken over",
            )
        except Exception:  # a cancelled one may be on record
            self._journal.reserved.discard(uid)
            raise
        if recorded == uid and changed is not None:
            log.warning(code.CHANGED, run=uid, reason=code.sentence(changed))
        return recorded

    async def _code_of(
        self, row: RunRow, kept: KeptWork, *, has_copy: bool
    ) -> tuple[code.Submission, dict[str, Any] | None]:
        """What is recorded of the code of a run that resumes another one, and what has changed since that began."""
        accepted = await self._journal.read(partial(self._journal.events, row.uid, limit=1))
        before = code.Submission.of(next(iter(accepted), None))
        if has_copy:
            return before, None
        now = await self._code.submission_of(row.folder)
        made = await asyncio.to_thread(environment.of_run, kept.folder)
        changed = await asyncio.to_thread(
            code.changed,
            Path(row.folder),
            known=made.get("code") or before.digest,
            now=now.digest,
            since=(row.started_at if made else None) or before.at,
            when=f"run {row.uid} began" if made else f"run {row.uid} was submitted",
        )
        return now, changed

    async def _find_known(
        self, key: str | None, this: bytes | None = None, *, parent: str | None = None
    ) -> Submitted | None:
        """The run with this key, also when the queue is full: a client that repeats its request gets its own run.

        Raises TryAgain when there is none and no run can be accepted, UsageError when the run does not resume
        `parent`, was submitted with another run file than that of the digest `this`, or the key is too long.
        """
        require_key(key)
        known = None if key is None else await self._journal.read(partial(self._journal.of_key, key))
        if known is not None:
            row = await self._journal.read(partial(self._journal.line, known))
            if parent is not None and (row is None or row.parent != parent):
                raise UsageError(f"the key {key!r} is that of run {known}, which does not resume {parent}")
            if this is not None and row is not None and (row.digest or this) != this:
                raise UsageError(
                    f"the key {key!r} is that of run {known}, which was submitted with another run file: choose "
                    "another key for this one"
                )
            return Submitted(uid=known, known=True)
        self._daemon.require_room()
        if self._daemon.is_stopping:
            raise GoingDown("the daemon is shutting down and accepts no more runs")
        return None

    def _accepted(self, run: Waiting, recorded: str, **about: object) -> Submitted:
        """Queues the run, unless its key was used at the same time for the `recorded` one."""
        known = recorded != run.uid
        if not known:
            log.info("run.accepted", run=recorded, **about)
            self._context.metrics.count("runs_accepted")
            self._daemon.queue.append(run)
            self._daemon.dispatch()
        return Submitted(uid=recorded, known=known)
