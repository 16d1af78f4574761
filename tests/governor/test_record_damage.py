"""One damaged value in the journal: it is told by run, and all other runs go on. Each column in its turn."""

from __future__ import annotations

import contextlib
import sqlite3

import pytest
from desk_world import open_desk
from run_results import run_result

from governor.errors import GovernorError, RecordDamaged
from governor.messages import EpisodeRecord, TaskRecord
from governor.recovery import Recovery
from governor.run_file import parse

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
OF_RUNS += ("parent", "digest", "pruned_at")
OF_OTHERS = {
    "events": ("run", "last", "number", "at", "kind", "data"),
    "records": ("run", "kind", "phase", "data"),
    "ended_episodes": ("run", "phase", "episode"),
    "ended_tasks": ("run", "phase", "task", "number"),
}
CASES = [("runs", column) for column in OF_RUNS]
CASES += [(table, column) for table, columns in OF_OTHERS.items() for column in columns]
CASES = [(*case, garbage) for case in CASES for garbage in GARBAGE if (*case, garbage) not in POSSIBLE]
OF_ENDED = [(column, garbage) for table, column, garbage in CASES if table == "runs"]
OF_ENDED += [("result", garbage) for garbage in GARBAGE]


@pytest.fixture
async def desk():
    async with open_desk() as opened:
        for uid in ("sound", "bad", "ended", "spoilt"):
            await record(opened.journal, uid, is_ended=uid in ("ended", "spoilt"))
        yield opened


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
        tx.tasks(uid, 0, tasks)
        tx.event(uid, "run.interrupted", {"reason": "SIGTERM", "died": False})
        if is_ended:
            tx.outcome(run_result(uid))
            tx.event(uid, "run.ended", {"outcome": "finished", "by": "recovery"})
            tx.ended(uid)

    await journal.write(change)


def damage(desk, uid, table, column, value, *, as_text=False):
    with contextlib.closing(sqlite3.connect(desk.journal.path)) as connection:
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
        }[table]
        update = f"UPDATE {table} SET {column} = {put} WHERE {of_run} {row}"
        changed = connection.execute(update, {"value": value, "uid": uid})
        connection.commit()
        assert changed.rowcount == 1


async def recovered(desk, tmp_path):
    recovery = Recovery(journal=desk.journal, state_dir=tmp_path)
    await recovery.clear_away()
    for assignment in await recovery.take_up(tmp_path / "runs"):
        desk.queue.append(assignment)
    desk.damaged = recovery.damaged
    return recovery


@pytest.mark.parametrize(("table", "column", "garbage"), [*CASES, ("events", "data", "nothing")])
async def test_an_unended_run_with_a_damaged_value_is_held_and_named_and_others_go_on(
    desk, tmp_path, table, column, garbage
):
    damage(desk, "bad", table, column, GARBAGE.get(garbage), as_text=garbage == "no text")
    await recovered(desk, tmp_path)
    assert desk.queue.uids() == ["sound"]
    listed = {run.uid: run for run in (await desk.executor.list()).runs}
    assert len(listed) == 4
    assert listed["sound"].state == "queued"
    assert listed["ended"].state == "ended"
    uid = "#2" if column == "uid" else "bad"
    run = listed[uid]
    assert run.state == "damaged"
    place = "ended_tasks" if (table, column) == ("records", "run") else table  # it belongs to nobody
    assert run.reason.startswith(f"its record is damaged ({place}")
    if column not in ("uid", "ended_at"):
        assert [each.uid for each in (await desk.executor.status()).runs] == ["sound", "bad"]
    if column != "uid":
        [line] = (await desk.executor.explain("bad")).lines
        assert line.what.startswith(f"damaged: waits for a copy of the journal to be put back: {place}")
        with pytest.raises(GovernorError, match="the record of run bad is damaged") as caught:
            _ = [event async for event in desk.executor.watch("bad")]
        assert caught.value.code == RecordDamaged.code


@pytest.mark.parametrize(("column", "garbage"), OF_ENDED)
async def test_an_ended_run_with_a_damaged_value_is_shown_as_damaged(desk, tmp_path, column, garbage):
    damage(desk, "spoilt", "runs", column, GARBAGE.get(garbage), as_text=garbage == "no text")
    await recovered(desk, tmp_path)
    assert desk.queue.uids() == ["sound", "bad"]
    runs = (await desk.executor.list()).runs
    assert [run.state for run in runs] == ["damaged", "ended", "queued", "queued"]
    assert f"its record is damaged (runs.{column}: " in runs[0].reason
    if column != "uid":
        [run] = (await desk.executor.status("spoilt")).runs
        assert run.state == "damaged"
        with pytest.raises(GovernorError, match=f"spoilt is damaged .*runs.{column}"):
            await desk.executor.result("spoilt")


@pytest.mark.parametrize(("table", "column"), [("events", "data"), ("records", "data")])
async def test_an_ended_run_with_damaged_events_says_so_where_they_are_read(desk, table, column):
    damage(desk, "spoilt", table, column, b"\xff")
    assert [run.state for run in (await desk.executor.list()).runs][:2] == ["ended", "ended"]
    assert (await desk.executor.explain("spoilt")).lines[0].what.startswith("it has ended")
    if table == "records":
        with pytest.raises(GovernorError, match=r"the record of run spoilt is damaged \(records"):
            await desk.executor.resume("spoilt")
    with pytest.raises(GovernorError, match=r"the record of run spoilt is damaged \(events, number"):
        _ = [event async for event in desk.executor.watch("spoilt")]


async def test_a_damaged_run_can_be_aborted(desk, tmp_path):
    damage(desk, "bad", "records", "data", b"\xff")
    await recovered(desk, tmp_path)
    await desk.executor.abort("bad", reason="start it again")
    row = desk.journal.run("bad")
    assert (row.outcome, row.reason) == ("aborted", "start it again")
    assert [each.uid for each in desk.journal.unended()] == ["sound"]


async def test_a_damaged_time_of_pruning_removes_nothing(desk):
    damage(desk, "spoilt", "runs", "pruned_at", b"\xff")
    damage(desk, "ended", "runs", "ended_at", b"\xff")
    assert (await desk.executor.prune(keep_runs=0)).uids == ()
    await desk.pruner.finish()
    assert {run.uid for run in (await desk.executor.list()).runs} == {"sound", "bad", "ended", "spoilt"}
