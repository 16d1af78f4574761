"""The first lines of each task in what is skipped."""

from itertools import pairwise

from hypothesis import given
from hypothesis import strategies as st

from governor.output import shares, spool


def spool_of(sizes):
    """Bytes of tasks with so many lines each."""
    found = b""
    for number, size in enumerate(sizes):
        fields = spool.fragment_of_task(f"task-{number}", 0, 1)
        found += b"".join(spool.record(fields, b"%d of %d" % (line, number)) for line in range(size))
    return found


@given(sizes=st.lists(st.integers(1, 60), max_size=8))
def test_each_task_has_its_first_lines(sizes):
    data = spool_of(sizes)
    found, last = shares.first_lines(data, b"", most=10_000)
    assert len(found) == len(sizes)
    for number, (start, end) in enumerate(found):
        some = data[start:end].splitlines()
        assert len(some) == min(sizes[number], shares.SHARE_LINES)
        assert some[0].endswith(b"\x1f0 of %d" % number)
    assert all(end <= start for (_, end), (start, _) in pairwise(found))
    assert last == shares.task_at(data, data.rfind(spool.RECORD))


def test_a_task_that_goes_on_has_had_its_lines():
    data = spool_of([1000])
    _, task = shares.first_lines(data, b"", most=100)
    assert shares.first_lines(data, task, most=100) == ([], task)


def test_there_are_no_more_lines_than_are_left():
    found, _ = shares.first_lines(spool_of([30, 30, 30]), b"", most=25)
    assert len(found) == 2
    assert shares.first_lines(spool_of([30]), b"", most=0)[0] == []


def test_a_long_line_is_one_and_a_broken_record_none():
    fields = spool.fragment_of_task("long", 0, 1)
    data = spool.record(fields, b"x" * 20_000) + spool.record(fields, b"y")
    [(start, end)], _ = shares.first_lines(data, b"", most=100)
    assert data[start:end].count(b"\n") == 1
    assert shares.first_lines(b"\x1e{\x1e\n" * 1000, b"", most=100) == ([], b"")


def test_a_storm_is_not_looked_at(monkeypatch):
    asked = []
    task_at = shares.task_at
    monkeypatch.setattr(shares, "task_at", lambda *given: asked.append(0) or task_at(*given))
    found, _ = shares.first_lines(spool_of([20_000, 3, 20_000]), b"", most=1000)
    assert len(found) == 3
    assert len(asked) < 100
