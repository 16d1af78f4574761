"""The thread that collects the output of runs."""

import os
import shutil
import time

import pytest
from structlog.testing import capture_logs

from governor.config import LogsConfig
from governor.messages import ReadOutput
from governor.output import collector as collecting
from governor.output import reader, run_files, spool
from governor.output.collector import Collector
from governor.output.spool_reader import SpoolReader
from governor.units.mask import Mask
from tests.support.output_world import started


@pytest.fixture
def collector(tmp_path):
    made = Collector(tmp_path, LogsConfig)
    yield made
    made.close()


def run_in(folder, name):
    (folder / name).mkdir()
    return folder / name


def texts(run):
    return [line.text for line in reader.page_of(reader.folder_of(run), ReadOutput(uid=run.name)).lines]


def seconds_until(condition):
    began = time.monotonic()
    while not condition():
        assert time.monotonic() - began < 20.0
        time.sleep(0.01)  # another thread writes a file
    return time.monotonic() - began


def test_a_line_is_there_within_a_second_while_its_process_goes_on(tmp_path, collector):
    run = run_in(tmp_path, "one")
    collector.begin(run)
    process = started(spool.folder_of(run), "print('hello')\nprint('goes on', flush=True)\nsys.stdin.read()")
    try:
        seconds_until(lambda: texts(run) == ["hello", "goes on"])
        process.stdin.write(b"x")
    finally:
        process.communicate()
    collector.end("one")
    assert not collector.is_collecting("one")
    [kept] = reader.folder_of(run).iterdir()
    assert kept.name == "agent.walker.jsonl"
    assert (kept.stat().st_mode & 0o777, kept.parent.stat().st_mode & 0o777) == (0o600, 0o700)


def test_the_delay_of_a_line_is_below_a_second(tmp_path, collector):
    run = run_in(tmp_path, "one")
    collector.begin(run)
    descriptor = spool.create(spool.folder_of(run), "agent.a@7-1", "out")
    delays = []
    for number in range(5):
        os.write(descriptor, b"%d\n" % number)
        delays.append(seconds_until(lambda: str(number) in texts(run)))  # noqa: B023  # called at once
    assert min(delays) < 1.0
    os.close(descriptor)
    collector.end("one")


def test_two_runs_at_once_do_not_mix(tmp_path, collector):
    runs = [run_in(tmp_path, name) for name in ("one", "two")]
    for run in runs:
        collector.begin(run)
    processes = [
        started(spool.folder_of(run), f"for i in range(1000): print('{run.name}', i)") for run in runs
    ]
    for process in processes:
        process.communicate()
    for run in runs:
        collector.end(run.name)
        assert texts(run) == [f"{run.name} {number}" for number in range(1000)]


def test_a_collector_after_one_that_died_loses_nothing(tmp_path):
    run = run_in(tmp_path, "one")
    first = Collector(tmp_path, LogsConfig)
    first.begin(run)
    process = started(spool.folder_of(run), "print(1, flush=True)\nsys.stdin.read()\nprint(2)")
    seconds_until(lambda: texts(run) == ["1"])
    first.close()
    process.communicate(b"")
    second = Collector(tmp_path, LogsConfig)
    seconds_until(lambda: not spool.folder_of(run).exists())
    second.close()
    assert texts(run) == ["1", "2"]


def test_a_progress_bar_is_unfinished_until_it_is_over(tmp_path, collector):
    run = run_in(tmp_path, "one")
    collector.begin(run)
    descriptor = spool.create(spool.folder_of(run), "agent.a@7-1", "err")
    os.write(descriptor, b"\r10%\r20%")
    seconds_until(lambda: [line.text for line in collector.unfinished("one")] == ["20%"])
    assert texts(run) == []
    os.close(descriptor)
    collector.end("one")
    assert texts(run) == ["20%"]
    assert collector.unfinished("one") == []


def test_a_run_whose_folder_was_removed_ends_and_others_go_on(tmp_path, collector):
    gone, other = run_in(tmp_path, "gone"), run_in(tmp_path, "other")
    collector.begin(gone)
    collector.begin(other)
    shutil.rmtree(gone)
    collector.end("gone")
    descriptor = spool.create(spool.folder_of(other), "agent.a@7-1", "out")
    os.write(descriptor, b"hello\n")
    os.close(descriptor)
    collector.end("other")
    assert texts(other) == ["hello"]


def test_files_that_are_no_spools_are_left_alone(tmp_path, collector):
    run = run_in(tmp_path, "one")
    collector.begin(run)
    for name in ("no-spool.out", "a@x-1.err", "a@1-1.txt", ".a@1-1.out"):
        (spool.folder_of(run) / name).write_bytes(b"x\n")
    collector.end("one")
    assert texts(run) == []


def test_a_spool_that_fails_ends_neither_the_run_nor_its_other_spools(tmp_path, collector, monkeypatch):
    run = run_in(tmp_path, "one")
    read = SpoolReader.read

    def fails(reader, at, **more):
        if reader.conductor == "agent.bad":
            raise OSError("the disk fails")
        return read(reader, at, **more)

    monkeypatch.setattr(SpoolReader, "read", fails)
    collector.begin(run)
    spools = [spool.create(spool.folder_of(run), f"agent.{name}@7-1", "out") for name in ("bad", "good")]
    for number in range(2):
        os.write(spools[0], b"x\n")
        os.write(spools[1], b"%d\n" % number)
        seconds_until(lambda: str(number) in texts(run))  # noqa: B023  # called at once
    for descriptor in spools:
        os.close(descriptor)
    collector.end("one")
    assert texts(run) == ["0", "1"]


def test_a_spool_that_cannot_be_removed_is_read_once_and_its_run_ends(tmp_path, collector):
    run, other = run_in(tmp_path, "one"), run_in(tmp_path, "other")
    collector.begin(run)
    path = spool.folder_of(run) / "agent.a@7-1.out"
    descriptor = spool.create(spool.folder_of(run), "agent.a@7-1", "out")
    os.write(descriptor, b"hello\n")
    seconds_until(lambda: texts(run) == ["hello"])
    path.unlink()
    path.mkdir()
    os.close(descriptor)
    collector.end("one")
    assert texts(run) == ["hello"]
    collector.begin(other)  # the thread goes on
    collector.end("other")


def test_links_and_pipes_of_user_code_are_no_spools(tmp_path, collector):
    run = run_in(tmp_path, "one")
    collector.begin(run)
    target = tmp_path / "data"
    target.write_bytes(b"of the user\n" * 1000)
    before = target.read_bytes()
    (spool.folder_of(run) / "x@7-1.out").symlink_to(target)
    os.link(target, spool.folder_of(run) / "z@7-1.out")
    os.mkfifo(spool.folder_of(run) / "y@7-1.err")
    collector.end("one")
    assert texts(run) == []
    assert target.read_bytes() == before


def test_a_run_that_begins_while_the_left_one_is_found_keeps_its_spools(tmp_path, collector, monkeypatch):
    run = run_in(tmp_path, "one")
    collector.begin(run_in(tmp_path, "other"))
    end, found = collector.end, []

    def end_and_find(uid):
        end(uid)
        if not found:
            with collector._lock:  # its thread, which may just have begun, ends what it finds
                spool.folder_of(run).mkdir(parents=True)
                collector._find_left()
                found.append(collector._runs["one"])

    monkeypatch.setattr(collector, "end", end_and_find)
    collector.begin(run)
    collector._look_at("one", found[0])  # as the thread, if it was about to
    assert spool.folder_of(run).exists()
    descriptor = spool.create(spool.folder_of(run), "agent.a@7-1", "out")
    os.write(descriptor, b"hello\n")
    seconds_until(lambda: texts(run) == ["hello"])
    assert collector.is_collecting("one")
    os.close(descriptor)


def test_secrets_of_a_run_are_masked_in_all_that_is_kept_of_it(tmp_path):
    run = run_in(tmp_path, "one")
    made = Collector(
        tmp_path, LogsConfig, mask_of=lambda folder: Mask({"KEY": "sk-12345678"} if folder == run else {})
    )
    made.begin(run)
    descriptor = spool.create(spool.folder_of(run), "agent.a@7-1", "err")
    os.write(descriptor, b"key sk-12345678\n\r20% of sk-12345678")
    seconds_until(lambda: [line.text for line in made.unfinished("one")] == ["20% of [secret KEY]"])
    assert texts(run) == ["key [secret KEY]"]
    made.close()
    os.close(descriptor)
    kept = b"".join(path.read_bytes() for path in reader.folder_of(run).iterdir() if path.is_file())
    assert kept.count(b"[secret KEY]") == 2
    assert b"sk-12345678" not in kept


def test_a_line_that_is_not_over_is_kept_when_the_daemon_ends(tmp_path):
    run = run_in(tmp_path, "one")
    first = Collector(tmp_path, LogsConfig)
    first.begin(run)
    descriptor = spool.create(spool.folder_of(run), "agent.a@7-1", "err")
    record = spool.record(b"", b"a record")
    os.write(descriptor, b"\r20% of epoch 7" + record[:-3])
    seconds_until(lambda: [line.text for line in first.unfinished("one")] == ["20% of epoch 7"])
    first.close()
    os.write(descriptor, record[-3:])
    os.close(descriptor)
    second = Collector(tmp_path, LogsConfig)
    seconds_until(lambda: not spool.folder_of(run).exists())
    second.close()
    assert sorted(texts(run)) == ["20% of epoch 7", "a record"]


def test_what_is_unread_is_dropped_for_others_on_a_full_disk_and_said(tmp_path, collector, monkeypatch):
    run = run_in(tmp_path, "one")
    collector.begin(run)
    descriptor = spool.create(spool.folder_of(run), "agent.a@7-1", "out")
    os.write(descriptor, b"first\n")
    seconds_until(lambda: texts(run) == ["first"])
    with monkeypatch.context() as patched:
        patched.setattr(collector, "_read", lambda *_, **__: 0)
        with collector._lock:
            os.write(descriptor, b"x\n" * 1000)
            assert collector.relieve()
            assert os.fstat(descriptor).st_size == 0
            assert not collector.relieve()
    os.write(descriptor, b"last\n")
    os.close(descriptor)
    collector.end("one")
    lines = reader.page_of(reader.folder_of(run), ReadOutput(uid="one")).lines
    assert [line.text for line in lines if line.text] == ["first", "last"]
    assert sum(line.dropped[0] for line in lines if line.dropped) == pytest.approx(1000, abs=1)


def test_where_the_disk_is_nearly_full_it_looks_more_often_and_says_that_lines_have_no_room(
    tmp_path, monkeypatch
):
    for module in (collecting, run_files):
        monkeypatch.setattr(module, "free_bytes", lambda _: 1 << 20)
    run = run_in(tmp_path, "one")
    made = Collector(tmp_path, LogsConfig, reserve=lambda: 4 << 20)
    with capture_logs() as logged:
        made.begin(run)
        descriptor = spool.create(spool.folder_of(run), "agent.a@7-1", "out")
        os.write(descriptor, b"1\n2\n")
        seconds_until(lambda: any(one["event"] == "output.no_room" for one in logged))
        assert made._is_tight
        os.close(descriptor)
        made.end("one")
        made.close()
    assert [
        line.dropped[0] for line in reader.page_of(reader.folder_of(run), ReadOutput(uid="one")).lines
    ] == [2]
