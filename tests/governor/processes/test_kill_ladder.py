from __future__ import annotations

import asyncio
import contextlib
import errno
import os
import signal
import threading
import time
from pathlib import Path
from types import SimpleNamespace

import psutil
import pytest

from governor.errors import ProcessError
from governor.processes import kill_ladder, kill_tree, process
from governor.processes.kill_ladder import GracePeriods, terminate
from governor.processes.readiness import is_readable
from tests.governor.processes.conftest import start
from tests.support.living import open_fds

QUICK = GracePeriods(ask=0.2, terminate=0.2, kill=5)
PATIENT = GracePeriods(ask=10, terminate=10, kill=10)


@pytest.fixture(scope="module", autouse=True)
def warm(shut_down):
    process.warm_up(preload=False)


@pytest.fixture
def begin(targets, news):
    """`child, descendants = await begin("target")`: returns when the child has said that it is ready."""
    begun = []

    async def begin(target: str):
        child = await start(target, news.address, name=target)
        begun.append(child)
        descendants = [psutil.Process(pid) for pid in (await news()).get("descendants", [])]
        begun.extend(descendants)
        return child, descendants

    yield begin
    for each in begun:
        if isinstance(each, psutil.Process):
            if is_alive(each):
                each.kill()
        else:
            each.signal(signal.SIGKILL)


def is_alive(each: psutil.Process) -> bool:
    with contextlib.suppress(psutil.NoSuchProcess):
        return each.is_running() and each.status() != psutil.STATUS_ZOMBIE
    return False


async def terminated(child, ask, grace):
    """How a child ended: its exit code, the last rung, and how long that took."""
    sent, send, began, was_over = [], child.signal, time.monotonic(), child.exit_code is not None

    def recorded(number):
        return send(number) and not sent.append(number)

    child.signal = recorded
    await terminate(child, ask, grace)
    last = "SIGTERM" if signal.SIGTERM in sent else "message"
    rung = "none" if was_over else "SIGKILL" if child.exit_code == -signal.SIGKILL else last
    return SimpleNamespace(exit_code=child.exit_code, rung=rung, seconds=time.monotonic() - began)


async def test_a_child_that_obeys_the_message_gets_no_signal(begin):
    child, _ = await begin("obey")

    async def ask() -> None:
        child.signal(signal.SIGUSR1)  # stands for Shutdown

    gone = await terminated(child, ask, PATIENT)
    assert (gone.exit_code, gone.rung) == (0, "message")
    assert gone.seconds < 5


async def test_without_a_message_sigterm_is_the_first_rung(begin):
    child, _ = await begin("obey")
    gone = await terminated(child, None, PATIENT)
    assert (gone.exit_code, gone.rung) == (0, "SIGTERM")


async def test_a_child_that_ignores_the_message_gets_sigterm_after_its_grace(begin):
    child, _ = await begin("nap")
    asked = []

    async def ask() -> None:
        asked.append(1)

    gone = await terminated(child, ask, GracePeriods(ask=0.2, terminate=10, kill=10))
    assert (gone.exit_code, gone.rung) == (-signal.SIGTERM, "SIGTERM")
    assert 0.2 <= gone.seconds < 5
    assert asked


async def test_a_message_that_cannot_be_delivered_costs_no_grace(begin):
    child, _ = await begin("nap")

    async def ask() -> None:
        raise ConnectionError("no broker")

    gone = await terminated(child, ask, PATIENT)
    assert (gone.exit_code, gone.rung) == (-signal.SIGTERM, "SIGTERM")
    assert gone.seconds < 5


async def test_a_message_that_hangs_costs_its_grace_alone(begin):
    child, _ = await begin("nap")
    cancelled = asyncio.Event()

    async def ask() -> None:
        try:
            await asyncio.Event().wait()
        finally:
            cancelled.set()

    gone = await terminated(child, ask, GracePeriods(ask=0.2, terminate=10, kill=10))
    assert gone.rung == "SIGTERM"
    assert gone.seconds < 5
    assert cancelled.is_set()


async def test_a_child_that_ignores_sigterm_gets_sigkill(begin):
    child, _ = await begin("defy")
    gone = await terminated(child, None, QUICK)
    assert (gone.exit_code, gone.rung) == (-signal.SIGKILL, "SIGKILL")
    assert gone.seconds < 3


@pytest.mark.parametrize(("target", "code", "rung"), [("obey", 0, "SIGTERM"), ("defy", -9, "SIGKILL")])
async def test_a_stopped_child_is_continued_for_sigterm(begin, target, code, rung):
    child, _ = await begin(target)
    os.kill(child.pid, signal.SIGSTOP)
    gone = await terminated(child, None, GracePeriods(ask=0.2, terminate=10 if code == 0 else 0.2, kill=10))
    assert (gone.exit_code, gone.rung) == (code, rung)


async def test_without_time_for_sigterm_a_stopped_child_is_not_continued(begin, monkeypatch):
    child, _ = await begin("obey")
    os.kill(child.pid, signal.SIGSTOP)
    sent = []
    signal_it = child.signal
    monkeypatch.setattr(child, "signal", lambda number: sent.append(number) or signal_it(number))
    gone = await terminated(child, None, GracePeriods(ask=0, terminate=0, kill=10))
    assert (gone.exit_code, gone.rung) == (-signal.SIGKILL, "SIGKILL")
    assert sent == [signal.SIGKILL]


async def test_descendants_die_in_the_group_and_outside(begin):
    child, descendants = await begin("start_descendants")
    assert [os.getpgid(each.pid) == child.pid for each in descendants] == [True, False, False]
    gone = await terminated(child, None, QUICK)
    assert gone.rung == "SIGKILL"
    assert not any(is_alive(each) for each in descendants)


async def test_a_child_without_its_main_thread_does_not_count_as_dead(begin):
    child, [hollow] = await begin("start_hollow")
    death = os.pidfd_open(hollow.pid)
    await terminate(child, None, QUICK)
    assert is_readable(death)
    os.close(death)


async def test_descendants_of_an_obedient_child_are_killed(begin):
    child, descendants = await begin("leave_descendants")
    gone = await terminated(child, None, PATIENT)
    assert (gone.exit_code, gone.rung) == (0, "SIGTERM")
    assert not any(is_alive(each) for each in descendants)


async def test_a_child_that_has_exited_already_keeps_its_exit_code(begin):
    child, _ = await begin("nap")
    child.signal(signal.SIGKILL)
    await child.wait()

    async def ask() -> None:
        raise AssertionError("nobody is there to be asked")

    gone = await terminated(child, ask, PATIENT)
    assert (gone.exit_code, gone.rung) == (-signal.SIGKILL, "none")


async def test_descendants_in_other_sessions_of_a_killed_child_are_killed(begin):
    child, descendants = await begin("start_descendants")
    child.signal(signal.SIGKILL)
    await child.wait()
    assert is_alive(descendants[1])
    gone = await terminated(child, None, PATIENT)
    assert gone.rung == "none"
    assert not any(is_alive(each) for each in descendants)


async def test_two_ladders_at_once_agree(begin):
    child, _ = await begin("defy")
    await asyncio.gather(terminate(child, None, QUICK), terminate(child, None, QUICK))
    assert child.exit_code == -signal.SIGKILL


async def test_many_go_down_side_by_side(begin):
    children = [(await begin("defy"))[0] for _ in range(8)]
    began = time.monotonic()
    await asyncio.gather(*(terminate(child, None, QUICK) for child in children))
    assert time.monotonic() - began < 4


def unreachable(monkeypatch, child):
    """No signal reaches it, as in state D."""
    monkeypatch.setattr(child, "signal", lambda number: True)
    monkeypatch.setattr(kill_tree, "send", lambda handle, number: None)


async def test_a_survivor_is_named(begin, monkeypatch):
    child, _ = await begin("defy")
    unreachable(monkeypatch, child)
    with pytest.raises(ProcessError, match="alive after SIGKILL") as caught:
        await terminate(child, None, GracePeriods(ask=0.1, terminate=0.1, kill=0.1))
    assert caught.value.pid == child.pid
    monkeypatch.undo()


async def test_a_survivor_is_reported_and_waited_for(begin, monkeypatch):
    child, _ = await begin("defy")
    unreachable(monkeypatch, child)
    stuck = asyncio.get_running_loop().create_future()
    grace = GracePeriods(ask=0.1, terminate=0.1, kill=0.1)
    ladder = asyncio.create_task(terminate(child, None, grace, on_stuck=stuck.set_result))
    assert (await stuck).pid == child.pid
    assert not ladder.done()
    monkeypatch.undo()
    child.signal(signal.SIGKILL)
    await ladder
    assert child.exit_code == -signal.SIGKILL


async def test_a_process_of_another_user_does_not_keep_others_from_being_killed(begin, monkeypatch):
    child, descendants = await begin("start_descendants")
    spared, send = os.pidfd_open(descendants[1].pid), kill_tree.send
    same = Path(f"/proc/self/fdinfo/{spared}").read_text

    def not_permitted(handle, number):
        if Path(f"/proc/self/fdinfo/{handle}").read_text().splitlines()[-2:] != same().splitlines()[-2:]:
            send(handle, number)

    monkeypatch.setattr(kill_tree, "send", not_permitted)
    with pytest.raises(ProcessError, match="alive after SIGKILL") as caught:
        await terminate(child, None, GracePeriods(ask=0.1, terminate=0.1, kill=0.5))
    assert caught.value.pid == descendants[1].pid
    assert child.exit_code == -signal.SIGKILL
    assert [is_alive(each) for each in descendants] == [False, True, False]
    os.close(spared)


async def test_the_event_loop_runs_while_the_tree_is_searched(begin, monkeypatch):
    child, _ = await begin("defy")
    loop, turned, stop_and_kill = asyncio.get_running_loop(), threading.Event(), kill_tree.stop_and_kill

    def slow(*arguments, **named):
        loop.call_soon_threadsafe(turned.set)
        assert turned.wait(10), "the loop was blocked"
        return stop_and_kill(*arguments, **named)

    monkeypatch.setattr(kill_tree, "stop_and_kill", slow)
    assert (await terminated(child, None, QUICK)).exit_code == -signal.SIGKILL


async def test_a_kill_waits_for_no_thread_of_others(begin):
    child, _ = await begin("defy")
    loop, resume = asyncio.get_running_loop(), threading.Event()
    others = [loop.run_in_executor(None, resume.wait) for _ in range(64)]
    try:
        async with asyncio.timeout(20):
            gone = await terminated(child, None, GracePeriods(ask=0, terminate=0, kill=10))
    finally:
        resume.set()
        await asyncio.gather(*others)
    assert gone.exit_code == -signal.SIGKILL


async def test_the_time_of_the_search_does_not_count_as_grace(begin, monkeypatch):
    child, descendants = await begin("start_descendants")
    stop_and_kill = kill_tree.stop_and_kill

    def slow(*arguments, **options):
        time.sleep(2.1)
        return stop_and_kill(*arguments, **options)

    monkeypatch.setattr(kill_tree, "stop_and_kill", slow)
    await terminate(child, None, GracePeriods(ask=0, terminate=0, kill=2))
    assert child.exit_code == -signal.SIGKILL
    assert not any(is_alive(each) for each in descendants)


async def test_a_dead_process_needs_no_grace(begin, monkeypatch):
    child, descendants = await begin("start_descendants")
    child.signal(signal.SIGKILL)
    await child.wait()
    stop_and_kill = kill_tree.stop_and_kill
    found = set()

    def until_dead(*arguments, **options):
        handles = stop_and_kill(*arguments, **options)
        found.update(handles)
        assert not kill_tree.await_deaths(handles, seconds=20)
        return handles

    monkeypatch.setattr(kill_tree, "stop_and_kill", until_dead)
    await terminate(child, None, GracePeriods(ask=0, terminate=0, kill=0))
    in_group, *others = (each.pid for each in descendants)
    assert found - {in_group} == set(others)  # the first signal may still be killing the one in its group


async def test_a_ladder_that_is_cancelled_during_the_search_closes_its_handles(begin, monkeypatch):
    child, descendants = await begin("start_descendants")
    loop, looking, closed = asyncio.get_running_loop(), asyncio.Event(), asyncio.Event()
    resume, close = threading.Event(), kill_tree.close
    stop_and_kill = kill_tree.stop_and_kill

    def slow(*arguments, **named):
        loop.call_soon_threadsafe(looking.set)
        assert resume.wait(10)
        return stop_and_kill(*arguments, **named)

    def close_and_report(handles):
        close(handles)
        closed.set()

    before = open_fds()
    with monkeypatch.context() as patch:
        patch.setattr(kill_tree, "stop_and_kill", slow)
        patch.setattr(kill_tree, "close", close_and_report)
        ladder = asyncio.create_task(terminate(child, None, GracePeriods(ask=0, terminate=0, kill=10)))
        await looking.wait()
        ladder.cancel()
        with pytest.raises(asyncio.CancelledError):
            await ladder
        resume.set()
        async with asyncio.timeout(10):
            await closed.wait()
    assert set(open_fds()) <= set(before)
    await terminate(child, None, QUICK)
    assert not any(is_alive(each) for each in descendants)


@pytest.mark.parametrize(("times", "seconds"), [(2, 5), (20, 0.1)])
async def test_watching_is_retried_until_the_grace_is_over(begin, monkeypatch, times, seconds):
    child, _ = await begin("start_descendants")
    stuck, left = [], times
    watch = kill_ladder._end_once

    async def no_descriptor_left(*arguments):
        nonlocal left
        left -= 1
        if left >= 0:
            raise OSError(errno.EMFILE, "Too many open files")
        await watch(*arguments)

    monkeypatch.setattr(kill_ladder, "RETRY_SECONDS", 0.02)
    monkeypatch.setattr(kill_ladder, "_end_once", no_descriptor_left)
    await terminate(child, None, GracePeriods(ask=0, terminate=0, kill=seconds), on_stuck=stuck.append)
    assert child.exit_code == -signal.SIGKILL
    words = f"start_descendants (pid {child.pid}) was not seen dead: [Errno 24] Too many open files"
    assert [str(error) for error in stuck] == ([words] if seconds < 1 else [])


async def test_a_cancelled_ladder_leaves_no_task_behind(begin):
    child, _ = await begin("defy")

    async def ask() -> None:
        await asyncio.Event().wait()

    before = asyncio.all_tasks()
    ladder = asyncio.create_task(terminate(child, ask, PATIENT))
    await asyncio.sleep(0)
    await asyncio.sleep(0)
    ladder.cancel()
    with pytest.raises(asyncio.CancelledError):
        await ladder
    assert asyncio.all_tasks() == before


async def test_it_leaves_no_descriptor_open(begin):
    child, _ = await begin("start_descendants")
    await terminate(child, None, QUICK)
    before = open_fds()
    child, _ = await begin("start_descendants")
    await terminate(child, None, QUICK)
    assert set(open_fds()) <= set(before)
