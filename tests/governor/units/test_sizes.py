"""Sizes as people write them, and as a reader sees them again."""

from __future__ import annotations

import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from governor.units import sizes
from states.amounts import amount


@pytest.mark.parametrize(
    ("written", "found"),
    [
        (2**20, 2**20),
        ("512MiB", 512 * 2**20),
        (" 2.5 GiB ", 5 * 2**29),
        ("1TiB", 2**40),
        ("2048KiB", 2**21),
        ("500MB", 500_000_000),
        ("2GB", 2_000_000_000),
        ("2000kB", 2_000_000),
        ("1.5TB", 1_500_000_000_000),
        ("3000000B", 3_000_000),
    ],
)
def test_a_size_is_a_number_of_bytes_or_has_a_unit(written, found):
    assert sizes.limit(written) == found
    assert isinstance(written, int) or re.search(sizes.PATTERN, written)


@pytest.mark.parametrize(
    "written", ["", "2", "2G", "2 gib", "2Gb", "GiB", "-2GiB", "2GiB 3MiB", "1e3MiB", 2.0, True, None, [2]]
)
def test_the_error_for_a_bad_size_tells_how_to_write_one(written):
    with pytest.raises(ValueError, match=r"is no size: write a number of bytes, or a text like '512MiB'"):
        sizes.limit(written)
    assert not (isinstance(written, str) and re.search(sizes.PATTERN, written))


@pytest.mark.parametrize(
    ("written", "said"),
    [(2, "is 2 bytes, and must be at least 1MiB"), ("1000kB", "is 1000000 bytes"), (-5, "at least 1MiB"),
     ("9000000TiB", "less than 8 EiB"), (2**63, "less than 8 EiB")],
)  # fmt: skip
def test_a_forgotten_unit_and_what_fits_no_disk_are_faults(written, said):
    with pytest.raises(ValueError, match=said):
        sizes.limit(written)


@given(st.integers(min_value=0, max_value=2**63 - 1))
def test_bytes_are_shown_with_three_digits_and_a_unit(value):
    number, unit = amount("memory", value).split()
    power = ["bytes", "KiB", "MiB", "GiB", "TiB", "PiB", "EiB"].index(unit)
    assert abs(float(number) * 1024**power - value) <= 0.00501 * 1024**power
    assert float(number) <= 1024
    assert amount("tasks", value) == str(value)


@pytest.mark.parametrize(("written", "found"), [(0, 0), (5, 5), ("7B", 7), ("64MiB", 64 * 2**20)])
def test_sizes_that_are_no_limits_may_be_small(written, found):
    assert sizes.in_bytes(written) == found
    with pytest.raises(ValueError, match="is no size"):
        sizes.in_bytes(-1)
