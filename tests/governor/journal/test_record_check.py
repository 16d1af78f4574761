"""One damaged value in the journal: it is told by run, and all other runs go on. Each column in its turn."""

from __future__ import annotations

import contextlib
import signal
import sqlite3
import subprocess

import msgspec
import pytest

from governor.daemon.recovery import Recovery
from governor.errors import AlreadyEnded, GovernorError, RecordDamaged
from governor.index_ranges import IndexRanges
from governor.messages import EpisodeRecord, TaskRecord, encode
from governor.messages.figures import PhaseFigures
from governor.processes.identity import ProcessIdentity, boot_id
from governor.run_file.load import parse
from tests.support.daemon.api_world import open_api
from tests.support.run_results import run_result

LAKE = {"entry": "gymnasium:FrozenLake-v1"}
RUN = parse(
    {
        "name": "r",
        "conductors": {"environments": {"lake": LAKE}, "agents": {"walker": {"entry": "m:W"}}},
        "phases": [
            {
                "name": "p",
                "simulate": {"environment": "lake", "agents": ["walker"], "episodes": 9},
                "tasks": [{"id": "t", "call": "m:f", "repeat": 9}],
            }
        ],
    },
    "r",
).raw()
GARBAGE = {"bytes": b"\xff\xf0", "text": "garbage", "no text": b"\xff"}
POSSIBLE = {("runs", column, "text") for column in ("uid", "key", "name", "folder", "reason", "parent")}
POSSIBLE |= {("runs", "digest", garbage) for garbage in ("bytes", "no text")}
"""What may be a true value."""
OF_RUNS = (
    "uid",
    "key",
    "name",
    "spec",
    "folder",
    "submitted_at",
    "started_at",
    "ended_at",
    "outcome",
    "reason",
)
OF_RUNS += ("parent", "digest", "pruned_at", "phases", "metrics", "seconds")
OF_OTHERS = {
    "events": ("run", "last", "number", "at", "kind", "data"),
    "records": ("run", "kind", "phase", "data"),
    "ended_episodes": ("run", "phase", "episode"),
    "ended_tasks": ("run", "phase", "task", "number"),
    "figures": ("phase", "records", "inherited"),
}
CASES = [("runs", column) for column in OF_RUNS]
CASES += [(table, column) for table, columns in OF_OTHERS.items() for column in columns]
CASES = [(*case, garbage) for case in CASES for garbage in GARBAGE if (*case, garbage) not in POSSIBLE]
OF_ENDED = [(column, garbage) for table, column, garbage in CASES if table == "runs"]
OF_ENDED += [("result", garbage) for garbage in GARBAGE]


@pytest.fixture
async def api():
    async with open_api() as opened:
        for uid in ("sound", "bad", "ended", "spoilt"):
            await record(opened.journal, uid, is_ended=uid in ("ended", "spoilt"))
        yield opened


@pytest.fixture
def left():
    """A process that nothing but its identity on record identifies."""
    with subprocess.Popen(["/bin/sleep", "600"], env={}, start_new_session=True) as process:
        yield process
        process.kill()


async def record(journal, uid, *, is_ended):
    """A run that was in work, with episodes and runs of tasks."""
    episodes = [
        EpisodeRecord(index=i, worker=0, seed=i, outcome="terminated", value=1.0, steps=2, seconds=0.1)
        for i in range(3)
    ]
    tasks = [TaskRecord(task="t", run=i, outcome="succeeded", attempts=1, seconds=0.1) for i in range(3)]

    def change(tx):
        tx.submit(uid=uid, key=f"key of {uid}", name="r", spec=RUN, folder="/")
        tx.started(uid)
        tx.event(uid, "run.assigned", {"at": 1.0})
        started = {
            "conductor": "tasks",
            "incarnation": 1,
            "pid": 4_000_000,
            "ticks": 1,
            "boot": "b",
            "at": 1.0,
        }
        tx.event(uid, "conductor.started", started)
        tx.event(uid, "phase.started", {"index": 0})
        tx.episodes(uid, 0, episodes)
        tx.figures(uid, 0, encode(PhaseFigures(ended=IndexRanges([0, 3]))))
        tx.tasks(uid, 0, tasks)
        tx.event(uid, "run.interrupted", {"reason": "SIGTERM", "died": False})
        if is_ended:
            tx.outcome(run_result(uid))
            tx.event(uid, "run.ended", {"outcome": "finished", "by": "recovery"})
            tx.ended(uid)

    await journal.write(change)


def damage(api, uid, table, column, value, *, as_text=False):
    with contextlib.closing(sqlite3.connect(api.journal.path)) as connection:
        of_run = (
            "uid = :uid" if table == "runs" else "run = (SELECT runs.position FROM runs WHERE uid = :uid)"
        )
        put = "CAST(:value AS TEXT)" if as_text else ":value"
        row = {
            "runs": "",
            "records": f"AND position = (SELECT max(position) FROM records WHERE {of_run})",
            "events": "AND last = 3",
            "ended_episodes": "AND episode = 1",
            "ended_tasks": "AND number = 1",
            "figures": "",
        }[table]
        update = f"UPDATE {table} SET {column} = {put} WHERE {of_run} {row}"
        changed = connection.execute(update, {"value": value, "uid": uid})
        connection.commit()
        assert changed.rowcount == 1


async def recovered(api, tmp_path):
    recovery = Recovery(journal=api.journal, state_dir=tmp_path)
    await recovery.clean_up()
    for assignment in await recovery.assignments(tmp_path / "runs"):
        api.queue.append(assignment)
    api.damaged = recovery.damaged
    return recovery


@pytest.mark.parametrize(("table", "column", "garbage"), [*CASES, ("events", "data", "nothing")])
async def test_an_unended_run_with_a_damaged_value_is_held_and_named_and_others_go_on(
    api, tmp_path, table, column, garbage
):
    damage(api, "bad", table, column, GARBAGE.get(garbage), as_text=garbage == "no text")
    await recovered(api, tmp_path)
    assert api.queue.uids() == ["sound"]
    listed = {run.uid: run for run in (await api.executor.list()).runs}
    assert len(listed) == 4
    assert listed["sound"].state == "queued"
    assert listed["ended"].state == "ended"
    uid = "#2" if column == "uid" else "bad"
    run = listed[uid]
    assert run.state == "damaged"
    place = "ended_tasks" if (table, column) == ("records", "run") else table  # it belongs to nobody
    assert run.reason.startswith(f"its record is damaged ({place}")
    assert [each.uid for each in (await api.executor.status()).runs] == ["sound", uid]
    [line] = (await api.executor.explain(uid)).lines
    assert line.what.startswith(
        f"damaged: waits for an abort, or a journal that this daemon can read: {place}"
    )
    with pytest.raises(GovernorError, match=f"the record of run {uid} is damaged") as caught:
        _ = [event async for event in api.executor.watch(uid)]
    assert caught.value.code == RecordDamaged.code


@pytest.mark.parametrize("bounds", [[0, 2], [1, 4, 9], [3, 1]])
async def test_figures_that_do_not_fit_hold_their_run(api, tmp_path, bounds):
    value = encode(PhaseFigures(ended=IndexRanges(bounds)))
    damage(api, "bad", "figures", "data", value)
    await recovered(api, tmp_path)
    assert (api.queue.uids(), [*api.damaged]) == (["sound"], ["bad"])


async def test_figures_of_another_version_count_as_none(api, tmp_path):
    await api.journal.write(lambda tx: tx.figures("bad", 0, b"of another version"))
    await recovered(api, tmp_path)
    assert (api.queue.uids(), api.damaged) == (["sound", "bad"], {})


async def test_records_in_the_figures_are_not_read_to_continue_and_later_ones_are(api, tmp_path):
    late = EpisodeRecord(index=3, worker=0, seed=3, outcome="terminated", value=1.0, steps=2, seconds=0.1)
    await api.journal.write(lambda tx: [tx.episodes(uid, 0, [late]) for uid in ("sound", "bad")])
    damage(api, "bad", "records", "data", b"nonsense")
    with contextlib.closing(sqlite3.connect(api.journal.path)) as connection:
        first = (
            "SELECT min(records.position) FROM records JOIN runs ON run = runs.position WHERE uid = 'sound'"
        )
        connection.execute(f"UPDATE records SET data = x'00' WHERE position = ({first})")
        connection.commit()
    await recovered(api, tmp_path)
    assert (api.queue.uids(), [*api.damaged]) == (["sound"], ["bad"])


@pytest.mark.parametrize(("column", "garbage"), OF_ENDED)
async def test_an_ended_run_with_a_damaged_value_is_shown_as_damaged(api, tmp_path, column, garbage):
    damage(api, "spoilt", "runs", column, GARBAGE.get(garbage), as_text=garbage == "no text")
    await recovered(api, tmp_path)
    assert api.queue.uids() == ["sound", "bad"]
    runs = (await api.executor.list()).runs
    is_listed = column not in ("spec", "result")  # documents, which no line about a run needs
    assert [run.state for run in runs] == ["damaged" if is_listed else "ended", "ended", "queued", "queued"]
    assert (f"its record is damaged (runs.{column}: " in runs[0].reason) == is_listed
    if column != "uid":
        [run] = (await api.executor.status("spoilt")).runs
        assert run.state == "damaged"
        with pytest.raises(GovernorError, match=f"spoilt is damaged .*runs.{column}"):
            await api.executor.result("spoilt")


@pytest.mark.parametrize(("table", "column"), [("events", "data"), ("records", "data")])
async def test_an_ended_run_with_damaged_events_is_an_error_where_they_are_read(api, table, column):
    damage(api, "spoilt", table, column, b"\xff")
    assert [run.state for run in (await api.executor.list()).runs][:2] == ["ended", "ended"]
    assert (await api.executor.explain("spoilt")).lines[0].what.startswith("it has ended")
    if table == "records":
        with pytest.raises(GovernorError, match=r"the record of run spoilt is damaged \(records"):
            await api.executor.resume("spoilt")
    with pytest.raises(GovernorError, match=r"the record of run spoilt is damaged \(events, number"):
        _ = [event async for event in api.executor.watch("spoilt")]


@pytest.mark.parametrize(("table", "column", "garbage"), [*CASES, ("events", "data", "nothing")])
async def test_a_damaged_run_can_be_aborted_and_has_ended_then_also_after_the_next_start(
    api, tmp_path, table, column, garbage
):
    damage(api, "bad", table, column, GARBAGE.get(garbage), as_text=garbage == "no text")
    await recovered(api, tmp_path)
    uid = "#2" if column == "uid" else "bad"
    await api.executor.abort(uid, reason="start it again")
    for _ in range(2):
        listed = {run.uid: run for run in (await api.executor.list()).runs}
        assert (listed[uid].state, listed[uid].outcome) == ("ended", "aborted")
        assert listed[uid].reason.startswith("start it again; its record was damaged (")
        assert (await api.executor.status(uid)).runs == (listed[uid],)
        assert [each.uid for each in (await api.executor.status()).runs] == ["sound"]
        result = await api.executor.result(uid)
        assert (result.outcome, result.reason) == ("aborted", listed[uid].reason)
        await recovered(api, tmp_path)
        assert api.queue.uids() == ["sound"]
    with pytest.raises(AlreadyEnded, match="aborted"):
        await api.executor.abort(uid)
    if table == "runs":
        events = [event async for event in api.executor.watch(uid)]
        assert [event.kind for event in events if event.kind == "run.ended"] == ["run.ended"]
        assert events[-1].data["outcome"] == "aborted"


async def test_a_run_whose_run_file_is_of_another_version_is_held_until_an_abort(api, tmp_path):
    spec = msgspec.msgpack.encode({**RUN, "deadlines": {"silence": 30}})
    damage(api, "bad", "runs", "spec", spec)
    await recovered(api, tmp_path)
    assert api.queue.uids() == ["sound"]
    [_, run] = (await api.executor.status()).runs
    assert (run.uid, run.state) == ("bad", "damaged")
    assert "its run file is of another version: deadlines.silence: unknown key" in run.waits_for
    await api.executor.abort("bad")
    [run] = (await api.executor.status("bad")).runs
    assert (run.state, run.outcome) == ("ended", "aborted")


async def test_a_run_that_had_its_outcome_and_not_its_end_keeps_the_outcome(api, tmp_path):
    await api.journal.write(lambda tx: tx.outcome(run_result("bad")))
    damage(api, "bad", "records", "data", b"\xff")
    await recovered(api, tmp_path)
    await api.executor.abort("bad")
    [run] = (await api.executor.status("bad")).runs
    assert (run.state, run.outcome) == ("ended", "finished")
    assert "; its record was damaged (records, row " in run.reason
    result = await api.executor.result("bad")
    assert (result.outcome, result.reason) == ("finished", run.reason)
    assert result.phases == run_result("bad").phases


async def test_the_time_in_work_of_a_damaged_run_is_shown_where_it_can_be_read(api, tmp_path):
    await api.journal.write(lambda tx: tx.event("bad", "run.interrupted", {"at": 4.0}))
    await api.journal.write(lambda tx: tx.event("sound", "run.interrupted", {"at": 4.0}))
    damage(api, "bad", "records", "data", b"\xff")
    damage(api, "sound", "events", "data", b"\xff")
    await recovered(api, tmp_path)
    for uid, seconds in (("bad", 3.0), ("sound", None)):
        await api.executor.abort(uid)
        assert (await api.executor.result(uid)).seconds == seconds


@pytest.mark.parametrize(("column", "garbage"), OF_ENDED)
async def test_an_ended_run_with_a_damaged_value_has_ended_already(api, tmp_path, column, garbage):
    damage(api, "spoilt", "runs", column, GARBAGE.get(garbage), as_text=garbage == "no text")
    await recovered(api, tmp_path)
    uid = "#4" if column == "uid" else "spoilt"
    if column != "ended_at":
        with pytest.raises(AlreadyEnded, match=f"run {uid} has ended already"):
            await api.executor.abort(uid)
        return
    await api.executor.abort(uid)
    [run] = (await api.executor.status(uid)).runs
    assert (run.state, run.outcome) == ("ended", "finished")
    assert run.ended_at == (await api.executor.result(uid)).ended_at == run_result(uid).ended_at
    events = [event.kind async for event in api.executor.watch(uid)]
    assert events.count("run.ended") == 1


@pytest.mark.parametrize(
    "identity", [{"pid": 2**40}, {"pid": -1}, {"pid": "x"}, {"ticks": None}, {"mark": "x"}]
)
async def test_an_identity_that_no_process_can_have_is_damage_and_hinders_no_start(api, tmp_path, identity):
    started = {
        "conductor": "tasks",
        "incarnation": 2,
        "pid": 7,
        "ticks": 1,
        "boot": boot_id(),
        "at": 2.0,
        **identity,
    }
    await api.journal.write(lambda tx: tx.event("bad", "conductor.started", started))
    recovery = await recovered(api, tmp_path)
    assert recovery.damaged.keys() == {"bad"}
    assert api.queue.uids() == ["sound"]


@pytest.mark.parametrize("last", [2**63 - 1, -5])
async def test_a_number_of_an_event_that_leaves_no_next_one_hinders_no_abort(api, tmp_path, last):
    damage(api, "bad", "events", "last", last)
    await recovered(api, tmp_path)
    await api.executor.abort("bad")
    assert (await api.executor.status("bad")).runs[0].state == "ended"


async def test_a_queued_run_that_is_damaged_meanwhile_can_be_aborted(api, tmp_path):
    await recovered(api, tmp_path)
    damage(api, "bad", "runs", "outcome", b"\xff")
    await api.executor.abort("bad")
    assert api.queue.uids() == ["sound"]
    assert (await api.executor.status("bad")).runs[0].outcome == "aborted"


@pytest.mark.parametrize(
    ("table", "column"),
    [("runs", "spec"), ("runs", "ended_at"), ("events", "data"), ("records", "data"), ("runs", "uid")],
)
async def test_processes_of_a_damaged_run_are_killed_at_the_start(api, tmp_path, left, table, column):
    identity = msgspec.to_builtins(ProcessIdentity.of(left.pid))
    started = {"conductor": "tasks", "incarnation": 2, **identity, "at": 2.0}
    await api.journal.write(lambda tx: tx.event("bad", "conductor.started", started))
    damage(api, "bad", table, column, b"\xff")
    recovery = await recovered(api, tmp_path)
    assert recovery.damaged.keys() == {"#2" if column == "uid" else "bad"}
    assert left.wait(timeout=0) == -signal.SIGKILL


async def test_a_damaged_time_of_pruning_removes_nothing(api):
    damage(api, "spoilt", "runs", "pruned_at", b"\xff")
    damage(api, "ended", "runs", "ended_at", b"\xff")
    assert (await api.executor.prune(keep_runs=0)).uids == ()
    await api.pruner.finish()
    assert {run.uid for run in (await api.executor.list()).runs} == {"sound", "bad", "ended", "spoilt"}
