"""The data plane of an agent: a senseless message is answered, and the thread continues."""

import asyncio
import os
from importlib import import_module

import numpy as np
import pytest

from governor.episodes.agents import AgentSource
from governor.episodes.remote import wire
from governor.episodes.remote.agent_host import AgentHost
from governor.episodes.remote.request_channel import RequestChannel
from governor.episodes.spaces import Discrete, describe
from tests.support.in_process_commands import WORLDS

SPACES = {"observation": Discrete(n=1000, start=0), "action": Discrete(n=2, start=0)}


@pytest.fixture
async def host(tmp_path, monkeypatch):
    monkeypatch.syspath_prepend(WORLDS)
    source = AgentSource(entry="walk_world:Agent", params={}, seed=7, state_path=tmp_path / "walker.state")
    made = AgentHost(source, name="agent.walker", path=tmp_path / "s")
    await made.start()
    yield made
    await made.close(seconds=5)


@pytest.fixture
async def channel(host):
    await host.run_in_thread(lambda: host.open_session(b"session-1", **SPACES, old=()))
    stop = os.eventfd(0, os.EFD_NONBLOCK)
    made = RequestChannel(name="agent", endpoint=host.endpoint, identity="session-1", stop=stop)
    yield made
    made.close()
    os.close(stop)


async def test_what_was_interrupted_in_the_middle_is_not_saved(harness, monkeypatch):
    """Of two episodes, the first one is too young to have been written when the second one hangs."""
    monkeypatch.setattr("governor.episodes.learned.SPARING", 10**6)
    await harness.pair(agent="walk_world:Spins", agent_params={"at": 13})
    controller = await harness.start("simulation")
    await controller.perform(harness.command(episode_timeout=0.3))
    assert "hangs" in await asyncio.wait_for(harness.failures["agent.walker"], 20)
    await asyncio.wait_for(harness.conductors["agent.walker"].host.ended.wait(), 20)
    assert harness.state()["learned"] == 5


def rows(channel, **more):
    wanted = {"slots": [0], "kinds": [wire.FIRST], "rewards": [0.0], "ends": [0], "train": True}
    return wire.ActManyFrame(number=channel.next_number(), observations=np.array([1]), **{**wanted, **more})


async def test_a_message_that_makes_no_sense_is_a_fault_and_the_next_one_is_answered(channel):
    answer = channel.ask(rows(channel, kinds=[]), deadline=None)
    assert (type(answer), answer.where) == (wire.FaultFrame, "agent")
    answer = channel.ask(rows(channel), deadline=None)
    assert answer.rows == [0]
    assert answer.actions.tolist() == [1]
    assert answer.faults == []


async def test_a_step_without_an_action_before_it_is_its_rows_fault(channel):
    observations = np.array([1, 2])
    wanted = wire.ActManyFrame(
        channel.next_number(), [0, 1], [wire.NEXT, wire.FIRST], observations, [0.0] * 2, [0] * 2, True
    )
    answer = channel.ask(wanted, deadline=None)
    assert answer.rows == [1]
    assert [(fault.row, fault.where) for fault in answer.faults] == [(0, "agent.learn")]
    single = channel.ask(wire.ActFrame(channel.next_number(), 3, 1.0), deadline=None)
    assert single == wire.FaultFrame(
        channel.number, "agent.learn", "ValueError: a step without an action before it"
    )


async def test_a_request_without_a_session_is_a_fault(host, channel):
    stranger = RequestChannel(name="agent", endpoint=host.endpoint, identity="session-9", stop=channel._stop)
    answer = stranger.ask(wire.BeginFrame(stranger.next_number(), 1, True), deadline=None)
    stranger.close()
    assert answer == wire.FaultFrame(1, "agent", "unknown session")


async def test_raw_output_belongs_to_an_episode_until_its_worker_has_finished_it(process, channel):
    def ask(kind, *args):
        channel.ask(kind(channel.next_number(), *args), deadline=None)
        return process.fields

    assert ask(wire.BeginFrame, 1, True, 5, "train") == b'"phase":"train","episode":5,'
    assert ask(wire.ActFrame, 2, 1.0) == b'"phase":"train","episode":5,'
    assert ask(wire.FinishFrame, 3, 1.0, True, False) == b""
    assert ask(wire.BeginFrame, 1, True, 6, "train") == b'"phase":"train","episode":6,'
    assert ask(wire.SaveFrame) == b""


@pytest.fixture
async def echo(tmp_path, monkeypatch):
    """A host of an agent that gives the same array for each action, as a function that makes a channel to a session of it."""
    monkeypatch.syspath_prepend(WORLDS)
    world = import_module("conductor_world")
    stop, channels, hosts = os.eventfd(0, os.EFD_NONBLOCK), [], {}
    space = describe(world.Echo.action_space, role="action_space")

    async def channel_to(agent, session):
        host = hosts.get(agent)
        if host is None:
            source = AgentSource(
                entry=f"conductor_world:{agent}", params={}, seed=7, state_path=tmp_path / "echo.state"
            )
            host = hosts[agent] = AgentHost(source, name="agent.echo", path=tmp_path / "e")
            await host.start()
        await host.run_in_thread(
            lambda: host.open_session(session.encode(), observation=space, action=space, old=())
        )
        channels.append(RequestChannel(name="agent", endpoint=host.endpoint, identity=session, stop=stop))
        return channels[-1], getattr(world, agent)

    yield channel_to
    for channel in channels:
        channel.close()
    for host in hosts.values():
        await host.close(seconds=5)
    os.close(stop)


@pytest.mark.parametrize("agent", ["OneBuffer", "ManyOneBuffer"])
async def test_an_agent_may_write_the_action_of_the_next_slot_over_the_last_ones(echo, agent):
    channel, kind = await echo(agent, "session-1")
    seen = np.array([[0.25], [0.5]], np.float32)
    wanted = wire.ActManyFrame(
        channel.next_number(), [0, 1], [wire.FIRST] * 2, seen, [0.0] * 2, [0] * 2, True
    )
    assert channel.ask(wanted, deadline=None).actions.tolist() == [[0.25], [0.5]]
    first = wire.ActManyFrame(channel.next_number(), [2], [wire.FIRST], seen[1:] * 2, [0.0], [0], True)
    assert channel.ask(first, deadline=None).actions.tolist() == [[1.0]]
    last = wire.ActManyFrame(
        channel.next_number(), [0, 1], [wire.LAST] * 2, seen, [0.0] * 2, [wire.TERMINATED] * 2, True
    )
    assert channel.ask(last, deadline=None).faults == []
    assert kind.heard == [(0.25, 0.25), (0.5, 0.5)]


async def test_it_may_write_the_action_of_another_session_over_it_too(echo):
    channel, kind = await echo("OneBuffer", "session-1")
    other, _ = await echo("OneBuffer", "session-2")
    seen = np.array([[0.25], [0.5]], np.float32)
    for each, observation in zip((channel, other), seen, strict=True):
        each.ask(wire.BeginFrame(each.next_number(), observation, True), deadline=None)
    assert channel.ask(
        wire.FinishFrame(channel.next_number(), seen[0], 0.0, True, False), deadline=None
    ) == wire.FinishedFrame(2)
    assert kind.heard == [(0.25, 0.25)]
