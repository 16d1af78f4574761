"""The mean of a few numbers and its confidence interval, for metrics over seeds.

The interval is mean ± t · s / √n, with t the quantile of Student's distribution of n - 1 degrees of freedom for which the interval has
the true mean with 95 % probability; s is the sample's standard deviation (Student, The Probable Error of a Mean, Biometrika 6, 1908).
"""

from __future__ import annotations

import math
import statistics
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Sequence

CONFIDENCE: Final = 0.95


def interval(values: Sequence[float]) -> tuple[float | None, float | None, float | None]:
    """Mean, and the ends of its interval; None of one value alone."""
    if len(values) < 2:  # one value has no spread
        return None, None, None
    mean = statistics.fmean(values)
    half = student_t(len(values) - 1) * statistics.stdev(values) / math.sqrt(len(values))
    return mean, mean - half, mean + half


def student_t(degrees: int) -> float:
    """The t with which a value of Student's distribution lies within ±t with the probability `CONFIDENCE`, by bisection of `_within`."""
    low, high = 0.0, 1.0
    while _within(high, degrees) < CONFIDENCE:
        high *= 2
    while high - low > 1e-12 * high:
        middle = (low + high) / 2
        if _within(middle, degrees) < CONFIDENCE:
            low = middle
        else:
            high = middle
    return high


def _within(t: float, degrees: int) -> float:
    """The probability of |T| <= t, exact for whole degrees of freedom (Abramowitz and Stegun, 26.7.3 and 26.7.4)."""
    angle = math.atan(t / math.sqrt(degrees))
    cosine, sine = math.cos(angle), math.sin(angle)
    odd = degrees % 2
    total = term = (cosine if odd else 1.0) if degrees > 1 else 0.0
    for number in range(2 + odd, degrees - 1, 2):
        term *= cosine * cosine * (number - 1) / number
        total += term
    return 2 / math.pi * (angle + sine * total) if odd else sine * total
