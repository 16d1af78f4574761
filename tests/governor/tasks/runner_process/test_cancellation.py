"""A signal between any two instructions of a task cancels it, whatever Python or asyncio is at."""

from __future__ import annotations

import asyncio
import gc
import itertools
import os
import signal
import sys
import time
import weakref
from types import SimpleNamespace

import pytest

from governor.tasks import TaskCancelled
from governor.tasks.protocol.ticket_pipe import TICKET
from governor.tasks.runner_process import calls
from governor.tasks.runner_process.cancellation import Cancellation
from governor.tasks.runner_process.runner import _is_cancellation
from governor.tasks.runners.process import SIGNAL_AGAIN_SECONDS

INSTRUCTIONS = 5000
"""Of which a task is interrupted at each: an event loop has come round several times."""
SECONDS = 20.0
"""For a task that goes on."""


class GoesOn(BaseException):
    """The task was not cancelled."""


@pytest.fixture
def cancellation():
    cancellation = Cancellation()
    cancellation.listen()
    before = signal.getsignal(signal.SIGALRM)
    gc.collect()
    gc.freeze()
    gc.disable()
    yield cancellation
    signal.setitimer(signal.ITIMER_REAL, 0)
    signal.signal(signal.SIGALRM, before)
    cancellation.forget()
    gc.enable()
    gc.unfreeze()


def endless(step):
    while True:
        step()


def plain():
    endless(lambda: sorted([2, 1], key=lambda n: -n))


class Finalized:
    def __init__(self):
        self.itself = self

    def __del__(self):
        self.itself = None
        [each for each in range(3) if each]


def finalizers():
    """Most of its instructions are in finalizers and in callbacks of weak references."""

    def step():
        thing = Finalized()
        _ = weakref.ref(thing, lambda _: [each for each in range(3) if each])
        thing.itself = None

    endless(step)


async def spin():
    while True:  # noqa: ASYNC110  # the deed itself
        await asyncio.sleep(0)


async def gathered():
    await asyncio.gather(spin(), spin())


async def grouped():
    async with asyncio.TaskGroup() as group:
        group.create_task(spin())
        group.create_task(spin())


async def in_time():
    async with asyncio.timeout(3600):
        await asyncio.wait_for(spin(), 3600)


def own_loop():
    asyncio.run(gathered())


def own_loop_of_tasks():
    asyncio.run(grouped())


async def many_tasks():
    """It creates tasks, and the loop forgets them."""
    while True:
        await asyncio.create_task(asyncio.sleep(0))


TASKS = [plain, finalizers, gathered, grouped, own_loop, own_loop_of_tasks, in_time, many_tasks]


def interrupted(cancellation, task, at, *, seen_by_handler=lambda frame: frame):
    """What the task raises when a signal comes before its instruction number `at`, and again as the driver sends it."""
    gc.collect()  # asyncio logs what is left of tasks that were interrupted before, and takes any exception then
    counted, end = itertools.count(1), time.monotonic() + SECONDS

    def again(number, frame):
        if time.monotonic() > end:
            raise GoesOn
        while frame.f_code in handlers:  # a signal may come during the one before
            frame = frame.f_back
        cancellation._on_signal(number, frame)

    def instruction(frame, event, _):
        if event == "opcode" and next(counted) == at:
            sys.settrace(None)
            os.write(cancellation.pipe, TICKET.pack(at))
            seen = seen_by_handler(frame)
            signal.setitimer(signal.ITIMER_REAL, *2 * SIGNAL_AGAIN_SECONDS[:1])
            cancellation._on_signal(0, seen)
        return instruction

    def call(frame, event, _):
        frame.f_trace_opcodes = True
        return instruction

    handlers = {each.__code__ for each in (again, instruction, Cancellation._on_signal)}
    signal.signal(signal.SIGALRM, again)
    cancellation.enter(at)
    sys.settrace(call)
    try:
        try:  # as in a runner
            calls.call_it(task, args={}, offers={})
        finally:
            cancellation.leave()
    except BaseException as error:  # noqa: BLE001  # it is looked at
        return error
    finally:
        sys.settrace(None)
        signal.setitimer(signal.ITIMER_REAL, 0)
    return None


@pytest.mark.filterwarnings("ignore:coroutine .* was never awaited")  # it was cancelled before
@pytest.mark.filterwarnings("ignore:.*BaseEventLoop.__del__")  # of one that was not made yet
@pytest.mark.parametrize("task", TASKS)
@pytest.mark.parametrize("every", [19, pytest.param(1, marks=pytest.mark.long)])
def test_at_any_instruction(cancellation, task, every):
    for at in range(1, INSTRUCTIONS, every):
        error = interrupted(cancellation, task, at)
        assert _is_cancellation(error, cancelled=True), f"instruction {at}: {error!r}"


@pytest.mark.filterwarnings("ignore:coroutine .* was never awaited")
@pytest.mark.parametrize("task", [gathered, grouped, in_time, many_tasks])
def test_while_the_handler_begins(cancellation, task):
    """Two signals in a row: Python gives the frame of the first handler to the second one."""

    def handler(interrupted):
        return SimpleNamespace(
            f_code=Cancellation._on_signal.__code__, f_back=interrupted, f_globals=vars(module)
        )

    module = sys.modules[Cancellation.__module__]
    for at in range(1, INSTRUCTIONS, 47):
        error = interrupted(cancellation, task, at, seen_by_handler=handler)
        assert _is_cancellation(error, cancelled=True), f"instruction {at}: {error!r}"


def test_while_the_ticket_is_put_back(cancellation, monkeypatch):
    def write(descriptor, data, *, real=os.write):
        written = real(descriptor, data)
        if descriptor == cancellation.pipe and cancellation.fired:
            cancellation._on_signal(0, sys._getframe())
        return written

    monkeypatch.setattr(os, "write", write)
    for at in range(1, INSTRUCTIONS, 47):
        cancellation.fired = False
        error = interrupted(cancellation, finalizers, at)
        assert isinstance(error, TaskCancelled), f"instruction {at}: {error!r}"


@pytest.mark.filterwarnings("ignore:.*Keeps.__del__")
def test_nothing_is_raised_behind_user_code(cancellation):
    class Keeps:
        error = None

        def __del__(self):
            raise self.error

    kept = [Keeps()]

    def rescued():
        try:
            plain()
        except TaskCancelled as error:
            kept[0].error = error

    assert interrupted(cancellation, rescued, 500) is None
    kept.clear()
    cancellation._on_signal(0, sys._getframe())
    assert not cancellation.ticket


def test_a_hook_of_the_user_goes_on_and_may_call_ours(cancellation):
    seen, ours = [], sys.unraisablehook

    def hook(ignored):
        seen.append(ignored.exc_type)
        ours(ignored)

    class Faulty:
        def __del__(self):
            raise ValueError

    sys.unraisablehook = hook
    try:
        cancellation.listen()
        assert sys.unraisablehook == ours
        Faulty()
        assert seen == [ValueError]
        assert isinstance(interrupted(cancellation, finalizers, 3000), TaskCancelled)
    finally:
        cancellation._previous_hook = sys.__unraisablehook__
