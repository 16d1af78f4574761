"""The executor's verbs over a real broker: what each does, and with which exit code it refuses."""

from __future__ import annotations

import asyncio
import errno
import shutil
import threading

import pytest

from governor.daemon.dispatcher import take
from governor.errors import (
    AlreadyEnded,
    ExitCode,
    GovernorError,
    NoSuchRun,
    NotEnded,
    RunFileError,
    TryAgain,
    UsageError,
)
from governor.messages import (
    SERVICE,
    Refused,
    Submit,
    decode_reply,
    encode,
)
from governor.run_file.load import parse
from governor.runs.record import result
from tests.support.daemon.api_world import RUN, TWO, done, open_api
from tests.support.run_results import run_result


def full(*_):
    raise OSError(errno.ENOSPC, "No space left on device")


@pytest.fixture
async def daemon():
    async with open_api() as opened:
        yield opened


async def test_a_submitted_run_is_on_record_and_waits_with_its_reason(daemon):
    uid = await daemon.executor.submit(RUN, key="k")
    assert await daemon.executor.submit(RUN, key="k") == uid
    assert daemon.dispatched == 1
    [run] = (await daemon.executor.status()).runs
    assert (run.uid, run.state, run.waits_for) == (uid, "queued", "a free slot (0 runs before it)")
    assert [event.kind for event in daemon.journal.events(uid)] == ["run.accepted"]


async def test_a_faulty_run_is_refused_with_all_its_faults(daemon):
    faulty = {
        "name": "r",
        "phases": [{"name": "p", "tasks": [{"id": "t", "call": "m:f", "retrys": 1}], "mod": 1}],
    }
    asked = encode(Submit(run=faulty, folder="/"))
    answer = decode_reply((await daemon.client.request(SERVICE, asked, timeout=30.0))[0])
    assert isinstance(answer, Refused)
    assert answer.exit_code == 78
    assert [fault.path for fault in answer.faults] == ["phases[0].tasks[0].retrys", "phases[0].mod"]
    with pytest.raises(RunFileError) as caught:
        await daemon.executor.submit(faulty)
    assert len(caught.value.faults) == 2
    assert daemon.journal.runs(limit=9) == []


async def test_a_full_queue_and_a_daemon_that_shuts_down_accept_no_run(daemon):
    for _ in range(3):
        await daemon.executor.submit(RUN)
    with pytest.raises(TryAgain, match="queue_limit"):
        await daemon.executor.submit(RUN)
    daemon.is_stopping = True
    with pytest.raises(TryAgain, match="shutting down"):
        await daemon.executor.submit(RUN)
    assert len(daemon.journal.runs(limit=9)) == 3


async def test_a_client_that_asks_again_for_its_own_run_gets_it_from_a_full_queue_and_at_the_last(daemon):
    first = await daemon.executor.submit(RUN, key="mine")
    for _ in range(2):
        await daemon.executor.submit(RUN)
    assert await daemon.executor.submit(RUN, key="mine") == first
    daemon.is_stopping = True
    assert await daemon.executor.submit(RUN, key="mine") == first


async def test_submits_side_by_side_get_no_more_places_than_there_are(daemon):
    answers = await asyncio.gather(*(daemon.executor.submit(RUN) for _ in range(9)), return_exceptions=True)
    assert [type(answer) for answer in answers].count(TryAgain) == 6
    assert len(daemon.queue) == len(daemon.journal.runs(limit=9)) == 3


async def test_a_key_is_that_of_one_run_file(daemon):
    first = await daemon.executor.submit(RUN, key="k")
    explicit = {"name": "r", "seed": parse(RUN, "r").seed, "phases": RUN["phases"]}
    assert await daemon.executor.submit(explicit, key="k") == first, (
        "a default that is written out is the same"
    )
    with pytest.raises(
        UsageError, match=f"'k' is that of run {first}, which was submitted with another run file"
    ):
        await daemon.executor.submit(TWO, key="k")
    answers = await asyncio.gather(
        *(daemon.executor.submit(run, key="two at once") for run in (RUN, TWO)), return_exceptions=True
    )
    assert {type(answer) for answer in answers} == {str, UsageError}
    assert len(daemon.journal.runs(limit=9)) == 2


async def test_without_room_no_run_is_accepted_but_a_known_one_is_returned(daemon):
    first = await daemon.executor.submit(RUN, key="k")
    daemon.disk_reserve = 1 << 60
    for stopping in (False, True):
        daemon.is_stopping = stopping
        with pytest.raises(TryAgain, match="disk_reserve") as caught:
            await daemon.executor.submit(RUN)
        assert (caught.value.code, caught.value.exit_code) == ("no_room", 75)
    assert await daemon.executor.submit(RUN, key="k") == first
    assert len(daemon.journal.runs(limit=9)) == 1


async def test_a_pruned_run_is_reported_as_such_and_its_key_stays_its_own(daemon):
    kept, gone = await daemon.executor.submit(TWO), await daemon.executor.submit(RUN, key="k")
    await daemon.executor.abort(kept)
    await daemon.executor.abort(gone)
    assert (await daemon.executor.prune(keep_runs=1, dry_run=True)).uids == (kept,)
    assert (await daemon.executor.prune(keep_days=1)).uids == ()
    assert (await daemon.executor.prune(keep_runs=0)).uids == (kept, gone)
    await daemon.pruner.finish()
    assert (await daemon.executor.list()).runs == ()
    for ask in (
        daemon.executor.result,
        daemon.executor.status,
        daemon.executor.abort,
        daemon.executor.resume,
    ):
        with pytest.raises(NoSuchRun, match=f"run {gone} was pruned on 20"):
            await ask(gone[:6])
    assert await daemon.executor.submit(RUN, key="k") == gone
    with pytest.raises(UsageError, match="another run file"):
        await daemon.executor.submit(TWO, key="k")
    assert len(daemon.queue) == 0
    with pytest.raises(UsageError, match="days to keep are from 0 to"):
        await daemon.executor.prune(keep_days=-1.0)


async def ended(daemon, *records, outcome="failed", uid="p1", spec=TWO):
    """A run on record that has ended, with these records of its only phase, and a file of its own."""
    result = run_result(uid, outcome=outcome)

    def change(tx):
        tx.submit(uid=uid, key=f"key of {uid}", name="r", spec=parse(spec).raw(), folder="/home")
        for record in records:
            tx.tasks(uid, 0, [record])
        tx.event(uid, "phase.ended", {"phase": "p", "index": 0, "end": "tasks_done"})
        tx.outcome(result)
        tx.ended(uid)

    await daemon.journal.write(change)
    (daemon.runs / uid).mkdir()
    (daemon.runs / uid / "model.pt").write_text("weights")


async def test_a_resumed_run_has_what_the_old_one_finished_before_it_is_acknowledged(daemon):
    await ended(daemon, done("t"), done("u", outcome="timed_out"))
    uid = await daemon.executor.resume("p", key="again")
    assert await daemon.executor.resume("p1", key="again") == uid
    assert daemon.dispatched == 1
    assert [record.task for record in daemon.journal.tasks(uid, 0)] == ["t"]
    assert (daemon.runs / uid / "model.pt").read_text() == "weights"
    assignment = await take(daemon.queue, daemon.journal, damaged=daemon.damaged)
    assert (assignment.uid, assignment.folder, assignment.first_phase) == (uid, "/home", 0)
    [status] = (await daemon.executor.status(uid)).runs
    assert (status.parent, status.state) == ("p1", "interrupted")
    assert [run.parent for run in (await daemon.executor.list()).runs] == ["p1", None]
    assert [*daemon.journal.tasks("p1", 0)] == [done("t"), done("u", outcome="timed_out")]


async def test_a_resumed_run_counts_phases_with_failures_that_it_does_not_enter(daemon):
    borne = {**TWO["phases"][0], "on_failure": "continue"}
    await ended(
        daemon,
        done("t"),
        done("u", outcome="failed"),
        spec={**TWO, "phases": [borne, {**borne, "name": "q"}]},
    )
    part = {"phase": 0, "part": "tasks", "end": "enough", "failures": 1, "first_failure": "task u[0]: no"}
    await daemon.journal.write(lambda tx: tx.event("p1", "part.ended", part))
    await daemon.executor.resume("p1")
    assignment = await take(daemon.queue, daemon.journal, damaged=daemon.damaged)
    assert (assignment.first_phase, assignment.plan.failed) == (1, 1)
    assert assignment.plan.failure == "phase p: 1 ended badly, first task u[0]: no"


async def test_a_run_that_cannot_be_resumed_gets_a_reason_and_leaves_nothing(daemon):
    uid = await daemon.executor.submit(RUN, key="s")
    with pytest.raises(NotEnded, match="queued") as not_ended:
        await daemon.executor.resume(uid)
    assert not_ended.value.exit_code == 75
    with pytest.raises(NoSuchRun):
        await daemon.executor.resume("no-such-run")
    await ended(daemon, done("t"), done("u"), outcome="finished")
    with pytest.raises(AlreadyEnded, match="nothing to resume"):
        await daemon.executor.resume("p1")
    await ended(daemon, done("t"), uid="p2")
    with pytest.raises(UsageError, match=f"is that of run {uid}"):
        await daemon.executor.resume("p2", key="s")
    first = await daemon.executor.resume("p2")
    with pytest.raises(TryAgain, match=f"run {first} resumes run p2 right now"):
        await daemon.executor.resume("p2")
    await ended(daemon, done("t"), uid="p3")
    await daemon.executor.submit(RUN)
    with pytest.raises(TryAgain, match="queue_limit"):
        await daemon.executor.resume("p3")
    daemon.is_stopping = True
    with pytest.raises(TryAgain, match="shutting down"):
        await daemon.executor.resume("p3")
    kept = {path.name for path in daemon.runs.iterdir() if path.is_dir()}
    assert kept == {"p1", "p2", "p3", first}


async def test_a_finished_run_with_a_failure_that_was_allowed_can_be_resumed(daemon):
    await ended(daemon, done("t"), done("u", outcome="failed"), outcome="finished")
    assert await daemon.executor.resume("p1") in daemon.queue


async def test_a_run_continues_where_something_is_missing_and_one_that_failed_with_nothing_missing_ends_again(
    daemon,
):
    more = {**TWO, "phases": [*TWO["phases"], {"name": "q", "tasks": [{"id": "v", "call": "m:f"}]}]}
    await ended(daemon, done("t"), done("u"), spec=more)
    await ended(daemon, done("t"), done("u"), uid="p2")
    for uid in ("p1", "p2"):
        await daemon.executor.resume(uid)
    taken = [await take(daemon.queue, daemon.journal, damaged=daemon.damaged) for _ in range(2)]
    assert [assignment.first_phase for assignment in taken] == [1, 0]


async def test_without_room_for_files_or_record_there_is_no_run_and_no_files(daemon, monkeypatch):
    await ended(daemon, done("t", value="y" * 200_000))

    with monkeypatch.context() as disk:
        disk.setattr(shutil, "copy2", full)
        with pytest.raises(TryAgain, match="No space left") as caught:
            await daemon.executor.resume("p1")
    assert caught.value.exit_code == 75
    (pages,) = daemon.journal._writing.execute("PRAGMA page_count").fetchone()
    daemon.journal._writing.execute(f"PRAGMA max_page_count={pages}")
    with pytest.raises(GovernorError, match="cannot be written") as caught:
        await daemon.executor.resume("p1")
    assert caught.value.exit_code == 75
    assert len(daemon.queue) == 0
    assert [row.uid for row in daemon.journal.runs(limit=9)] == ["p1"]
    assert [path.name for path in daemon.runs.iterdir() if path.is_dir()] == ["p1"]


async def test_a_queued_run_that_is_aborted_ends_once_with_a_result(daemon):
    uid = await daemon.executor.submit(RUN)
    with pytest.raises(NotEnded) as not_ended:
        await daemon.executor.result(uid)
    assert not_ended.value.exit_code == 75
    await daemon.executor.abort(uid, reason="no need")
    assert len(daemon.queue) == 0
    result = await daemon.executor.result(uid)
    assert (result.outcome, result.reason, result.phases) == ("aborted", "no need", ())
    watching = daemon.executor.watch(uid)
    assert [event.kind async for event in watching] == ["run.accepted", "run.ended"]
    assert watching.end.outcome == "aborted"
    with pytest.raises(AlreadyEnded):
        await daemon.executor.abort(uid)


async def test_a_queued_run_that_is_aborted_keeps_the_work_of_earlier_invocations(daemon):
    uid = await daemon.executor.submit(TWO)

    def begin(tx):
        tx.event(uid, "phase.started", {"phase": "p", "index": 0})
        tx.tasks(uid, 0, [done("t", value=7)])

    await daemon.journal.write(begin)
    await daemon.executor.abort(uid)
    [phase] = (await daemon.executor.result(uid)).phases
    assert (phase.name, phase.end, [(task.task, task.value) for task in phase.tasks]) == (
        "p",
        "aborted",
        [("t", 7)],
    )


@pytest.mark.parametrize(
    "fault",
    [
        "UPDATE events SET data = x'c1'",
        "UPDATE events SET data = x'80' WHERE kind = 'phase.started'",
        "UPDATE runs SET name = x'ff'",
    ],
)
async def test_a_queued_run_whose_record_is_damaged_meanwhile_can_be_aborted(daemon, fault):
    uid = await daemon.executor.submit(RUN)
    await daemon.journal.write(lambda tx: tx.event(uid, "phase.started", {"phase": "p", "index": 0}))
    daemon.journal._writing.execute(fault)
    await daemon.executor.abort(uid, reason="enough")
    [run] = (await daemon.executor.list()).runs
    assert (run.state, run.outcome) == ("ended", "aborted")
    assert run.reason.startswith("enough; its record was damaged (")


async def test_a_queued_run_whose_result_finds_no_room_stays_queued(daemon, monkeypatch):
    uid = await daemon.executor.submit(RUN)
    with monkeypatch.context() as disk:
        disk.setattr(result, "save_result", full)
        with pytest.raises(TryAgain, match=f"the result of run {uid} can't be written"):
            await daemon.executor.abort(uid)
    assert daemon.queue.uids() == [uid]
    await daemon.executor.abort(uid)


def broken(*_, **__):
    raise RuntimeError("a bug")


async def test_a_queued_run_that_cannot_be_aborted_keeps_its_place(daemon, monkeypatch):
    first, second = await daemon.executor.submit(RUN), await daemon.executor.submit(RUN)
    with monkeypatch.context() as bug:
        bug.setattr(result, "save_result", broken)
        with pytest.raises(GovernorError, match="the daemon failed at this request"):
            await daemon.executor.abort(first)
    assert daemon.queue.uids() == [first, second]


async def test_a_refused_configuration_is_answered_with_all_its_faults(daemon):
    with pytest.raises(GovernorError, match="slots: no\n  slot: no") as caught:
        await daemon.executor.reload()
    assert (caught.value.code, caught.value.exit_code) == ("bad_configuration", ExitCode.BAD_CONFIGURATION)


async def test_a_key_has_at_most_256_characters(daemon):
    uid = await daemon.executor.submit(RUN, key="k" * 256)
    assert await daemon.executor.submit(RUN, key="k" * 256) == uid
    for ask in (daemon.executor.submit(RUN, key="k" * 257), daemon.executor.resume(uid, key="k" * 100_000)):
        with pytest.raises(UsageError, match=r"at most 256 characters, and 'kkkkkkkkkkkkkkkk'\.\.\. has"):
            await ask


async def test_a_queued_run_with_an_event_that_lacks_a_field_can_be_aborted(daemon):
    uid = await daemon.executor.submit(RUN)
    await daemon.journal.write(lambda tx: tx.event(uid, "phase.started", {"phase": "p"}))
    await daemon.executor.abort(uid, reason="enough")
    assert "its record was damaged (KeyError: 'index')" in (await daemon.executor.result(uid)).reason


async def test_all_who_watch_a_run_have_its_events_from_one_reading(daemon, monkeypatch):
    uid = await daemon.executor.submit(RUN)
    readings, events = [], daemon.journal.events
    monkeypatch.setattr(
        daemon.journal, "events", lambda *given, **more: readings.append(given) or events(*given, **more)
    )
    watchings = [daemon.executor.watch(uid) for _ in range(12)]
    seen = [[(await anext(watching)).seq] for watching in watchings]
    for number in range(20):
        await daemon.journal.write(lambda tx: tx.event(uid, "phase.started", {"phase": "p", "index": 0}))
        for each, watching in zip(seen, watchings, strict=True):
            each.append((await anext(watching)).seq)
            assert each[-1] == number + 2
    for watching in watchings:
        await watching.aclose()
    assert len(readings) < 12 * 20 / 2


async def test_who_asks_after_a_reading_has_begun_has_one_of_its_own(daemon, monkeypatch):
    """It may have been woken by an event that the first one does not find."""
    uid = await daemon.executor.submit(RUN)
    begun, go_on, readings, events = threading.Event(), threading.Event(), [], daemon.journal.events

    def held(*given, **more):
        page = events(*given, **more)
        readings.append(given)
        begun.set()
        go_on.wait(20)
        return page

    monkeypatch.setattr(daemon.journal, "events", held)
    async with asyncio.TaskGroup() as group:
        first = group.create_task(anext(daemon.executor.watch(uid)))
        await asyncio.to_thread(begun.wait, 20)
        begun.clear()
        second = group.create_task(anext(daemon.executor.watch(uid)))
        assert await asyncio.to_thread(begun.wait, 20)
        go_on.set()
    assert len(readings) >= 2
    assert first.result().seq == second.result().seq == 1
