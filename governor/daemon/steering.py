"""What is asked of a run that has not ended: `abort`, `pause`, `continue`, `set`, and of its work: `cancel`, `requeue`. Of a run in a slot its state machine answers; one in the
queue is changed here, in its record first.

Rule: each verb may be sent again. What is so already is answered with ``changed`` False, and not recorded.
"""

from __future__ import annotations

import asyncio
import difflib
import time
from contextlib import suppress
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any, Final, TypeVar

import msgspec

from governor import logs
from governor.daemon.damage import UNREADABLE, damage_in
from governor.daemon.recovery import LEAVING
from governor.episodes.rules.evaluation import planned_episodes
from governor.errors import AlreadyEnded, TryAgain, UsageError
from governor.messages import Changed, Done, RunChanged, task_and_run
from governor.run_file.load import parse
from governor.runs.assignment import Assignment, Waiting
from governor.runs.record.result import figures_of, record_result, result_of_damaged
from governor.runs.record.work_changes import cancellations
from governor.runs.run_changes import accept, changed_run, require_possible
from governor.runs.run_log import run_ended
from states import Pristine, Running
from states.at_work import AtWork
from states.events import ContinueRequested, PauseRequested, PlanChangeRequested, WorkChangeRequested
from states.stopping import Stopping

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Container

    from governor.daemon.queries import DaemonState, RunQueries
    from governor.daemon.submission.allowed import AllowedEntries
    from governor.journal.journal import Journal
    from governor.journal.runs_table import RunLine, RunRow
    from governor.journal.tables import Transaction
    from governor.messages import Abort, ChangeRun, ChangeWork, Continue, Pause, RunResult, ValueChange
    from governor.run_file.phase_model import Phase, TaskSection
    from governor.runs.active_run import RunContext
    from states import State

BY: Final = "api"
MOVING_SECONDS: Final = 4.0
"""Less than a client waits for an answer."""
LOOK_SECONDS: Final = 0.1
T = TypeVar("T")

log = logs.get_logger()


class _Moving(TryAgain):
    """The run is neither in a slot nor in the queue, for a moment."""


class Steering:
    def __init__(
        self, *, daemon: DaemonState, context: RunContext, queries: RunQueries, allowed: AllowedEntries
    ) -> None:
        self._allowed = allowed
        self._daemon = daemon
        self._context = context
        self._journal: Journal = context.journal
        self._queries = queries
        self._changing = asyncio.Lock()
        """Held while a run in the queue is changed, or the run file of any."""

    async def pause(self, asked: Pause, by: dict[str, Any]) -> Changed:
        """Raises NoSuchRun, AlreadyEnded, TryAgain, UsageError for a hard pause of a run that may not go on after it."""
        row = await self._unended(asked.uid)
        if (governor := self._queries.governor_of(row.uid)) is not None:
            state = await governor.settled()
            if _is_leaving(state):
                return Changed(uid=row.uid, changed=False, state=state.name, dry_run=asked.dry_run)
            state = _at_work(state, row.uid)
            run = governor.experiment_run
            if asked.hard and run is not None and run.resume == "never":
                raise UsageError(
                    f"run {row.uid} can't be interrupted: its run file says resume: never; pause it without --hard"
                )
            changed = asked.hard or state.pause is None
            if changed and not asked.dry_run:
                self._log(PauseRequested.kind, row, asked.reason, by, hard=asked.hard)
                left = governor.released
                event = PauseRequested(row.uid, time.monotonic(), reason=asked.reason, hard=asked.hard)
                await governor.command(event, by)
                if asked.hard:
                    self._daemon.requeue(row.uid, left)
            return Changed(uid=row.uid, changed=changed, state=state.name, dry_run=asked.dry_run)
        async with self._changing:
            waiting = await self._queued(row)
            changed = waiting.pause is None
            if changed and not asked.dry_run:
                self._log(PauseRequested.kind, row, asked.reason, by, hard=asked.hard)
                data = {"reason": asked.reason, "hard": asked.hard}
                paused = replace(waiting, pause=asked.reason)
                await self._change_queued(waiting, PauseRequested.kind, data, by, becomes=paused)
        return Changed(uid=row.uid, changed=changed, state="queued", dry_run=asked.dry_run)

    async def go_on(self, asked: Continue, by: dict[str, Any]) -> Changed:
        """Raises NoSuchRun, AlreadyEnded, TryAgain."""
        return await self._once_in_place(lambda: self._go_on(asked, by))

    async def _go_on(self, asked: Continue, by: dict[str, Any]) -> Changed:
        row = await self._unended(asked.uid)
        if (governor := self._queries.governor_of(row.uid)) is not None:
            state = _at_work(await governor.settled(), row.uid)
            changed = state.pause is not None or (isinstance(state, Running) and bool(state.paused))
            if changed and not asked.dry_run:
                self._log(ContinueRequested.kind, row, asked.reason, by)
                await governor.command(ContinueRequested(row.uid, time.monotonic(), reason=asked.reason), by)
            return Changed(uid=row.uid, changed=changed, state=state.name, dry_run=asked.dry_run)
        async with self._changing:
            waiting = await self._queued(row)
            changed = waiting.pause is not None
            if changed and not asked.dry_run:
                self._log(ContinueRequested.kind, row, asked.reason, by)
                data = {"reason": asked.reason}
                again = replace(waiting, pause=None)
                await self._change_queued(waiting, ContinueRequested.kind, data, by, becomes=again)
        return Changed(uid=row.uid, changed=changed, state="queued", dry_run=asked.dry_run)

    async def change_work(self, asked: ChangeWork, by: dict[str, Any]) -> Changed:
        """Raises NoSuchRun, AlreadyEnded, TryAgain, UsageError."""
        row = await self._unended(asked.uid)
        governor = self._queries.governor_of(row.uid)
        state = None if governor is None else _at_work(await governor.settled(), row.uid)
        if governor is None or governor.experiment_run is None or not isinstance(state, Running):
            raise TryAgain(
                f"run {row.uid} is {'queued' if state is None else state.name}: none of its work has begun"
            )
        phase = governor.experiment_run.phases[state.phase]
        require_work(asked, phase)
        if not await self._journal.read(partial(self._is_unended, row.uid, state.phase, asked, phase)):
            return Changed(uid=row.uid, changed=False, state=state.name, dry_run=asked.dry_run)
        if not asked.dry_run:
            event = WorkChangeRequested(
                row.uid,
                time.monotonic(),
                change=asked.change,
                phase=state.phase,
                episode=asked.episode,
                task=asked.task or "",
                reason=asked.reason or f"{asked.change} by request",
            )
            work = {"episode": asked.episode} if asked.task is None else {"task": asked.task}
            self._log(event.kind, row, asked.reason, by, change=asked.change, phase=phase.name, **work)
            await governor.command(event, by)
        return Changed(uid=row.uid, changed=True, state=state.name, dry_run=asked.dry_run)

    async def change_run(self, asked: ChangeRun, by: dict[str, Any]) -> RunChanged:
        """Raises NoSuchRun, AlreadyEnded, TryAgain, UsageError, RunFileError, NotPermitted for code that it may not name."""
        return await self._once_in_place(lambda: self._change_run(asked, by))

    async def _change_run(self, asked: ChangeRun, by: dict[str, Any]) -> RunChanged:
        async with self._changing:  # each begins with what the one before has recorded
            row = await self._unended(asked.uid)
            before = await asyncio.to_thread(parse, row.spec, row.name)
            change = await asyncio.to_thread(changed_run, before, asked.values)
            await asyncio.to_thread(self._allowed.require_change, before, change.run, folder=row.folder)
            if (governor := self._queries.governor_of(row.uid)) is not None:
                state = _at_work(await governor.settled(), row.uid)
                phase = state.phase if isinstance(state, Running) else None
                active = governor.in_work(row.uid)
                accepted = accept(
                    change,
                    active.assignment,
                    params=row.params,
                    phase=phase,
                    knows_tasks=active.limits.knows_tasks,
                    resumes=row.parent is not None,
                )
                if change.keys and not asked.dry_run:
                    self._log(PlanChangeRequested.kind, row, asked.reason, by, changes=accepted.told)
                    await governor.change_plan(accepted, by, asked.reason)
                return _run_changed(asked, row, state.name, accepted.values)
            waiting = await self._queued(row)
            begun, resumes = row.started_at is not None, row.parent is not None
            require_possible(change, first_phase=waiting.first_phase, begun=begun, resumes=resumes)
            self._daemon.sharing.machine.require_possible(change.run.requires)
            values = change.told()
            if change.keys and not asked.dry_run:
                plain = msgspec.to_builtins(values)
                self._log(PlanChangeRequested.kind, row, asked.reason, by, changes=plain)
                data = {"changes": plain, "reason": asked.reason}
                params = change.params(row.params)
                await self._change_queued(
                    waiting,
                    PlanChangeRequested.kind,
                    data,
                    by,
                    becomes=replace(waiting, priority=change.run.priority, requires=change.run.requires),
                    also=partial(change.record, uid=row.uid, params=params),
                )
            return _run_changed(asked, row, "queued", values)

    def _is_unended(self, uid: str, index: int, asked: ChangeWork, phase: Phase) -> bool:
        """Whether it has not ended, and is not cancelled by an earlier request. Blocks."""
        if asked.task is not None:
            name, run = task_and_run(asked.task)
            cancelled: Container[Any] = cancellations(self._journal, uid, index, "task")
            if asked.task in cancelled or name in cancelled:
                return False
            if run is not None:
                return not self._journal.has_run_ended(uid, index, name, run)
            [task] = [task for task in phase.tasks if task.id == name]
            return self._journal.runs_ended(uid, index, name) < task.repeat
        assignment = Assignment.of(self._queries.find_row(uid), Waiting(uid=uid))
        ended = figures_of(self._journal, assignment, index).ended
        return (
            asked.episode not in cancellations(self._journal, uid, index, "episode")
            and asked.episode not in ended
        )

    async def _once_in_place(self, answer: Callable[[], Awaitable[T]]) -> T:
        """Waits for a run that is on its way from its slot into the queue, as after a hard pause: that takes a moment."""
        now = asyncio.get_running_loop().time
        until = now() + MOVING_SECONDS
        while True:
            movement = self._daemon.limits.movement
            try:
                return await answer()
            except _Moving:
                if now() >= until:
                    raise
            with suppress(TimeoutError):
                async with asyncio.timeout(LOOK_SECONDS):
                    await movement.wait()

    async def _unended(self, uid: str) -> RunRow:
        row: RunRow = await self._journal.read(partial(self._queries.find_row, uid))
        if damage := self._refuse_ended(row):
            raise TryAgain(f"run {row.uid} can only be aborted: its record is damaged ({damage})")
        return row

    async def _queued(self, row: RunRow) -> Waiting:
        """Raises TryAgain for one that is on its way from the queue to a slot, or back."""
        if (waiting := self._daemon.queue.find(row.uid)) is not None:
            return waiting
        self._refuse_ended(await self._journal.read(partial(self._queries.find, row.uid)))
        if why := self._daemon.held.get(row.uid):
            raise (_Moving if why == LEAVING else TryAgain)(f"run {row.uid} waits for {why}")
        raise _Moving(f"run {row.uid} is between queue and slot, try again")

    async def _change_queued(
        self,
        waiting: Waiting,
        kind: str,
        data: dict[str, Any],
        by: dict[str, Any],
        *,
        becomes: Waiting,
        also: Callable[[Transaction], None] = lambda _: None,
    ) -> None:
        """The run does not leave the queue while that is being recorded. Without a time, seconds in work are not counted here. Only with
        `_changing`.
        """
        queue, uid = self._daemon.queue, waiting.uid

        def change(transaction: Transaction) -> None:
            also(transaction)
            transaction.event(uid, kind, {**data, "by": BY, "who": by})

        then = waiting
        queue.pause(uid, becomes.pause or waiting.pause or "it is being changed")
        try:
            await self._journal.write(change)
            then = becomes
        finally:
            if uid in queue:  # it may have been aborted meanwhile
                queue.set(then)
            self._daemon.dispatch()

    def _log(self, event: str, row: RunRow, reason: str, by: dict[str, Any], **more: Any) -> None:
        log.info(event, run=row.uid, run_name=row.name, by=by, reason=reason, **more)

    async def abort(self, asked: Abort, by: dict[str, Any]) -> Done:
        """Raises NoSuchRun, AlreadyEnded, TryAgain."""
        row = await self._journal.read(partial(self._queries.find_row, asked.uid))
        damage = self._refuse_ended(row)
        reason = asked.reason or "aborted by request"
        log.info("run.abort_requested", run=row.uid, run_name=row.name, by=by, reason=reason)
        if (governor := self._queries.governor_of(row.uid)) is not None:
            await governor.abort(row.uid, reason, by=by)
        elif (waiting := self._daemon.queue.remove(row.uid)) is not None:
            try:
                await self._end_queued(waiting, row, reason, damage)
            except BaseException:
                self._daemon.queue.put_back(waiting)
                self._daemon.dispatch()  # a slot may have become free meanwhile
                raise
        elif row.uid in self._daemon.damaged:
            await self._end_damaged(row, reason, damage)
        else:  # it has moved on while its row was read
            self._refuse_ended(await self._journal.read(partial(self._queries.find, row.uid)))
            raise TryAgain(f"run {row.uid} is between queue and slot, try again")
        return Done()

    def _refuse_ended(self, row: RunLine) -> str:
        """Returns the damage of a run that has not ended, "" if there is none. Raises AlreadyEnded."""
        damage = self._queries.damage_of(row)
        if row.ended_at is not None or (row.outcome is not None and not damage):
            raise AlreadyEnded(row.uid, row.outcome or f"with an outcome that can't be read ({damage})")
        return damage

    async def _end_queued(self, waiting: Waiting, row: RunRow, reason: str, damage: str) -> None:
        """Its result has the work of earlier invocations of the daemon, and of the run that it resumes."""
        folder = self._context.run_folder(row.uid)
        try:
            if not damage:
                assignment = await asyncio.to_thread(Assignment.of, row, waiting)
                result = await record_result(
                    self._journal, assignment, outcome="aborted", reason=reason, folder=folder, ended_by=BY
                )
                self._ended(result)
        except UNREADABLE as error:
            damage = damage_in(error)
        except OSError as error:
            raise TryAgain(f"the result of run {row.uid} can't be written: {error}") from error
        if damage:
            await self._end_damaged(row, reason, damage)

    async def _end_damaged(self, row: RunRow, reason: str, damage: str) -> None:
        result, file = await asyncio.to_thread(
            result_of_damaged,
            self._journal,
            row,
            reason=f"{reason}; its record was damaged ({damage})",
            folder=self._context.run_folder(row.uid),
        )
        await self._journal.write(lambda transaction: transaction.end_damaged(row, result, file=file, by=BY))
        self._daemon.damaged.pop(row.uid, None)
        self._ended(result)

    def _ended(self, result: RunResult) -> None:
        """A run has ended that was not in work."""
        self._context.metrics.count("runs_ended", result.outcome)
        run_ended(result, submitted_by=result.submitted_by or None)


def _run_changed(asked: ChangeRun, row: RunRow, state: str, values: tuple[ValueChange, ...]) -> RunChanged:
    return RunChanged(uid=row.uid, changed=bool(values), state=state, dry_run=asked.dry_run, values=values)


def require_work(asked: ChangeWork, phase: Phase) -> None:
    """Raises UsageError, TryAgain where the phase at work does not have what is asked for."""
    if (asked.episode is None) == (asked.task is None):
        raise UsageError("name one episode or one task")
    if asked.phase not in {None, phase.name}:
        raise TryAgain(f"phase {asked.phase!r} is not at work, but {phase.name!r}")
    if asked.task is not None:
        name, run = task_and_run(asked.task)
        known = {task.id: task for task in phase.tasks}
        if name not in known:
            near = difflib.get_close_matches(name, known, n=1)
            hint = f"; did you mean {near[0]!r}?" if near else ""
            raise UsageError(f"phase {phase.name!r} has no task {name!r}{hint}")
        if run is not None:
            _require_run(phase, known[name], run)
        return
    if phase.simulate is None:
        raise UsageError(f"phase {phase.name!r} has tasks alone, and no episodes")
    episodes = planned_episodes(phase.simulate.episodes, phase.evaluate)
    if asked.episode is None or not 0 <= asked.episode < episodes:
        raise UsageError(
            f"phase {phase.name!r} has {episodes} episodes, numbered from 0: none is {asked.episode}"
        )


def _require_run(phase: Phase, task: TaskSection, run: int) -> None:
    if run >= task.repeat == 1:
        raise UsageError(f"task {task.id!r} has one run, without a number: say {task.id}")
    if run >= task.repeat:
        raise UsageError(f"task {task.id!r} has {task.repeat} runs, numbered from 0: none is {run}")
    if min(phase.max_repeat_per_runner or task.repeat, task.repeat) > 1:
        raise UsageError(
            f"a runner does several runs of task {task.id!r} in a row (max_repeat_per_runner), so that one can't be named: say {task.id}"
        )


def _at_work(state: State, uid: str) -> AtWork:
    """Raises TryAgain when the run is ending."""
    if not isinstance(state, AtWork):
        waits = _is_leaving(state) or isinstance(state, Pristine)
        raise (_Moving if waits else TryAgain)(f"run {uid} is {state.name}, try again")
    return state


def _is_leaving(state: State) -> bool:
    """Whether it leaves its slot after a hard pause."""
    return isinstance(state, Stopping) and state.outcome is None and not state.shutdown
