"""The end of a phase whose steps become one file: it is told, it can be stopped, and nothing is lost."""

import asyncio
import errno
import threading
from time import monotonic

import pytest

from governor.episodes import finalizer, trajectories
from governor.index_ranges import IndexRanges
from governor.messages import EpisodeEnded, PartEndedReport, PartFinalizing, StopPartCommand
from governor.messages.link import RecordingLink
from tests.support.in_process_commands import inside
from tests.support.recorded_steps import play, recorder, rows

SECONDS = 30


class Slow:
    """A conversion that goes on until it is told to end, by its check or by `go`."""

    def __init__(self, monkeypatch, method="finish"):
        self.begun, self.go = threading.Event(), threading.Event()
        real = getattr(trajectories.Conversion, method)

        def convert(conversion, *args):
            self.begun.set()
            until = monotonic() + SECONDS
            while not self.go.wait(0.01) and monotonic() < until:
                conversion._check()
            return real(conversion, *args)

        monkeypatch.setattr(trajectories.Conversion, method, convert)

    async def has_begun(self):
        assert await asyncio.to_thread(self.begun.wait, SECONDS)


def files(harness):
    return sorted(path.name for path in (harness.folder / "run/episodes").iterdir())


def steps(harness):
    return len(trajectories.read(harness.folder / "run", "train"))


async def begin(harness, **more):
    controller = await harness.start("simulation")
    await controller.perform(harness.command(**{**inside(), **more}))
    return controller, harness.links["simulation"]


async def test_how_far_it_is_is_told_before_the_end(harness, monkeypatch):
    monkeypatch.setattr(finalizer, "REPORT_SECONDS", (0.0, 3600.0))
    slow = Slow(monkeypatch)
    _, link = await begin(harness)
    told = await asyncio.wait_for(link.next(PartFinalizing), SECONDS)
    assert told == PartFinalizing(phase=0, part="simulation", steps=0, total=0)
    assert not any(isinstance(event, PartEndedReport) for event in link.events)
    slow.go.set()
    _, end = await harness.end()
    assert (end.failures, link.events[-1]) == (0, end)
    assert files(harness) == ["train.jsonl", "train.parquet"]


async def test_a_short_one_is_not_told(harness):
    await begin(harness)
    await harness.end()
    assert not any(isinstance(event, PartFinalizing) for event in harness.links["simulation"].events)


async def test_a_stop_on_the_way_keeps_the_streams(harness, monkeypatch):
    monkeypatch.setattr(finalizer, "STOP_SECONDS", 0.05)
    slow = Slow(monkeypatch)
    controller, _ = await begin(harness)
    await slow.has_begun()
    before = files(harness)
    await controller.perform(StopPartCommand(phase=0, reason="abort"))
    _, end = await harness.end()
    assert (end.failures, end.first_failure) == (0, "")
    assert files(harness) == before == ["train.0.1.arrow", "train.jsonl"]
    assert steps(harness) == 15


async def test_a_part_that_was_stopped_has_little_time(harness, monkeypatch):
    monkeypatch.setattr(finalizer, "STOP_SECONDS", 0.05)
    Slow(monkeypatch)
    controller, link = await begin(harness, episodes=10**9)
    await asyncio.wait_for(link.next(EpisodeEnded), SECONDS)
    await controller.perform(StopPartCommand(phase=0, reason="abort"))
    _, end = await harness.end()
    assert (end.end, end.failures) == ("stopped", 0)
    assert "train.parquet" not in files(harness)
    assert steps(harness) >= 5


async def test_a_part_that_was_stopped_has_its_file_if_there_is_time(harness):
    controller, link = await begin(harness, episodes=10**9)
    await asyncio.wait_for(link.next(EpisodeEnded), SECONDS)
    await controller.perform(StopPartCommand(phase=0, reason="abort"))
    await harness.end()
    assert files(harness) == ["train.jsonl", "train.parquet"]


@pytest.mark.parametrize("method", ["finish", "advance"])
async def test_an_exit_on_the_way_waits_for_nothing(harness, monkeypatch, method):
    monkeypatch.setattr(finalizer, "AHEAD", 5)
    slow = Slow(monkeypatch, method)
    controller, link = await begin(harness, episodes=3 if method == "finish" else 10**9)
    await slow.has_begun()
    await asyncio.wait_for(controller.close(), 2)
    assert not any(isinstance(event, PartEndedReport) for event in link.events)
    assert "train.0.1.arrow" in files(harness)


async def test_whole_row_groups_are_written_while_episodes_are_played(harness, monkeypatch):
    monkeypatch.setattr(finalizer, "AHEAD", 50)
    monkeypatch.setattr("governor.episodes.records.merge.ROWS", 20)
    run = harness.folder / "run"
    made, recorded, link = recorder(run), IndexRanges(), RecordingLink()
    one = finalizer.Finalizer(harness.command(), spec=harness.spec("simulation"), link=link)
    one.begin()
    ahead = []
    advance = trajectories.Conversion.advance
    advanced = asyncio.Event()
    loop = asyncio.get_running_loop()

    def note(conversion, below):
        advance(conversion, below)
        ahead.append((below, conversion.steps[0]))
        loop.call_soon_threadsafe(advanced.set)

    monkeypatch.setattr(trajectories.Conversion, "advance", note)
    for first in range(0, 60, 20):  # 80 steps each time, the last ones without their first episode
        for episode in range(first, first + 20):
            play(made, episode, steps=4)
            if episode != 40:
                recorded.add(episode)
        one.ended(recorded, first * 4 + 80)
        await asyncio.wait_for(advanced.wait(), SECONDS)
        advanced.clear()
    assert ahead == [(20, 80), (40, 160), (40, 160)]
    assert one.progress == 160 + 240
    recorded.add(40)
    assert await one.finish(lambda _: recorded) == ""
    await one.close()
    assert rows(run, "episode") == [(episode,) for episode in range(60) for _ in range(4)]


@pytest.mark.parametrize(("row_bytes", "begins"), [(0, 100), (10, 100), (1000, 50), (100_000, 1)])
async def test_large_steps_are_written_ahead_sooner(harness, monkeypatch, row_bytes, begins):
    monkeypatch.setattr(finalizer, "AHEAD", 100)
    monkeypatch.setattr(finalizer, "AHEAD_BYTES", 50_000)
    one = finalizer.Finalizer(harness.command(), spec=harness.spec("simulation"), link=RecordingLink())
    due = []
    for steps in range(1, 301):
        one.ended(IndexRanges.of([0]), steps, row_bytes=row_bytes)
        await asyncio.sleep(0)
        if one._due.is_set():
            one._due.clear()
            due.append(steps)
    assert due == [*range(begins, 301, begins)]


async def test_a_phase_that_is_converted_ahead_has_every_step(harness, monkeypatch):
    monkeypatch.setattr(finalizer, "AHEAD", 10)
    monkeypatch.setattr("governor.episodes.records.merge.ROWS", 20)
    await begin(harness, episodes=300, workers=2)
    _, ended = await harness.end()
    assert ended.failures == 0
    assert rows(harness.folder / "run", "episode") == [(episode,) for episode in range(300) for _ in range(5)]
    assert files(harness) == ["train.jsonl", "train.parquet"]


async def test_an_error_ahead_is_no_fault(harness, monkeypatch):
    monkeypatch.setattr(finalizer, "AHEAD", 5)
    failed = []

    def fail(conversion, below):
        failed.append(below)
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(trajectories.Conversion, "advance", fail)
    await begin(harness, episodes=50)
    _, end = await harness.end()
    assert (end.failures, len(failed)) == (0, 1)
    assert files(harness) == ["train.jsonl", "train.parquet"]


async def test_a_disk_stays_full_until_its_failure_is_on_record(harness, monkeypatch):
    """Else the run would fail, in place of being interrupted until there is room."""
    real = trajectories.Conversion._write

    def write(conversion, tables):
        real(conversion, tables)
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(trajectories.Conversion, "_write", write)
    controller = await harness.start("simulation")
    link, seen = harness.links["simulation"], []
    report = link.report

    async def look_and_report(event):
        if isinstance(event, PartEndedReport):
            seen.append(files(harness))
        return await report(event)

    link.report = look_and_report
    await controller.perform(harness.command(**inside()))
    _, end = await harness.end()
    reason = "cannot finalize the steps of 'train': OSError: [Errno 28] No space left on device; they stay on record as streams"
    assert (end.failures, end.first_failure) == (1, reason)
    assert seen == [[".train.parquet.part", "train.0.1.arrow", "train.jsonl"]]
    await controller._work.task
    assert files(harness) == ["train.0.1.arrow", "train.jsonl"]
    assert steps(harness) == 15
