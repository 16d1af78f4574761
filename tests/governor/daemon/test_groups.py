"""Groups over a real broker: accepted whole or not at all, once for a key; what ends, pauses and resumes their runs; how they are listed."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace

import pytest

from governor.daemon.groups.limits import GroupLimits
from governor.daemon.run_queue import RunQueue
from governor.errors import BadRequest, NoSuchRun, RunFileError, TryAgain, UsageError
from governor.messages import GroupProgress, WatchEnd
from governor.runs.assignment import Waiting
from tests.support.daemon.api_world import RUN, open_api
from tests.support.run_results import run_result


def group(*, lr=(0.1, 0.5), seeds=2, **matrix):
    task = {"id": "t", "call": "m:f", "args": {"lr": 0.0}}
    axes = {"p.tasks.t.args.lr": list(lr), "seed": list(range(seeds))}
    return {"name": "g", "phases": [{"name": "p", "tasks": [task]}], "matrix": {**axes, **matrix}}


@pytest.fixture
async def daemon():
    async with open_api() as opened:
        opened.queue.limit = 20
        ending = asyncio.create_task(opened.api.groups.serve())
        yield opened
        ending.cancel()


async def end(daemon, uid, outcome="finished"):
    result = run_result(uid, outcome=outcome)
    await daemon.journal.write(lambda tx: (tx.started(uid), tx.outcome(result), tx.ended(uid)))
    daemon.queue.remove(uid)
    daemon.limits.moved(is_free=True)


async def states(daemon, uid):
    return [cell.state for cell in (await daemon.executor.group(uid)).cells]


async def until(daemon, uid, wanted):
    while True:
        movement = daemon.limits.movement
        if await states(daemon, uid) == wanted:
            return
        await asyncio.wait_for(movement.wait(), 10)


async def test_a_group_is_accepted_once_for_its_key_and_its_runs_are_listed_with_their_values(daemon):
    made = await daemon.executor.submit_group({**group(), "labels": {"team": "rl"}}, key="k")
    again = await daemon.executor.submit_group({**group(), "labels": {"team": "rl"}}, key="k")
    assert (again.uid, again.runs, made.known, again.known) == (made.uid, made.runs, False, True)
    assert daemon.queue.uids() == list(made.runs)
    assert made.uid.startswith("g-")
    with pytest.raises(UsageError, match="a key has at most 256 characters"):
        await daemon.executor.submit_group(group(), key="k" * 257)
    with pytest.raises(UsageError, match="was submitted with another run file"):
        await daemon.executor.submit_group(group(seeds=3), key="k")
    listed = (await daemon.executor.list(group=made.uid[:5])).runs
    assert [(run.group, *run.params.values()) for run in reversed(listed)] == [
        (made.uid, lr, seed) for lr in (0.1, 0.5) for seed in (0, 1)
    ]
    assert {run.labels["team"] for run in listed} == {"rl"}
    events = [event async for event in daemon.executor.watch(made.runs[0], follow=False)]
    assert (events[0].kind, events[0].data["group"]) == ("run.accepted", made.uid)


async def test_a_group_for_which_the_queue_has_no_room_leaves_nothing_behind(daemon):
    daemon.queue.limit = 5
    await daemon.executor.submit_group(group())
    with pytest.raises(TryAgain, match="4 of 5 runs are queued already"):
        await daemon.executor.submit_group(group(), key="again")
    with pytest.raises(UsageError, match="the queue has room for 5 runs"):
        await daemon.executor.submit_group(group(seeds=5))
    with pytest.raises(RunFileError, match="must be a whole number"):
        await daemon.executor.submit_group(group(seed=["x"], seeds=1))
    assert len((await daemon.executor.list()).runs) == len(daemon.queue) == 4
    assert daemon.journal.group_of_key("again") is None


async def test_a_run_is_no_group_and_a_group_no_run(daemon):
    made = await daemon.executor.submit_group(group())
    with pytest.raises(UsageError, match="has a matrix"):
        await daemon.executor.submit(group())
    with pytest.raises(UsageError, match="has no matrix"):
        await daemon.executor.submit_group(RUN)
    with pytest.raises(NoSuchRun, match=f"{made.uid} is a group of runs"):
        await daemon.executor.status(made.uid)
    for uid in ("g-no", "", made.runs[0]):
        with pytest.raises(NoSuchRun, match="no group"):
            await daemon.executor.group(uid)


async def test_runs_are_listed_by_label_state_and_in_an_order(daemon):
    made = await daemon.executor.submit_group({**group(lr=(3, 20)), "labels": {"team": "rl", "paper": "a"}})
    alone = await daemon.executor.submit({**RUN, "labels": {"team": "rl"}}, params={"p.x": 7})
    await daemon.executor.submit(RUN)
    await end(daemon, made.runs[0])
    await end(daemon, made.runs[3], "failed")
    await daemon.executor.pause(made.runs[1])

    async def found(**asked):
        return {run.uid for run in (await daemon.executor.list(**asked)).runs}

    assert await found(labels={"team": "rl"}) == {alone, *made.runs}
    assert await found(labels={"team": "rl", "paper": "a"}) == {*made.runs}
    assert await found(labels={"team": "x"}) == set()
    assert await found(labels={"paper": "a"}, state="queued") == {made.runs[2]}
    assert await found(state="paused") == {made.runs[1]}
    assert await found(state="failed") == await found(group=made.uid, state="failed") == {made.runs[3]}
    assert await found(state="ended") == {made.runs[0], made.runs[3]}
    first = await daemon.executor.list(1, group=made.uid)
    rest = await daemon.executor.list(9, group=made.uid, after=first.runs[0].uid)
    assert [run.uid for run in (*first.runs, *rest.runs)] == [*reversed(made.runs)]
    ordered = await daemon.executor.list(2, labels={"paper": "a"}, sort="lr", descending=True)
    assert [run.params["p.tasks.t.args.lr"] for run in ordered.runs] == [20, 20]
    assert ordered.more
    everything = await daemon.executor.list(sort="x")
    assert everything.runs[0].uid == alone, "those without a value come last"
    for asked, why in (
        ({"state": "qeued"}, "did you mean 'queued'"),
        ({"sort": "lrr"}, "no run of the list has 'lrr'"),
        ({"sort": "lr", "after": alone}, "a sorted list has no next page"),
        ({"limit": 0}, "limit counts runs"),
    ):
        with pytest.raises((UsageError, BadRequest), match=why):
            await daemon.executor.list(**asked)


async def test_all_runs_are_paused_and_go_on_and_each_is_changed_once(daemon):
    uid = (made := await daemon.executor.submit_group(group())).uid
    await daemon.executor.pause(made.runs[2])
    await end(daemon, made.runs[3])
    assert (await daemon.executor.pause_group(uid, dry_run=True)).changed == 2
    assert await states(daemon, uid) == ["queued", "queued", "paused", "finished"]
    assert [(await daemon.executor.pause_group(uid)).changed for _ in range(2)] == [2, 0]
    assert await states(daemon, uid) == ["paused"] * 3 + ["finished"]
    assert daemon.queue.first() is None
    assert [(await daemon.executor.continue_group(uid)).changed for _ in range(2)] == [3, 0]


async def test_all_runs_get_other_values_or_none_does(daemon):
    uid = (made := await daemon.executor.submit_group(group())).uid
    await end(daemon, made.runs[3])
    wanted = {"limits.wall_clock": "2h"}
    assert (await daemon.executor.set_group(uid, wanted, dry_run=True)).changed == 3
    assert [(await daemon.executor.set_group(uid, wanted)).changed for _ in range(2)] == [3, 0]
    found = [await daemon.executor.set(run, wanted, dry_run=True) for run in made.runs[:3]]
    assert not any(each.changed for each in found)
    with pytest.raises(RunFileError):
        await daemon.executor.set_group(uid, {"limits.wall_clock": "soon"})
    [first] = await daemon.journal.read(lambda: [daemon.journal.line(made.runs[0])])
    path = next(iter(first.params))
    assert (await daemon.executor.set_group(uid, {path: 9})).changed == 3
    assert (await daemon.journal.read(lambda: daemon.journal.line(made.runs[0]))).params[path] == 9


async def test_an_abort_ends_all_runs_and_a_resume_does_those_that_are_missing(daemon):
    uid = (made := await daemon.executor.submit_group(group())).uid
    await end(daemon, made.runs[0])
    assert (await daemon.executor.abort_group(uid, "enough", dry_run=True)).changed == 3
    assert (await daemon.executor.abort_group(uid, "enough")).changed == 3
    await until(daemon, uid, ["finished"] + ["aborted"] * 3)
    assert (await daemon.executor.abort_group(uid, "again")).changed == 0
    assert {cell.reason for cell in (await daemon.executor.group(uid)).cells[1:]} == {"enough"}
    resumed = await daemon.executor.resume_group(uid)
    assert (resumed.changed, len(resumed.runs)) == (3, 3)
    assert (await daemon.executor.resume_group(uid)).changed == 0
    cells = (await daemon.executor.group(uid)).cells
    assert [cell.uid for cell in cells] == [made.runs[0], *resumed.runs]
    assert [cell.runs for cell in cells] == [1, 2, 2, 2]
    assert [cell.params["seed"] for cell in cells] == [0, 1, 0, 1]
    await daemon.limits.settle()
    assert not daemon.limits.ending, "the abort was of the earlier runs"


async def test_a_watch_tells_of_each_run_that_ends_until_all_have(daemon):
    made = await daemon.executor.submit_group(group(lr=(0.1,)))
    ended, counts = [], []

    async def watch():
        async for message in daemon.executor.watch_group(made.uid):
            if isinstance(message, GroupProgress):
                ended.extend(cell.uid for cell in message.ended)
                counts.append(message.counts)
                if len(counts) == 1:
                    begun.set()
            else:
                return message
        return None

    begun = asyncio.Event()
    watching = asyncio.create_task(watch())
    await asyncio.wait_for(begun.wait(), 10)
    await end(daemon, made.runs[1], "aborted")
    await end(daemon, made.runs[0])
    assert await asyncio.wait_for(watching, 10) == WatchEnd(outcome="aborted")
    assert sorted(ended) == sorted(made.runs)
    assert (counts[0], counts[-1]) == ({"queued": 2}, {"aborted": 1, "finished": 1})
    assert [cell.state for cell in (await daemon.executor.wait_group(made.uid)).cells] == [
        "finished",
        "aborted",
    ]


# -- limits ------------------------------------------------------------------------------------------------------


async def test_so_many_runs_of_a_group_are_at_work_and_others_pass_it(daemon):
    made = await daemon.executor.submit_group(group(max_parallel=1))
    other = await daemon.executor.submit(RUN)
    assert daemon.queue.first().uid == made.runs[0]
    daemon.governors.append(SimpleNamespace(group=made.uid))
    daemon.limits.moved()
    assert daemon.queue.first().uid == other
    daemon.governors.clear()
    daemon.limits.moved()
    assert daemon.queue.first().uid == made.runs[0]
    # Another daemon holds to it.
    limits = GroupLimits(lambda: [SimpleNamespace(group=made.uid)])
    await limits.load(daemon.journal)
    queue = RunQueue(limit=9, rules=[limits])
    queue.append(Waiting(uid=made.runs[0], group=made.uid))
    assert queue.first() is None
    assert queue.obstacle(queue.find(made.runs[0])) == (
        f"another run of its group {made.uid} to end (max_parallel: 1)"
    )


async def test_a_failure_ends_the_runs_that_have_not_begun_once_and_by_any_daemon(daemon):
    made = await daemon.executor.submit_group(group(fail_fast=True))
    lenient = await daemon.executor.submit_group(group())
    await daemon.journal.write(lambda tx: tx.started(made.runs[1]))  # it was interrupted, and waits again
    await end(daemon, lenient.runs[0], "failed")
    await daemon.limits.settle()
    assert not daemon.limits.ending
    # The daemon dies before it has ended them: the next one finds them.
    await daemon.journal.write(
        lambda tx: (tx.outcome(run_result(made.runs[0], outcome="failed")), tx.ended(made.runs[0]))
    )
    limits = GroupLimits(list)
    await limits.load(daemon.journal)
    await limits.settle()
    assert {uid: why.reason for uid, why in limits.ending.items()} == dict.fromkeys(
        made.runs[2:], f"run {made.runs[0]} of its group has failed (fail_fast)"
    )
    assert limits.obstacle(Waiting(uid=made.runs[2], group=made.uid))
    assert not limits.obstacle(Waiting(uid=made.runs[1], group=made.uid))
    daemon.limits.moved(is_free=True)
    await daemon.limits.settle()
    await until(daemon, made.uid, ["failed", "queued", "aborted", "aborted"])
    for uid in made.runs[2:]:
        kinds = [event.kind async for event in daemon.executor.watch(uid)]
        assert kinds == ["run.accepted", "run.ended"]
    assert await states(daemon, lenient.uid) == ["failed", "queued", "queued", "queued"]


async def test_a_failure_before_a_resume_does_not_count(daemon):
    made = await daemon.executor.submit_group(group(fail_fast=True, lr=(0.1,)))
    await end(daemon, made.runs[0], "failed")
    await daemon.limits.settle()
    await until(daemon, made.uid, ["failed", "aborted"])
    resumed = await daemon.executor.resume_group(made.uid)
    await daemon.limits.settle()
    assert await states(daemon, made.uid) == ["queued", "queued"]
    await end(daemon, resumed.runs[0], "failed")
    await daemon.limits.settle()
    await until(daemon, made.uid, ["failed", "aborted"])


async def test_one_run_is_resumed_though_another_one_has_failed_before(daemon):
    made = await daemon.executor.submit_group(group(fail_fast=True, lr=(0.1,)))
    await end(daemon, made.runs[0], "failed")
    await end(daemon, made.runs[1], "failed")
    await daemon.executor.resume(made.runs[1])
    await daemon.limits.settle()
    assert await states(daemon, made.uid) == ["failed", "queued"]
    assert not daemon.limits.ending
