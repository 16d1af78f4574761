"""What hangs in process takes its process with it, and nothing that has ended."""

import asyncio

import pytest

from governor.episodes.local import in_process
from governor.messages import (
    Acknowledged,
    AgentRestored,
    PartEndedReport,
    ReadyReport,
    StopPartCommand,
    conductor_service,
    decode_report,
    encode,
    run_service,
)
from tests.support.figures import with_done
from tests.support.in_process_commands import episodes, inside, outcomes
from tests.support.reasons import without_place
from transport.worker import Worker


@pytest.mark.parametrize(
    ("more", "whose", "steps"),
    [
        ({"fault": "sleep"}, "environment 'lake'", 2),
        ({"agent_params": {"fault": "sleep"}}, "agent 'walker'", 1),
    ],
)
async def test_a_hang_is_recorded_and_takes_the_process_with_it(harness, more, whose, steps):
    params = {"log": str(harness.folder / "learned"), **more.pop("agent_params", {})}
    controller = await harness.start("simulation")
    await controller.perform(
        harness.command(episodes=3, episode_timeout=0.5, **inside(agent_params=params, **more))
    )
    reason = await asyncio.wait_for(controller.failed, 20)
    assert without_place(reason) == f"{whose} hangs in episode 0"
    (record,) = episodes(harness.links["simulation"])
    assert (record.outcome, record.steps, record.value) == ("timed_out", steps, float(steps))
    assert without_place(record.reason) == f"longer than 0.5 s, and {whose} hangs"
    assert [line["index"] for line in harness.lines()] == [0]
    assert not [event for event in harness.links["simulation"].events if isinstance(event, PartEndedReport)]


@pytest.mark.parametrize("fault", ["sleep", "spin"])
async def test_the_next_process_plays_the_rest_of_the_phase(harness, fault):
    told = asyncio.Queue()

    async def take(request):
        for event in decode_report(request.body[0]).events:
            told.put_nowait(event)
        return [encode(Acknowledged())]

    more = inside(entry="walk_world:Walk", fault=fault, at=2, flag=str(harness.folder / "flag"))
    command = harness.command(episodes=4, episode_timeout=1.0, **more)
    shown = harness.spec("simulation").secret.value
    first, second = (conductor_service("u1", "simulation", incarnation) for incarnation in (1, 2))
    async with Worker(f"ipc://{harness.folder}/w", run_service("u1"), take, credit=4), asyncio.timeout(60):
        child = harness.spawn("simulation")
        assert isinstance(await told.get(), ReadyReport)
        await harness.client.request(first, encode(command), shown, timeout=10)
        stack = await told.get()
        done = (await told.get()).episode
        assert done.traceback == stack.digest
        assert "in step\n" in stack.text
        failed = await told.get()
        assert await asyncio.to_thread(child.wait, 20) == 1
        assert (done.index, done.outcome, without_place(failed.reason)) == (
            0,
            "timed_out",
            "environment 'lake' hangs in episode 0",
        )
        harness.spawn("simulation", incarnation=2)
        assert isinstance(await told.get(), ReadyReport)
        command = with_done(command, [done])
        await harness.client.request(second, encode(command), shown, timeout=10)
        rest = []
        while not isinstance(event := await told.get(), PartEndedReport):
            if isinstance(event, AgentRestored):
                assert not rest, "before it plays"
                continue
            rest.append(event.episode)
    assert [(r.index, r.outcome) for r in rest] == [(i, "terminated") for i in (1, 2, 3)]
    assert (event.end, event.failures) == ("max_episodes", 1)


async def test_learning_before_a_hang_is_saved(harness, monkeypatch):
    """The state of the second episode is too young to have been written when the third one hangs."""
    monkeypatch.setattr("governor.episodes.learned.SPARING", 10**6)
    controller = await harness.start("simulation")
    await controller.perform(
        harness.command(
            episodes=4, episode_timeout=1.0, **inside(entry="walk_world:Tires", fault="sleep", at=12)
        )
    )
    await asyncio.wait_for(controller.failed, 20)
    assert harness.state()["learned"] == 11
    assert outcomes(episodes(harness.links["simulation"])) == ["terminated", "terminated", "timed_out"]


async def test_the_hang_of_an_environment_that_is_built_gives_up_too(harness):
    controller = await harness.start("simulation")
    await controller.perform(harness.command(build_seconds=0.2, **inside(entry="walk_world:Sleeper")))
    reason = await asyncio.wait_for(controller.failed, 20)
    assert reason.startswith("environment 'lake' hangs: it has not come back from environment.__init__ for ")
    assert without_place(reason).endswith(" s (deadlines.start)")
    assert harness.links["simulation"].events == []


async def test_an_environment_that_hangs_when_it_is_closed_costs_one_process_and_no_episode(
    harness, monkeypatch
):
    monkeypatch.setattr("governor.episodes.local.stepping.CLOSE_SECONDS", 0.2)
    monkeypatch.setattr(in_process, "CLOSE_SECONDS", 0.2)
    made = inside(entry="leaving_world:NeverCloses")
    controller = await harness.start("simulation")
    await controller.perform(harness.command(**made))
    reason = await asyncio.wait_for(controller.failed, 20)
    assert reason.startswith("environment 'lake' hangs: it has not come back from environment.close for ")
    played = episodes(harness.links["simulation"])
    assert outcomes(played) == ["terminated"] * 3
    again = await harness.start("simulation", incarnation=2)
    await again.perform(harness.command(done=tuple(played), **made))
    records, end = await harness.end()
    assert (records, end.end) == ([], "max_episodes")


async def test_a_stop_does_not_wait_for_ever(harness, monkeypatch):
    monkeypatch.setattr(in_process, "LEAVE_SECONDS", 0.3)
    flag = harness.folder / "flag"
    controller = await harness.start("simulation")
    await controller.perform(harness.command(**inside(fault="sleep", flag=str(flag))))
    async with asyncio.timeout(20):
        while not flag.exists():
            await asyncio.to_thread(lambda: None)
    await controller.perform(StopPartCommand(phase=0, reason="abort"))
    assert (
        without_place(await asyncio.wait_for(controller.failed, 20))
        == "environment 'lake' hangs in episode 0"
    )
    assert harness.links["simulation"].events == []  # it is played again, should anybody want it
