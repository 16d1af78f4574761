"""Episodes that end within a moment share a write and a report."""

import asyncio
import threading
from concurrent.futures import Future, ThreadPoolExecutor

import pytest

from governor.episodes import trajectories
from governor.episodes.records.recording import StepRecorder
from governor.episodes.records.reports import EpisodeReports
from governor.messages import Acknowledged, EpisodeEnded, EpisodeRecord, PartEndedReport, Until
from tests.support.full_disk import full_beyond
from tests.support.in_process_commands import episodes, outcomes


async def test_short_episodes_share_a_write(harness, monkeypatch):
    writes = []
    flush = StepRecorder.flush
    monkeypatch.setattr(StepRecorder, "flush", lambda self: (writes.append(1), flush(self))[1])
    await harness.pair()
    records, _ = await harness.play(episodes=300)
    assert outcomes(records) == ["terminated"] * 300
    assert [record.index for record in records] == list(range(300))
    assert len(writes) < 200


async def test_what_an_end_means_for_the_phase_does_not_wait_for_others(harness):
    await harness.pair()
    records, _ = await harness.play(
        episodes=300, until=(Until(metric="return", at_least=5.0, average_over=9),)
    )
    assert len(records) <= 10


async def test_a_write_that_fails_fails_all_that_were_in_it_and_what_is_reported_is_on_disk(harness):
    await harness.pair(length=50)
    with full_beyond(30_000):
        controller = await harness.start("simulation")
        await controller.perform(harness.command(episodes=100))
        link = harness.links["simulation"]
        async with asyncio.timeout(30):
            await link.next(EpisodeEnded, after=60)
    async with asyncio.timeout(30):
        await link.next(PartEndedReport)
    records = episodes(link)
    assert len(records) == 100
    kept = trajectories.read(harness.folder / "run", "train").to_pandas().groupby("episode").size()
    well = [record.index for record in records if record.outcome == "terminated"]
    assert 0 < len(well) < 100
    assert {kept[index] for index in well} == {50}
    assert {r.reason for r in records if r.outcome == "failed"} == {
        "cannot record its steps: OSError: [Errno 27] File too large"
    }


class Sink:
    """Its reports are acknowledged by the test."""

    def __init__(self):
        self.reported = []
        self.has_reported = threading.Event()

    def may_end(self, record):
        return False

    def ended(self, *records):
        self.reported.append(Future())
        self.has_reported.set()
        return self.reported[-1]


def record(index):
    return EpisodeRecord(
        index=index, worker=0, outcome="terminated", value=1.0, steps=5, seconds=0.1, seed=index
    )


@pytest.mark.parametrize("patience", [0.0, 60.0])
def test_with_patience_a_worker_waits_until_its_report_is_acknowledged(patience):
    sink = Sink()
    reports = EpisodeReports(sink, patience=patience)
    with ThreadPoolExecutor(1) as worker:
        added = worker.submit(reports.add, record(0), None)
        if patience:
            assert sink.has_reported.wait(30)
            with pytest.raises(TimeoutError):
                added.result(0.2)
            sink.reported[0].set_result(Acknowledged())
        added.result(30)
        assert reports.settled == (1 if patience else 0)


def test_a_worker_goes_on_when_its_patience_ends():
    sink = Sink()
    reports = EpisodeReports(sink, patience=0.01)
    reports.add(record(0), None)
    assert (reports.settled, len(sink.reported)) == (0, 1)
    sink.reported[0].set_result(Acknowledged())
    assert reports.settled == 1


def test_a_report_that_is_sent_early_is_not_waited_for(monkeypatch):
    monkeypatch.setattr("governor.episodes.records.reports.LINGER_SECONDS", 1000.0)
    sink = Sink()
    reports = EpisodeReports(sink, patience=3600.0)
    with ThreadPoolExecutor(1) as worker:
        first = worker.submit(reports.add, record(0), None)
        assert sink.has_reported.wait(30)
        sink.reported[0].set_result(Acknowledged())
        first.result(30)
        sink.has_reported.clear()
        reports.add(record(1), None)
        second = worker.submit(reports.send)
        assert sink.has_reported.wait(30)
        try:
            second.result(30)
        finally:
            sink.reported[1].set_result(Acknowledged())
