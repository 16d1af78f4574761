"""Pauses of runs in the queue: on record before they are answered, said once."""

from __future__ import annotations

import pytest

from governor.daemon.dispatcher import take
from governor.errors import (
    AlreadyEnded,
    GovernorError,
    JournalError,
    NoSuchRun,
    RunFileError,
    TryAgain,
    UsageError,
)
from tests.support.daemon.api_world import RUN, open_api


@pytest.fixture
async def daemon():
    async with open_api() as opened:
        yield opened


def recorded(daemon, uid):
    return [(event.kind, event.data) for event in daemon.journal.events(uid)][1:]


async def test_a_queued_run_is_paused_once_and_goes_on_once(daemon):
    uid = await daemon.executor.submit(RUN)
    other = await daemon.executor.submit(RUN)
    assert (await daemon.executor.pause(uid, "a guest")).changed
    found = await daemon.executor.pause(uid, "another")
    assert (found.uid, found.changed, found.state) == (uid, False, "queued")
    [run, after] = (await daemon.executor.status()).runs
    assert (run.paused, run.waits_for) == (True, f"`governor continue {uid}` (paused: a guest)")
    assert (after.paused, after.waits_for) == (False, "a free slot (0 runs before it)")
    assert (await take(daemon.queue, daemon.journal, damaged={})).uid == other
    assert await take(daemon.queue, daemon.journal, damaged={}) is None
    dispatched = daemon.dispatched
    assert (await daemon.executor.continue_(uid[:5])).changed
    assert daemon.dispatched > dispatched
    assert not (await daemon.executor.continue_(uid)).changed
    assert (await take(daemon.queue, daemon.journal, damaged={})).uid == uid
    (kind, data), (then, _) = recorded(daemon, uid)
    assert (kind, data["reason"], data["by"]) == ("run.pause_requested", "a guest", "api")
    assert data["who"]["pid"] > 0
    assert then == "run.continue_requested"


async def test_a_dry_run_changes_nothing(daemon):
    uid = await daemon.executor.submit(RUN)
    found = await daemon.executor.pause(uid, dry_run=True)
    assert (found.changed, found.dry_run) == (True, True)
    assert not (await daemon.executor.continue_(uid, dry_run=True)).changed
    await daemon.executor.pause(uid)
    assert not (await daemon.executor.pause(uid, dry_run=True)).changed
    assert (await daemon.executor.continue_(uid, dry_run=True)).changed
    assert [kind for kind, _ in recorded(daemon, uid)] == ["run.pause_requested"]


async def test_a_pause_that_is_not_on_record_is_none(daemon, monkeypatch):
    uid = await daemon.executor.submit(RUN)

    async def full(*_, **__):
        raise JournalError("the disk is full")

    with monkeypatch.context() as patch:
        patch.setattr(daemon.journal, "write", full)
        with pytest.raises(GovernorError, match="the disk is full"):
            await daemon.executor.pause(uid)
    assert daemon.queue.find(uid).pause is None


async def test_a_run_that_is_taken_meanwhile_stays_paused_in_the_queue(daemon, monkeypatch):
    uid = await daemon.executor.submit(RUN)
    read = daemon.journal.read

    async def paused_meanwhile(question):
        found = await read(question)
        if daemon.queue.find(uid).pause is None:
            daemon.queue.pause(uid, "just now")
        return found

    monkeypatch.setattr(daemon.journal, "read", paused_meanwhile)
    assert await take(daemon.queue, daemon.journal, damaged={}) is None
    assert daemon.queue.find(uid).pause == "just now"


async def test_runs_that_cannot_be_paused_are_refused(daemon):
    ended, held, damaged = [await daemon.executor.submit(RUN) for _ in range(3)]
    await daemon.executor.abort(ended)
    for uid in (held, damaged):
        daemon.queue.remove(uid)
    daemon.held, daemon.damaged[damaged] = {held: "the exit of pid 7"}, "events: no"
    for verb in (daemon.executor.pause, daemon.executor.continue_):
        with pytest.raises(AlreadyEnded):
            await verb(ended)
        with pytest.raises(TryAgain, match="waits for the exit of pid 7"):
            await verb(held)
        with pytest.raises(TryAgain, match="can only be aborted: its record is damaged"):
            await verb(damaged)
        with pytest.raises(NoSuchRun):
            await verb("nobody")


async def test_a_paused_run_can_be_aborted(daemon):
    uid = await daemon.executor.submit(RUN)
    await daemon.executor.pause(uid)
    await daemon.executor.abort(uid)
    [run] = (await daemon.executor.status(uid)).runs
    assert (run.outcome, run.paused) == ("aborted", False)


async def test_a_queued_run_gets_other_values_with_their_event_and_is_found_by_them(daemon):
    uid = await daemon.executor.submit({**RUN, "labels": {"team": "rl"}})
    found = await daemon.executor.set(uid, {"seed": 9, "labels.team": "ops"}, "a better seed", dry_run=True)
    assert (found.changed, found.state, recorded(daemon, uid)) == (True, "queued", [])
    found = await daemon.executor.set(uid, {"seed": 9, "labels.team": "ops"}, "a better seed")
    assert [(each.key, each.before, each.after) for each in found.values] == [
        ("seed", 0, 9),
        ("labels.team", "rl", "ops"),
    ]
    again = await daemon.executor.set(uid, {"seed": 9})
    assert (again.changed, again.values) == (False, ())
    [(kind, data)] = recorded(daemon, uid)
    assert (kind, data["reason"], data["by"]) == ("run.plan_change_requested", "a better seed", "api")
    assert [each["key"] for each in data["changes"]] == ["seed", "labels.team"]
    assert [run.uid for run in (await daemon.executor.list(labels={"team": "ops"})).runs] == [uid]
    assert (await daemon.executor.list(labels={"team": "rl"})).runs == ()
    taken = await take(daemon.queue, daemon.journal, damaged={})
    assert (taken.run.seed, dict(taken.run.labels)) == (9, {"team": "ops"})


async def test_values_that_a_run_can_not_have_change_nothing(daemon):
    uid = await daemon.executor.submit(RUN)
    with pytest.raises(RunFileError, match="seed"):
        await daemon.executor.set(uid, {"seed": -1})
    with pytest.raises(UsageError, match="neither a key of the run file"):
        await daemon.executor.set(uid, {"speed": 1})
    with pytest.raises(NoSuchRun):
        await daemon.executor.set("nobody", {"seed": 1})
    await daemon.executor.abort(uid)
    with pytest.raises(AlreadyEnded):
        await daemon.executor.set(uid, {"seed": 1})


async def test_a_change_keeps_the_pause_of_a_queued_run_and_the_run_in_the_queue(daemon, monkeypatch):
    paused, other = await daemon.executor.submit(RUN), await daemon.executor.submit(RUN)
    await daemon.executor.pause(paused, "a guest")
    await daemon.executor.set(paused, {"seed": 1})
    assert daemon.queue.find(paused).pause == "a guest"
    write, seen = daemon.journal.write, []

    async def look(change, **more):
        seen.append(await take(daemon.queue, daemon.journal, damaged={}))
        return await write(change, **more)

    with monkeypatch.context() as patch:
        patch.setattr(daemon.journal, "write", look)
        await daemon.executor.set(other, {"seed": 1})
    assert seen == [None]
    assert (await take(daemon.queue, daemon.journal, damaged={})).run.seed == 1
