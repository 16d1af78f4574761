"""Queries of the API over a real broker: runs and their records."""

from __future__ import annotations

import asyncio
import socket
import tempfile
import threading
from pathlib import Path
from types import SimpleNamespace

import pytest

from governor.errors import (
    BadRequest,
    NoSuchRun,
    Unreachable,
    UsageError,
)
from governor.executor import Executor
from governor.journal.readers import Readers
from governor.messages import (
    SERVICE,
    EpisodeRecord,
    PhaseResult,
    RunCounts,
    RunList,
    decode_reply,
    encode,
)
from governor.run_file.load import parse
from governor.runs.assignment import Assignment
from governor.runs.record.result import save_result
from governor.runs.run_governor import RunGovernor
from tests.support.daemon.api_world import RUN, done, open_api
from tests.support.figures import with_done
from tests.support.run_results import run_result


@pytest.fixture
async def daemon():
    async with open_api() as opened:
        yield opened


async def test_a_result_that_is_too_large_for_the_journal_is_fetched_whole(daemon):
    uid = await daemon.executor.submit(RUN)
    tasks = tuple(done("t", value="x" * 1000) for _ in range(3000))
    phases = (PhaseResult(name="p", mode="-", end="tasks_done", metrics={"m": 2.0}, tasks=tasks),)
    large = run_result(uid, phases=phases)
    file = save_result(large, daemon.runs / uid)
    await daemon.journal.write(lambda tx: (tx.outcome(large, file=file), tx.ended(uid)))
    assert await daemon.executor.result(uid) == large
    assert (await daemon.executor.status(uid)).runs[0].metrics == {"m": 2.0}


async def test_a_run_that_has_ended_on_record_is_ended_while_its_slot_clears_up(daemon):
    uid = await daemon.executor.submit(RUN)
    slot = RunGovernor("ipc://unused")
    slot._active = SimpleNamespace(uid=uid)
    daemon.governors.append(slot)
    ended = run_result(uid)
    await daemon.journal.write(lambda tx: (tx.outcome(ended), tx.ended(uid)))
    [run] = (await daemon.executor.list()).runs
    assert (run.state, run.outcome, run.seconds) == ("ended", ended.outcome, ended.seconds)
    [line] = (await daemon.executor.explain(uid)).lines
    assert "ended" in line.what


async def test_numbers_that_no_journal_has_are_refused(daemon):
    uid = await daemon.executor.submit(RUN)
    for limit in (0, -1, 2**63, 10_001):
        with pytest.raises(UsageError, match="limit counts runs"):
            await daemon.executor.list(limit)
    assert len((await daemon.executor.list(10_000)).runs) == 1
    for after in (-1, 2**63):
        with pytest.raises(UsageError, match="numbered from 1"):
            await anext(daemon.executor.watch(uid, after=after))


async def test_a_run_is_found_by_its_beginning_if_that_is_the_only_one(daemon):
    for uid in ("abc", "abd"):
        await daemon.journal.write(
            lambda tx, uid=uid: tx.submit(uid=uid, key=None, name="n", spec={"name": "n"}, folder="/")
        )
    assert (await daemon.executor.status("abc")).runs[0].uid == "abc"
    with pytest.raises(NoSuchRun, match="beginning of several runs: abc, abd") as caught:
        await daemon.executor.status("ab")
    assert caught.value.exit_code == 4
    with pytest.raises(NoSuchRun):
        await daemon.executor.status("no-such-run")
    with pytest.raises(NoSuchRun):
        await daemon.executor.status("a%")


async def test_a_run_is_explained(daemon):
    uid = await daemon.executor.submit(RUN)
    told = await daemon.executor.explain(uid[:4])
    assert (told.uid, told.name) == (uid, "r")
    [line] = told.lines
    assert line.what == "queued: waits for a free slot (0 runs before it)"
    assert told.at - 10 < line.since <= told.at
    with pytest.raises(NoSuchRun):
        await daemon.executor.explain("no-such-run")


async def test_what_is_on_record_now_is_watched_without_following(daemon):
    uid = await daemon.executor.submit(RUN)
    watching = daemon.executor.watch(uid, follow=False)
    assert [event.kind async for event in watching] == ["run.accepted"]
    assert watching.end.outcome == "in work"


async def test_a_watch_that_is_open_gets_what_comes(daemon):
    uid = await daemon.executor.submit(RUN)
    seen = []

    async def watch():
        seen.extend([event async for event in daemon.executor.watch(uid)])

    watching = asyncio.create_task(watch())
    await daemon.journal.write(lambda tx: tx.event(uid, "something", {"n": 1}))
    await daemon.executor.abort(uid)
    await asyncio.wait_for(watching, 10)
    assert [(event.seq, event.kind) for event in seen] == [
        (1, "run.accepted"),
        (2, "something"),
        (3, "run.ended"),
    ]


async def test_a_watch_of_rare_events_is_kept_alive_while_others_come_all_the_time(daemon, monkeypatch):
    monkeypatch.setattr("governor.daemon.api.KEEP_ALIVE_SECONDS", 0.2)
    monkeypatch.setattr("governor.executor.following.IDLE_SECONDS", 2.0)
    uid = await daemon.executor.submit(RUN)
    daemon.executor.patience = 0.0  # a watch that is broken off is not begun again

    async def others():
        while True:
            await daemon.journal.write(lambda tx: tx.event(uid, "something", {}))

    async def seen():
        return [event.kind async for event in daemon.executor.watch(uid, kinds=("rare", "run.ended"))]

    others, seen = asyncio.create_task(others()), asyncio.create_task(seen())
    done, _ = await asyncio.wait({others, seen}, timeout=5.0)
    assert not done
    await daemon.journal.write(lambda tx: tx.event(uid, "rare", {}))
    others.cancel()
    await daemon.executor.abort(uid)
    assert await asyncio.wait_for(seen, 10) == ["rare", "run.ended"]


async def test_an_invalid_request_is_refused_and_the_api_continues(daemon):
    for body in ((b"\x00garbage",), (b"",), ()):
        answer = decode_reply((await daemon.client.request(SERVICE, *body, timeout=30.0))[0])
        assert (answer.code, answer.exit_code) == ("bad_request", 2)
    await daemon.executor.submit(RUN)


async def test_a_socket_that_a_dead_daemon_left_is_detected_within_two_seconds(tmp_path):
    path = Path(tempfile.mkdtemp(dir="/tmp")) / "stale"
    with socket.socket(socket.AF_UNIX) as left:
        left.bind(str(path))
    try:
        with pytest.raises(Unreachable) as caught:
            async with asyncio.timeout(9), Executor(f"ipc://{path}"):
                pass
        assert caught.value.exit_code == 69
    finally:
        path.unlink()
        path.parent.rmdir()


@pytest.mark.parametrize(("number", "size"), [(1500, 1), (80, 1 << 20)], ids=["many", "large"])
async def test_events_that_were_recorded_together_are_watched_in_parts(daemon, number, size):
    uid = await daemon.executor.submit(RUN)
    together = [{"text": "x" * size} for _ in range(number)]
    await daemon.journal.write(lambda tx: tx.events(uid, "something", together))
    await daemon.executor.abort(uid)
    seen = [(event.seq, event.kind) async for event in daemon.executor.watch(uid)]
    kinds = ["run.accepted", *["something"] * number, "run.ended"]
    assert seen == list(enumerate(kinds, start=1))


async def test_status_shows_the_first_that_wait_and_counts_all(daemon):
    daemon.queue.limit = 120
    uids = [await daemon.executor.submit(RUN) for _ in range(120)]
    daemon.damaged[uids[3]] = "events: no"
    daemon.queue.remove(uids[3])
    daemon.held = {uids[1]: "the exit of pid 7"}
    daemon.queue.remove(uids[1])
    report = await daemon.executor.status()
    assert report.counts == RunCounts(in_work=0, queued=118, held=1, damaged=1)
    assert [run.uid for run in report.runs] == uids[:102], "those first in the queue, and all before them"
    assert [run.state for run in report.runs[:4]] == ["queued", "interrupted", "queued", "damaged"]
    assert report.runs[-1].waits_for == "a free slot (99 runs before it)"
    assert report.loop is None, "a loop that is not the daemon's own is not measured"


async def test_the_pages_of_a_list_have_each_run_once(daemon):
    daemon.queue.limit = 25
    uids = [await daemon.executor.submit(RUN) for _ in range(25)]
    page = await daemon.executor.list(10)
    seen = [*page.runs]
    while page.more:
        page = await daemon.executor.list(10, after=page.runs[-1].uid)
        seen += page.runs
    assert [run.uid for run in seen] == uids[::-1]
    assert (await daemon.executor.list(25)).more is False
    with pytest.raises(NoSuchRun):
        await daemon.executor.list(10, after="no-such-run")


async def test_a_page_goes_on_behind_a_run_that_was_pruned_meanwhile(daemon):
    uids = [await daemon.executor.submit(RUN) for _ in range(3)]
    await daemon.executor.abort(uids[1])
    await daemon.executor.prune(keep_runs=0)
    await daemon.pruner.finish()
    assert [run.uid for run in (await daemon.executor.list(after=uids[1])).runs] == [uids[0]]


async def test_a_daemon_that_knows_no_pages_is_not_asked_for_the_first_one_again_and_again(
    daemon, monkeypatch
):
    async def without(*_):
        return RunList(runs=())

    monkeypatch.setattr("governor.daemon.queries.RunQueries.page", without)
    uid = await daemon.executor.submit(RUN)
    assert (await daemon.executor.list()).runs == ()
    with pytest.raises(BadRequest, match="of an older version"):
        await daemon.executor.list(after=uid)


async def test_no_question_is_read_in_the_event_loop(daemon, monkeypatch):
    uid = await daemon.executor.submit(RUN, key="k")
    ended = await daemon.executor.submit(RUN)
    await daemon.executor.abort(ended)
    readers = set()
    rows = Readers.rows

    def noted(self, question, parameters):
        readers.add(threading.current_thread().name)
        return rows(self, question, parameters)

    monkeypatch.setattr(Readers, "rows", noted)
    for ask in (daemon.executor.status, daemon.executor.explain, daemon.executor.result):
        await ask(ended)
    await daemon.executor.status()
    await daemon.executor.list()
    await daemon.executor.list(after=ended)
    assert [event.kind async for event in daemon.executor.watch(uid, follow=False)] == ["run.accepted"]
    assert await daemon.executor.submit(RUN, key="k") == uid
    await daemon.executor.abort(uid)
    await daemon.executor.prune(keep_runs=0)
    await daemon.pruner.finish()
    assert readers
    assert threading.main_thread().name not in readers


async def test_a_run_that_ends_while_its_row_is_read_is_not_shown_as_interrupted(daemon, monkeypatch):
    """Its slot has finished with it when the answer is made, so that nobody but the journal knows it."""
    uid = await daemon.executor.submit(RUN)
    journal, lines = daemon.journal, daemon.journal.first_unended

    def slow(limit):
        found = lines(limit)
        asyncio.run_coroutine_threadsafe(end(), loop).result(10)
        return found

    async def end():
        daemon.queue.remove(uid)
        await journal.write(lambda tx: (tx.outcome(run_result(uid)), tx.ended(uid)))

    loop = asyncio.get_running_loop()
    monkeypatch.setattr(journal, "first_unended", slow)
    [run] = (await daemon.executor.status()).runs
    assert (run.state, run.outcome) == ("ended", "finished")


SIMULATION = {
    "name": "r",
    "conductors": {"environments": {"e": {"entry": "m:E"}}, "agents": {"a": {"entry": "m:A"}}},
    "phases": [
        {"name": name, "simulate": {"environment": "e", "agents": ["a"], "episodes": 90}} for name in "pqr"
    ],
}


async def test_curves_are_those_of_the_kept_figures_and_of_what_ended_after_them(daemon):
    uid = await daemon.executor.submit(SIMULATION)
    records = [
        EpisodeRecord(index=n, worker=0, seed=0, outcome="terminated", value=float(n), steps=3, seconds=1.0)
        for n in range(60)
    ]
    kept = with_done(Assignment(uid=uid, run=parse(SIMULATION), folder="/").simulation(0), records[:40]).done
    await daemon.journal.write(
        lambda tx: (
            tx.event(uid, "phase.started", {"index": 0}),
            tx.episodes(uid, 0, records[:40]),
            tx.figures(uid, 0, encode(kept)),
            tx.episodes(uid, 0, records[40:]),
            tx.event(uid, "phase.started", {"index": 1}),
        )
    )
    found = await daemon.executor.curves(uid, "return")
    assert [(each.phase, each.metrics) for each in found.phases] == [("p", ("return", "steps")), ("q", ())]
    curve = found.phases[0].curve
    assert [(window.first_key, window.mean) for window in curve.in_order] == [
        (n, float(n)) for n in range(60)
    ]
    assert (found.ended, found.phases[1].curve) == (False, None)
    [alone] = (await daemon.executor.curves(uid, "steps", phase="q")).phases
    assert alone.phase == "q"
    with pytest.raises(UsageError, match="has no phase 'x'; its phases: p, q, r"):
        await daemon.executor.curves(uid, "return", phase="x")
