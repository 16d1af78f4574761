"""The queue of sub-tasks: the same answers as a list that is searched, and no cost that grows with its lanes."""

from __future__ import annotations

import random
import time
from types import SimpleNamespace

from governor.tasks.scheduling.ready_queue import ReadyQueue

AGE = 5.0


PLAIN = SimpleNamespace(shape=(), batch=SimpleNamespace(spec=SimpleNamespace(pin=None)))


def subtask(lane, at=0.0):
    return SimpleNamespace(node=PLAIN, lane=(0, (float(lane), 0), False, lane), ready_at=at)


def naive_next(waiting, now):
    """Rules 1 and 2, word by word; a lane is a list."""
    heads = [lane[0] for lane in waiting.values() if lane]
    oldest = min(heads, key=lambda head: head.ready_at, default=None)
    if oldest is None or now - oldest.ready_at >= AGE:
        return oldest
    return min(heads, key=lambda head: head.lane)


def test_whoever_is_next_is_next_by_the_rules():
    choose = random.Random(7)
    queue, waiting, now = ReadyQueue(age=AGE), {}, 0.0
    for _ in range(5_000):
        now += choose.random()
        move = choose.random()
        if move < 0.5:
            new = subtask(choose.randrange(6))
            queue.push(new, now)
            waiting.setdefault(new.lane, []).append(new)
        elif move < 0.6:
            back = subtask(choose.randrange(6), now - 9 * choose.random())
            queue.push_front(back)
            waiting.setdefault(back.lane, []).insert(0, back)
        else:
            expected = naive_next(waiting, now)
            taken = queue.take((), now)
            if expected is None or expected.ready_at == taken.ready_at:
                expected = taken  # two that are equally old
            assert taken is expected
            if taken is not None:
                waiting[taken.lane].remove(taken)


def test_a_thousand_batches_cost_no_more_for_each_than_a_hundred():
    def seconds_for_each(lanes):
        queue = ReadyQueue(age=1e9)
        for lane in range(lanes):
            queue.push(subtask(lane), float(lane))
        began = time.thread_time()
        while queue.take((), 0.0) is not None:
            pass
        return (time.thread_time() - began) / lanes

    few = min(seconds_for_each(200) for _ in range(5))
    many = min(seconds_for_each(8_000) for _ in range(2))
    assert many < 8 * few, "40 times as many, and the cost of one was 40 times as high"
