"""When to retry an HTTP request: growing pauses, and `Retry-After` up to a limit. Pure, except for randomness.

A pause is at most `LONGEST_PAUSE`, whatever the server requests; the caller also limits the number of retries and the time.
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
"""Seconds; the limit of a pause that a server requests."""
_SPREAD: Final = 0.25
_DOUBLINGS: Final = 30


def pause(retry: int, *, backoff: float, minimum: float | None = None) -> float:
    """Seconds before retry number `retry` (from 0): `backoff` times 2 ** retry, never less than `minimum`.

    Adds up to a quarter at random, so that clients that were refused together do not return together.
    """
    waited = backoff * float(1 << min(retry, _DOUBLINGS))
    waited += waited * _SPREAD * random.random()  # noqa: S311 - no secret
    return min(max(waited, minimum or 0.0), LONGEST_PAUSE)


def retry_after(headers: Mapping[str, str], *, now: datetime) -> float | None:
    """Seconds that the server requests (RFC 9110, 10.2.3: a number or a date); None without a valid value.

    `headers` are looked up without regard to case; `retry-after-ms` is added by OpenAI's servers.
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
    """The text of a server's answer, on one line and shortened."""
    line = " ".join(str(text)[: 10 * REASON_LENGTH].split())
    return line if len(line) <= REASON_LENGTH else f"{line[: REASON_LENGTH - 3]}..."


def status_reason(status: int, text: object) -> str:
    """``HTTP 404: text of the answer``."""
    said = brief(text)
    return f"HTTP {status}: {said}" if said else f"HTTP {status}"


def _number(text: str) -> float | None:
    try:
        number = float(text)
    except ValueError:
        return None
    return number if isfinite(number) else None
