"""Short episodes in process are written and reported together, and none of them is lost on the way."""

import asyncio
from collections import Counter
from contextlib import suppress

import pytest

from governor.episodes import trajectories
from governor.episodes.simulation import Paused, Simulation
from governor.messages import Done, EpisodeEnded, PartEndedReport, PausePartCommand
from tests.support.full_disk import full_beyond
from tests.support.in_process_commands import inside, outcomes


def count_reports(link):
    reports, report_all = [], link.report_all

    async def counted(events):
        reports.append(len(events))
        return await report_all(events)

    link.report_all = counted
    return reports


async def test_short_episodes_share_a_report_and_a_batch_of_steps(harness, monkeypatch):
    controller = await harness.start("simulation")
    reports = count_reports(harness.links["simulation"])
    handed_in, ended = [], Simulation.ended

    def counted(self, *records):
        handed_in.append(len(records))
        return ended(self, *records)

    monkeypatch.setattr(Simulation, "ended", counted)
    await controller.perform(harness.command(episodes=2000, mode="eval", **inside()))
    records, end = await harness.end()
    assert (end.end, end.failures) == ("max_episodes", 0)
    assert [record.index for record in records] == list(range(2000))
    assert [line["index"] for line in harness.lines()] == list(range(2000))
    assert handed_in[0] == 1, "the first one waits for nothing"
    assert len(reports) < 1000
    steps = trajectories.read(harness.folder / "run", "train")
    assert steps.num_rows == 10_000


async def test_unwritten_episodes_are_failed_also_in_a_shared_write(harness):
    controller = await harness.start("simulation")
    with full_beyond(200_000):
        await controller.perform(harness.command(episodes=40, mode="eval", **inside(length=300)))
        records, _ = await harness.end()
    assert [record.index for record in records] == list(range(40))
    assert set(outcomes(records)) == {"terminated", "failed"}
    faults = {record.reason for record in records if record.outcome == "failed"}
    assert faults == {"cannot record its steps: OSError: [Errno 27] File too large"}
    kept = Counter(trajectories.read(harness.folder / "run", "train")["episode"].to_pylist())
    whole = {record.index for record in records if record.outcome == "terminated"}
    assert {index for index, steps in kept.items() if steps == 300} == whole


async def test_an_environment_that_cannot_be_built_anew_takes_no_episode_along(harness):
    log = harness.folder / "log"
    once = inside(entry="walk_world:Once", flag=str(harness.folder / "flag"), log=str(log))
    controller = await harness.start("simulation", flow="RESET")
    assert await controller.perform(harness.command(episodes=10**6, **once)) == Done()
    records, end = await harness.end()
    assert "no second one" in end.first_failure
    assert len(records) == len(log.read_text().splitlines())
    assert [line["index"] for line in harness.lines()] == [record.index for record in records]


async def test_nothing_is_held_back_during_a_pause(harness, monkeypatch):
    loop, waits, next_index = asyncio.get_running_loop(), asyncio.Event(), Simulation.next_index

    def watched(self, *, wait=True):
        if wait:
            loop.call_soon_threadsafe(waits.set)
        return next_index(self, wait=wait)

    monkeypatch.setattr(Simulation, "next_index", watched)
    controller = await harness.start("simulation", flow="PAUSE")
    link, log = harness.links["simulation"], harness.folder / "log"
    once = inside(entry="walk_world:Once", flag=str(harness.folder / "flag"), log=str(log))
    await controller.perform(harness.command(episodes=10**6, **once))
    async with asyncio.timeout(20):
        await waits.wait()
        while len(link.events) < len(log.read_text().splitlines()):
            await link.next(EpisodeEnded, after=len(link.events))
    assert not any(isinstance(event, PartEndedReport) for event in link.events)
    simulation = controller._work.current
    for paused in (True, False):  # of a user who knows nothing of the flow control
        await controller.perform(PausePartCommand(phase=simulation.command.phase, paused=paused))
        with pytest.raises(Paused):
            simulation.next_index(wait=False)
    before = len(
        link.events
    )  # the answer to the next report pauses again, and so does one that is still on its way
    async with asyncio.timeout(20):
        while len(link.events) == before:
            await controller.perform(
                PausePartCommand(phase=simulation.command.phase, paused=False, ends_flow=True)
            )
            with suppress(TimeoutError):
                async with asyncio.timeout(1):
                    await link.next(EpisodeEnded, after=before)
