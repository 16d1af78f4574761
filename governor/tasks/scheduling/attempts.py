"""Attempts on runners: from the dispatch to the end, whichever it is.

Rules:
1. A runner executes one run at a time. What waits on it behind that can be taken back, and is, when it has to wait.
2. Running time counts from `Begun`. Queue, cold start and the import of user code are not running time; an import
   has a limit of its own.
3. A decision stands: what ends after its deadline is timed out. But what ended before it is never dropped.
4. An attempt past its deadline is cancelled, and killed when its grace is over; its runner is seen dead before the
   run has its outcome. The rest of its bundle goes to others, unharmed.
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
"""Seconds from a claim to the start of the callable: more means that the import of its module hangs."""
SPARE_LEAD: Final = 2.0
"""Seconds before a deadline at which a spare runner is warmed: a new one takes 0.4 to 1 s."""
SILENCE: Final = 1.0
"""Seconds after a dispatch to an idle runner after which its silence counts as running, from the dispatch on."""
REVOKE_AFTER: Final = 0.05
"""Seconds that a run may take before what waits behind it is taken back."""
REVOKE_PATIENCE: Final = 0.2
"""Seconds for a runner on another node to say what was taken back."""
MISFIRES: Final = 3
"""How often an attempt does not count because its runner was dead before it took it, or was lost with its node."""


class Attempts:
    """What every runner has to do, and what becomes of it."""

    def __init__(self, *, crew: RunnerSlots, outcomes: Outcomes, grace: float) -> None:
        self.crew = crew
        self.outcomes = outcomes
        self.bundles = Bundles()
        self.alarms = Alarms()
        self.now = 0.0
        self._grace = grace
        self._tickets = count(1)
        self._untold: list[RunnerSlot] = []

    def _do(self, effect: Effect) -> None:
        self.outcomes.effects.append(effect)

    def tell_begun(self) -> None:
        """After an event: says of which runs user code has begun and is still at it."""
        for seat in self._untold:
            if seat.untold and seat.run is not None and seat.jobs:
                seat.untold = False
                self._do(AttemptStarted(seat.jobs[0].attempt, seat.run, seat.runner, seat.run_at))
                self.check(seat)
        self._untold.clear()

    # -- what runners say -----------------------------------------------------------------------------------

    def said(self, event: RunnerReported) -> None:
        seat = self.crew.get(event.runner)
        if seat is None:
            return
        for message in event.messages:
            if not seat.jobs or message.ticket != seat.jobs[0].attempt.ticket:
                continue
            if type(message) is Over:
                self._over(seat, seat.jobs[0], message)
            elif type(message) is Begun:
                self._begun(seat, message.run, message.at)
            else:
                self._claimed(seat)

    def _claimed(self, seat: RunnerSlot) -> None:
        if seat.presumed and seat.state == "working":
            seat.not_begun()
        elif seat.taken:
            return
        seat.taken = True
        seat.waits_since = self.now
        self._set_alarm(seat, self.now + IMPORT_LIMIT)
        if len(seat.jobs) > 1:
            self.revoke(seat)

    def _begun(self, seat: RunnerSlot, run: int, at: float) -> None:
        attempt, piece = seat.jobs[0]
        if attempt.runs[seat.position : seat.position + 1] != (run,):
            return
        seat.taken, seat.presumed = True, False
        seat.run, seat.run_at = run, at
        seat.last = (seat.jobs[0], run, at, None)
        if not seat.untold:
            seat.untold = True
            self._untold.append(seat)
        if seat.position == 0:
            seat.started_at = piece.began = at
            seat.deadline = None if attempt.limit is None else at + attempt.limit
        if piece.withdrawn and seat.state == "working":
            self.doom(seat, Termination("cancelled", piece.withdrawn, retry=False))

    def _over(self, seat: RunnerSlot, job: Job, said: Over) -> None:
        attempt, piece = job
        if attempt.runs[seat.position : seat.position + 1] != (said.run,):
            return
        seat.position += 1
        seat.untold = False
        seat.run = None
        seat.last = (job, said.run, seat.run_at, said.at)
        if seat.doom is not None:
            self._over_after_all(seat, job, seat.doom, said)
            return
        if said.error:
            self._failed(seat, job, said)
        else:
            self.bundles.seen(attempt.task.call, said.seconds)
            self.outcomes.succeed(job, said, self.now)
        if said.dropped or seat.position == len(attempt.runs):
            if piece.node.batch.limits is not None and not piece.missing:
                self._observe(seat, piece, said.at)
            self.outcomes.again(piece, self.now, attempts=attempt.number)
            self._next_job(seat, said.at)

    def _failed(self, seat: RunnerSlot, job: Job, said: Over) -> None:
        """A run has ended by itself, badly."""
        self.outcomes.fail(job, said.run, Termination("failed", said.error, seconds=said.seconds), self.now)
        if said.run in job.piece.missing:
            seat.failed |= {said.run}

    def _observe(self, seat: RunnerSlot, piece: SubTask, at: float) -> None:
        """A sub-task has taken so long, or was stopped: the dynamic time-out learns from it."""
        limits = piece.node.batch.limits
        if limits is not None and seat.started_at is not None:
            limits.observe(piece.node.batch.id, max(0.0, at - seat.started_at), piece.node.spec.is_eval)

    def _over_after_all(self, seat: RunnerSlot, job: Job, doom: Termination, said: Over) -> None:
        """A run ended by itself, before the kill: it counts if it was in time, or was only not wanted."""
        late = doom.outcome == "timed_out" and (seat.deadline is None or said.at > seat.deadline)
        if not late and not said.error:
            self.outcomes.succeed(job, said, self.now)
        elif not late and doom.outcome != "cancelled":
            self._failed(seat, job, said)
        over = said.dropped or seat.position == len(job.attempt.runs)
        if seat.state == "dying" or not over:
            return
        in_time = doom.outcome == "timed_out" and not late
        if in_time or doom.keep_runner or not job.piece.missing or len(seat.jobs) > 1:
            # What is behind it may have begun: it is not to be harmed.
            self.outcomes.close(job, seat.failed, doom, self.now)
            self._next_job(seat, said.at)
        else:
            self.kill(seat, doom)

    def _next_job(self, seat: RunnerSlot, at: float) -> None:
        """The first job is over, and the runner lives."""
        seat.jobs.popleft()
        if not seat.jobs:
            self.crew.release(seat)
            return
        revoking = seat.revoking
        seat.clear()
        seat.state, seat.revoking, seat.waits_since = "working", revoking, at
        self._set_alarm(seat, at + SILENCE)

    # -- deadlines, cancellation, death ---------------------------------------------------------------------

    def doom(self, seat: RunnerSlot, doom: Termination) -> None:
        """The attempt in work is to end. What waits behind it is taken back first; then it gets its grace."""
        grace = self._grace_of(seat)
        if grace == 0 and len(seat.jobs) == 1:
            self.kill(seat, doom)
            return
        seat.state = "ending"
        seat.doom = doom
        seat.kill_at = self.now + (grace or REVOKE_PATIENCE)
        self._set_alarm(seat, seat.kill_at)
        if grace == 0:
            self.revoke(seat)
        else:
            self._do(CancelAttempt(seat.runner, seat.jobs[0].attempt.ticket))

    def _grace_of(self, seat: RunnerSlot) -> float:
        own = seat.jobs[0].piece.node.batch.spec.grace
        return self._grace if own is None else own

    def observe_stopped(self, seat: RunnerSlot) -> None:
        """The attempt in work is about to be stopped although nothing is wrong with it."""
        self._observe(seat, seat.jobs[0].piece, self.now)

    def kill(self, seat: RunnerSlot, doom: Termination) -> None:
        if seat.state == "dying":
            return
        self.crew.dismiss(seat)
        seat.doom = doom
        self._do(KillRunner(seat.runner, doom.error))

    def gone(self, event: RunnerGone) -> None:
        seat = self.crew.remove(event.runner)
        if seat is None:
            return
        if seat.state == "starting" and not event.node_lost and self.crew.start_failed(seat.shape, self.now):
            self._none_can_be_started(seat.shape, event.reason)
        if not seat.jobs:
            return
        head = seat.jobs.popleft()
        while seat.jobs:
            self.outcomes.unharmed(seat.jobs.pop().piece, self.now)
        if seat.doom is not None:
            self.outcomes.close(head, seat.failed, seat.doom, self.now)
            return
        crashed = Termination(
            "crashed", event.reason, seconds=0.0 if seat.run is None else event.now - seat.run_at
        )
        if (seat.taken and not event.node_lost) or head.piece.misfires >= MISFIRES:
            self.outcomes.close(head, seat.failed, crashed, self.now)
            return
        head.piece.misfires += 1
        if seat.run is not None and not seat.untold:
            self._do(AttemptEnded(head.attempt, seat.run, crashed.outcome, crashed.error, crashed.seconds))
        self.outcomes.unharmed(head.piece, self.now)

    def _none_can_be_started(self, shape: Shape, reason: str) -> None:
        """Starts are tried again after a while: what waits meanwhile has another runner, or fails."""
        self.alarms.set_core(self.crew.next_start(shape))
        if not self.crew.lives(shape):
            self.outcomes.give_up(shape, f"no runner can be started: {reason}", self.now)

    def revoke(self, seat: RunnerSlot) -> None:
        if not seat.revoking:
            seat.revoking = True
            self._do(Revoke(seat.runner))

    def revoked(self, event: Revoked) -> None:
        seat = self.crew.get(event.runner)
        if seat is None:
            return
        seat.revoking = False
        tickets = set(event.tickets)
        back = [job for job in seat.jobs if job.attempt.ticket in tickets]
        for job in reversed(back):
            seat.jobs.remove(job)
            self.outcomes.unharmed(job.piece, self.now)
        if back and not seat.jobs and seat.state in ("working", "ending"):
            self.crew.release(seat)
        elif seat.state == "ending" and seat.doom is not None and self._grace_of(seat) == 0:
            self.kill(seat, seat.doom)

    # -- time -----------------------------------------------------------------------------------------------

    def _set_alarm(self, seat: RunnerSlot, when: float) -> None:
        if seat.alarm_at is None or when < seat.alarm_at:
            seat.alarm_at = when
            self.alarms.set_runner(when, seat.runner)

    def check(self, seat: RunnerSlot) -> None:
        """Does what is due for this runner, and sets its next alarm."""
        if seat.state == "ending" and seat.kill_at is not None and seat.doom is not None:
            if self.now >= seat.kill_at:
                self.kill(seat, seat.doom)
            else:
                self._set_alarm(seat, seat.kill_at)
        elif seat.state == "working" and seat.started_at is None:
            self._check_silence(seat)
        elif seat.state == "working":
            self._check_run(seat)

    def _check_run(self, seat: RunnerSlot) -> None:
        if seat.run is not None and len(seat.jobs) > 1:
            if self.now >= seat.run_at + REVOKE_AFTER:
                self.revoke(seat)
            else:
                self._set_alarm(seat, seat.run_at + REVOKE_AFTER)
        if seat.deadline is None or seat.started_at is None:
            return
        if self.now >= seat.deadline:
            limit = seat.deadline - seat.started_at
            error = f"ran longer than its timeout of {limit:.6g} s"
            self._observe(seat, seat.jobs[0].piece, self.now)
            self.doom(seat, Termination("timed_out", error, seconds=self.now - seat.started_at))
        elif self.now >= seat.deadline - SPARE_LEAD:
            seat.spare_wanted = True
            self._set_alarm(seat, seat.deadline)
        else:
            self._set_alarm(seat, seat.deadline - SPARE_LEAD)

    def _check_silence(self, seat: RunnerSlot) -> None:
        """It has work and has not begun it."""
        patience = IMPORT_LIMIT if seat.taken else SILENCE
        if self.now < seat.waits_since + patience:
            self._set_alarm(seat, seat.waits_since + patience)
        elif seat.taken:
            call = seat.jobs[0].attempt.task.call
            error = f'the import of "{call}" took longer than {IMPORT_LIMIT:g} s'
            self.kill(seat, Termination("failed", error))
        else:
            self._begun(seat, seat.jobs[0].attempt.runs[0], seat.waits_since)
            seat.presumed = True
            self.check(seat)

    def dispatch(self, seat: RunnerSlot, pieces: list[SubTask]) -> None:
        self.crew.occupy(seat)
        for piece in pieces:
            task = piece.node.spec
            limit = task.timeout
            limits, batch = piece.node.batch.limits, piece.node.batch.id
            if limits is not None and not task.is_eval:
                limit = limits.limit(limit)
            piece.began = None
            limit = min(math.inf if limit is None else limit, piece.left(self.now))
            piece.limit = limit = None if limit == math.inf else limit
            attempt = Attempt(next(self._tickets), batch, task, piece.missing, piece.number, limit)
            seat.jobs.append(Job(attempt, piece))
        seat.waits_since = self.now
        self._set_alarm(seat, self.now + SILENCE)
        attempts = tuple(job.attempt for job in seat.jobs)
        self._do(Dispatch(seat.runner, seat.place or 0, attempts))
