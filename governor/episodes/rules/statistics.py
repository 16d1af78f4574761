"""The metrics of a simulation, `PartEnded.metrics`, computed from its episode records.

`return_*` and `steps_mean` are over the terminated and truncated episodes, and absent if there is none;
`return_mean.<player>` is over those in which the player took part. The standard deviation is that of the population
(ddof 0), as in Gymnasium's and Trinity's tables.
"""

from __future__ import annotations

from collections import Counter
from math import fsum, sqrt
from typing import TYPE_CHECKING, get_args

from governor.messages import COMPLETE, EpisodeOutcome

if TYPE_CHECKING:
    from collections.abc import Sequence

    from governor.messages import EpisodeRecord


def summarize(records: Sequence[EpisodeRecord], *, steps_per_second: float | None) -> dict[str, float]:
    """`steps_per_second` is over the time during which these episodes were played, idle time included."""
    counted = Counter(record.outcome for record in records)
    metrics: dict[str, float] = {
        "episodes_ended": len(records),
        "steps_total": sum(record.steps for record in records),
        **{
            f"episodes_{outcome}": counted[outcome]
            for outcome in get_args(EpisodeOutcome)
            if counted[outcome]
        },
    }
    complete = [record for record in records if record.outcome in COMPLETE]
    if complete:
        returns = [record.value for record in complete]
        mean = mean_of(returns)
        metrics |= {
            "return_mean": mean,
            "return_std": sqrt(mean_of([(value - mean) * (value - mean) for value in returns])),
            "return_min": min(returns),
            "return_max": max(returns),
            "steps_mean": sum(record.steps for record in complete) / len(complete),
        }
    by_player: dict[str, list[float]] = {}
    for record in complete:
        for player, value in record.values.items():
            by_player.setdefault(player, []).append(value)
    metrics |= {f"return_mean.{player}": mean_of(values) for player, values in by_player.items()}
    if steps_per_second is not None:
        metrics["steps_per_second"] = steps_per_second
    return metrics


def mean_of(values: Sequence[float]) -> float:
    """Of at least one value; inf or nan where their sum is too large for a float."""
    try:
        return fsum(values) / len(values)
    except (OverflowError, ValueError):  # ValueError: inf and -inf
        return sum(values) / len(values)
