"""When to ask an HTTP server again: pauses that grow, and `Retry-After` as far as it is bearable. Pure, but for chance.

A pause is at most `LONGEST_PAUSE`, whatever the server says; who asks also has a number of retries, and deadlines.
"""

from __future__ import annotations

import random
from datetime import UTC, datetime
from email.utils import parsedate_to_datetime
from math import isfinite
from typing import TYPE_CHECKING, Final

from governor.episodes.entries import REASON_LENGTH

if TYPE_CHECKING:
    from collections.abc import Mapping

LONGEST_PAUSE: Final = 60.0
"""Seconds; a server that asks for more is asked again after this."""
_SPREAD: Final = 0.25
_DOUBLINGS: Final = 30


def pause(retry: int, *, backoff: float, told: float | None = None) -> float:
    """Seconds before retry number `retry` (from 0): `backoff` times 2 ** retry, never earlier than `told`.

    Up to a quarter is added by chance: clients that were refused together do not come back together.
    """
    waited = backoff * float(1 << min(retry, _DOUBLINGS))
    waited += waited * _SPREAD * random.random()  # noqa: S311 - no secret
    return min(max(waited, told or 0.0), LONGEST_PAUSE)


def retry_after(headers: Mapping[str, str], *, now: datetime) -> float | None:
    """Seconds that the server asks for (RFC 9110, 10.2.3: a number or a date); None if it does not, or makes no sense.

    `headers` are looked up without regard to case; `retry-after-ms` is what OpenAI's servers add.
    """
    for name, unit in (("retry-after-ms", 0.001), ("retry-after", 1.0)):
        seconds = _number(headers.get(name, ""))
        if seconds is not None:
            return max(0.0, seconds * unit)
    try:
        date = parsedate_to_datetime(headers.get("retry-after", ""))
    except ValueError:
        return None
    return max(0.0, ((date if date.tzinfo else date.replace(tzinfo=UTC)) - now).total_seconds())


def brief(text: object) -> str:
    """What a server said, on one line and not endless."""
    line = " ".join(str(text)[: 10 * REASON_LENGTH].split())
    return line if len(line) <= REASON_LENGTH else f"{line[: REASON_LENGTH - 3]}..."


def status_reason(status: int, text: object) -> str:
    """``HTTP 404: what the server said``."""
    said = brief(text)
    return f"HTTP {status}: {said}" if said else f"HTTP {status}"


def _number(text: str) -> float | None:
    try:
        number = float(text)
    except ValueError:
        return None
    return number if isfinite(number) else None
