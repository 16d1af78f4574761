"""Several environments of one worker in process: who hangs, and how all of them end. The rest is in transports/test_vectors.py."""

import asyncio

import numpy as np
import pytest

from governor.episodes.rules.seeds import episode_seed
from governor.messages import EpisodeEnded, PartEndedReport, StopPartCommand, Until
from tests.support.in_process_commands import episodes, outcomes, vector
from tests.support.reasons import without_place
from tests.support.tasks.scheduling import turns


@pytest.mark.parametrize("agent", ["walk_world:Agent", "walk_world:Many"])
async def test_a_hang_is_found_where_it_is_and_not_where_others_wait(harness, agent):
    start = int(np.random.default_rng(episode_seed(7, 0, 2)).integers(100))
    controller = await harness.start("simulation")
    hangs = vector(4, entry="walk_world:Unlucky", fault="sleep", start=start, agent=agent)
    await controller.perform(harness.command(episodes=9, episode_timeout=1.0, **hangs))
    reason = await asyncio.wait_for(controller.failed, 20)
    (record,) = [r for r in episodes(harness.links["simulation"]) if r.outcome == "timed_out"]
    assert without_place(reason) == "environment 'lake' hangs in episode 2"
    assert (record.index, record.steps) == (2, 2)
    assert without_place(record.reason) == "longer than 1 s, and environment 'lake' hangs"


async def test_a_slow_one_times_out_with_those_that_waited_and_the_others_continue(harness):
    slow = vector(2, fault="slow", flag=str(harness.folder / "flag"))
    records, end = await harness.play(episodes=4, episode_timeout=0.1, **slow)
    assert [(r.outcome, r.reason) for r in records[:2]] == [("timed_out", "longer than 0.1 s")] * 2
    assert (len(records), end.end) == (4, "max_episodes")


async def test_an_agent_that_hangs_for_all_gives_up(harness):
    controller = await harness.start("simulation")
    await controller.perform(
        harness.command(episodes=9, episode_timeout=0.3, **vector(4, agent="walk_world:Stuck"))
    )
    assert (await asyncio.wait_for(controller.failed, 20)).startswith("agent 'walker' hangs in episode ")
    assert set(outcomes(episodes(harness.links["simulation"]))) == {"timed_out"}


async def test_until_and_stop_end_all(harness):
    records, end = await harness.play(
        episodes=5000, until=(Until(metric="return", at_least=5.0, average_over=8),), **vector(4)
    )
    assert end.end == "until"
    assert outcomes(records)[:8] == ["terminated"] * 8
    assert len(records) <= 16
    controller = await harness.start("simulation", incarnation=2)
    await controller.perform(harness.command(name="b", **vector(4, entry="walk_world:Endless")))
    await controller.perform(StopPartCommand(phase=0, reason="abort"))
    records, end = await harness.end()
    assert (set(outcomes(records)) | {"cancelled"}, end.end) == ({"cancelled"}, "stopped")


async def test_a_pause_lets_the_others_come_to_their_end(harness, monkeypatch):
    """What has begun ends while the pause lasts, and nothing else begins."""
    monkeypatch.setattr("governor.episodes.local.stepping.UNACKNOWLEDGED", 0)
    controller = await harness.start("simulation", flow="PAUSE")
    more = vector(4, entry="gymnasium:CartPole-v1", agent="walk_world:Reflex")
    command = harness.command(episodes=400, **more)
    await controller.perform(command)
    link = harness.links["simulation"]
    async with asyncio.timeout(30):
        while len(link.events) < 4:
            await link.next(EpisodeEnded, after=len(link.events))
        await turns()  # the controller takes the answers in
        assert outcomes(episodes(link)) == ["terminated"] * 4
        link.flow = "CONTINUE"
        await controller.perform(command)
        await link.next(PartEndedReport)
    assert outcomes(episodes(link)) == ["terminated"] * 400
