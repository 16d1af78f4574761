"""Bytes of a spool become lines."""

import time

import pytest
from hypothesis import given
from hypothesis import strategies as st

from governor.output import spool
from governor.output.lines import OPEN_LINES, Page, SpoolLines, header_of


def parser():
    return SpoolLines(conductor="agent.a", pid=7, stream=0)


def texts(lines):
    return [(line.text, line.partial) for line in lines]


def test_raw_lines_have_the_time_of_reading_and_the_pid_of_the_spool():
    [line] = parser().feed(b"hello\n", offset=0, at=5.0)
    assert (line.text, line.at, line.pid, line.conductor, line.stream) == (
        "hello",
        5.0,
        7,
        "agent.a",
        "stdout",
    )


@pytest.mark.parametrize("size", [1, 2, 3, 7, 1000])
def test_lines_do_not_depend_on_how_the_bytes_are_cut(size):
    data = b"raw\n" + spool.record(spool.fragment(task="t", run=2), b"tagged") + b"more\nlast\n"
    lines, found = parser(), []
    for start in range(0, len(data), size):
        found += lines.feed(data[start : start + size], offset=start, at=5.0)
    assert texts(found) == [(text, False) for text in ("raw", "tagged", "more", "last")]
    assert (found[1].task, found[1].run, found[0].task) == ("t", 2, "")


def test_a_record_within_a_raw_line_does_not_end_that_line():
    data = b"50%..." + spool.record(b"", b"tagged") + b"done\n"
    assert texts(parser().feed(data, offset=0, at=5.0)) == [("tagged", False), ("50%...done", False)]


def test_a_line_that_is_not_over_is_given_after_a_second_and_then_more_seldom():
    lines = parser()
    assert lines.feed(b"a", offset=0, at=5.0) == lines.late(5.9) == []
    assert texts(lines.late(6.0)) == [("a", True)]
    assert lines.feed(b"b", offset=1, at=6.1) == lines.late(7.9) == []
    assert texts(lines.late(8.0)) == [("b", True)]
    assert texts(lines.feed(b"c\n", offset=2, at=8.1)) == [("c", False)]


def test_a_long_line_is_given_in_parts():
    found = parser().feed(b"x" * (2 * spool.LINE_BYTES + 5) + b"\n", offset=0, at=5.0)
    assert [(len(line.text), line.partial) for line in found] == [
        (spool.LINE_BYTES, True),
        (spool.LINE_BYTES, True),
        (5, False),
    ]


def test_a_progress_bar_is_one_line_with_its_last_state():
    lines = parser()
    for offset, data in enumerate((b"\r10%", b"\r20%", b"\r", b"30%")):
        assert lines.feed(data, offset=offset, at=5.0) == []
    assert lines.late(50.0) == []
    assert texts(lines.unfinished) == [("30%", True)]
    assert texts(lines.feed(b"\n", offset=12, at=51.0)) == [("30%", False)]
    assert texts(lines.feed(b"dos\r\n", offset=13, at=51.0)) == [("dos", False)]


def test_bytes_that_are_no_utf_8_and_nul_are_kept():
    assert texts(parser().feed(b"a\xff\x00\n", offset=0, at=5.0)) == [("a\\xff\0", False)]


@pytest.mark.parametrize(
    "line",
    [
        b"\x1e",
        b"\x1e{}",
        b'\x1e{"at":1',
        b"\x1e{no}\x1ft",
        b'\x1e{"at":"x"}\x1ft',
        b'\x1e{"pid":%d}\x1ft' % 10**30,
        b'\x1e{"lost":%d}\x1ft' % 2**64,
        b'\x1e{"episode":-1}\x1ft',
    ],
)
def test_what_looks_like_a_record_is_raw(line):
    assert texts(parser().feed(line + b"\n", offset=0, at=5.0)) == [(line.decode(), False)]


def test_parts_of_a_line_of_one_thread_are_joined_whatever_others_write_between():
    part, end = (
        spool.record(b'"part":1,%b' % more, text) for more, text in ((b'"more":1,', b"a"), (b"", b"b"))
    )
    found = parser().feed(part + spool.record(b"", b"other") + end, offset=0, at=5.0)
    assert texts(found) == [("other", False), ("ab", False)]


def test_the_end_of_a_process_within_a_line_leaves_what_was_written():
    for data, left in (
        (b"raw ha", "raw ha"),
        (spool.record(b"", b"tagged")[:-3], "tagg"),
        (b"a\n" + spool.record(b'"part":1,"more":1,', b"flushed"), "flushed"),
    ):
        lines = parser()
        lines.feed(data, offset=0, at=5.0)
        assert texts(lines.close(6.0)) == [(left, True)]
    lines = parser()
    lines.feed(b'\x1e{"at":17', offset=0, at=5.0)
    assert lines.close(6.0) == []


def test_raw_lines_belong_to_what_a_mark_behind_them_says_and_then_to_the_page():
    first, mark = b"of three\n", spool.mark(spool.fragment(episode=3), since=0)
    page = Page(len(first), header_of(b'{"episode":4}'))
    found = parser().feed(first + mark + b"of four\n", offset=0, at=5.0, page=page)
    assert [(line.text, line.episode) for line in found] == [("of three", 3), ("of four", 4)]


def test_without_a_page_raw_lines_belong_to_the_last_mark():
    lines = parser()
    lines.feed(spool.mark(spool.fragment(task="t")), offset=0, at=5.0)
    assert [line.task for line in lines.feed(b"x\n", offset=99, at=5.0)] == ["t"]


def test_no_record_is_older_than_its_process_or_newer_than_now():
    lines = SpoolLines(conductor="a", pid=7, stream=0, begun=3.0)
    for more in (b"", b',"part":1,"more":1'):
        data = b"".join(b'\x1e{"at":%b%b}\x1fx\n' % (at, more) for at in (b"-1e300", b"4.0", b"1e300"))
        found = lines.feed(data, offset=0, at=5.0)
        assert [line.at for line in found] == ([] if more else [3.0, 4.0, 5.0])
    assert [line.at for line in lines.unfinished] == [3.0]


@pytest.mark.parametrize(
    "pattern",
    [
        (b"\x1e{", b'"mark":1}\n'),
        (b"\x1e{", b"\x1f\n"),
        (b'"mark":1}\x1f\n', b""),
        (b"\x1e{\n", b'"mark":1}\x1f\n'),
    ],
)
def test_hostile_bytes_cost_time_in_proportion_to_their_number(pattern):
    def seconds(number):
        began = time.process_time()
        parser().feed(pattern[0] * number + pattern[1], offset=0, at=5.0)
        return time.process_time() - began

    short = min(seconds(10_000) for _ in range(3))
    assert min(seconds(80_000) for _ in range(3)) < 24 * max(short, 0.001)


def test_raw_bytes_belong_to_the_first_mark_behind_them_that_claims_them():
    data = b""
    for text in (b"outer\n", b"inner\n", b"outer\n", b"inner\n", b"outer\n"):
        since = len(data)
        data += text
        if text == b"inner\n":
            data += spool.mark(spool.fragment(task="inner"), since=since)
    data += spool.mark(spool.fragment(task="outer"), since=0) + b"free\n"
    found = parser().feed(data, offset=0, at=5.0)
    assert [line.text for line in found] == [line.task or "free" for line in found]


def test_a_mark_that_is_read_later_counts_already():
    data, mark = b"of three\n", spool.mark(spool.fragment(episode=3), since=0)
    [line] = parser().feed(data, offset=0, at=5.0, behind=b"of three, too\n" + mark)
    assert line.episode == 3


def test_lines_that_are_not_over_are_bounded_in_number():
    lines = parser()
    data = b"".join(b'\x1e{"part":%d,"more":1}\x1f%d\n' % (number, number) for number in range(1000))
    found = lines.feed(data, offset=0, at=5.0)
    left = lines.unfinished
    assert texts(found + left) == [(str(number), True) for number in range(1000)]
    assert len(left) == OPEN_LINES


def raw(text, *, is_over):
    return text + b"\n" * is_over


def flushed(text, *, is_over):
    return spool.record(b'"part":1,' + b'"more":1,' * (not is_over), text)


TEXTS = [b"", b"a", b"bc", b"\r", b"\r\r", b"\rd", b"e\r", b"f\rg"]
PIECES = st.tuples(st.sampled_from(TEXTS), st.booleans())


@given(written=st.lists(PIECES, max_size=12), cuts=st.lists(st.integers(0, 400), max_size=6), data=st.data())
@pytest.mark.parametrize("write", [raw, flushed])
def test_who_goes_on_where_a_reader_died_loses_no_line_and_repeats_none(write, written, cuts, data):
    spooled = b"".join(write(text, is_over=is_over) for text, is_over in written)
    whole = parser()
    expected = texts(whole.feed(spooled, offset=0, at=5.0) + whole.leave())
    died = data.draw(st.integers(0, len(spooled)))
    first, found, start = parser(), [], 0
    for end in sorted({cut for cut in cuts if cut < died} | {died}):
        found += first.feed(spooled[start:end], offset=start, at=5.0)
        assert first.unfinished == first.unfinished, "a look changes nothing"
        start = end
    second, start = parser(), died - first.held_bytes
    found += second.feed(spooled[start:], offset=start, at=5.0) + second.leave()
    assert texts(found) == expected


def test_where_the_last_state_begins_is_known_behind_several_carriage_returns():
    lines = parser()
    lines.feed(b"a\rbc\r\r\r", offset=0, at=5.0)
    assert lines.held_bytes == len(b"bc\r\r\r")
    lines.feed(b"\r\r", offset=7, at=5.0)
    assert lines.held_bytes == len(b"bc\r\r\r\r\r")


def test_a_line_that_another_has_overtaken_is_not_repeated_where_a_reader_died():
    lines = parser()
    spooled = flushed(b"10%", is_over=False)
    lines.feed(spooled, offset=0, at=5.0)
    assert lines.held_bytes == len(spooled)
    other = spool.record(b'"part":2,', b"other")
    assert texts(lines.feed(other, offset=len(spooled), at=5.0)) == [("other", False)]
    assert lines.held_bytes == 0


def test_of_a_line_that_is_redrawn_the_last_state_is_held_and_no_more():
    lines, offset = parser(), 0
    for number in range(1000):
        drawn = flushed(b"\r%d%%" % number, is_over=False)
        lines.feed(drawn, offset=offset, at=5.0)
        offset += len(drawn)
    assert lines.held_bytes == len(drawn)
