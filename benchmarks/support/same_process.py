"""CPU time of a step with something on and with it off, measured so that others on the machine do not turn the verdict.

Others can only add to the CPU time of a turn, by caches and processors that they share; and a process has a layout of its own that is
worth several per cent of its speed. Hence:

1. The same process plays all sides, in turns of about a tenth of a second.
2. Of the turns of a pair the cheapest third counts, for each side; the figure is the median of the pairs.
3. There are several processes, with random layouts.
4. What a phase costs without its steps is measured with phases of one step, and taken off: short turns have a larger part of it.
"""

from __future__ import annotations

import random
from statistics import fmean
from typing import TYPE_CHECKING, Any, Protocol

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Iterable, Mapping
    from contextlib import AbstractAsyncContextManager

PAIRS = 20
PROCESSES = 5
TURNS = 9


class Turn(Protocol):
    """Plays a phase in the process, a `whole` one or one of a step. CPU seconds, and steps."""

    def __call__(self, process: Any, *, whole: bool) -> Awaitable[tuple[float, float]]: ...


async def seconds_of_step(
    opened: Callable[[], AbstractAsyncContextManager[Any]], sides: Mapping[str, Turn], *, pairs: int = PAIRS
) -> list[dict[str, float]]:
    """CPU seconds of a step by side, for each pair. `opened` opens a process."""
    found: list[dict[str, float]] = []
    while len(found) < pairs:
        async with opened() as process:
            await _turns(process, sides, whole=True)  # warming up
            short = await _turns(process, sides, whole=False)
            fixed = {side: _cheapest(cpu for cpu, _ in turns) for side, turns in short.items()}
            for _ in range(-(-pairs // PROCESSES)):
                turns = await _turns(process, sides, whole=True)
                found.append(
                    {
                        side: _cheapest((cpu - fixed[side]) / steps for cpu, steps in turns[side])
                        for side in sides
                    }
                )
    return found[:pairs]


async def _turns(
    process: Any, sides: Mapping[str, Turn], *, whole: bool
) -> dict[str, list[tuple[float, float]]]:
    found: dict[str, list[tuple[float, float]]] = {side: [] for side in sides}
    for _ in range(TURNS):
        for side in random.sample(list(sides), len(sides)):
            found[side].append(await sides[side](process, whole=whole))
    return found


def _cheapest(costs: Iterable[float]) -> float:
    return fmean(sorted(costs)[: TURNS // 3])
