"""The scheduler core: one outcome for every run, whatever the world does, and it does what worlds can do."""

from __future__ import annotations

import random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from governor.messages import TaskRecord, TaskSpec
from governor.tasks.core import IMPORT_LIMIT, MISFIRES, SILENCE, Core
from governor.tasks.crew import START_FAILURES
from governor.tasks.story import (
    AttemptEnded,
    AttemptStarted,
    Dispatch,
    Ended,
    GraphEnded,
    Importing,
    KillRunner,
    Result,
    RunEnded,
    RunnerGone,
    RunnerReady,
    Started,
    StartRunner,
    Stop,
    Tick,
)


def task(name: str, *needs: str, **fields) -> TaskSpec:
    return TaskSpec(id=name, call="m:f", depends_on=needs, **fields)


class Driver:
    """A core with its effects in a list, for stories told by hand."""

    def __init__(self, *tasks: TaskSpec, slots: int = 2, **fields) -> None:
        shapes = {(): slots, (("gpus", 1.0),): 1}
        self.core = Core(tasks=tasks, slots=shapes, **fields)
        self.effects = self.core.begin(0.0)

    def on(self, event):
        new = self.core.on(event)
        self.effects += new
        return new

    def of(self, kind):
        return [effect for effect in self.effects if isinstance(effect, kind)]

    def records(self):
        return {(e.record.task, e.record.run): e.record for e in self.of(RunEnded)}

    def ready(self, runner: int, now: float = 0.0) -> Dispatch | None:
        sent = [effect for effect in self.on(RunnerReady(runner, now)) if isinstance(effect, Dispatch)]
        return sent[0] if sent else None

    def end(self, sent: Dispatch, now: float, value=None, error: str = ""):
        result = None if error else Result(value=value)
        return self.on(
            Ended(
                runner=sent.runner,
                ticket=sent.attempt.ticket,
                now=now,
                seconds=0.1,
                result=result,
                error=error,
            )
        )


def test_a_task_runs_and_its_value_is_the_input_of_the_next():
    driver = Driver(task("a"), task("b", "a"))
    assert driver.effects == [StartRunner(0, ())]
    sent = driver.ready(0)
    [after] = [effect for effect in driver.end(sent, 1.0, value=5) if isinstance(effect, Dispatch)]
    assert after.attempt.task.id == "b"
    assert after.inputs["a"][0].value == 5
    assert driver.end(after, 2.0)[-1] == GraphEnded("tasks_done", 0, "")


def test_the_deadline_counts_from_the_start_not_from_the_dispatch():
    driver = Driver(task("a", timeout=5.0))
    sent = driver.ready(0, 10.0)
    driver.on(Importing(0, sent.attempt.ticket, 10.0))
    driver.on(Started(0, sent.attempt.ticket, 40.0))
    assert not [e for e in driver.on(Tick(44.9)) if isinstance(e, KillRunner)]
    assert driver.core.next_alarm() == 45.0
    assert [e for e in driver.on(Tick(45.0)) if isinstance(e, KillRunner)]
    assert driver.records() == {}, "timed out only when the runner is seen dead"
    assert driver.end(sent, 45.01) == [], "a decision stands"
    driver.on(RunnerGone(0, 45.1, "killed"))
    record = driver.records()["a", 0]
    assert (record.outcome, record.seconds) == ("timed_out", 5.0)


def test_silence_after_a_dispatch_counts_as_running():
    driver = Driver(task("a", timeout=5.0))
    driver.ready(0, 10.0)
    assert driver.on(Tick(10.0 + SILENCE)) == [AttemptStarted(driver.of(Dispatch)[0].attempt, 0, "")]
    assert driver.core.next_alarm() in (13.0, 15.0)
    driver.on(Tick(13.0))
    assert [e for e in driver.on(Tick(15.0)) if isinstance(e, KillRunner)]


def test_an_import_that_hangs_is_a_failure():
    driver = Driver(task("a"))
    sent = driver.ready(0, 0.0)
    driver.on(Importing(0, sent.attempt.ticket, 0.5))
    driver.on(Tick(SILENCE))
    assert driver.on(Tick(0.5 + IMPORT_LIMIT))[0].runner == 0
    driver.on(RunnerGone(0, 200.0, "killed"))
    assert driver.records()["a", 0].outcome == "failed"
    assert "import" in driver.records()["a", 0].error


def test_a_spare_is_warmed_before_a_deadline_and_takes_the_place():
    driver = Driver(task("a", timeout=10.0), task("b"), slots=1)
    sent = driver.ready(0, 0.0)
    driver.on(Started(0, sent.attempt.ticket, 0.0))
    assert driver.on(Tick(8.0)) == [StartRunner(1, ())]
    driver.on(RunnerReady(1, 9.0))
    assert len(driver.of(Dispatch)) == 1, "one slot is one task at once"
    driver.on(Tick(10.0))
    [sent] = [e for e in driver.on(RunnerGone(0, 10.1, "killed")) if isinstance(e, Dispatch)]
    assert (sent.runner, sent.attempt.task.id) == (1, "b")


def test_a_retry_is_an_attempt_of_its_own():
    driver = Driver(task("a", retries=1))
    sent = driver.ready(0)
    effects = driver.end(sent, 1.0, error="bad")
    assert effects[0] == AttemptEnded(sent.attempt, "failed", "bad", 0.1)
    again = effects[1]
    assert (again.attempt.number, again.attempt.ticket != sent.attempt.ticket) == (2, True)
    assert driver.end(sent, 1.5) == [], "news of the first attempt"
    driver.end(again, 2.0, error="worse")
    assert (driver.records()["a", 0].attempts, driver.records()["a", 0].error) == (2, "worse")


def test_a_runner_that_dies_before_it_took_the_work_costs_no_attempt():
    driver = Driver(task("a"), slots=1)
    for runner in range(MISFIRES):
        driver.ready(runner)
        assert driver.on(RunnerGone(runner, 1.0, "dead")) == [StartRunner(runner + 1, ())]
    driver.ready(MISFIRES)
    driver.on(RunnerGone(MISFIRES, 1.0, "dead"))
    assert driver.records()["a", 0].outcome == "crashed"


def test_the_cause_of_upstream_failed_is_the_root_also_ten_thousand_tasks_away():
    chain = [task("t0"), *(task(f"t{n}", f"t{n - 1}") for n in range(1, 10_000))]
    driver = Driver(*chain)
    driver.end(driver.ready(0), 1.0, error="bad")
    records = driver.records()
    assert len(records) == 10_000
    assert (records["t9999", 0].outcome, records["t9999", 0].cause) == ("upstream_failed", "t0")
    assert driver.effects[-1] == GraphEnded("tasks_done", 10_000, 'task "t0" run 0 failed: bad')


def test_runners_with_resources_are_given_back_when_nothing_waits_for_them():
    driver = Driver(task("a", resources={"gpus": 1}))
    sent = driver.ready(0)
    effects = driver.end(sent, 1.0)
    assert KillRunner(0, "not needed any more") in effects
    assert isinstance(effects[-1], GraphEnded)


def test_what_can_never_be_scheduled_fails_with_the_reason():
    driver = Driver(task("a", resources={"gpus": 9}, repeat=2), unschedulable={(("gpus", 9),): "no gpus"})
    assert [(r.outcome, r.error) for r in driver.records().values()] == [("failed", "no gpus")] * 2
    assert isinstance(driver.effects[-1], GraphEnded)


def test_runners_that_cannot_start_are_given_up():
    driver = Driver(task("a"))
    for runner in range(START_FAILURES):
        driver.on(RunnerGone(runner, 1.0, "no python"))
    assert driver.records()["a", 0].error == "no runner can be started: no python"


def test_stop_cancels_what_waits_at_once_and_what_works_when_it_is_dead():
    driver = Driver(task("a"), task("b", "a"), slots=1)
    driver.ready(0)
    effects = driver.on(Stop(1.0, "enough"))
    assert {(r.task, r.outcome) for r in driver.records().values()} == {("b", "cancelled")}
    assert KillRunner(0, "enough") in effects
    effects = driver.on(RunnerGone(0, 1.1, "killed"))
    assert effects[-1] == GraphEnded("stopped", 2, 'task "b" run 0 cancelled: enough')


def test_a_result_that_overtakes_the_kill_of_a_stop_is_kept():
    driver = Driver(task("a"))
    sent = driver.ready(0)
    driver.on(Stop(1.0))
    driver.end(sent, 1.0, value=3)
    driver.on(RunnerGone(0, 1.1, "killed"))
    assert (driver.records()["a", 0].outcome, driver.records()["a", 0].value) == ("succeeded", 3)


class World:
    """Runners, clock and a user who may stop: draws what happens next among what can happen."""

    def __init__(self, core: Core, choose: random.Random) -> None:
        self.core = core
        self.choose = choose
        self.now = 0.0
        self.moves: list[tuple] = []
        self.alive: dict[int, int | None] = {}
        self.ended: dict[tuple[str, int], TaskRecord] = {}
        self.graph_ended = 0
        self.old_news: list = []
        self.perform(core.begin(self.now))

    def perform(self, effects) -> None:
        for effect in effects:
            assert not (self.graph_ended and not isinstance(effect, KillRunner)), "nothing follows the end"
            match effect:
                case StartRunner(runner):
                    assert runner not in self.alive
                    self.alive[runner] = None
                    self.moves.append(("boot", runner))
                case Dispatch(runner, attempt):
                    assert self.alive[runner] is None, "a runner has one attempt at a time"
                    for name in attempt.task.depends_on:
                        assert all(record.outcome == "succeeded" for record in effect.inputs[name])
                    self.alive[runner] = attempt.ticket
                    self.moves.append(("import", runner, attempt.ticket))
                case KillRunner(runner):
                    assert runner in self.alive, "a dead runner is not killed"
                    self.moves.append(("die", runner))
                case RunEnded(record):
                    key = (record.task, record.run)
                    assert key not in self.ended, "one outcome"
                    self.ended[key] = record
                case GraphEnded():
                    self.graph_ended += 1

    def step(self) -> bool:
        alarm = self.core.next_alarm()
        moves = [*self.moves, *([("tick", alarm)] if alarm is not None else [])]
        if not moves:
            return False
        move = self.choose.choice(moves)
        if move in self.moves:
            self.moves.remove(move)
        self.now += self.choose.random() * 0.5
        if self.old_news and self.choose.random() < 0.1:
            self.perform(self.core.on(self.choose.choice(self.old_news)))
        event = self.event(move)
        if event is not None:
            self.perform(self.core.on(event))
            self.old_news.append(event)
        return True

    def event(self, move):  # noqa: PLR0911  # one answer for each kind of move
        kind, subject, *rest = move
        if kind == "tick":
            self.now = max(self.now, subject)
            return Tick(self.now)
        if subject not in self.alive:
            return None
        luck = self.choose.random()
        if kind == "die" or luck < 0.08:
            del self.alive[subject]
            return RunnerGone(subject, self.now, "dead")
        match kind:
            case "boot":
                return RunnerReady(subject, self.now)
            case "import":
                self.moves.append(("start", subject, *rest))
                return Importing(subject, rest[0], self.now) if luck < 0.5 else None
            case "start":
                if luck < 0.9:
                    self.moves.append(("end", subject, *rest))
                else:
                    self.moves.append(("hang", subject))
                return Started(subject, rest[0], self.now)
            case "end":
                self.alive[subject] = None
                result = Result(value=1) if luck < 0.8 else None
                return Ended(
                    runner=subject, ticket=rest[0], now=self.now, seconds=0.1, result=result, error="bad"
                )
            case _:
                return None


@st.composite
def graphs(draw):
    tasks = []
    for index in range(draw(st.integers(0, 8))):
        needs = (
            draw(st.lists(st.sampled_from([t.id for t in tasks]), max_size=3, unique=True)) if tasks else []
        )
        fields = {
            "repeat": draw(st.integers(1, 3)),
            "retries": draw(st.integers(0, 2)),
            "timeout": draw(st.sampled_from([None, 0.5, 1.0, 5.0])),
            "resources": draw(st.sampled_from([{}, {}, {"gpus": 1.0}, {"gpus": 9.0}])),
        }
        tasks.append(task(f"t{index}", *needs, **fields))
    draw(st.randoms(use_true_random=False)).shuffle(tasks)
    return tasks


@settings(max_examples=300, deadline=None)
@given(tasks=graphs(), seed=st.integers(0, 2**32), stop_after=st.none() | st.integers(0, 40), data=st.data())
def test_every_run_ends_in_exactly_one_outcome_and_the_graph_once(tasks, seed, stop_after, data):
    runs = [(t.id, run) for t in tasks for run in range(t.repeat)]
    kept = data.draw(st.lists(st.sampled_from(runs), unique=True, max_size=3)) if runs else []
    done = [
        TaskRecord(
            task=name,
            run=run,
            outcome=data.draw(st.sampled_from(["succeeded", "failed"])),
            attempts=1,
            seconds=1,
        )
        for name, run in kept
    ]
    core = Core(
        tasks=tasks,
        slots={(): 2, (("gpus", 1.0),): 1},
        done=done,
        unschedulable={(("gpus", 9.0),): "too many"},
    )
    world = World(core, random.Random(seed))
    for count in range(3000):
        if count == stop_after and not world.graph_ended:
            world.perform(core.on(Stop(world.now, "enough")))
        if world.graph_ended and not world.moves:
            break
        if not world.step():
            break
    hung = [move for move in world.moves if move[0] == "hang"]
    if not world.graph_ended:
        # only a task without a timeout may hang for ever; a stop ends that too
        assert any(t.timeout is None for t in tasks)
        world.perform(core.on(Stop(world.now, "enough")))
        while not world.graph_ended:
            assert world.step(), (hung, world.moves)
    assert world.graph_ended == 1
    assert set(world.ended) == set(runs) - set(kept)
    bad = sum(r.outcome != "succeeded" for r in [*world.ended.values(), *done])
    assert core.ledger.failures == bad
    by_task = {t.id: t for t in tasks}
    every = {**world.ended, **{(r.task, r.run): r for r in done}}
    for (name, _), record in world.ended.items():
        assert record.attempts <= by_task[name].retries + 1
        if record.outcome == "upstream_failed":
            causes = [r for (other, _), r in every.items() if other == record.cause]
            assert any(r.outcome not in ("succeeded", "upstream_failed") for r in causes)


@pytest.mark.parametrize(
    "event", [RunnerReady(99, 1.0), RunnerGone(99, 1.0, ""), Started(99, 1, 1.0), Tick(1.0)]
)
def test_news_of_strangers_changes_nothing(event):
    driver = Driver(task("a"))
    assert driver.on(event) == []
