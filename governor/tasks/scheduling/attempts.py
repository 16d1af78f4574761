"""Attempts on runners, from the dispatch to the end.

Rules:
1. A runner executes one run at a time. Attempts queued behind it are taken back when they would have to wait.
2. Running time counts from `Begun`. Queue, cold start and the import of user code are not running time; an import
   has a limit of its own.
3. A decision is final: a run that ends after its deadline has timed out. A result from before the deadline counts.
4. An attempt past its deadline is cancelled, and its runner is killed after the grace period; the run gets its outcome
   when the runner has exited. The rest of its bundle is requeued and loses no attempt.
"""

from __future__ import annotations

import math
from itertools import count
from typing import TYPE_CHECKING, Final

from msgspec.structs import replace

from governor.failures import Reason, place_of
from governor.tasks.protocol.wire import Begun, Over
from governor.tasks.scheduling.alarms import Alarms
from governor.tasks.scheduling.bundles import Bundles
from governor.tasks.scheduling.events import (
    Attempt,
    AttemptEnded,
    AttemptStarted,
    CancelAttempt,
    Dispatch,
    KillRunner,
    Revoke,
)
from governor.tasks.scheduling.runner_slots import Job, Termination

if TYPE_CHECKING:
    from governor.messages import TaskOutcome, TaskSpec
    from governor.tasks.scheduling.batch import Batch
    from governor.tasks.scheduling.events import (
        Revoked,
        RunnerGone,
        RunnerReported,
        SchedulerEffect,
        Shape,
    )
    from governor.tasks.scheduling.outcomes import Outcomes
    from governor.tasks.scheduling.runner_slots import RunnerSlot, RunnerSlots
    from governor.tasks.scheduling.task_node import SubTask


IMPORT_LIMIT: Final = 120.0
"""Seconds from a claim to the start of the callable; a longer import is taken as hung."""
SPARE_LEAD: Final = 2.0
"""Seconds before a deadline at which a spare runner is started: a new one takes 0.4 to 1 s."""
START_PRESUMED_AFTER: Final = 1.0
"""Seconds without a report after a dispatch; then the attempt counts as running since the dispatch."""
REVOKE_AFTER: Final = 0.05
"""Seconds that a run may take before the attempts behind it are taken back."""
REVOKE_TIMEOUT: Final = 0.2
"""Seconds for the node of a remote runner to report the attempts that were taken back."""
MISFIRES: Final = 3
"""How often an attempt is not counted because its runner exited before taking it, or was lost with its node."""


class Attempts:
    """The attempts of all runners, and how each ends."""

    def __init__(self, *, slots: RunnerSlots, outcomes: Outcomes, grace: float) -> None:
        self.slots = slots
        self.outcomes = outcomes
        self.bundles = Bundles()
        self.alarms = Alarms()
        self._grace = grace
        self._tickets = count(1)
        self._unannounced: list[RunnerSlot] = []

    def emit(self, effect: SchedulerEffect) -> None:
        self.outcomes.effects.append(effect)

    def announce_started(self) -> None:
        """After an event: emits AttemptStarted for runs that have begun and not ended. Of those that have failed it stands before the
        end.
        """
        for slot in self._unannounced:
            job = slot.jobs[0] if slot.jobs else None
            if job is not None and job.unannounced and job.run is not None:
                job.unannounced = False
                self.emit(AttemptStarted(job.attempt, job.run, slot.runner, job.run_at))
                self.check(slot)
        self._unannounced.clear()

    # -- messages of runners --------------------------------------------------------------------------------

    def on_reported(self, event: RunnerReported) -> None:
        slot = self.slots.get(event.runner)
        if slot is None:
            return
        for message in event.messages:
            if not slot.jobs or message.ticket != slot.jobs[0].attempt.ticket:
                continue
            if type(message) is Over:
                self._run_over(slot, slot.jobs[0], message)
            elif type(message) is Begun:
                self._on_begun(slot, slot.jobs[0], message.run, message.at)
            else:
                self._on_claimed(slot, slot.jobs[0])

    def _on_claimed(self, slot: RunnerSlot, job: Job) -> None:
        if job.presumed and slot.state == "working":
            job.not_begun()
        elif job.taken:
            return
        job.taken = True
        slot.waits_since = self.outcomes.now
        self.check(slot)

    def _on_begun(self, slot: RunnerSlot, job: Job, run: int, at: float) -> None:
        attempt, subtask = job.attempt, job.subtask
        if job.position == len(attempt.runs) or attempt.runs[job.position] != run:
            return
        job.taken, job.presumed = True, False
        job.run, job.run_at = run, at
        slot.last = (job, run, at, None)
        if not job.unannounced:
            job.unannounced = True
            self._unannounced.append(slot)
        if job.position == 0:
            job.started_at = subtask.began = at
            job.deadline = None if attempt.limit is None else at + attempt.limit
        if subtask.withdrawn and slot.state == "working":
            self.terminate(slot, Termination("cancelled", subtask.withdrawn, retry=False))

    def _run_over(self, slot: RunnerSlot, job: Job, report: Over) -> None:
        attempt, subtask = job.attempt, job.subtask
        if job.position == len(attempt.runs) or attempt.runs[job.position] != report.run:
            return
        job.position += 1
        if job.unannounced and report.error:  # where it failed is on record
            self.emit(AttemptStarted(attempt, report.run, slot.runner, job.run_at))
        job.unannounced = False
        job.run = None
        slot.last = (job, report.run, job.run_at, report.at)
        if job.termination is not None:
            self._ended_while_terminating(slot, job, job.termination, report)
            return
        if report.error:
            self._failed(job, report)
        else:
            self.bundles.observe(attempt.task.call, report.seconds)
            self.outcomes.succeed(job, report)
        if report.dropped or job.position == len(attempt.runs):
            if subtask.node.batch.limits is not None and not subtask.unended:
                self.observe(job, report.at)
            if subtask.unended:
                self.outcomes.retry_missing(subtask, attempts=attempt.number)
            self._next_job(slot, report.at)

    def _failed(self, job: Job, report: Over) -> None:
        """A run raised an exception, or its program failed."""
        reason = Reason(report.error, report.traceback)
        outcome: TaskOutcome = "crashed" if report.crashed else "failed"
        failed = Termination(outcome, reason, seconds=report.seconds, metrics=report.metrics)
        self.outcomes.fail(job, report.run, failed)
        if not job.subtask.node.ended(report.run):
            job.failed = {report.run} if job.failed is None else job.failed
            job.failed.add(report.run)

    def observe(self, job: Job, at: float) -> None:
        """Passes the duration of a sub-task that ended or was stopped to the dynamic time-out."""
        node = job.subtask.node
        if node.batch.limits is not None and job.started_at is not None:
            node.batch.limits.observe(node.batch.id, job.elapsed(at), node.spec.is_eval)

    def _ended_while_terminating(
        self, slot: RunnerSlot, job: Job, termination: Termination, report: Over
    ) -> None:
        """A run ended before the kill: it counts if it was in time, or if it succeeded and was only cancelled."""
        late = termination.outcome == "timed_out" and (job.deadline is None or report.at > job.deadline)
        if not late and not report.error:
            self.outcomes.succeed(job, report)
        elif not late and termination.outcome != "cancelled":
            self._failed(job, report)
        elif report.traceback:  # where it was when its time was over
            place = place_of(report.traceback) if termination.outcome == "timed_out" else ""
            error = Reason(termination.error + place, report.traceback)
            job.termination = termination = termination._replace(error=error)
        if job.subtask.unended == 1:  # else other runs would seem to have reported this
            termination = termination._replace(metrics=report.metrics)
        if slot.state == "dying" or not (report.dropped or job.position == len(job.attempt.runs)):
            return
        in_time = termination.outcome == "timed_out" and not late
        if in_time or termination.keep_runner or not job.subtask.unended or len(slot.jobs) > 1:
            # The attempt behind it may have begun and must not be killed.
            if job.subtask.unended:
                self.outcomes.close(job, termination)
            self._next_job(slot, report.at)
        else:
            self.kill(slot, termination)

    def _next_job(self, slot: RunnerSlot, at: float) -> None:
        """The first job is over, and the runner goes on."""
        self._off(slot.jobs.popleft())
        if not slot.jobs:
            self.slots.release(slot)
            return
        slot.state, slot.waits_since = "working", at
        if slot.spare_wanted:
            self.slots.want_spare(slot, wanted=False)
        self._set_alarm(slot, at + START_PRESUMED_AFTER)

    def _off(self, job: Job) -> None:
        """The job is not on its runner any more."""
        del job.subtask.node.batch.at_work[job.attempt.ticket]

    # -- deadlines, cancellation, death ---------------------------------------------------------------------

    def terminate(self, slot: RunnerSlot, termination: Termination) -> None:
        """Cancels the running attempt: attempts behind it are taken back first, then its grace period begins."""
        grace = self._grace_of(slot)
        if grace == 0 and len(slot.jobs) == 1:
            self.kill(slot, termination)
            return
        slot.state = "ending"
        job = slot.jobs[0]
        job.termination = termination
        job.kill_at = self.outcomes.now + (grace or REVOKE_TIMEOUT)
        self._set_alarm(slot, job.kill_at)
        if grace == 0:
            self.revoke(slot)
        else:
            self.emit(CancelAttempt(slot.runner, job.attempt.ticket))

    def _grace_of(self, slot: RunnerSlot) -> float:
        own = slot.jobs[0].subtask.node.batch.spec.grace
        return self._grace if own is None else own

    def kill(self, slot: RunnerSlot, termination: Termination) -> None:
        if slot.state == "dying":
            return
        self.slots.mark_dying(slot)
        if slot.jobs:
            slot.jobs[0].termination = termination
        self.emit(KillRunner(slot.runner, termination.error, is_idle=not slot.jobs))

    def on_gone(self, event: RunnerGone) -> None:
        slot = self.slots.remove(event.runner)
        if slot is None:
            return
        self.alarms.runner_gone()
        if slot.state == "starting" and not event.node_lost:
            self._start_failed(slot.shape, event.reason)
        if not slot.jobs:
            return
        for job in slot.jobs:
            self._off(job)
        head = slot.jobs.popleft()
        while slot.jobs:
            self.outcomes.requeue(slot.jobs.pop().subtask)
        if head.termination is not None:
            self.outcomes.close(head, head.termination)
            return
        crashed = Termination(
            "crashed", event.reason, seconds=0.0 if head.run is None else event.now - head.run_at
        )
        if (head.taken and not event.node_lost) or head.subtask.misfires >= MISFIRES:
            self.outcomes.close(head, crashed)
            return
        head.subtask.misfires += 1
        if head.run is not None and not head.unannounced:
            self.outcomes.close_files(head)
            self.emit(AttemptEnded(head.attempt, head.run, crashed.outcome, crashed.error, crashed.seconds))
        self.outcomes.requeue(head.subtask)

    def _start_failed(self, shape: Shape, reason: str) -> None:
        """After some in a row, starts are retried after a pause; without another usable runner, all waiting sub-tasks fail."""
        if not self.slots.start_failed(shape, self.outcomes.now):
            return
        self.alarms.set(self.slots.next_start(shape), None)
        if not self.slots.has_usable(shape):
            self.outcomes.fail_waiting(shape, f"no runner can be started: {reason}")

    def revoke(self, slot: RunnerSlot) -> None:
        if not slot.revoking:
            slot.revoking = True
            self.emit(Revoke(slot.runner))

    def on_revoked(self, event: Revoked) -> None:
        slot = self.slots.get(event.runner)
        if slot is None:
            return
        slot.revoking = False
        tickets = set(event.tickets)
        back = [job for job in slot.jobs if job.attempt.ticket in tickets]
        left = [job for job in slot.jobs if job.attempt.ticket not in tickets]
        slot.jobs.clear()
        slot.jobs += left
        for job in reversed(back):
            self._off(job)
            self.outcomes.requeue(job.subtask)
        if back and not slot.jobs and slot.state in ("working", "ending"):
            self.slots.release(slot)
        elif slot.state == "ending" and self._grace_of(slot) == 0 and slot.jobs[0].termination is not None:
            self.kill(slot, slot.jobs[0].termination)

    # -- time -----------------------------------------------------------------------------------------------

    def _set_alarm(self, slot: RunnerSlot, when: float) -> None:
        if slot.alarm_at is None or when < slot.alarm_at:
            slot.alarm_at = when
            self.alarms.set(when, slot)

    def check(self, slot: RunnerSlot) -> None:
        """Handles what is due for this runner, and sets its next alarm."""
        if slot.state not in ("working", "ending"):
            return
        job = slot.jobs[0]
        if slot.state == "working":
            if job.started_at is None:
                self._check_unstarted(slot, job)
            else:
                self._check_run(slot, job, job.started_at)
        elif job.kill_at is not None and job.termination is not None:
            if self.outcomes.now >= job.kill_at:
                self.kill(slot, job.termination)
            else:
                self._set_alarm(slot, job.kill_at)

    def _check_run(self, slot: RunnerSlot, job: Job, started_at: float) -> None:
        if job.run is not None:
            self._take_back_after(slot, job.run_at)
        if job.deadline is None:
            return
        if self.outcomes.now >= job.deadline:
            error = f"ran longer than its timeout of {job.deadline - started_at:.6g} s"
            self.observe(job, self.outcomes.now)
            self.terminate(slot, Termination("timed_out", error, seconds=self.outcomes.now - started_at))
        elif self.outcomes.now >= job.deadline - SPARE_LEAD:
            self.slots.want_spare(slot, wanted=True)
            self._set_alarm(slot, job.deadline)
        else:
            self._set_alarm(slot, job.deadline - SPARE_LEAD)

    def _take_back_after(self, slot: RunnerSlot, began: float) -> None:
        """What waits behind the first job, once that takes long."""
        if len(slot.jobs) > 1:
            if self.outcomes.now >= began + REVOKE_AFTER:
                self.revoke(slot)
            else:
                self._set_alarm(slot, began + REVOKE_AFTER)

    def _check_unstarted(self, slot: RunnerSlot, job: Job) -> None:
        """The runner has work and has not reported its start."""
        if job.taken:
            self._take_back_after(slot, slot.waits_since)
        timeout = IMPORT_LIMIT if job.taken else START_PRESUMED_AFTER
        if self.outcomes.now < slot.waits_since + timeout:
            self._set_alarm(slot, slot.waits_since + timeout)
        elif job.taken:
            error = f'the import of "{job.attempt.task.call}" took longer than {IMPORT_LIMIT:g} s'
            self.kill(slot, Termination("failed", error))
        else:
            self._on_begun(slot, job, job.attempt.runs[0], slot.waits_since)
            job.presumed = True
            self.check(slot)

    def change_limits(self, batch: Batch | None, task: TaskSpec) -> None:
        if batch is None or (node := batch.nodes.get(task.id)) is None:
            return
        node.spec = replace(node.spec, timeout=task.timeout, retries=task.retries, retry=task.retry)
        for slot, job in [each for each in batch.at_work.values() if each[1].subtask.node is node]:
            limit = self._set_limit(job.subtask)
            job.attempt = replace(job.attempt, limit=limit)
            if job.started_at is not None and job.termination is None:
                job.deadline = None if limit is None else job.started_at + limit
                self.check(slot)

    def _set_limit(self, subtask: SubTask) -> float | None:
        """Of its current attempt, in seconds."""
        task, batch = subtask.node.spec, subtask.node.batch
        limit = task.timeout
        if batch.limits is not None and not task.is_eval:
            limit = batch.limits.limit(limit)
        if batch.spec.budget is not None:
            limit = min(math.inf if limit is None else limit, subtask.left(self.outcomes.now))
        subtask.limit = None if limit == math.inf else limit
        return subtask.limit

    def dispatch(self, slot: RunnerSlot, subtasks: list[SubTask]) -> None:
        self.slots.assign(slot)
        for subtask in subtasks:
            task, batch = subtask.node.spec, subtask.node.batch
            subtask.began = None
            limit = self._set_limit(subtask)
            attempt = Attempt(next(self._tickets), batch.id, task, subtask.missing, subtask.number, limit)
            job = Job(attempt, subtask)
            slot.jobs.append(job)
            batch.at_work[attempt.ticket] = slot, job
        slot.waits_since = self.outcomes.now
        self._set_alarm(slot, self.outcomes.now + START_PRESUMED_AFTER)
        attempts = tuple(job.attempt for job in slot.jobs)
        self.emit(Dispatch(slot.runner, slot.index or 0, attempts))
