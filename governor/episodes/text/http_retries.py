"""HTTP requests that are sent again: how often, and after which pause; `Retry-After` counts, up to a limit.

A pause is at most `LONGEST_PAUSE`, whatever the server requests; the caller also limits the time. This is no work for a library
(stamina, tenacity): what may be sent again, `Retry-After` and the counts would stay here, and they are most of it.
"""

from __future__ import annotations

import asyncio
from contextlib import suppress
from datetime import UTC, datetime
from email.utils import parsedate_to_datetime
from math import isfinite
from typing import TYPE_CHECKING, Final, TypeVar

from governor.errors import UsageError
from governor.failures import REASON_LENGTH, utf8
from transport.backoff import Backoff

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Mapping

T = TypeVar("T")
LONGEST_PAUSE: Final = 60.0
"""Seconds; the limit of a pause that a server requests."""
LOOKED_AT: Final = 65_536
"""Characters of an answer, which may have many MiB, that are masked and shortened."""
SHOWN: Final = 200
"""Characters of an answer that is not understood."""


class Retry(Exception):
    """One attempt has failed with `fault`, and another may succeed. `least`: the shortest pause that the server accepts, in seconds."""

    def __init__(self, fault: Exception, *, least: float = 0.0) -> None:
        self.fault = fault
        self.least = least
        super().__init__(str(fault))


class Retries:
    """At most `most` retries, the first after `backoff` seconds; the pause doubles, up to `longest`, and up to `spread` times as much
    is added at random.
    """

    def __init__(
        self, most: int, backoff: float, *, longest: float = LONGEST_PAUSE, spread: float = 0.25
    ) -> None:
        """Raises UsageError for invalid values."""
        if most < 0 or not backoff >= 0:
            raise UsageError(f"retries {most}, backoff {backoff}: neither may be negative")
        self.most = most
        self._backoff = Backoff(backoff, longest=longest, spread=spread)

    async def run(self, attempt: Callable[[int], Awaitable[T]]) -> T:
        """The result of `attempt`, which gets its number, from 0. Raises its last Retry, or any other error at once."""
        number = 0
        while True:
            try:
                return await attempt(number)
            except Retry as failed:
                if number >= self.most:
                    raise
                pause = self._backoff.delay(number, least=failed.least)
            await asyncio.sleep(pause)
            number += 1


def retry_after(headers: Mapping[str, str], *, now: datetime | None = None) -> float:
    """Seconds that the server requests (RFC 9110, 10.2.3: a number or a date); 0 without a valid value.

    `headers` are looked up without regard to case; `retry-after-ms` is added by OpenAI's servers.
    """
    for name, unit in (("retry-after-ms", 0.001), ("retry-after", 1.0)):
        with suppress(ValueError):
            if isfinite(seconds := float(headers.get(name, "")) * unit):
                return max(0.0, seconds)
    with suppress(ValueError, OverflowError):  # the last one for a date or a zone that is too far away
        date = parsedate_to_datetime(headers.get("retry-after", ""))
        date = date if date.tzinfo else date.replace(tzinfo=UTC)
        return max(0.0, (date - (now or datetime.now(UTC))).total_seconds())
    return 0.0


def brief(text: object, length: int = REASON_LENGTH) -> str:
    """The text of a server's answer, on one line and shortened; keys are masked before, for a part of one is a key, too."""
    line = " ".join(utf8(str(text)[:LOOKED_AT]).split())
    return line if len(line) <= length else f"{line[: length - 3]}..."


def status_reason(status: int, text: object) -> str:
    """``HTTP 404: text of the answer``."""
    said = brief(text)
    return f"HTTP {status}: {said}" if said else f"HTTP {status}"
