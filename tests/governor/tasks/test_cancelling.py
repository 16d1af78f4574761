"""TaskCancelled: raised in the attempt that was meant, in user code alone, and never lost nor heard twice."""

from __future__ import annotations

import asyncio
import random
import time

import pytest

from governor.tasks.protocol.wire import Begun, Over, StateUpdate
from governor.tasks.scheduling.events import RunnerGone

pytestmark = [pytest.mark.ray, pytest.mark.asyncio(loop_scope="session")]

CANCELLED = "the task was cancelled"


@pytest.mark.parametrize(
    "call",
    [
        "sleep",
        "spin",
        "wait_on_child",
        "sleep_in_a_finalizer",
        "sleep_async",
        "block_async",
        "wait_for_output",
        "block_in_a_group",
        "spin_in_a_child",
        "own_loop",
        "own_loop_of_a_group",
        "callbacks_only",
        "tell_much",
        "log_much",
    ],
)
async def test_the_attempt_ends_the_rest_comes_back_and_the_runner_lives(world, call):
    runner = await world.ready()
    for delay in (0, 0, 0.001, 0.002, 0.02, 0.2):
        work, after = world.work(call), world.work("nothing")
        world.runners.send(runner, [work, after])
        await world.begun(runner, work)
        await asyncio.sleep(delay)
        asked = time.monotonic()
        world.runners.cancel(runner, work.ticket)
        (over,) = await world.over(runner, work)
        assert over.error == CANCELLED
        assert over.dropped
        assert over.at - asked < 0.2
        assert (after.ticket,) in world.heard.of[runner]
        world.runners.send(runner, [after])
        assert not (await world.over(runner, after))[0].error
        assert len(world.heard.all(runner, Over, work.ticket)) == 1
    world.give_back(runner)


async def test_a_finalizer_may_take_long_to_end(world):
    runner = await world.ready()
    for _ in range(5):
        work = world.work("sleep_in_a_finalizer", args={"seconds": 0.2})
        world.runners.send(runner, [work])
        await world.said(runner, StateUpdate, work.ticket)
        world.runners.cancel(runner, work.ticket)
        assert (await world.over(runner, work))[0].error == CANCELLED
    world.give_back(runner)


async def test_a_signal_that_was_lost_is_sent_again(world, tmp_path):
    runner, note = await world.ready(), tmp_path / "note"
    work = world.work("deaf_until", args={"note": str(note)})
    world.runners.send(runner, [work])
    await world.said(runner, StateUpdate, work.ticket)
    world.runners.cancel(runner, work.ticket)
    note.touch()
    assert (await world.over(runner, work))[0].error == CANCELLED
    world.give_back(runner)


@pytest.mark.parametrize("moments", [40, pytest.param(150, marks=pytest.mark.long)])
async def test_a_loop_that_is_interrupted_at_any_moment_forgets_no_coroutine(world, moments):
    runner = await world.ready()
    chance = random.Random(1)
    for _ in range(moments):
        work = world.work("spin_in_a_child")
        world.runners.send(runner, [work])
        await world.begun(runner, work)
        await asyncio.sleep(chance.uniform(0, 0.003))
        world.runners.cancel(runner, work.ticket)
        assert (await world.over(runner, work))[0].error == CANCELLED
    world.give_back(runner)


async def test_it_does_not_cut_a_report_in_two(world):
    """The runner is in the middle of a frame, for which the socket has no room."""
    runner = await world.ready()
    for _ in range(5):
        work, after = world.work("tell_large"), world.work("nothing")
        world.runners.send(runner, [work])
        await world.begun(runner, work)
        time.sleep(0.02)  # the loop reads nothing meanwhile  # noqa: ASYNC251
        world.runners.cancel(runner, work.ticket)
        time.sleep(0.02)  # noqa: ASYNC251  # as above
        assert (await world.over(runner, work))[0].error == CANCELLED
        world.runners.send(runner, [after])
        await world.over(runner, after)
    world.give_back(runner)


async def test_user_code_cleans_up(world, tmp_path):
    runner = await world.ready()
    note, other, third = tmp_path / "note", tmp_path / "other", tmp_path / "third"
    once = tmp_path / "once"
    work_items = [
        world.work("clean_up", args={"note": str(note)}),
        world.work("clean_up_async", args={"note": str(other)}),
        world.work("steps", args={"note": str(third)}),
        world.work("clean_up_beside_a_finalizer", args={"note": str(once)}),
    ]
    for work in work_items:
        world.runners.send(runner, [work])
        await world.begun(runner, work)
        await asyncio.sleep(0.02)
        world.runners.cancel(runner, work.ticket)
        await world.over(runner, work)
    assert note.read_text() == f"cancelled: {CANCELLED}"
    assert (tmp_path / "note.finally").exists()
    assert other.exists()
    assert once.exists(), "its clean-up was cancelled, too"
    (rescued,) = world.heard.all(runner, Over, work_items[2].ticket)
    assert (rescued.value, rescued.error, rescued.dropped) == ("rescued", "", True)
    world.give_back(runner)


async def test_the_other_runs_of_a_cancelled_attempt_are_dropped(world):
    runner = await world.ready()
    work, after = world.work("sleep", args={"seconds": 0.3}, runs=(0, 1, 2, 3)), world.work("nothing")
    world.runners.send(runner, [work])
    await world.said(runner, Begun, work.ticket, count=2)
    world.runners.cancel(runner, work.ticket)
    overs = await world.said(runner, Over, work.ticket, count=2)
    world.runners.send(runner, [after])
    await world.over(runner, after)
    assert [(over.run, over.error, over.dropped) for over in overs] == [(0, "", False), (1, CANCELLED, True)]
    assert len(world.heard.all(runner, Begun, work.ticket)) == 2
    world.give_back(runner)


async def test_a_ticket_that_is_over_or_unknown_cancels_nothing(world):
    runner = await world.ready()
    before, work = world.work("nothing"), world.work("sleep", args={"seconds": 0.5})
    world.runners.send(runner, [before])
    await world.over(runner, before)
    world.runners.cancel(runner, before.ticket)
    world.runners.send(runner, [work])
    await world.begun(runner, work)
    world.runners.cancel(runner, before.ticket)
    world.runners.cancel(runner, 2**63)
    (over,) = await world.over(runner, work)
    assert not over.error
    assert over.seconds >= 0.5
    world.give_back(runner)


async def test_what_was_asked_before_it_began_ends_it_when_it_begins(world):
    runner = await world.ready()
    work, after = world.work("sleep"), world.work("nothing")
    world.runners.cancel(runner, work.ticket)
    await asyncio.sleep(0.05)
    world.runners.send(runner, [work, after])
    (over,) = await world.over(runner, work)
    assert over.error == CANCELLED
    assert not (await world.over(runner, after))[0].error
    world.give_back(runner)


@pytest.mark.parametrize("handler", ["SIG_IGN", "SIG_DFL"])
async def test_user_code_that_takes_the_signal_has_it_for_itself_alone(world, handler):
    runner = await world.ready()
    taker, work = world.work("take_the_signal", args={"handler": handler}), world.work("sleep")
    world.runners.send(runner, [taker, work])
    await world.begun(runner, work)
    world.runners.cancel(runner, work.ticket)
    assert (await world.over(runner, work))[0].error == CANCELLED
    world.give_back(runner)


async def test_an_error_of_its_own_is_no_cancellation(world):
    (over,) = await world.run("own_cancelled_error")
    assert over.error.startswith("CancelledError")


async def test_who_swallows_it_goes_on_and_is_killed(world):
    runner = await world.ready(fresh=True)
    work = world.work("swallow")
    world.runners.send(runner, [work])
    await world.begun(runner, work)
    await asyncio.sleep(0.05)
    world.runners.cancel(runner, work.ticket)
    await asyncio.sleep(0.2)
    assert not world.heard.all(runner, Over, work.ticket)
    world.runners.kill(runner, "grace is over")
    assert (await world.gone(runner)).reason == "grace is over"


@pytest.mark.parametrize("seed", [0, *(pytest.param(seed, marks=pytest.mark.long) for seed in range(1, 6))])
async def test_signals_at_any_moment_hit_only_whom_they_are_meant_for(world, seed):
    """Thousands of cancellations in the middle of bundles of tasks that take some ten microseconds."""
    chance = random.Random(seed)
    runner = await world.ready()
    news = world.heard.of[runner]
    hits, asked = 0, {world.work("nothing").ticket}  # the test before may have asked for it
    end = time.monotonic() + 3
    while time.monotonic() < end or hits <= 10:
        call = chance.choice(["short", "short", "short_async", "nothing"])
        runs = [tuple(range(chance.choice([1, 3]))) for _ in range(chance.randrange(1, 40))]
        work_items = [world.work(call, runs=each) for each in runs]
        start = len(news)
        world.runners.send(runner, work_items)
        async with asyncio.timeout(5):
            while not all_over(news[start:], work_items):
                await asyncio.sleep(chance.choice([0, 0, 1e-4, 5e-4, 2e-3]))
                told = news[-1]
                ticket = (
                    told.ticket + chance.randrange(2)
                    if isinstance(told, Begun | Over)
                    else work_items[0].ticket
                )
                asked.add(ticket)
                world.runners.cancel(runner, ticket)
        hits += check(news[start:], work_items, asked)
    assert hits > 10
    assert not world.heard.all(runner, RunnerGone)
    world.give_back(runner)


def taken_back(news):
    return {ticket for each in news if isinstance(each, tuple) for ticket in each}


def all_over(news, work_items):
    ends = {}
    for each in news:
        if isinstance(each, Over):
            ends.setdefault(each.ticket, []).append(each)
    back = taken_back(news)
    return all(
        work.ticket in back
        or (
            work.ticket in ends
            and (ends[work.ticket][-1].dropped or len(ends[work.ticket]) == len(work.runs))
        )
        for work in work_items
    )


def check(news, work_items, asked):
    """Every run that began ended once, in order; only who was asked to end has done so. How many did."""
    back, hits = taken_back(news), 0
    told = [each for each in news if isinstance(each, Begun | Over)]
    for work in work_items:
        if work.ticket in back:
            continue
        for run in work.runs:
            begun, over, *told = told
            assert (type(begun), begun.ticket, begun.run) == (Begun, work.ticket, run)
            assert (type(over), over.ticket, over.run) == (Over, work.ticket, run)
            assert over.error in ("", CANCELLED)
            assert over.value in (None, work.task)
            if over.error or over.dropped:
                assert work.ticket in asked
                assert over.dropped
                hits += 1
                break
    assert not told
    return hits
