"""A scheduling core with simulated runners: for scripted sequences of events, and for random ones that are possible."""

from __future__ import annotations

from collections import Counter, deque

from governor.messages import TaskSpec
from governor.tasks.protocol.wire import Begun, Loading, Over
from governor.tasks.scheduling.core import Core
from governor.tasks.scheduling.events import (
    AttemptEnded,
    BatchEnded,
    BatchSpec,
    BatchSubmitted,
    CancelAttempt,
    Cancelled,
    Dispatch,
    KillRunner,
    Revoke,
    Revoked,
    RunEnded,
    RunnerGone,
    RunnerReady,
    RunnerReported,
    StartRunner,
    TaskChanged,
    TaskLimitsChanged,
    Tick,
)

GPU = (("gpus", 1.0),)


def task(name, *needs, **fields):
    return TaskSpec(id=name, call=fields.pop("call", "m:f"), depends_on=needs, **fields)


class Driver:
    """A core with its effects in a list, for scripted events. Submits one batch named "b" at once."""

    def __init__(self, *tasks, slots=2, batch=None, **fields):
        self.core = Core(capacity={(): slots, GPU: 1}, **fields)
        self.effects = []
        if tasks:
            self.submit(*tasks, **(batch or {}))

    def submit(self, *tasks, batch="b", now=0.0, limits=None, **fields):
        return self.on(BatchSubmitted(now, BatchSpec(id=batch, tasks=tasks, **fields), limits))

    def on(self, event):
        new = self.core.on(event)
        self.effects += new
        return new

    def of(self, kind, effects=None):
        return [
            effect for effect in (self.effects if effects is None else effects) if isinstance(effect, kind)
        ]

    def records(self, batch="b"):
        return {(e.record.task, e.record.run): e.record for e in self.of(RunEnded) if e.batch == batch}

    def ready(self, runner, now=0.0):
        """Reports a ready runner. Returns the dispatch that follows, or None."""
        sent = self.of(Dispatch, self.on(RunnerReady(now, runner)))
        return sent[0] if sent else None

    def begin(self, sent, now, run=None, index=0):
        attempt = sent.attempts[index]
        return self.on(
            RunnerReported(
                now, sent.runner, [Begun(attempt.ticket, attempt.runs[0] if run is None else run, now)]
            )
        )

    def end(self, sent, now, *, value=None, error="", index=0, run=None, seconds=0.1, **fields):
        attempt = sent.attempts[index]
        run = attempt.runs[0] if run is None else run
        over = Over(attempt.ticket, run, now, seconds, error=error, value=value, **fields)
        return self.on(RunnerReported(now, sent.runner, [over]))

    def do(self, sent, now, **fields):
        """Starts and ends a run at the same time."""
        self.begin(sent, now, **{key: fields[key] for key in ("run", "index") if key in fields})
        return self.end(sent, now, **fields)

    def import_(self, sent, now, index=0):
        return self.on(RunnerReported(now, sent.runner, [Loading(sent.attempts[index].ticket)]))

    def revoked(self, sent, now, *indices):
        return self.on(Revoked(now, sent.runner, tuple(sent.attempts[index].ticket for index in indices)))

    def gone(self, runner, now, reason="dead", *, node_lost=False):
        return self.on(RunnerGone(now, runner, reason, node_lost))

    def tick(self, now):
        return self.on(Tick(now))

    def cancel(self, now, reason="enough", **fields):
        return self.on(Cancelled(now, "b", reason, **fields))

    def change(self, name, now, *, again=False, run=None):
        return self.on(TaskChanged(now, "b", name, "by hand", again, run))

    def change_limits(self, name, now, **limits):
        return self.on(TaskLimitsChanged(now, "b", task(name, **limits)))


class Body:
    """A simulated runner process: executes its bundle in order, run by run."""

    def __init__(self):
        self.ready = False
        self.queue = deque()
        self.current = None
        self.running = False
        self.unread = []
        self.cancelled = False
        self.dead = False

    def busy(self):
        return self.current is not None or bool(self.queue)


class World:
    """Simulated runners, clock and users: draws the next event among those that are possible."""

    def __init__(self, core, choose, hang=0.1):
        self.core = core
        self.choose = choose
        self.hang = hang
        self.now = 0.0
        self.bodies = {}
        self.dying = {}
        self.revoking = set()
        self.ended = {}
        self.executed = []
        self.failed = set()
        self.batches_ended = {}
        self.granted = Counter()
        self.old_news = []

    def feed(self, event):
        self.perform(self.core.on(event))
        if not isinstance(event, (BatchSubmitted, Cancelled, TaskChanged)):
            self.old_news.append(event)

    def perform(self, effects):  # noqa: C901  # one answer for each kind of effect
        for effect in effects:
            match effect:
                case StartRunner(runner):
                    assert runner not in self.bodies
                    self.bodies[runner] = Body()
                case Dispatch(runner, _, attempts):
                    body = self.bodies[runner]
                    assert body.ready, "work for a runner that is not ready"
                    assert not body.busy() or body.dead, "one bundle at a time"
                    for attempt in attempts:
                        assert attempt.runs, "no empty attempt"
                        assert attempt.batch not in self.batches_ended
                        for run in attempt.runs:
                            assert (attempt.batch, attempt.task.id, run) not in self.ended, (
                                "work without outcome"
                            )
                    body.queue.extend(attempts)
                case Revoke(runner):
                    self.revoking.add(runner)
                case CancelAttempt(runner, ticket):
                    self.revoking.add(runner)
                    body = self.bodies[runner]
                    if body.running and body.current[0].ticket == ticket:
                        body.cancelled = True
                case KillRunner(runner):
                    assert runner in self.bodies, "a dead runner is not killed"
                    assert runner not in self.dying, "once is enough"
                    self.dying[runner] = True
                case AttemptEnded(attempt, run):
                    key = (attempt.ticket, run)
                    assert key not in self.failed, "a run of an attempt fails once"
                    self.failed.add(key)
                case RunEnded(batch, record):
                    key = (batch, record.task, record.run)
                    assert key not in self.ended, "one outcome"
                    assert batch not in self.batches_ended, "nothing follows the end"
                    self.ended[key] = record
                case BatchEnded(batch):
                    assert batch not in self.batches_ended
                    self.batches_ended[batch] = effect

    def moves(self):
        for runner, body in self.bodies.items():
            if runner in self.revoking:
                yield "revoke", runner
            if runner in self.dying:
                yield "die", runner
            if body.unread:
                yield "read", runner
            if body.dead:
                if not body.unread:
                    yield "forget", runner
            elif not body.ready:
                yield "boot", runner
            elif body.busy():
                yield "work", runner
        if self.core.next_alarm() is not None:
            yield "tick", None

    def step(self):
        moves = list(self.moves())
        if not moves:
            return False
        self.now += self.choose.random() * 0.3
        if self.old_news and self.choose.random() < 0.05:
            self.perform(self.core.on(self.choose.choice(self.old_news)))
            moves = list(self.moves())
            if not moves:
                return True
        kind, runner = self.choose.choice(moves)
        getattr(self, f"do_{kind}")(runner)
        return True

    def do_tick(self, _):
        self.now = max(self.now, self.core.next_alarm())
        self.feed(Tick(self.now))

    def do_boot(self, runner):
        if self.choose.random() < 0.08:
            self.bodies[runner].dead = True
            return
        self.bodies[runner].ready = True
        self.feed(RunnerReady(self.now, runner))

    def do_revoke(self, runner):
        """The core gets back the work that the runner has not claimed."""
        self.revoking.discard(runner)
        body = self.bodies[runner]
        back = tuple(attempt.ticket for attempt in body.queue)
        body.queue.clear()
        self.feed(Revoked(self.now, runner, back))

    def do_die(self, runner):
        self.bodies[runner].dead = True
        self.dying.pop(runner)
        if self.choose.random() < 0.5:
            self.bodies[runner].unread = self.bodies[
                runner
            ].unread  # read before the runner is gone, in any case

    def do_forget(self, runner):
        del self.bodies[runner]
        self.dying.pop(runner, None)
        self.revoking.discard(runner)
        self.feed(RunnerGone(self.now, runner, "dead", self.choose.random() < 0.2))

    def do_read(self, runner):
        body = self.bodies[runner]
        some = self.choose.randint(1, len(body.unread))
        reports, body.unread = body.unread[:some], body.unread[some:]
        self.feed(RunnerReported(self.now, runner, reports))

    def do_work(self, runner):
        body = self.bodies[runner]
        if self.choose.random() < 0.04:
            body.dead = True
            return
        if body.current is None:
            attempt = body.queue.popleft()
            body.current = (attempt, deque(attempt.runs))
            if self.choose.random() < 0.3:
                body.unread.append(Loading(attempt.ticket))
            return
        attempt, runs = body.current
        if not body.running:
            body.running = True
            body.cancelled = False
            key = (attempt.batch, attempt.task.id, runs[0])
            assert self.ended.get(key) is None, "what has its outcome is not begun"
            assert not any(
                other is not body and not other.dead and other.running and other.key == key
                for other in self.bodies.values()
            ), "a run is on one runner only"
            body.key = key
            body.unread.append(Begun(attempt.ticket, runs[0], self.now))
            body.hung = self.choose.random() < self.hang
            return
        if body.hung and not (body.cancelled and self.choose.random() < 0.5):
            return
        error = "cancelled" if body.cancelled else ("bad" if self.choose.random() < 0.3 else "")
        dropped = body.cancelled
        body.unread.append(
            Over(attempt.ticket, runs[0], self.now, 0.1, error=error, value=1, dropped=dropped)
        )
        if not error:
            self.executed.append(body.key)
        body.running = False
        runs.popleft()
        if not runs or body.cancelled:
            body.current = None
