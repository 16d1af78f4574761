"""Runners on a real Ray: bundles, claims, and what user code can do to its runner."""

from __future__ import annotations

import time

import pytest

from governor.tasks.protocol.wire import (
    Begun,
    Input,
    Loading,
    Over,
    StateUpdate,
)
from governor.tasks.scheduling.events import RunnerGone
from tests.support.living import lives
from tests.support.tasks.runner_world import open_world

pytestmark = [pytest.mark.ray, pytest.mark.asyncio(loop_scope="session")]


# -- bundles ------------------------------------------------------------------------------------------------


async def test_a_bundle_is_executed_in_order_each_run_begins_and_ends_once(world):
    runner = await world.ready()
    work_items = [world.work("give", args={"value": n}, runs=(0, 1, 2)) for n in range(50)]
    start = time.monotonic()
    world.runners.send(runner, work_items)
    await world.over(runner, work_items[-1])
    end = time.monotonic()
    told = [each for each in world.heard.of[runner] if isinstance(each, Begun | Over)][-300:]
    wanted = [(work.ticket, run, kind) for work in work_items for run in work.runs for kind in (Begun, Over)]
    assert [(each.ticket, each.run, type(each)) for each in told] == wanted
    assert [each.value for each in told if isinstance(each, Over)] == [n for n in range(50) for _ in range(3)]
    assert [start, *sorted(each.at for each in told), end] == [start, *(each.at for each in told), end]
    world.give_back(runner)


async def test_runs_of_a_task_do_not_see_what_others_did_to_its_arguments(world):
    overs = await world.run("grow", args={"items": [0]}, runs=(0, 1, 2))
    assert [over.value for over in overs] == [2, 2, 2]
    inputs = {"a": [Input(value={"list": []})]}
    overs = await world.run("grow_input", inputs=inputs, runs=(0, 1, 2))
    assert [over.value for over in overs] == [1, 1, 1]


async def test_what_a_context_tells(world):
    (over,) = await world.run(
        "context_of", runs=(7,), attempt=3, is_eval=True, model={"url": "u"}, batch="4/x"
    )
    assert over.value == {
        "run": "test-run",
        "batch": "4/x",
        "task": over.value["task"],
        "run_id": 7,
        "attempt": 3,
        "is_eval": True,
        "model": {"url": "u"},
    }


async def test_a_module_that_cannot_be_imported_ends_each_run_and_nothing_else(world):
    runner = await world.ready()
    bad = world.work("no_such_module:x", runs=(3, 4))
    worse = world.work("runner_deeds:no_such_name")
    good = world.work("nothing")
    world.runners.send(runner, [bad, worse, good])
    assert not (await world.over(runner, good))[0].error
    news = [type(each) for each in world.heard.all(runner, Loading | Begun | Over, bad.ticket)]
    assert news == [Loading, Begun, Over, Begun, Over]
    assert [over.run for over in world.heard.all(runner, Over, bad.ticket)] == [3, 4]
    assert "no_such_module" in world.heard.all(runner, Over, bad.ticket)[0].error
    assert "no_such_name" in world.heard.all(runner, Over, worse.ticket)[0].error
    world.give_back(runner)


@pytest.mark.parametrize(
    ("call", "error"),
    [
        ("bad_error", r"FileNotFoundError: /tmp/\udc80\udcff (runner_deeds.py:"),
        ("unspeakable", "Unspeakable: (its text cannot be read"),
        ("nested_error", "RuntimeError: out (runner_deeds.py:"),
        ("endless_recursion", "RecursionError: maximum recursion depth exceeded"),
        ("bad_metric", r"the name of metric '\udc80' has no UTF-8 form"),
        ("bad_payload", "the payload is a str"),
        ("fork_and_raise", ""),
    ],
)
async def test_every_exception_is_one_end_and_the_runner_lives(world, call, error):
    (over,) = await world.run(call)
    assert over.error.startswith(error) if error else not over.error
    assert (await world.run("give", args={"value": 5}))[0].value == 5
    assert not world.heard.all(0, RunnerGone)


async def test_bad_logging_and_telling_stay_in_the_task(world):
    assert (await world.run("bad_log"))[0].value == "ok"
    assert (await world.run("bad_tell"))[0].value == "refused"


async def test_threads_of_user_code_do_not_mix_up_the_stream(world):
    runner = await world.ready()
    work = world.work("told_by_threads")
    world.runners.send(runner, [work])
    (over,) = await world.over(runner, work)
    assert not over.error
    told = world.heard.all(runner, StateUpdate, work.ticket)
    assert len(told) == 800
    assert [each.state["t2"] for each in told if "t2" in each.state] == list(range(200))
    world.give_back(runner)


async def test_a_forked_child_that_leaves_the_task_does_not_act_as_the_runner(world, tmp_path):
    note = tmp_path / "note"
    (over,) = await world.run("fork_and_return", args={"note": str(note)})
    assert over.value == "parent"
    assert not lives(int(note.read_text()))
    assert (await world.run("give", args={"value": 1}))[0].value == 1


async def test_children_have_their_exit_codes(world):
    """Ray ignores SIGCHLD in its workers, and all children seem to succeed."""
    assert (await world.run("codes"))[0].value == [[0, 3], True]


async def test_more_than_a_pipe_holds_is_refused(world):
    runner = await world.ready()
    with pytest.raises(ValueError, match="8192"):
        world.runners.send(runner, [world.work("nothing") for _ in range(8193)])
    world.give_back(runner)


async def test_a_full_socket_does_not_hold_the_loop(world):
    runner = await world.ready()
    busy = world.work("sleep", args={"seconds": 2.0})
    world.runners.send(runner, [busy])
    await world.begun(runner, busy)
    large = world.work("give", args={"value": "x" * 60_000, "more": ["y" * 50_000_000]}, runs=(0,))
    start = time.monotonic()
    world.runners.send(runner, [large])
    assert time.monotonic() - start < 1.5
    (over,) = await world.over(runner, large)
    assert "unexpected keyword argument 'more'" in over.error
    world.give_back(runner)


# -- claims -------------------------------------------------------------------------------------------------


async def test_what_a_runner_has_not_claimed_is_taken_back_while_it_holds_the_gil(world):
    runner = await world.ready()
    first, *rest = work_items = [world.work("hold_the_gil"), *(world.work("nothing") for _ in range(20))]
    sent = time.monotonic()
    world.runners.send(runner, work_items)
    begun = await world.begun(runner, first)
    assert time.monotonic() - sent < 30, "it holds the lock for a minute"
    assert sent < begun.at < time.monotonic()
    world.runners.revoke(runner)
    assert world.heard.of[runner][-1] == tuple(work.ticket for work in rest)
    world.runners.revoke(runner)
    assert world.heard.of[runner][-1] == ()
    pid = world.runners.pid(runner)
    killed = time.monotonic()
    world.runners.kill(runner, "enough")
    gone = await world.gone(runner)
    assert not lives(pid)
    assert gone.reason == "enough"
    assert gone.now - killed < 0.3
    assert not world.heard.all(runner, Over, first.ticket)


async def test_each_ticket_is_executed_or_taken_back_never_both(world):
    runner = await world.ready()
    for size in (2, 3, 5, 9, 17, 33, 65, 129):
        work_items = [world.work("burst", args={"seconds": 20e-6}) for _ in range(size)]
        world.runners.send(runner, work_items)
        await world.begun(runner, work_items[0])
        world.runners.revoke(runner)
        back = world.heard.of[runner][-1]
        assert isinstance(back, tuple)
        executed = {work.ticket for work in work_items} - set(back)
        last = max(executed)
        await world.said(runner, Over, last)
        after = world.work("nothing")
        world.runners.send(runner, [after])
        await world.over(runner, after)
        tickets = {work.ticket for work in work_items}
        assert {o.ticket for o in world.heard.all(runner, Over) if o.ticket in tickets} == executed
    world.give_back(runner)


# -- the run file's folder ----------------------------------------------------------------------------------


async def where_a_runner_works(harness, tmp_path, working_folder, **world):
    (tmp_path / "run").mkdir()
    async with open_world(
        harness.cluster, tmp_path / "run", working_folder=str(working_folder), **world
    ) as opened:
        [over] = await opened.run("os:getcwd")
    return over


async def test_a_runner_works_in_the_run_files_folder(harness, tmp_path):
    assert (await where_a_runner_works(harness, tmp_path, tmp_path)).value == str(tmp_path)


async def test_without_that_folder_tasks_fail_with_the_reason(harness, tmp_path):
    over = await where_a_runner_works(harness, tmp_path, tmp_path / "gone")
    assert f"the run file's folder {tmp_path / 'gone'} cannot be entered (No such file" in over.error


async def test_a_runner_on_another_machine_without_it_works_in_its_own(harness, tmp_path):
    over = await where_a_runner_works(harness, tmp_path, tmp_path / "gone", unix=False)
    assert over.error == ""
    assert over.value != str(tmp_path / "gone")
