import contextlib

import pytest
from hypothesis import given
from hypothesis import strategies as st

from governor.units import durations


@pytest.mark.parametrize(
    ("written", "seconds"),
    [
        ("15min", 900),
        ("30s", 30),
        ("1h30min", 5400),
        ("200ms", 0.2),
        ("1.5h", 5400),
        (" 2 min 5 s ", 125),
        (3, 3),
        (0.5, 0.5),
    ],
)
def test_reads_what_people_write(written, seconds):
    assert durations.seconds(written) == pytest.approx(seconds)


@pytest.mark.parametrize(
    "written",
    [
        "",
        " ",
        "5",
        "min",
        "5 parsecs",
        "1h1h",
        "1h, 5s",
        "-5s",
        "1e3s",
        True,
        None,
        [],
        -1,
        float("nan"),
        float("inf"),
        10**400,
    ],
)
def test_refuses_the_rest_with_a_message(written):
    with pytest.raises(ValueError, match="is no duration"):
        durations.seconds(written)


def test_a_hundred_years_are_the_longest():
    assert durations.seconds("36500d") == 36_500 * 86_400
    with pytest.raises(ValueError, match="1e\\+300 is longer than 36500d"):
        durations.seconds(1e300)


@given(st.tuples(*(st.integers(0, 999) for _ in range(4))))
def test_parts_add_up(parts):
    hours, minutes, seconds, millis = parts
    written = f"{hours}h{minutes}min{seconds}s{millis}ms"
    assert durations.seconds(written) == pytest.approx(hours * 3600 + minutes * 60 + seconds + millis / 1000)


@given(st.text(max_size=20))
def test_never_fails_otherwise(text):
    with contextlib.suppress(ValueError):
        assert durations.seconds(text) >= 0


@pytest.mark.parametrize(
    ("seconds", "text"),
    [
        (0, "0ms"),
        (0.85, "850ms"),
        (0.9996, "1.0s"),
        (12.44, "12.4s"),
        (59.96, "1min 0s"),
        (185, "3min 5s"),
        (7800, "2h 10min"),
        (200000, "2d 7h"),
    ],
)
def test_text_for_a_reader(seconds, text):
    assert durations.text(seconds) == text
