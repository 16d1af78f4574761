"""A phase through conductors: what hangs, dies or is asked for twice. What every transport does is in transports/test_transports.py."""

import asyncio
import math
from itertools import pairwise
from types import SimpleNamespace

import numpy as np
import pytest

from governor.episodes import report_queue, trajectories
from governor.episodes.rules import phase_rules
from governor.errors import ConductorError
from governor.messages import (
    Done,
    EpisodeEnded,
    EpisodeRecord,
    FiguresUpdated,
    PartEndedReport,
    Refused,
    StopPartCommand,
    Until,
    encode,
)
from tests.support.figures import with_done
from tests.support.in_process_commands import inside, outcomes
from tests.support.reasons import without_place


async def test_vectors_cross_with_dtype_and_shape(harness):
    await harness.pair(entry="walk_world:Vector")
    records, end = await harness.play(episodes=1, max_steps=20)
    assert (records[0].outcome, records[0].steps, records[0].reason) == ("truncated", 20, "")
    assert end.failures == 0


async def test_an_agent_that_cannot_be_built_ends_the_part(harness):
    await harness.pair(agent_params={"fault": "init"})
    records, end = await harness.play()
    assert records == []
    assert (end.end, end.failures) == ("stopped", 1)
    assert without_place(end.first_failure) == "agent 'walk_world:Agent' does not start: ValueError: no brain"


@pytest.mark.parametrize("fault", ["sleep", "spin", "hold"])
async def test_a_hung_environment_times_out_and_is_replaced(harness, fault):
    await harness.pair(fault=fault, flag=str(harness.folder / "flag"))
    records, end = await harness.play(episodes=3, episode_timeout=0.5)
    assert outcomes(records) == ["timed_out", "terminated", "terminated"]
    assert without_place(records[0].reason) == "longer than 0.5 s, and environment 'lake' hangs"
    assert 0.5 <= records[0].seconds < 2.5
    assert end.failures == 1
    assert not harness.failures["environment.lake"].done()


async def test_a_slow_environment_is_not_taken_for_a_hung_one(harness):
    await harness.pair(fault="slow", length=5)
    pool = harness.conductors["environment.lake"].pool
    before = pool._idle[0]
    records, _ = await harness.play(episodes=2, episode_timeout=0.1)
    assert outcomes(records) == ["timed_out", "timed_out"]
    assert pool._idle == [before]


async def test_environments_that_hang_again_and_again_cost_their_episodes_alone(harness):
    await harness.pair(fault="sleep")
    records, end = await harness.play(episodes=6, episode_timeout=0.1)
    assert (outcomes(records), end.failures) == (["timed_out"] * 6, 6)
    assert not harness.failures["environment.lake"].done()


async def test_a_hung_agent_makes_its_conductor_give_up(harness):
    await harness.pair(agent_params={"fault": "sleep"})
    controller = await harness.start("simulation")
    await controller.perform(harness.command(episodes=2, episode_timeout=0.3))
    assert "hangs" in await asyncio.wait_for(harness.failures["agent.walker"], 20)
    first = await harness.links["simulation"].next(EpisodeEnded)
    assert (first.episode.outcome, without_place(first.episode.reason)) == (
        "timed_out",
        "longer than 0.3 s, and agent 'walker' hangs",
    )


async def test_until_counts_what_ended_before_this_incarnation(harness):
    await harness.pair()
    done = tuple(
        EpisodeRecord(index=i, worker=0, seed=0, outcome="terminated", value=5.0, steps=5, seconds=0.1)
        for i in range(2)
    )
    records, end = await harness.play(
        episodes=50, done=done, until=(Until(metric="return", at_least=5.0, average_over=3),)
    )
    assert records[0].index == 2
    assert end.end == "until"
    assert end.metrics["return_mean"] == 5.0


async def test_running_figures_are_reported_behind_their_episodes_now_and_then(harness, monkeypatch):
    monkeypatch.setattr(report_queue, "EPISODES_UNTIL_FIGURES", 4)
    await harness.play(episodes=22, workers=2, **inside())
    events, seen = harness.links["simulation"].events, []
    for at, event in enumerate(events):
        if isinstance(event, FiguresUpdated):
            before = [each.episode for each in events[:at] if isinstance(each, EpisodeEnded)]
            assert event.figures == encode(with_done(harness.command(episodes=22), before).done)
            seen.append(len(before))
    assert seen == sorted(seen)
    assert len(seen) >= 1
    assert all(later - earlier >= 4 for earlier, later in pairwise([0, *seen]))


async def test_nothing_is_played_when_what_ended_before_was_enough(harness):
    await harness.pair()
    until = (Until(metric="return", at_least=5.0, average_over=2),)
    done, _ = await harness.play(episodes=2)
    records, end = await harness.play(episodes=50, done=tuple(done), incarnation=2, until=until)
    assert (records, end.end) == ([], "until")


async def test_an_unknown_metric_is_refused(harness):
    controller = await harness.start("simulation")
    answer = await controller.perform(harness.command(until=(Until(metric="loss", at_least=1),)))
    assert isinstance(answer, Refused)
    assert answer.message == "unknown metric 'loss'; known: return, seconds, steps"


async def test_several_agents_on_ray_are_refused(harness):
    controller = await harness.start("simulation")
    refused = await controller.perform(harness.command(agents=("a", "b"), transport="ray"))
    assert isinstance(refused, Refused)
    assert "several players need transport: conductors or in_process" in refused.message


@pytest.mark.parametrize("flow", ["STOP_SIMULATION", "STOP_PHASE"])
async def test_the_governor_stops_the_phase_at_the_end_of_an_episode(harness, flow):
    await harness.pair()
    records, end = await harness.play(episodes=500, flow=flow)
    assert end.end == "stopped"
    assert len(records) < 500


async def test_a_phase_is_played_once_however_often_its_command_comes(harness):
    await harness.pair()
    controller = await harness.start("simulation")
    assert await controller.perform(harness.command()) == Done()
    await harness.end()
    assert await controller.perform(harness.command()) == Done()
    after = harness.command(phase=1, name="after")
    assert await asyncio.gather(controller.perform(after), controller.perform(after)) == [Done(), Done()]
    assert await controller.perform(harness.command()) == Done()
    link = harness.links["simulation"]
    async with asyncio.timeout(20):
        while not isinstance(link.events[-1], PartEndedReport) or link.events[-1].phase != 1:
            await link.next(PartEndedReport, after=len(link.events))
    assert [event.phase for event in link.events if isinstance(event, PartEndedReport)] == [0, 1]
    assert sum(isinstance(event, EpisodeEnded) for event in link.events) == 6


async def test_stop_cancels_what_runs_even_in_a_hung_environment(harness):
    await harness.pair(fault="sleep")
    leased = harness.watch_leases()
    controller = await harness.start("simulation")
    await controller.perform(harness.command())
    await leased.wait()
    await controller.perform(StopPartCommand(phase=0, reason="abort"))
    records, end = await harness.end(seconds=5)
    assert end.end == "stopped"
    assert end.failures == 0
    assert outcomes(records) in ([], ["cancelled"])


async def test_stop_does_not_wait_for_a_conductor_that_is_away(harness):
    controller = await harness.start("simulation")
    asked, request = asyncio.Event(), harness.client.request

    async def ask(*args, **more):
        asked.set()
        return await request(*args, **more)

    harness.links["simulation"].client = SimpleNamespace(request=ask)
    await controller.perform(harness.command())
    await asyncio.wait_for(asked.wait(), 20)
    await controller.perform(StopPartCommand(phase=0, reason="abort"))
    records, end = await harness.end(seconds=5)
    assert (records, end.end) == ([], "stopped")


async def test_the_same_seed_gives_the_same_episodes(harness):
    await harness.pair(agent="walk_world:Random", entry="gymnasium:FrozenLake-v1")
    first, _ = await harness.play(episodes=5, mode="eval")
    await harness.conductors["agent.walker"].close()
    await harness.start("agent.walker", entry="walk_world:Random", params={}, incarnation=2)
    again, _ = await harness.play(episodes=5, mode="eval", incarnation=2)
    assert [(r.seed, r.steps, r.value) for r in first] == [(r.seed, r.steps, r.value) for r in again]
    assert len({r.seed for r in first}) == 5


async def test_more_workers_than_environments_play_with_what_there_is(harness):
    await harness.pair(pool=1)
    records, end = await harness.play(episodes=10, workers=3)
    assert len(records) == 10
    assert end.failures == 0


async def test_a_later_controller_takes_over_the_leases_of_the_one_before(harness):
    await harness.pair(fault="sleep")
    leased = harness.watch_leases()
    controller = await harness.start("simulation")
    await controller.perform(harness.command(episodes=1, episode_timeout=1.0))
    await leased.wait()
    records, _ = await harness.play(episodes=1, episode_timeout=3.0, incarnation=2)
    assert outcomes(records) == ["timed_out"]
    assert not harness.conductors["environment.lake"].pool._leases


@pytest.mark.parametrize(
    ("entry", "reason"),
    [
        ("walk_world:Raises", "environment 'walk_world:Raises' does not start: OSError: no display"),
        ("walk_world:Nothing", "entry 'walk_world:Nothing' does not load: AttributeError"),
        (
            "gymnasium:NoSuch-v0",
            "environment 'gymnasium:NoSuch-v0' does not start: gymnasium has no environment",
        ),
        ("walk_world:Odd", "environment 'walk_world:Odd': observation_space[\"a\"]: Unknown is none of"),
    ],
)
async def test_a_pool_that_cannot_start_says_why(harness, entry, reason):
    with pytest.raises(ConductorError) as raised:
        await harness.start("environment.lake", entry=entry, params={}, pool=2)
    assert raised.value.reason.startswith(reason)
    assert "\n" not in raised.value.reason


async def test_a_killed_environment_conductor_is_waited_for_and_the_episode_played_again(harness):
    flag = str(harness.folder / "flag")
    settings = {"entry": "walk_world:Walk", "params": {"fault": "orphan", "flag": flag}, "pool": 1}
    child = harness.spawn("environment.lake", **settings)
    await harness.start("agent.walker", entry="walk_world:Agent", params={})
    controller = await harness.start("simulation")
    await controller.perform(harness.command(episodes=3))
    assert await asyncio.to_thread(child.wait, 20) == -9
    (harness.folder / "environment.lake.1.0").unlink()
    harness.spawn("environment.lake", incarnation=2, **settings)
    records, end = await harness.end()
    assert [(r.index, r.outcome, r.steps) for r in records] == [(i, "terminated", 5) for i in range(3)]
    assert end.failures == 0
    assert end.metrics["episodes_played_again"] == 1
    steps = trajectories.read(harness.folder / "run", "train").to_pandas()
    begun = [int(np.random.default_rng(record.seed).integers(100)) for record in records]
    assert steps.groupby("episode").observation.first().tolist() == begun, "with the same seed"
    (harness.folder / "environment.lake.2.0").unlink()


async def test_a_restarted_agent_conductor_continues_from_its_state(harness):
    await harness.start("environment.lake", entry="walk_world:Walk", params={}, pool=1)
    settings = {"entry": "walk_world:Agent", "params": {}}
    child = harness.spawn("agent.walker", **settings)
    await harness.play(episodes=3)
    child.kill()
    child.wait()
    (harness.folder / "agent.walker.1").unlink()
    second = await harness.start("agent.walker", incarnation=2, **settings)
    records, _ = await harness.play(episodes=1, phase=1, name="more", incarnation=2)
    assert outcomes(records) == ["terminated"]
    assert second.host._runtime.learned.agent.learned == 20


async def test_returns_that_no_float_can_sum_up_end_the_phase_as_all_others(harness):
    await harness.pair(entry="walk_world:Rich")
    records, end = await harness.play(episodes=3, mode="eval")
    assert (outcomes(records), end.end, end.failures) == (["terminated"] * 3, "max_episodes", 0)
    assert end.metrics["return_mean"] == math.inf
    assert end.metrics["return_max"] == 1.5e308


async def test_a_fault_of_the_phases_own_end_ends_the_conductor_with_the_reason(harness, monkeypatch):
    await harness.pair()
    monkeypatch.setattr(phase_rules, "summarize", lambda *_, **__: 1 / 0)
    controller = await harness.start("simulation")
    await controller.perform(harness.command(episodes=1))
    reason = await asyncio.wait_for(controller.failed, 20)
    assert without_place(reason) == "ZeroDivisionError: division by zero"
