"""Task graphs on a real Ray: every way a task can end, and what is left behind."""

from __future__ import annotations

import asyncio
import os
import signal
import time
from pathlib import Path

import msgspec
import pytest

from governor.errors import ConductorError
from governor.index_ranges import IndexRanges
from governor.journal.journal import Journal
from governor.messages import (
    EndedRuns,
    PartEndedReport,
    StartTasks,
    TaskAttemptEnded,
    TaskEnded,
    TaskRecord,
    TaskStarted,
    TracebackSeen,
)
from governor.tasks.phases.task_graph import results_needed
from governor.tasks.protocol.wire import Input
from tests.support.living import lives
from tests.support.reasons import without_place

GRACE = 0.4
"""Not that of the engine in conftest.py."""

pytestmark = [pytest.mark.ray, pytest.mark.asyncio(loop_scope="session")]


async def test_results_flow_along_dependencies_and_repeats_arrive_as_lists(harness, task):
    result = await harness.run(
        task("a", "give", args={"value": 20}),
        task("b", "add", "a", args={"plus": 2}),
        task("many", "mine", "b", repeat=4),
        task("all", "collect", "many", "a"),
    )
    assert result["b"].value == 22
    assert result["all"].value == {"many": [0, 1, 2, 3], "a": 20}
    assert result.end == PartEndedReport(phase=result.end.phase, part="tasks", end="tasks_done")
    assert {record.outcome for record in result.records.values()} == {"succeeded"}
    order = [event.record.task for event in result.of(TaskEnded)]
    assert order == ["a", "b", "many", "many", "many", "many", "all"]


async def test_callables_of_every_kind(harness, task):
    result = await harness.run(
        task("async", "later", args={"value": 5}),
        task("class", "Work", args={"base": 10}),
        task("aclass", "AsyncWork"),
        task("told", "tell", timeout=20),
        task("scores", "scores"),
        task("measured", "measured"),
        task("builtin", "builtins:dict", args={"n": 1}),
    )
    assert result["async"].value == 5
    assert result["class"].value == 11
    assert result["aclass"].value == "async"
    run, name, run_id, attempt, left, folder = result["told"].value
    assert (run, name, run_id, attempt, folder) == ("test-run", "told", 0, 1, str(harness.folder))
    assert 19 < left <= 20
    assert result["scores"].metrics == {"accuracy": 0.75, "n": 3.0}
    assert result["measured"].value == [1, 2]
    assert result["measured"].metrics == {"loss": 0.5}
    assert [path.read_bytes() for path in harness.folder.rglob("measured-0.payload")] == [b"\x00raw"]
    assert result["builtin"].value == {"n": 1}


async def test_what_is_raised_is_a_failure_with_its_place(harness, task):
    result = await harness.run(
        task("raise", "fail"),
        task("exit", "leave", args={"code": 3}),
        task("interrupt", "interrupt"),
        task("import", "broken_import:f"),
        task("nowhere", "no_such_module:f"),
        task("nothing", "no_such_attribute"),
        task("arguments", "give", args={"wrong": 1}),
    )
    assert {record.outcome for record in result.records.values()} == {"failed"}
    assert result["raise"].error.startswith("ValueError: bad luck (deeds.py:")
    assert without_place(result["exit"].error) == "the task called sys.exit(3)"
    assert result["interrupt"].error.startswith("KeyboardInterrupt")
    assert "no licence" in result["import"].error
    assert "no_such_module" in result["nowhere"].error
    assert 'has no "no_such_attribute"' in result["nothing"].error
    assert "unexpected keyword argument" in result["arguments"].error
    assert result.end.failures == 7
    assert result.end.first_failure.startswith('task "')
    texts = {event.digest: event.text for event in result.of(TracebackSeen)}
    assert "ValueError: bad luck" in texts[result["raise"].traceback]


async def test_a_process_that_ends_is_a_crash_and_the_others_go_on(harness, task):
    result = await harness.run(
        task("exit", "drop_dead", args={"code": 7}),
        task("kill", "shoot", args={"number": int(signal.SIGKILL)}),
        task("segv", "shoot", args={"number": int(signal.SIGSEGV)}),
        task("term", "shoot", args={"number": int(signal.SIGTERM)}),
        task("fine", "pid", repeat=3),
        task("after", "give", "exit", args={"value": 1}),
        task("last", "give", "after", args={"value": 1}),
    )
    for name in ("exit", "kill", "segv", "term"):
        assert result[name].outcome == "crashed", result[name]
        assert result[name].attempts == 1
    assert "os._exit(7)" in result["exit"].error
    assert "killed by a signal" in result["kill"].error
    assert [result["fine", run].outcome for run in range(3)] == ["succeeded"] * 3
    assert (result["after"].outcome, result["after"].cause) == ("upstream_failed", "exit")
    assert (result["last"].outcome, result["last"].cause) == ("upstream_failed", "exit")


async def test_values_that_are_large_or_no_json_go_to_files_and_come_back_as_inputs(harness, task):
    result = await harness.run(
        task("big", "big", args={"size": 100_000}),
        task("a", "array", args={"size": 1000}),
        task("sum", "total", "a"),
        task("lock", "lock"),
    )
    assert result["big"].value is None
    assert (harness.folder / result["big"].value_file).stat().st_size == 100_002
    assert result["big"].value_file.endswith("/big-0.json")
    assert result["a"].value_file.endswith("/a-0.npy")
    assert result["sum"].value == 499500.0
    assert result["lock"].outcome == "failed"
    assert "the returned lock cannot be serialised" in result["lock"].error
    assert not list(harness.folder.rglob(".*.part"))


async def test_a_retry_that_succeeds_is_a_success(harness, task):
    result = await harness.run(task("flaky", "flaky", retries=2), task("fail", "fail", retries=1))
    assert (result["flaky"].outcome, result["flaky"].value, result["flaky"].attempts) == ("succeeded", 2, 2)
    assert (result["fail"].outcome, result["fail"].attempts) == ("failed", 2)
    retried = [(event.task, event.attempt, event.outcome) for event in result.of(TaskAttemptEnded)]
    assert sorted(retried) == [("fail", 1, "failed"), ("flaky", 1, "failed")]
    where = {(event.task, event.attempt): (event.pid, bool(event.node)) for event in result.of(TaskStarted)}
    assert {("fail", 1), ("fail", 2), ("flaky", 1)} <= where.keys()
    assert all(pid > 0 and node for pid, node in where.values())


@pytest.mark.parametrize("deed", ["sleep", "spin", "hold_the_gil", "swallow"])
async def test_a_task_past_its_deadline_is_seen_dead(harness, task, deed):
    result = await harness.run(task("hung", deed, timeout=0.3), task("fine", "nothing"))
    assert result["hung"].outcome == "timed_out"
    assert without_place(result["hung"].error) == "ran longer than its timeout of 0.3 s"
    assert 0.3 <= result["hung"].seconds < 3
    [started] = [event for event in result.of(TaskStarted) if event.task == "hung"]
    assert not lives(started.pid)
    assert result["fine"].outcome == "succeeded"


@pytest.mark.parametrize("deed", ["wait_on_child", "leave_a_grandchild"])
async def test_no_descendant_survives_a_deadline(harness, task, deed, tmp_path):
    note = tmp_path / "pid"
    result = await harness.run(task("parent", deed, args={"note": str(note)}, timeout=1))
    assert result["parent"].outcome == "timed_out"
    assert not lives(int(note.read_text()))


async def test_neither_cold_start_nor_import_nor_queue_is_running_time(harness, task):
    result = await harness.run(
        task("slow", "slow_to_import:quick", timeout=0.5),
        task("queued", "sleep", args={"seconds": 0.25}, repeat=6, timeout=0.6),
    )
    assert {record.outcome for record in result.records.values()} == {"succeeded"}


async def test_two_plain_tasks_run_at_once(harness, task, tmp_path):
    result = await harness.run(
        task("a", "meet", args={"folder": str(tmp_path), "name": "a", "other": "b"}),
        task("b", "meet", args={"folder": str(tmp_path), "name": "b", "other": "a"}),
    )
    assert result.end.failures == 0


async def test_resources_are_held_and_what_can_never_be_had_is_said(harness, task):
    result = await harness.run(
        task("one", "sleep", args={"seconds": 0.1}, resources={"cpus": 2}, repeat=2),
        task("gpu", "nothing", resources={"gpus": 1}),
        task("half", "nothing", resources={"cpus": 0.5}, repeat=3),
    )
    assert result["gpu"].outcome == "failed"
    assert result["gpu"].error == (
        "can never be scheduled: no node of the Ray cluster has GPU 1 (the most a node has: 0)"
    )
    assert [result["one", run].outcome for run in range(2)] == ["succeeded"] * 2
    assert [result["half", run].outcome for run in range(3)] == ["succeeded"] * 3


async def test_stop_in_the_middle_cancels_everything_and_leaves_no_process(harness, task):
    phase, link = harness.phase(
        task("quick", "nothing"),
        task("hung", "hold_the_gil", "quick", repeat=3),
        task("after", "nothing", "hung"),
    )
    phase.begin()
    running = asyncio.create_task(phase.run())
    async with asyncio.timeout(10):
        while not any(isinstance(event, TaskStarted) and event.task == "hung" for event in link.events):
            await link.next(TaskStarted, after=len(link.events))
        phase.stop("enough")
        phase.stop("twice")
        await running
    outcomes = {(e.record.task, e.record.run): e.record for e in link.events if isinstance(e, TaskEnded)}
    assert outcomes.pop(("quick", 0)).outcome == "succeeded"
    assert {record.outcome for record in outcomes.values()} == {"cancelled"}
    assert len(outcomes) == 4
    assert {record.error for record in outcomes.values()} == {"enough"}
    assert link.events[-1].end == "stopped"
    for event in link.events:
        if isinstance(event, TaskStarted) and event.task == "hung":
            assert not lives(event.pid)


async def test_done_runs_are_kept_and_their_values_are_inputs(harness, task, tmp_path):
    kept = harness.folder / "results" / "old.json"
    kept.parent.mkdir(exist_ok=True)
    kept.write_text("[7]")
    done = (
        TaskRecord(task="many", run=0, outcome="succeeded", attempts=1, seconds=1.0, value="old"),
        TaskRecord(
            task="file", run=0, outcome="succeeded", attempts=1, seconds=1.0, value_file="results/old.json"
        ),
        TaskRecord(task="bad", run=0, outcome="timed_out", attempts=1, seconds=1.0, error="late"),
    )
    path = tmp_path / "governor.db"
    phase, link = harness.phase(
        task("many", "mine", repeat=2),
        task("file", "fail"),
        task("bad", "fail"),
        task("all", "collect", "many", "file"),
        task("lost", "nothing", "bad"),
        done=EndedRuns.fold(done),
        journal=str(path),
    )
    journal = Journal(path)
    await journal.write(lambda tx: tx.submit(uid="r1", key=None, name="r", spec={}, folder="/"))
    await journal.write(lambda tx: tx.tasks("r1", phase.phase, done))
    results = results_needed(phase._command, "r1")
    assert results == {
        "many": {0: Input(value="old")},
        "file": {0: Input(file="results/old.json")},
        "bad": {},
    }
    await journal.close()
    result = await harness.play(phase, link, results=results)
    assert set(result.records) == {("many", 1), ("all", 0), ("lost", 0)}
    assert result["all"].value == {"many": ["old", 1], "file": [7]}
    assert result["lost"].cause == "bad"
    assert result.end.failures == 1
    assert result.end.first_failure == 'task "bad" run 0 timed_out: late'


async def test_only_results_that_are_needed_are_read(harness, task, tmp_path):
    whole = EndedRuns(runs=IndexRanges.of([0]))
    command = StartTasks(
        phase=0,
        name="p",
        seed=0,
        tasks=(task("a", "nothing"), task("b", "nothing", "a"), task("c", "nothing", "b")),
        done={"a": whole, "b": whole},
        journal=str(tmp_path / "none.db"),
    )
    with pytest.raises(ConductorError, match=r"journal .*none\.db cannot be read"):
        results_needed(command, "r1")
    assert results_needed(msgspec.structs.replace(command, done={}), "r1") == {}
    assert results_needed(msgspec.structs.replace(command, done=dict.fromkeys("abc", whole)), "r1") == {}


async def test_a_graph_with_faults_is_refused_before_anything_runs(harness, task):
    with pytest.raises(ConductorError, match="a -> b -> a"):
        harness.phase(task("a", "nothing", "b"), task("b", "nothing", "a"))[0].begin()


async def test_an_empty_graph_ends_at_once(harness):
    result = await harness.run()
    assert result.end.end == "tasks_done"


async def test_ids_of_any_form_name_files_below_the_results_folder(harness, task):
    result = await harness.run(
        task("../up/é", "big", args={"size": 70_000}), task("x" * 300, "array", args={"size": 3})
    )
    for record in result.records.values():
        path = (harness.folder / record.value_file).resolve()
        assert path.is_file()
        assert path.is_relative_to(harness.folder.resolve() / "results")
        assert Path(record.value_file).parts[0] == "results"


async def test_deaths_are_not_late(harness, task, gate):
    """From the deadline and the grace of a task, by its own clock, to the death of its process. How late they are on a quiet
    machine is measured by `benchmarks/task_deaths.py`.
    """
    visit = {"gate": gate.path}
    phase, _ = harness.phase(
        task("hung", "batch_deeds:visit", args=visit, timeout=0.2, repeat=6), grace=GRACE
    )
    phase.begin()
    running = asyncio.create_task(phase.run())
    lived = await asyncio.gather(*(life_of_the_next(gate) for _ in range(6)))
    await running
    assert min(lived) > 0.2 + GRACE / 2, "its clock starts when it gets a processor, not when it has begun"
    assert max(lived) < 0.2 + GRACE + 2.0


async def life_of_the_next(gate):
    """Seconds from what a task took for its start to the moment at which its process was dead; it holds the GIL."""
    visit = await gate.visit()
    died = asyncio.Event()
    handle = os.pidfd_open(visit.pid)
    try:
        asyncio.get_running_loop().add_reader(handle, died.set)
        visit.tell("hold the GIL for good")
        async with asyncio.timeout(30):
            await died.wait()
        return time.monotonic() - visit.began
    finally:
        asyncio.get_running_loop().remove_reader(handle)
        os.close(handle)


async def test_a_runner_that_dies_with_ray_is_no_crash_of_its_task(harness, task):
    phase, link = harness.phase(
        task("good", "nothing"),
        task("kill", "shoot", "good", args={"number": int(signal.SIGKILL)}, retries=1),
        task("after", "nothing", "kill"),
    )

    async def no_answer():
        return False

    phase._ray_answers = no_answer
    phase.begin()
    with pytest.raises(ConductorError, match="Ray is lost: a runner has exited"):
        async with asyncio.timeout(20):
            await phase.run()
    ended = [event.record.task for event in link.events if isinstance(event, TaskEnded)]
    assert ended == ["good"]
    assert not [event for event in link.events if isinstance(event, TaskAttemptEnded | PartEndedReport)]
    phase.stop("the test is over")


async def test_a_traceback_goes_with_its_task(harness, task):
    result = await harness.run(task("bad", "fail"))
    [seen] = result.of(TracebackSeen)
    assert result["bad"].traceback == seen.digest
    assert seen.text.startswith("Traceback")


async def test_what_ray_says_is_not_printed(harness, task, capfd):
    await harness.run(task("kill", "shoot", args={"number": int(signal.SIGKILL)}))
    assert "(raylet)" not in "".join(capfd.readouterr())
