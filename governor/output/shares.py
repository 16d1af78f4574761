"""A share of what is skipped for each task of a process: its first lines, whatever another one has printed before. Pure.

The tasks of a process follow one another: where one ends is found by bisection, and the rest of a storm is not looked at.
"""

from __future__ import annotations

import re
from typing import Final

from governor.output import spool

SHARE_LINES: Final = 20
SHARE_BYTES: Final = 8 << 10
"""Of each task."""

_TASK: Final = re.compile(rb'"task":"(?:[^"\\]|\\.)*","run":\d+,"attempt":\d+')


def first_lines(data: bytes, before: bytes, *, most: int) -> tuple[list[tuple[int, int]], bytes]:
    """Where in `data`, lines of a spool, the first lines of each task begin and end, behind those of the task `before`; the last
    task. At most `most` lines.
    """
    found: list[tuple[int, int]] = []
    position, task = 0, before
    last, end = last_task(data, before)
    while 0 <= position <= end and most > 0:
        now = task_at(data, position)
        if now == task:
            if now == last:
                break
            position = data.find(b"\n", _last_of(data, task, position, end)) + 1 or -1
            continue
        task, start = now, position
        position = _behind(data, start, min(most, SHARE_LINES), task)
        most -= data.count(b"\n", start, position)
        found.append((start, position))
    return found, last


def last_task(data: bytes, before: bytes) -> tuple[bytes, int]:
    """That of the last record in these bytes, and where it is; `before` and -1 where there is none."""
    end = data.rfind(spool.RECORD, 0, data.rfind(b"\n") + 1)
    return (task_at(data, end), end) if end >= 0 else (before, end)


def task_at(data: bytes, position: int) -> bytes:
    """What the first record behind this position belongs to, or a mark says of the bytes before it; empty: no task."""
    start = data.find(spool.RECORD, position)
    if start < 0:
        return b""
    task = _TASK.search(data, start, max(data.find(spool.TEXT, start), 0))
    return task[0] if task is not None else b""


def _last_of(data: bytes, task: bytes, low: int, high: int) -> int:
    """The last position of the task that begins at `low`; at `high` there is another one."""
    while high - low > 1:
        middle = (low + high) // 2
        if task_at(data, middle) == task:
            low = middle
        else:
            high = middle
    return low


def _behind(data: bytes, start: int, lines: int, task: bytes) -> int:
    """Behind so many lines of the task, and at least one."""
    position = data.find(b"\n", start) + 1 or len(data)
    for _ in range(lines - 1):
        end = data.find(b"\n", position) + 1
        if not end or end - start > SHARE_BYTES or task_at(data, position) != task:
            break
        position = end
    return position
