"""The engine around the core: effects become calls, messages become events, and a listener's fault is its own."""

from __future__ import annotations

import asyncio
import time
from itertools import count

import pytest

from governor.messages import TaskRecord
from governor.tasks.engine import Engine
from governor.tasks.errors import GraphError, QueueFull
from governor.tasks.protocol.wire import (
    Begun,
    Over,
    StateUpdate,
)
from governor.tasks.scheduling.events import BatchSpec, RunnerGone, RunnerReady
from governor.tasks.work import file_name
from tests.support.tasks.core_world import task


class Pool:
    """Runners that are only words; implements `RunnerPool`."""

    def __init__(self):
        self.ids = count()
        self.listener = None
        self.sent = {}
        self.told = []

    def start(self, runner, shape):
        self.told.append(("start", runner, shape))

    def send(self, runner, work_items):
        self.sent[runner] = list(work_items)

    def revoke(self, runner):
        self.told.append(("revoke", runner))

    def cancel(self, runner, ticket):
        self.told.append(("cancel", runner, ticket))

    def kill(self, runner, reason, *, is_idle=False):
        self.told.append(("kill", runner, reason))

    def pid(self, runner):
        return 1000 + runner

    def node(self, runner):
        return "here"

    def release(self, idle):
        self.told.append(("release", *idle))

    async def close(self, idle=()):
        self.told.append(("close", *idle))
        for runner in [told[1] for told in self.told if told[0] == "start"]:
            self.listener.runner_changed(RunnerGone(time.monotonic(), runner, "the end"))


class Nodes:
    """Implements `Capacity`."""

    def slots(self, shape):
        return 0 if shape else 1

    def why_never(self, shape):
        return f"no node has {shape}"


class Listener:
    """Writes down what it hears."""

    def __init__(self):
        self.heard = []

    def attempt_started(self, started, *, pid, node):
        self.heard.append(("started", started.run, pid, node))

    def attempt_ended(self, ended):
        self.heard.append(("retry", ended.run, ended.outcome))

    def run_ended(self, record, payload):
        self.heard.append((record.outcome, record.task, record.value, payload))

    def traceback(self, attempt, run, text):
        self.heard.append(("traceback", attempt.task.id, run, text))

    def batch_ended(self, ended):
        self.heard.append(("end", ended.end))


@pytest.fixture
async def engine_setup(tmp_path):
    pool = Pool()
    engine = Engine(runners=pool, cluster=Nodes(), folder=tmp_path, models=["m"], max_pending=10)
    return engine, pool, Listener()


def fails(*_):
    raise LookupError("somebody's fault")


def submit(engine, listener, *tasks, number=1, **fields):
    engine.submit(BatchSpec(id=number, tasks=tasks, **fields), listener)


def do(engine, pool, runner=0, **fields):
    """The runner executes all that it has."""
    for work in pool.sent.pop(runner):
        for run in work.runs:
            said = [Begun(work.ticket, run, 1.0), Over(work.ticket, run, 1.1, 0.1, **fields)]
            engine.runner_reported(runner, said, 1.1)


async def test_a_batch_runs_and_its_listener_hears_of_it_in_order(engine_setup):
    engine, pool, listener = engine_setup
    submit(engine, listener, task("a", args={"x": 1}), task("b", "a"), name="7/train", folder="results/p")
    assert pool.told == [("start", 0, ())]
    engine.runner_changed(RunnerReady(0.0, 0))
    [work] = pool.sent[0]
    assert (work.batch, work.task, work.args, work.model, work.stem) == (
        "7/train",
        "a",
        {"x": 1},
        "m",
        "results/p/a",
    )
    do(engine, pool, value=5, payload=b"p")
    assert pool.sent[0][0].inputs["a"][0].value == 5
    do(engine, pool)
    assert listener.heard == [
        ("succeeded", "a", 5, b"p"),
        ("succeeded", "b", None, b""),
        ("end", "tasks_done"),
    ]


async def test_what_a_listener_raises_harms_no_other_batch(engine_setup):
    engine, pool, listener = engine_setup

    class Broken(Listener):
        def run_ended(self, record, payload):
            raise RuntimeError("my fault")

    submit(engine, Broken(), task("a"), number=1)
    submit(engine, listener, task("b"), number=2)
    engine.runner_changed(RunnerReady(0.0, 0))
    do(engine, pool)
    do(engine, pool)
    assert listener.heard[-1] == ("end", "tasks_done")


async def test_what_is_refused_has_changed_nothing(engine_setup):
    engine, _, listener = engine_setup
    submit(engine, listener, task("a"))
    with pytest.raises(ValueError, match="batch 1 is still active"):
        submit(engine, Listener(), task("a"))
    with pytest.raises(GraphError, match='"b" depends on itself'):
        submit(engine, Listener(), task("b", "b"), number=2)
    with pytest.raises(QueueFull, match="1 runs are pending and 10 more would exceed max_pending=10"):
        submit(engine, Listener(), task("c", repeat=10), number=3)
    submit(engine, Listener(), task("c", repeat=9), number=3)


async def test_what_is_done_takes_no_room_in_the_queue(engine_setup):
    engine, _, listener = engine_setup
    done = [TaskRecord(task="a", run=run, outcome="succeeded", attempts=1, seconds=0.0) for run in range(9)]
    submit(engine, listener, task("a", repeat=12), done=tuple(done))
    with pytest.raises(QueueFull):
        submit(engine, Listener(), task("b", repeat=8), number=2)


async def test_what_no_node_can_hold_fails_at_once_with_the_reason(engine_setup):
    engine, _, listener = engine_setup
    submit(engine, listener, task("a", resources={"gpus": 4}))
    assert [heard[0] for heard in listener.heard] == ["failed", "end"]


async def test_tracebacks_and_keys_of_a_task_find_their_way(engine_setup):
    engine, pool, listener = engine_setup
    submit(engine, listener, task("a"))
    engine.runner_changed(RunnerReady(0.0, 0))
    [work] = pool.sent[0]
    engine.runner_reported(
        0,
        [
            Begun(work.ticket, 0, 1.0),
            StateUpdate(work.ticket, {"x": 3}),
        ],
        1.0,
    )
    slot = engine.plain_slots()[0]
    job, run, _, ended = slot.last
    assert (slot.state, job.attempt.batch, job.attempt.task.id, run, ended, slot.user_state) == (
        "working",
        1,
        "a",
        0,
        None,
        {"x": 3},
    )
    engine.runner_reported(0, [Over(work.ticket, 0, 2.0, 1.0, error="bad", traceback="Traceback")], 2.0)
    assert listener.heard == [
        ("started", 0, 1000, "here"),
        ("traceback", "a", 0, "Traceback"),
        ("failed", "a", None, b""),
        ("end", "tasks_done"),
    ]
    assert engine.plain_slots()[0].last[-1] == 2.0


async def test_what_a_killed_attempt_had_half_written_is_removed(engine_setup, tmp_path):
    engine, pool, listener = engine_setup
    submit(engine, listener, task("a"))
    engine.runner_changed(RunnerReady(0.0, 0))
    [work] = pool.sent[0]
    engine.runner_reported(0, [Begun(work.ticket, 0, 1.0)], 1.0)
    part = tmp_path / "results" / ".a-0.json.part"
    part.parent.mkdir()
    part.touch()
    engine.runner_changed(RunnerGone(2.0, 0, "dead"))
    assert listener.heard[-1] == ("end", "tasks_done")
    assert not part.exists()


async def test_an_outcome_is_told_also_when_nothing_can_be_removed(engine_setup, tmp_path):
    engine, pool, listener = engine_setup
    (tmp_path / "results").write_text("no folder")
    submit(engine, listener, task("a"))
    engine.runner_changed(RunnerReady(0.0, 0))
    [work] = pool.sent[0]
    engine.runner_reported(0, [Begun(work.ticket, 0, 1.0)], 1.0)
    engine.runner_changed(RunnerGone(2.0, 0, "dead"))
    assert listener.heard == [
        ("started", 0, 1000, "here"),
        ("crashed", "a", None, b""),
        ("end", "tasks_done"),
    ]


async def test_work_that_cannot_be_sent_costs_its_runner_and_not_the_batch(engine_setup, monkeypatch):
    engine, pool, listener = engine_setup
    monkeypatch.setattr(pool, "send", fails)
    submit(engine, listener, task("a"))
    for runner in range(9):
        if listener.heard:
            break
        engine.runner_changed(RunnerReady(0.0, runner))
        assert pool.told[-1][:2] == ("kill", runner)
        engine.runner_changed(RunnerGone(0.0, runner, pool.told[-1][2]))
    assert listener.heard == [("crashed", "a", None, b""), ("end", "tasks_done")]


async def test_a_traceback_that_nobody_takes_costs_no_result(engine_setup, monkeypatch):
    engine, pool, listener = engine_setup
    monkeypatch.setattr(listener, "traceback", fails)
    submit(engine, listener, task("a"))
    engine.runner_changed(RunnerReady(0.0, 0))
    [work] = pool.sent[0]
    said = [
        Begun(work.ticket, 0, 1.0),
        Over(work.ticket, 0, 1.1, 0.1, error="bad", traceback="Traceback"),
    ]
    engine.runner_reported(0, said, 1.1)
    assert [each for each in listener.heard if each[0] != "started"] == [
        ("failed", "a", None, b""),
        ("end", "tasks_done"),
    ]


async def test_a_place_without_hope_is_said_to_have_none(engine_setup):
    engine, pool, _ = engine_setup
    waiting = asyncio.create_task(engine.wait_for_runner(0))
    while not waiting.done():
        await asyncio.sleep(0)
        if not waiting.done() and pool.told[-1][0] == "start":
            engine.runner_changed(RunnerGone(time.monotonic(), pool.told[-1][1], "no python"))
    with pytest.raises(RuntimeError, match="no runner can be started for slot 0"):
        waiting.result()


@pytest.mark.parametrize("name", ["../a", "\ud800", "x" * 300 + "\udfff"])
def test_any_text_is_a_file_name(name):
    made = file_name(name)
    assert "/" not in made
    assert len(made.encode()) < 200


async def test_close_cancels_and_says_which_runners_are_idle(engine_setup):
    engine, pool, listener = engine_setup
    engine.warm()
    for _, runner, _ in list(pool.told):
        engine.runner_changed(RunnerReady(0.0, runner))
    submit(engine, listener, task("a"), task("b", "a"))
    (busy,) = pool.sent
    idle = {told[1] for told in pool.told if told[0] == "start"} - {busy}
    await engine.close()
    assert {heard[0] for heard in listener.heard} == {"cancelled", "end"}
    assert pool.told[-1] == ("close", *idle)


async def test_explain_names_what_is_waited_for(engine_setup):
    engine, pool, listener = engine_setup
    before = time.monotonic()
    submit(engine, listener, task("a", timeout=9.0), task("b", "a"), task("c"))
    rows = {row.task: row for row in engine.explain(1)}
    assert rows["a"].state == "queued"
    assert before <= rows["a"].since <= time.monotonic()
    assert (rows["b"].state, rows["b"].why) == ("blocked", "waits for a")
    engine.runner_changed(RunnerReady(0.0, 0))
    [work] = pool.sent[0]
    now = time.monotonic()
    engine.runner_reported(0, [Begun(work.ticket, 0, now)], now)
    running = engine.explain(1)[0]
    assert (running.task, running.state, running.since, running.until) == ("a", "running", now, now + 9.0)
    with pytest.raises(KeyError):
        engine.explain(2)


async def test_runners_that_are_given_away_get_no_work(engine_setup):
    engine, pool, listener = engine_setup
    engine.warm()
    engine.runner_changed(RunnerReady(0.0, 0))
    engine.rest()
    assert pool.told[-1] == ("release", 0)
    submit(engine, listener, task("a"))
    assert not pool.sent, "the old one is being ended"
    engine.runner_changed(RunnerGone(1.0, 0, "not needed any more"))
    assert pool.told[-1] == ("start", 1, ())
    engine.runner_changed(RunnerReady(2.0, 1))
    do(engine, pool, runner=1)
    assert listener.heard == [("succeeded", "a", None, b""), ("end", "tasks_done")]
