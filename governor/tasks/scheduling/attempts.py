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
    from governor.tasks.scheduling.batch import SubTask
    from governor.tasks.scheduling.events import (
        Effect,
        Revoked,
        RunnerGone,
        RunnerReported,
        Shape,
    )
    from governor.tasks.scheduling.outcomes import Outcomes
    from governor.tasks.scheduling.runner_slots import RunnerSlot, RunnerSlots

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
        self.now = 0.0
        self._grace = grace
        self._tickets = count(1)
        self._unannounced: list[RunnerSlot] = []

    def _emit(self, effect: Effect) -> None:
        self.outcomes.effects.append(effect)

    def announce_started(self) -> None:
        """After an event: emits AttemptStarted for runs that have begun and not ended."""
        for slot in self._unannounced:
            if slot.unannounced and slot.run is not None and slot.jobs:
                slot.unannounced = False
                self._emit(AttemptStarted(slot.jobs[0].attempt, slot.run, slot.runner, slot.run_at))
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
                self._on_begun(slot, message.run, message.at)
            else:
                self._on_claimed(slot)

    def _on_claimed(self, slot: RunnerSlot) -> None:
        if slot.presumed and slot.state == "working":
            slot.not_begun()
        elif slot.taken:
            return
        slot.taken = True
        slot.waits_since = self.now
        self._set_alarm(slot, self.now + IMPORT_LIMIT)
        if len(slot.jobs) > 1:
            self.revoke(slot)

    def _on_begun(self, slot: RunnerSlot, run: int, at: float) -> None:
        attempt, subtask = slot.jobs[0]
        if attempt.runs[slot.position : slot.position + 1] != (run,):
            return
        slot.taken, slot.presumed = True, False
        slot.run, slot.run_at = run, at
        slot.last = (slot.jobs[0], run, at, None)
        if not slot.unannounced:
            slot.unannounced = True
            self._unannounced.append(slot)
        if slot.position == 0:
            slot.started_at = subtask.began = at
            slot.deadline = None if attempt.limit is None else at + attempt.limit
        if subtask.withdrawn and slot.state == "working":
            self.terminate(slot, Termination("cancelled", subtask.withdrawn, retry=False))

    def _run_over(self, slot: RunnerSlot, job: Job, report: Over) -> None:
        attempt, subtask = job
        if attempt.runs[slot.position : slot.position + 1] != (report.run,):
            return
        slot.position += 1
        slot.unannounced = False
        slot.run = None
        slot.last = (job, report.run, slot.run_at, report.at)
        if slot.termination is not None:
            self._ended_while_terminating(slot, job, slot.termination, report)
            return
        if report.error:
            self._failed(slot, job, report)
        else:
            self.bundles.observe(attempt.task.call, report.seconds)
            self.outcomes.succeed(job, report, self.now)
        if report.dropped or slot.position == len(attempt.runs):
            if subtask.node.batch.limits is not None and not subtask.missing:
                self._observe(slot, subtask, report.at)
            self.outcomes.retry_missing(subtask, self.now, attempts=attempt.number)
            self._next_job(slot, report.at)

    def _failed(self, slot: RunnerSlot, job: Job, report: Over) -> None:
        """A run raised an exception."""
        self.outcomes.fail(
            job, report.run, Termination("failed", report.error, seconds=report.seconds), self.now
        )
        if report.run in job.subtask.missing:
            slot.failed |= {report.run}

    def _observe(self, slot: RunnerSlot, subtask: SubTask, at: float) -> None:
        """Passes the duration of a sub-task that ended or was stopped to the dynamic time-out."""
        limits = subtask.node.batch.limits
        if limits is not None and slot.started_at is not None:
            limits.observe(subtask.node.batch.id, max(0.0, at - slot.started_at), subtask.node.spec.is_eval)

    def _ended_while_terminating(
        self, slot: RunnerSlot, job: Job, termination: Termination, report: Over
    ) -> None:
        """A run ended before the kill: it counts if it was in time, or if it succeeded and was only cancelled."""
        late = termination.outcome == "timed_out" and (slot.deadline is None or report.at > slot.deadline)
        if not late and not report.error:
            self.outcomes.succeed(job, report, self.now)
        elif not late and termination.outcome != "cancelled":
            self._failed(slot, job, report)
        over = report.dropped or slot.position == len(job.attempt.runs)
        if slot.state == "dying" or not over:
            return
        in_time = termination.outcome == "timed_out" and not late
        if in_time or termination.keep_runner or not job.subtask.missing or len(slot.jobs) > 1:
            # The attempt behind it may have begun and must not be killed.
            self.outcomes.close(job, slot.failed, termination, self.now)
            self._next_job(slot, report.at)
        else:
            self.kill(slot, termination)

    def _next_job(self, slot: RunnerSlot, at: float) -> None:
        """The first job is over, and the runner goes on."""
        slot.jobs.popleft()
        if not slot.jobs:
            self.slots.release(slot)
            return
        revoking = slot.revoking
        slot.clear()
        slot.state, slot.revoking, slot.waits_since = "working", revoking, at
        self._set_alarm(slot, at + START_PRESUMED_AFTER)

    # -- deadlines, cancellation, death ---------------------------------------------------------------------

    def terminate(self, slot: RunnerSlot, termination: Termination) -> None:
        """Cancels the running attempt: attempts behind it are taken back first, then its grace period begins."""
        grace = self._grace_of(slot)
        if grace == 0 and len(slot.jobs) == 1:
            self.kill(slot, termination)
            return
        slot.state = "ending"
        slot.termination = termination
        slot.kill_at = self.now + (grace or REVOKE_TIMEOUT)
        self._set_alarm(slot, slot.kill_at)
        if grace == 0:
            self.revoke(slot)
        else:
            self._emit(CancelAttempt(slot.runner, slot.jobs[0].attempt.ticket))

    def _grace_of(self, slot: RunnerSlot) -> float:
        own = slot.jobs[0].subtask.node.batch.spec.grace
        return self._grace if own is None else own

    def observe_stopped(self, slot: RunnerSlot) -> None:
        """Records the duration of the running attempt, which is stopped because `min_num` was reached."""
        self._observe(slot, slot.jobs[0].subtask, self.now)

    def kill(self, slot: RunnerSlot, termination: Termination) -> None:
        if slot.state == "dying":
            return
        self.slots.mark_dying(slot)
        slot.termination = termination
        self._emit(KillRunner(slot.runner, termination.error))

    def on_gone(self, event: RunnerGone) -> None:
        slot = self.slots.remove(event.runner)
        if slot is None:
            return
        if slot.state == "starting" and not event.node_lost and self.slots.start_failed(slot.shape, self.now):
            self._starts_failed(slot.shape, event.reason)
        if not slot.jobs:
            return
        head = slot.jobs.popleft()
        while slot.jobs:
            self.outcomes.requeue(slot.jobs.pop().subtask, self.now)
        if slot.termination is not None:
            self.outcomes.close(head, slot.failed, slot.termination, self.now)
            return
        crashed = Termination(
            "crashed", event.reason, seconds=0.0 if slot.run is None else event.now - slot.run_at
        )
        if (slot.taken and not event.node_lost) or head.subtask.misfires >= MISFIRES:
            self.outcomes.close(head, slot.failed, crashed, self.now)
            return
        head.subtask.misfires += 1
        if slot.run is not None and not slot.unannounced:
            self._emit(AttemptEnded(head.attempt, slot.run, crashed.outcome, crashed.error, crashed.seconds))
        self.outcomes.requeue(head.subtask, self.now)

    def _starts_failed(self, shape: Shape, reason: str) -> None:
        """Starts are retried after a pause; without another usable runner, all waiting sub-tasks fail."""
        self.alarms.set_core(self.slots.next_start(shape))
        if not self.slots.has_usable(shape):
            self.outcomes.fail_waiting(shape, f"no runner can be started: {reason}", self.now)

    def revoke(self, slot: RunnerSlot) -> None:
        if not slot.revoking:
            slot.revoking = True
            self._emit(Revoke(slot.runner))

    def on_revoked(self, event: Revoked) -> None:
        slot = self.slots.get(event.runner)
        if slot is None:
            return
        slot.revoking = False
        tickets = set(event.tickets)
        back = [job for job in slot.jobs if job.attempt.ticket in tickets]
        for job in reversed(back):
            slot.jobs.remove(job)
            self.outcomes.requeue(job.subtask, self.now)
        if back and not slot.jobs and slot.state in ("working", "ending"):
            self.slots.release(slot)
        elif slot.state == "ending" and slot.termination is not None and self._grace_of(slot) == 0:
            self.kill(slot, slot.termination)

    # -- time -----------------------------------------------------------------------------------------------

    def _set_alarm(self, slot: RunnerSlot, when: float) -> None:
        if slot.alarm_at is None or when < slot.alarm_at:
            slot.alarm_at = when
            self.alarms.set_runner(when, slot.runner)

    def check(self, slot: RunnerSlot) -> None:
        """Handles what is due for this runner, and sets its next alarm."""
        if slot.state == "ending" and slot.kill_at is not None and slot.termination is not None:
            if self.now >= slot.kill_at:
                self.kill(slot, slot.termination)
            else:
                self._set_alarm(slot, slot.kill_at)
        elif slot.state == "working" and slot.started_at is None:
            self._check_unstarted(slot)
        elif slot.state == "working":
            self._check_run(slot)

    def _check_run(self, slot: RunnerSlot) -> None:
        if slot.run is not None and len(slot.jobs) > 1:
            if self.now >= slot.run_at + REVOKE_AFTER:
                self.revoke(slot)
            else:
                self._set_alarm(slot, slot.run_at + REVOKE_AFTER)
        if slot.deadline is None or slot.started_at is None:
            return
        if self.now >= slot.deadline:
            limit = slot.deadline - slot.started_at
            error = f"ran longer than its timeout of {limit:.6g} s"
            self._observe(slot, slot.jobs[0].subtask, self.now)
            self.terminate(slot, Termination("timed_out", error, seconds=self.now - slot.started_at))
        elif self.now >= slot.deadline - SPARE_LEAD:
            slot.spare_wanted = True
            self._set_alarm(slot, slot.deadline)
        else:
            self._set_alarm(slot, slot.deadline - SPARE_LEAD)

    def _check_unstarted(self, slot: RunnerSlot) -> None:
        """The runner has work and has not reported its start."""
        timeout = IMPORT_LIMIT if slot.taken else START_PRESUMED_AFTER
        if self.now < slot.waits_since + timeout:
            self._set_alarm(slot, slot.waits_since + timeout)
        elif slot.taken:
            call = slot.jobs[0].attempt.task.call
            error = f'the import of "{call}" took longer than {IMPORT_LIMIT:g} s'
            self.kill(slot, Termination("failed", error))
        else:
            self._on_begun(slot, slot.jobs[0].attempt.runs[0], slot.waits_since)
            slot.presumed = True
            self.check(slot)

    def dispatch(self, slot: RunnerSlot, subtasks: list[SubTask]) -> None:
        self.slots.assign(slot)
        for subtask in subtasks:
            task = subtask.node.spec
            limit = task.timeout
            limits, batch = subtask.node.batch.limits, subtask.node.batch.id
            if limits is not None and not task.is_eval:
                limit = limits.limit(limit)
            subtask.began = None
            limit = min(math.inf if limit is None else limit, subtask.left(self.now))
            subtask.limit = limit = None if limit == math.inf else limit
            attempt = Attempt(next(self._tickets), batch, task, subtask.missing, subtask.number, limit)
            slot.jobs.append(Job(attempt, subtask))
        slot.waits_since = self.now
        self._set_alarm(slot, self.now + START_PRESUMED_AFTER)
        attempts = tuple(job.attempt for job in slot.jobs)
        self._emit(Dispatch(slot.runner, slot.index or 0, attempts))
