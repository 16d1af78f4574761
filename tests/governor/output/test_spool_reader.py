"""Spools are read at a bounded rate, once, and their space is freed."""

import os
import subprocess
import time

import pytest

from governor.output import attribution, spool
from governor.output.attribution import PAGE_BYTES
from governor.output.spool_reader import FREED_BYTES, SpoolReader
from tests.support.output_world import numbers, readers_of


def test_what_was_read_takes_no_space(tmp_path, out):
    [reader] = readers_of(tmp_path)
    for _ in range(100):
        os.write(out, b"x" * 99_999 + b"\n")
        assert reader.read(time.time())
    reader.done()
    assert os.fstat(out).st_size == 10_000_000
    assert os.fstat(out).st_blocks * 512 < FREED_BYTES + 100_000
    reader.close()


@pytest.mark.parametrize("name", ["x@7-1.out", "agent.a@7-1.now"])
def test_a_file_of_the_user_in_the_place_of_a_spool_or_its_page_is_not_touched(tmp_path, out, name):
    data = tmp_path / "data"
    data.write_bytes(b"of the user\n" * 1000)
    before = data.read_bytes()
    os.link(data, tmp_path / name)
    if name.endswith("out"):
        with pytest.raises(OSError, match="it has several names"):
            readers_of(tmp_path)
    else:
        [reader] = readers_of(tmp_path)
        os.write(out, b"1\n")
        assert numbers(reader.read(time.time())) == [1]
        reader.close()
    assert data.read_bytes() == before


def test_a_process_that_floods_takes_little_space_and_nothing_is_written_to_disk_for_that(
    tmp_path, out, monkeypatch
):
    monkeypatch.setattr("governor.output.spool_reader._libc.fallocate", None)  # it would write
    (tmp_path / "agent.a@7-1.now").write_bytes(bytes(PAGE_BYTES))
    [reader] = readers_of(tmp_path, lines_per_second=1000)
    for number in range(50):
        os.write(out, b"x" * 99 + b"\n")
        os.write(out, (b"y" * 99 + b"\n") * 20_000 + b"%d\n" % number)
        lines = reader.read(time.time())
        reader._lines_left = 1000.0  # as if a second had passed
    assert lines[-1].text == "49"
    assert os.fstat(out).st_size < 3_000_000
    reader.close()


def test_of_a_burst_the_first_and_the_last_lines_are_kept_and_the_others_counted(tmp_path, out):
    [reader] = readers_of(tmp_path, lines_per_second=100, bytes_per_second=1 << 14)
    os.write(out, b"".join(b"%d\n" % number for number in range(200_000)))
    lines = reader.read(time.time())
    lines += reader.finish(time.time())
    kept = numbers(lines)
    assert (kept[0], kept[-1]) == (0, 199_999)
    [gap] = [line for line in lines if line.dropped]
    assert gap.dropped[0] > 150_000
    assert len(kept) + gap.dropped[0] == pytest.approx(200_000, abs=2)  # the lines at its edges are cut


def test_the_first_line_is_kept_also_of_what_is_emptied_at_the_first_look(tmp_path, out):
    [reader] = readers_of(tmp_path, lines_per_second=2000, bytes_per_second=1 << 20)
    os.write(out, b"first\n" + (b"x" * 999 + b"\n") * 1200 + b"last\n")
    lines = reader.read(time.time())
    assert (lines[0].text, lines[-1].text) == ("first", "last")
    assert os.fstat(out).st_size == 0
    reader.close()


@pytest.mark.parametrize("looks", [2, 4, 6])
def test_the_last_line_is_kept_of_a_storm_that_ends_while_its_spool_is_emptied(
    tmp_path, out, monkeypatch, looks
):
    lines, written = flooded(tmp_path, out, monkeypatch, looks=looks)
    assert lines[-1].text == "last"
    assert kept_or_counted(lines) == pytest.approx(written, rel=0.001)


def test_what_is_written_in_the_moment_in_which_a_spool_is_emptied_is_counted(tmp_path, out, monkeypatch):
    lines, written = flooded(tmp_path, out, monkeypatch, looks=1000)
    assert kept_or_counted(lines) == pytest.approx(written, rel=0.01)


def flooded(tmp_path, out, monkeypatch, *, looks):
    """What a reader finds of a storm that goes on for so many of its looks, and how many lines that were."""
    [reader] = readers_of(tmp_path, lines_per_second=1000)
    reader._lines_left = 300.0
    storm, written = (b"x" * 99 + b"\n") * 15_000, 0
    read = reader._read

    def read_slowly(*args, **kwargs):
        nonlocal looks, written
        if looks:
            looks -= 1
            written += os.write(out, storm if looks else storm + b"last\n") // 100
        return read(*args, **kwargs)

    os.write(out, storm)
    written += 15_000
    monkeypatch.setattr(reader, "_read", read_slowly)
    lines = reader.read(time.time())
    assert os.fstat(out).st_size == 0
    reader.close()
    return lines, written


def kept_or_counted(lines):
    return sum(line.dropped[0] if line.dropped else 1 for line in lines)


def test_on_a_disk_that_is_nearly_full_what_is_beyond_the_rate_is_freed_at_once(tmp_path, out):
    [reader] = readers_of(tmp_path, lines_per_second=100)
    reader.is_tight = True
    reader._lines_left = 0.0
    os.write(out, (b"x" * 99 + b"\n") * 5000)
    lines = reader.read(time.time())
    assert os.fstat(out).st_size == 0
    dropped = sum(line.dropped[0] for line in lines if line.dropped)
    assert dropped + len([line for line in lines if line.text]) == pytest.approx(5000, abs=3)
    reader.close()


def printed(task, texts, *, raw=False):
    """What a task leaves in a spool."""
    fields = spool.fragment_of_task(task, 0, 1)
    if raw:
        return b"".join(b"%b\n" % text for text in texts)
    return b"".join(spool.record(fields, text) for text in texts)


@pytest.mark.parametrize("raw", [False, True])
@pytest.mark.parametrize("rate", [100, 2000])
def test_a_small_task_between_storms_of_others_keeps_its_lines(tmp_path, out, rate, raw):
    storm = [b"x" * 50] * 50_000
    small = [b"one", b"two", b"three"]
    [reader] = readers_of(tmp_path, lines_per_second=rate)
    for number in range(0, 6, 2):
        os.write(out, printed(f"storm-{number}", storm))
        since = os.fstat(out).st_size
        os.write(out, printed(f"small-{number}", small, raw=raw))
        if raw:
            os.write(out, spool.mark(spool.fragment_of_task(f"small-{number}", 0, 1), since))
    os.write(out, printed("storm", storm))
    size = os.fstat(out).st_size
    lines = reader.finish(time.time())
    for number in range(0, 6, 2):
        assert [line.text for line in lines if line.task == f"small-{number}"] == ["one", "two", "three"]
    kept = [line for line in lines if not line.dropped]
    assert len(kept) <= rate * 11 + 3000  # its share is a tenth; the newest 64 KiB
    dropped = [line.dropped for line in lines if line.dropped]
    assert len(kept) + sum(number for number, _ in dropped) == pytest.approx(200_009, abs=50)
    assert sum(skipped for _, skipped in dropped) < size


def test_a_million_tasks_that_print_take_no_more_than_their_share(tmp_path, out, monkeypatch):
    monkeypatch.setattr(time, "monotonic", lambda: 1000.0)
    [reader] = readers_of(tmp_path, lines_per_second=1000)
    os.write(out, b"".join(printed(f"task-{number}", [b"hello"] * 2) for number in range(100_000)))
    kept = [line for line in reader.read(time.time()) if not line.dropped]
    assert len(kept) <= 10_000 + 1_000
    reader.close()


def test_a_process_at_its_rate_is_read_no_faster(tmp_path, out, monkeypatch):
    now = 1000.0
    monkeypatch.setattr(time, "monotonic", lambda: now)
    [reader] = readers_of(tmp_path, lines_per_second=100)
    reader.read(0.0)
    read = 0
    for _ in range(50):
        now += 1.0
        os.write(out, b"".join(b"%06d\n" % number for number in range(10_000)))
        read += len([line for line in reader.read(now) if not line.dropped])
    assert 4_000 < read < 8_000  # 10 s at once, then 50 s
    reader.close()


def test_a_spool_is_over_when_no_process_holds_it_open_also_none_that_was_started(tmp_path):
    descriptor = spool.create(tmp_path, "agent.a@7-1", "out")
    with subprocess.Popen(["sleep", "60"], stdout=descriptor) as heir:
        os.close(descriptor)
        [reader] = readers_of(tmp_path)
        reader.idle_seconds = 0.0
        assert not reader.is_over()
        heir.kill()
    assert reader.is_over()
    assert reader.finish(time.time()) == []
    assert not list(tmp_path.iterdir())


def test_a_spool_that_was_emptied_is_read_from_its_beginning(tmp_path, out):
    [reader] = readers_of(tmp_path)
    os.write(out, b"1\n2\n")
    reader.read(time.time())
    reader.done()
    os.ftruncate(out, 0)
    os.write(out, b"3\n")
    assert numbers(reader.read(time.time())) == [3]
    reader.close()


def test_where_space_cannot_be_freed_a_spool_that_was_read_is_emptied(tmp_path, out, monkeypatch):
    [reader] = readers_of(tmp_path)
    monkeypatch.setattr("governor.output.spool_reader._libc.fallocate", lambda *_: -1)
    for number in range(100):
        os.write(out, b"x" * 99_999 + b"\n" + b"%d\n" % number)
        assert reader.read(time.time())[-1].text == str(number)
        reader.done()
    assert os.fstat(out).st_size < FREED_BYTES + 100_000
    reader.close()


def test_raw_lines_are_not_shown_behind_what_python_wrote_after_them(tmp_path, out):
    os.write(out, b"raw\n" + spool.record(b"", b"tagged"))
    [reader] = readers_of(tmp_path)
    raw, tagged = reader.read(time.time() + 5.0)
    assert (raw.text, raw.at) == ("raw", tagged.at)
    reader.close()


@pytest.mark.parametrize("has_page", [False, True])
def test_short_lines_take_no_more_than_their_rate_and_a_later_line_is_soon_seen(
    tmp_path, out, monkeypatch, has_page
):
    now = 1000.0
    monkeypatch.setattr(time, "monotonic", lambda: now)
    if has_page:
        (tmp_path / "agent.a@7-1.now").write_bytes(bytes(PAGE_BYTES))
    [reader] = readers_of(tmp_path, lines_per_second=1000)
    os.write(out, b"x\n" * 1_000_000)
    lines = reader.read(now)
    assert len([line for line in lines if not line.dropped]) <= 10 * 1000 + 1
    assert reader.is_at_its_rate
    now += 3.0
    os.write(out, b"later\n")
    for _ in range(50):
        lines += reader.read(now)
        now += 0.2
    assert lines[-1].text == "later"
    dropped = sum(line.dropped[0] for line in lines if line.dropped)
    kept = len([line for line in lines if not line.dropped])
    assert dropped + kept == pytest.approx(1_000_001, abs=5)
    reader.close()


def test_raw_bytes_know_their_episode_also_if_it_changes_while_they_are_read(tmp_path, out, monkeypatch):
    page = tmp_path / "agent.a@7-1.now"
    process = attribution.ProcessAttribution((-1, -1), page)
    err = spool.create(tmp_path, "agent.a@7-1", "err")
    process.use((out, err))
    monkeypatch.setattr(attribution, "_process", process)
    one = attribution.Attribution()
    _, reader = readers_of(tmp_path)  # err, out
    read, episode = SpoolReader._page_now, 0

    def changes(reader):
        one.begin(episode=episode + 1)
        return read(reader)

    monkeypatch.setattr(SpoolReader, "_page_now", changes)
    for episode in range(5):
        one.begin(episode=episode)
        os.write(out, b"raw\n")
        assert [line.episode for line in reader.read(time.time()) if line.text] == [episode]
    reader.close()
    os.close(err)


def test_a_spool_that_was_emptied_within_a_line_is_read_on(tmp_path, out):
    (tmp_path / "agent.a@7-1.now").write_bytes(bytes(PAGE_BYTES))
    [reader] = readers_of(tmp_path, lines_per_second=1000)
    os.write(out, (b"y" * 99 + b"\n") * 30_000 + b"\r10%")
    reader.read(time.time())
    assert os.fstat(out).st_size == 0
    reader.done()
    os.write(out, b"\r20%\n")
    reader._lines_left = 1000.0  # as if a second had passed
    assert reader.read(time.time())[-1].text == "20%"
    reader.close()
