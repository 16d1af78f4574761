"""Pauses grow, are never shorter than asked for, and never longer than is bearable."""

from datetime import UTC, datetime, timedelta
from email.utils import format_datetime

import pytest

from governor.episodes.text.http_retries import LONGEST_PAUSE, brief, pause, retry_after, status_reason

NOW = datetime(2026, 5, 1, tzinfo=UTC)


def test_pauses_double_with_up_to_a_quarter_by_chance():
    for retry in range(5):
        seconds = [pause(retry, backoff=0.5) for _ in range(100)]
        assert 0.5 * 2**retry <= min(seconds) < max(seconds) <= 0.5 * 2**retry * 1.25


def test_a_pause_is_as_long_as_the_server_says_but_bounded():
    assert pause(0, backoff=0.1, minimum=7) == 7
    assert pause(0, backoff=0.1, minimum=3600) == LONGEST_PAUSE
    assert pause(5000, backoff=0.5) == LONGEST_PAUSE
    assert pause(0, backoff=8, minimum=1) >= 8


@pytest.mark.parametrize(
    ("headers", "seconds"),
    [
        ({}, None),
        ({"retry-after": "7"}, 7),
        ({"retry-after": "0.5"}, 0.5),
        ({"retry-after": "-3"}, 0),
        ({"retry-after-ms": "20", "retry-after": "7"}, 0.02),
        ({"retry-after": "soon"}, None),
        ({"retry-after": "nan"}, None),
        ({"retry-after": "inf"}, None),
        ({"retry-after": format_datetime(NOW + timedelta(seconds=9), usegmt=True)}, 9),
        ({"retry-after": format_datetime(NOW - timedelta(seconds=9), usegmt=True)}, 0),
        ({"retry-after": "Fri, 01 May 2026 00:00:05 -0000"}, 5),
    ],
)
def test_what_servers_ask_for(headers, seconds):
    assert retry_after(headers, now=NOW) == seconds


def test_reasons_are_one_short_line():
    assert status_reason(404, "no\n such\tmodel ") == "HTTP 404: no such model"
    assert status_reason(502, "") == "HTTP 502"
    assert len(brief("x" * 10**6)) == 300
