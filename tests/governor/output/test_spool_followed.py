"""A reader of a spool goes on where another one has closed it, or died."""

import os
import time
from functools import partial

import pytest

from governor.output import spool
from governor.output.attribution import PAGE_BYTES
from tests.support.output_world import LONG, numbers, read_all, readers_of


def test_a_reader_that_follows_another_goes_on_where_that_stopped(tmp_path, out):
    [first] = readers_of(tmp_path)
    os.write(out, b"1\n2\n")
    assert numbers(first.read(time.time())) == [1, 2]
    os.write(out, b"3\n")
    first.close()
    [second] = readers_of(tmp_path)
    assert numbers(second.read(time.time())) == [3]
    assert second.read(time.time()) == []
    second.close()


def test_so_it_does_with_a_page(tmp_path, out):
    (tmp_path / "agent.a@7-1.now").write_bytes(bytes(PAGE_BYTES))
    test_a_reader_that_follows_another_goes_on_where_that_stopped(tmp_path, out)


def test_who_follows_a_reader_that_died_before_its_lines_were_on_disk_reads_them_again(tmp_path, out):
    (tmp_path / "agent.a@7-1.now").write_bytes(bytes(PAGE_BYTES))
    [first] = readers_of(tmp_path)
    os.write(out, b"1\n")
    first.read(time.time())
    first.done()
    os.write(out, b"2\n")
    assert numbers(first.read(time.time())) == [2]
    [second] = readers_of(tmp_path)
    assert numbers(second.read(time.time())) == [2]
    second.close()
    first.close()


@pytest.mark.parametrize("punches", [True, False])
def test_where_a_reader_was_killed_its_follower_goes_on_also_if_space_cannot_be_freed(
    tmp_path, out, monkeypatch, punches
):
    if not punches:
        monkeypatch.setattr("governor.output.spool_reader._libc.fallocate", lambda *_: -1)
    [killed] = readers_of(tmp_path)
    os.write(out, b"1\n2\n")
    assert numbers(read_all(killed)) == [1, 2]
    os.write(out, b"3\n" + LONG)
    assert read_all(killed)[0].text == "3"
    os.write(out, b"4\n")
    assert numbers(killed.read(time.time())) == [4]
    os.write(out, b"5\n")
    killed.done()
    [second] = readers_of(tmp_path)
    assert numbers(read_all(second)) == [5]
    os.write(out, LONG)
    read_all(second)
    os.write(out, b"6\n")
    [third] = readers_of(tmp_path)
    assert numbers(third.finish(time.time())) == [6]
    assert not list(tmp_path.iterdir())
    killed.close()
    second.close()


def test_what_is_written_to_a_spool_that_was_emptied_is_all_read_by_a_follower(tmp_path, out, monkeypatch):
    monkeypatch.setattr("governor.output.spool_reader._libc.fallocate", lambda *_: -1)
    [killed] = readers_of(tmp_path)
    for _ in range(2):
        os.write(out, LONG)
        read_all(killed)
    assert os.fstat(out).st_size == 0
    os.write(out, b"1\n" + LONG * 3 + b"2\n")  # more than was read before
    [second] = readers_of(tmp_path)
    lines = read_all(second)
    assert (lines[0].text, lines[-1].text) == ("1", "2")
    second.close()
    killed.close()


@pytest.mark.parametrize("write", [bytes, partial(spool.record, b'"part":1,"more":1,')])
@pytest.mark.parametrize("has_page", [False, True])
def test_a_line_that_is_not_over_is_read_again_if_the_reader_dies(tmp_path, out, has_page, write):
    if has_page:
        (tmp_path / "agent.a@7-1.now").write_bytes(bytes(PAGE_BYTES))
    [first] = readers_of(tmp_path)
    os.write(out, b"1\n" + write(b"\r10%"))
    first.read(time.time())
    first.done()
    os.write(out, write(b"\r20%"))
    first.read(time.time())
    first.done()
    os.write(out, write(b" of all"))
    [second] = readers_of(tmp_path)
    assert second.read(time.time()) == []
    assert [line.text for line in second.lines.unfinished] == ["20% of all"]
    second.close()
    first.close()
