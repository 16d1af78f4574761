import msgspec
from hypothesis import given
from hypothesis import strategies as st

from governor.index_ranges import IndexRanges

INDICES = st.lists(st.integers(0, 40))


@given(INDICES, st.integers(0, 45), st.integers(0, 45))
def test_it_is_as_a_set_of_numbers(indices, first, end):
    ranges, expected = IndexRanges(), set()
    for index in indices:
        assert ranges.add(index) == (index not in expected)
        expected.add(index)
    assert ([*ranges], len(ranges), ranges.total) == (sorted(expected), len(expected), sum(expected))
    assert all((index in ranges) == (index in expected) for index in range(50))
    wanted = range(first, max(first, end))
    assert [*ranges.missing(wanted)] == [index for index in wanted if index not in expected]
    assert ranges.count_missing(wanted) == len([*ranges.missing(wanted)])


@given(INDICES)
def test_no_two_ranges_touch_and_it_travels_as_its_bounds(indices):
    ranges = IndexRanges.of(indices)
    assert ranges.is_sound
    assert msgspec.msgpack.decode(msgspec.msgpack.encode(ranges), type=IndexRanges) == ranges


def test_its_size_is_that_of_its_gaps():
    ranges = IndexRanges.of(range(100_000))
    assert ranges.bounds == [0, 100_000]


def test_bounds_that_are_no_ranges_are_told():
    for bounds in ([1], [3, 1], [0, 2, 2, 4], [-2, 4]):
        assert not IndexRanges(bounds).is_sound
