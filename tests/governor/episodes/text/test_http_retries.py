"""Pauses grow, are never shorter than asked for, and never longer than is bearable."""

import asyncio
from datetime import UTC, datetime, timedelta
from email.utils import format_datetime

import pytest

from governor import failures
from governor.episodes.text.http_retries import (
    LONGEST_PAUSE,
    Retries,
    Retry,
    brief,
    retry_after,
    status_reason,
)

NOW = datetime(2026, 5, 1, tzinfo=UTC)


async def test_the_last_retry_is_raised_and_other_errors_at_once():
    async def fail(number):
        numbers.append(number)
        raise Retry(OSError("away")) if number < 5 else ValueError("odd")

    numbers = []
    with pytest.raises(Retry, match="away") as caught:
        await Retries(2, 0.0).run(fail)
    assert (numbers, type(caught.value.fault)) == ([0, 1, 2], OSError)
    numbers = []
    with pytest.raises(ValueError, match="odd"):
        await Retries(9, 0.0).run(fail)
    assert numbers == [0, 1, 2, 3, 4, 5]


async def test_a_pause_is_as_long_as_the_server_says_but_bounded(monkeypatch):
    async def fail(number):
        if number < 2:
            raise Retry(OSError(), least=(7, 3600)[number])

    async def sleep(seconds):
        pauses.append(seconds)

    pauses = []
    monkeypatch.setattr(asyncio, "sleep", sleep)
    await Retries(2, 0.1).run(fail)
    assert pauses == [7, LONGEST_PAUSE]


@pytest.mark.parametrize(
    ("headers", "seconds"),
    [
        ({}, 0),
        ({"retry-after": "7"}, 7),
        ({"retry-after": "0.5"}, 0.5),
        ({"retry-after": "-3"}, 0),
        ({"retry-after-ms": "20", "retry-after": "7"}, 0.02),
        ({"retry-after": "soon"}, 0),
        ({"retry-after": "nan"}, 0),
        ({"retry-after": "inf"}, 0),
        ({"retry-after": format_datetime(NOW + timedelta(seconds=9), usegmt=True)}, 9),
        ({"retry-after": format_datetime(NOW - timedelta(seconds=9), usegmt=True)}, 0),
        ({"retry-after": "Fri, 01 May 2026 00:00:05 -0000"}, 5),
        ({"retry-after": "Fri, 31 Dec 99999999999999999999 23:59:59 GMT"}, 0),
        ({"retry-after": "Fri, 01 May 2026 00:00:05 +99999999999999999"}, 0),
        ({"retry-after": "Mon, 01 Jan 0001 00:00:00 +2359"}, 0),
    ],
)
def test_what_servers_ask_for(headers, seconds):
    assert retry_after(headers, now=NOW) == seconds


@pytest.mark.parametrize("before", [0, 100, *range(270, 300, 3), 400])
def test_keys_are_masked_before_an_answer_is_shortened(before, monkeypatch):
    monkeypatch.setenv(failures.SECRETS, "KEY")
    monkeypatch.setenv("KEY", "sk-0123456789abcdef")
    monkeypatch.setattr(failures, "_hidden", {})
    for _ in range(3):  # as each phase does
        failures.hide("OTHER", "Bearer tk-fedcba9876543210")
    assert len(failures._hidden) == 1
    said = brief(
        "." * before + " bad key sk-0123456789abcdef, Bearer tk-fedcba9876543210, tk-fedcba9876543210"
    )
    assert "sk-" not in said
    assert "tk-" not in said
    if before < 100:
        assert said.endswith("bad key [secret KEY], [secret OTHER], [secret OTHER]")


def test_reasons_are_one_short_line():
    assert status_reason(404, "no\n such\tmodel ") == "HTTP 404: no such model"
    assert status_reason(502, "") == "HTTP 502"
    assert len(brief("x" * 10**6)) == 300
