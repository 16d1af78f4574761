"""The files of a run: bounded, first and last lines kept, what is missing counted."""

import os
from itertools import pairwise

import msgspec
import pytest

from governor.errors import UsageError
from governor.messages import OutputLine, ReadOutput
from governor.output import reader, run_files
from governor.output.run_files import RunFiles, dropped_of, files_in
from tests.support.full_disk import full_beyond

LIMIT = 1 << 20


def line(number, conductor="agent.a", **more):
    fields = {"at": float(number), "pid": 7, "stream": "stdout", "text": f"{number} {'x' * 200}"}
    return OutputLine(conductor=conductor, **(fields | more))


def read(folder, **asked):
    """All lines, page by page, and the number of pages."""
    pages, wanted = 0, ReadOutput(uid="u", **asked)
    found = []
    while True:
        page = reader.page_of(folder, wanted)
        found += page.lines
        pages += 1
        if not page.more:
            return found, pages
        wanted = msgspec.structs.replace(wanted, cursor=page.cursor)


def size_of(folder):
    return sum(path.stat().st_size for path in folder.iterdir())


def test_the_first_and_the_last_lines_are_kept_within_the_limit(tmp_path):
    files = RunFiles(tmp_path, limit=LIMIT)
    for start in range(0, 20_000, 100):
        files.append("agent.a", [line(number) for number in range(start, start + 100)])
        assert size_of(tmp_path) < LIMIT + 30_000
    lines, _ = read(tmp_path)
    numbers = [int(one.text.split()[0]) for one in lines if not one.dropped]
    [gap] = [one for one in lines if one.dropped]
    first = numbers.index(next(b for a, b in pairwise(numbers) if b != a + 1))
    assert (numbers[0], numbers[-1]) == (0, 19_999)
    assert numbers[first] - numbers[first - 1] - 1 == gap.dropped[0] == 20_000 - len(numbers)
    assert gap.dropped[1] > gap.dropped[0] * 200
    assert {path.stat().st_mode & 0o777 for path in tmp_path.iterdir()} == {0o600}


def test_what_was_dropped_before_is_counted_again_with_its_file(tmp_path):
    files = RunFiles(tmp_path, limit=LIMIT)
    for start in range(0, 20_000, 100):
        lines = [line(number) for number in range(start, start + 100)]
        files.append("agent.a", [line(start, dropped=(1000, 5000), text=""), *lines])
    found, _ = read(tmp_path)
    total = sum(one.dropped[0] if one.dropped else 1 for one in found)
    assert total == 20_000 + 200 * 1000


def test_a_loud_conductor_takes_nothing_from_a_quiet_one(tmp_path):
    files = RunFiles(tmp_path, limit=LIMIT)
    files.append("quiet", [line(number, "quiet") for number in range(1000)])
    for start in range(0, 20_000, 100):
        files.append("loud", [line(number, "loud") for number in range(start, start + 100)])
    assert len([one for one in read(tmp_path)[0] if one.conductor == "quiet"]) == 1000
    assert dropped_of(tmp_path, "loud").lines


def test_files_of_an_earlier_daemon_are_continued(tmp_path):
    for start in (0, 100):
        RunFiles(tmp_path, limit=1 << 26).append("agent.a", [line(n) for n in range(start, start + 100)])
    assert len(read(tmp_path)[0]) == 200
    assert files_in(tmp_path) == {"agent.a": [0]}


def test_a_full_disk_drops_lines_and_counts_them(tmp_path):
    files = RunFiles(tmp_path, limit=LIMIT)
    files.append("agent.a", [line(1)])
    with full_beyond(1000):
        files.append("agent.a", [line(2), line(3), line(4), line(5)])
    files.append("agent.a", [line(6)])
    found, _ = read(tmp_path)
    assert [one.dropped or one.text.split()[0] for one in found] == ["1", (4, 808), "6"]


def test_pages_are_in_the_order_of_time_and_go_on_where_the_last_one_ended(tmp_path):
    files = RunFiles(tmp_path, limit=1 << 26)
    for name, odd in (("a", 0), ("b", 1)):
        files.append(name, [line(number, name) for number in range(odd, 10_000, 2)])
    found, pages = read(tmp_path)
    assert [int(one.text.split()[0]) for one in found] == list(range(10_000))
    assert pages == 5
    page = reader.page_of(tmp_path, ReadOutput(uid="u", cursor=_end(tmp_path)))
    assert not page.lines
    files.append("c", [line(10_000, "c")])
    assert len(reader.page_of(tmp_path, ReadOutput(uid="u", cursor=page.cursor)).lines) == 1


def _end(folder):
    wanted = ReadOutput(uid="u")
    while (page := reader.page_of(folder, wanted)).more:
        wanted = msgspec.structs.replace(wanted, cursor=page.cursor)
    return page.cursor


def test_a_follower_whose_place_was_dropped_learns_how_much_is_missing(tmp_path):
    files = RunFiles(tmp_path, limit=LIMIT)
    files.append("agent.a", [line(number) for number in range(1000)])
    cursor = _end(tmp_path)
    for start in range(1000, 20_000, 100):
        files.append("agent.a", [line(number) for number in range(start, start + 100)])
    page = reader.page_of(tmp_path, ReadOutput(uid="u", cursor=cursor))
    assert any(one.dropped for one in page.lines)


def test_filters(tmp_path):
    files = RunFiles(tmp_path, limit=LIMIT)
    files.append(
        "agent.a",
        [
            line(1, task="t"),
            line(2, episode=0),
            line(3, level="warning"),
            line(4, level="error"),
            line(5, level="level 35"),
            line(0.5, run=1, attempt=2),
            line(0.75, run=0, attempt=2),
        ],
    )
    asked = {"task": "t", "episode": 0, "level": "warning", "since": 4.0, "run": 0, "attempt": 2}
    found = {key: [one.at for one in read(tmp_path, **{key: value})[0]] for key, value in asked.items()}
    assert found == {
        "task": [1.0],
        "episode": [2.0],
        "level": [3.0, 4.0, 5.0],
        "since": [4.0, 5.0],
        "run": [0.75],
        "attempt": [0.5, 0.75],
    }


def test_a_line_that_is_being_written_and_one_that_is_damaged(tmp_path):
    RunFiles(tmp_path, limit=LIMIT).append("agent.a", [line(1)])
    with (tmp_path / "agent.a.jsonl").open("ab") as file:
        file.write(b'no json\n{"at":1')
    assert len(read(tmp_path)[0]) == 1


def test_names_of_conductors(tmp_path):
    RunFiles(tmp_path, limit=LIMIT).append("agent.a", [line(1)])

    def planned():
        return ["agent.a", "environment.e"]

    assert reader.conductors_named(tmp_path, "a", planned) == ["agent.a"]
    assert reader.conductors_named(tmp_path, "environment.e", planned) == ["environment.e"]
    with pytest.raises(UsageError, match=r"no conductor 'x'; it has agent\.a, environment\.e"):
        reader.conductors_named(tmp_path, "x", planned)


def test_links_pipes_and_names_of_user_code_are_no_files_of_lines(tmp_path):
    folder = tmp_path / "logs"
    folder.mkdir()
    os.mkfifo(folder / "y.jsonl")
    (folder / "x~1.jsonl").touch()
    (tmp_path / "data").touch()
    (folder / "agent.a.jsonl").symlink_to(tmp_path / "data")
    (folder / "agent.c.jsonl").hardlink_to(tmp_path / "data")
    files = RunFiles(folder, limit=LIMIT)
    files.append("agent.a", [line(1)])
    files.append("agent.c", [line(1)])
    files.append("agent.b", [line(2)])
    assert (tmp_path / "data").read_bytes() == b""
    assert [one.at for one in read(folder)[0]] == [2.0]


@pytest.mark.parametrize("at_once", [10, 200])
def test_many_conductors_keep_to_the_limit_too(tmp_path, at_once):
    files = RunFiles(tmp_path, limit=LIMIT // 4)
    names = [f"agent.{number}" for number in range(25)]
    for start in range(0, 200, at_once):
        for name in names:
            files.append(name, [line(number, name) for number in range(start, start + at_once)])
        assert size_of(tmp_path) < LIMIT // 4 + 30_000
    found, _ = read(tmp_path)
    for name in names:
        kept = [int(one.text.split()[0]) for one in found if one.conductor == name and not one.dropped]
        assert (kept[0], kept[-1]) == (0, 199)
        dropped = sum(one.dropped[0] for one in found if one.conductor == name and one.dropped)
        assert len(kept) + dropped == 200


def test_a_disk_that_stays_full_counts_what_it_has_refused_once(tmp_path):
    files = RunFiles(tmp_path, limit=LIMIT)
    files.append("agent.a", [line(1)])
    with full_beyond(300):
        for number in range(2, 5):
            files.append("agent.a", [line(number)])
    files.append("agent.a", [line(6)])
    found, _ = read(tmp_path)
    assert [one.dropped or one.text.split()[0] for one in found] == ["1", (3, 606), "6"]


def test_a_page_is_bounded_in_bytes(tmp_path):
    RunFiles(tmp_path, limit=1 << 26).append("a", [line(n, "a", text="x" * 10_000) for n in range(1000)])
    page = reader.page_of(tmp_path, ReadOutput(uid="u"))
    assert page.more
    assert len(page.lines) <= 106
    assert len(read(tmp_path)[0]) == 1000


def test_lines_that_user_code_writes_to_the_files_are_read_once_and_none_breaks_the_reader(tmp_path):
    RunFiles(tmp_path, limit=LIMIT).append("agent.a", [line(1)])
    bad = [
        b'{"at":1e300,"pid":7',
        b'{"at":-1,"pid":7',
        b'{"at":2,"pid":%d' % 10**30,
        b'{"at":2,"pid":7,"run":%d' % 2**70,
    ]
    with (tmp_path / "other.jsonl").open("ab") as file:
        file.write(b"x" * 3_000_000 + b"\n")
        for begin in (*bad, b'{"at":3.0,"pid":7'):
            file.write(begin + b',"conductor":"agent.a","stream":"stdout","text":"x"}\n')
    assert [one.at for one in read(tmp_path)[0]] == [1.0, 3.0]
    page = reader.page_of(tmp_path, ReadOutput(uid="u"))
    assert not reader.page_of(tmp_path, ReadOutput(uid="u", cursor=page.cursor)).lines


def disk_of(monkeypatch, folder, size):
    """The folder is all that is on a disk of `size` bytes."""
    monkeypatch.setattr(run_files, "free_bytes", lambda _: size - size_of(folder))


def test_room_of_the_disk_is_left_to_others_and_the_first_and_last_lines_are_kept(tmp_path, monkeypatch):
    disk_of(monkeypatch, tmp_path, 3 << 20)
    files = RunFiles(tmp_path, limit=4 << 20, keep_free=2 << 20)
    for start in range(0, 20_000, 100):
        files.append("agent.a", [line(number) for number in range(start, start + 100)])
        assert size_of(tmp_path) < (1 << 20) + 1000
    files.close()
    lines, _ = read(tmp_path)
    kept = [one for one in lines if not one.dropped]
    assert (kept[0].text.split()[0], kept[-1].text.split()[0]) == ("0", "19999")
    assert sum(one.dropped[0] for one in lines if one.dropped) + len(kept) == 20_000


def test_on_a_disk_without_that_room_the_lines_are_counted_and_said(tmp_path, monkeypatch):
    disk_of(monkeypatch, tmp_path, 1 << 20)
    files = RunFiles(tmp_path, limit=1 << 26, keep_free=2 << 20)
    for number in range(2500):
        files.append("agent.a", [line(number)])
    assert not list(tmp_path.iterdir())
    files.close()
    assert [one.dropped[0] for one in read(tmp_path)[0]] == [2500]
