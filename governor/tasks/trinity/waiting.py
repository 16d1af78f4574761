"""How callers of a scheduler wait for its batches: woken by changes, or at their own next alarm.

There is no polling, and a wait that is over leaves no state behind.
"""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

from governor.tasks.scheduling.wait_policy import WaitPolicy

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from governor.tasks.api import Counted
    from governor.tasks.scheduling.wait_policy import Verdict
    from governor.tasks.trinity.views import BatchView
    from governor.tasks.trinity.wakeup import Notifier


async def for_batch(
    view: BatchView,
    *,
    min_num: int | None,
    wait_after_min: float,
    deadline: float,
    running: Callable[[], bool],
    count: Counted = "succeeded",
) -> Verdict:
    """Until all tasks of the batch have ended, enough of them have ended as `count` says, or the time is up; see
    `WaitPolicy`, which raises ValueError. `deadline` is in monotonic seconds.
    """
    policy = WaitPolicy(min_num=min_num, wait_after_min=wait_after_min, deadline=deadline)
    while view.tasks:
        now = time.monotonic()
        counted = view.succeeded if count == "succeeded" else len(view.completed)
        verdict = policy.check(counted, now)
        if verdict is not None or not running():
            return verdict or "timeout"
        await view.changed.wait(max(0.0, policy.next_alarm() - now))
    return "all"


async def for_progress(
    changed: Notifier,
    *,
    seconds: float,
    unfinished: Callable[[], Iterable[BatchView]],
    running: Callable[[], bool],
) -> bool:
    """Until nothing is unfinished (True), or no run has ended for `seconds` seconds (False). `changed` is that of all
    batches.

    Raises:
        RuntimeError: the scheduler was stopped meanwhile.
    """
    began = time.monotonic()
    while any(unfinished()):
        if running():
            left = max(began, changed.run_ended_at) + seconds - time.monotonic()
            if left <= 0:
                return False
            await changed.wait(left)
        if not running():
            raise RuntimeError("the scheduler was stopped, and had tasks left")
    return True
