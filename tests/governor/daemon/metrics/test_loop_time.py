"""How long an event loop is busy: what runs in it counts, what it waits for does not."""

from __future__ import annotations

import asyncio
import time

from governor.daemon.metrics.loop_time import TimedSelector


def test_what_runs_in_the_loop_counts_and_what_it_waits_for_does_not():
    selector = TimedSelector()

    async def work():
        await asyncio.sleep(0.01)
        before = selector.loop_time
        await asyncio.to_thread(time.sleep, 0.5)
        waited = selector.loop_time.busy - before.busy
        time.sleep(0.2)  # noqa: ASYNC251  # what this is about
        await asyncio.sleep(0)
        return waited

    with asyncio.Runner(loop_factory=selector.new_loop) as runner:
        waited = runner.run(work())
        assert waited < 0.4
        assert selector.loop_time.longest >= 0.2
        assert selector.loop_time.busy >= selector.loop_time.longest
        selector.begin()
        assert selector.loop_time.longest == selector.loop_time.busy == 0.0
