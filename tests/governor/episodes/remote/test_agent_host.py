"""The data plane of an agent: what makes no sense is answered, and the thread goes on."""

import asyncio
import os
from importlib import import_module

import numpy as np
import pytest

from governor.episodes.remote import wire
from governor.episodes.remote.agent_host import AgentHost
from governor.episodes.remote.line import RequestChannel
from governor.episodes.spaces import Discrete, describe

SPACES = {"observation": Discrete(n=1000, start=0), "action": Discrete(n=2, start=0)}


@pytest.fixture
async def host(tmp_path, monkeypatch):
    monkeypatch.syspath_prepend(os.path.dirname(os.path.dirname(__file__)))  # noqa: PTH120  # a text for the path
    made = AgentHost(
        entry="walk_world:Agent",
        params={},
        seed=7,
        state_path=tmp_path / "walker.state",
        name="agent.walker",
        path=tmp_path / "s",
    )
    await made.start()
    yield made
    await made.close(seconds=5)


@pytest.fixture
async def line(host):
    await host.do(lambda: host.seat(b"seat-1", **SPACES, renew=False, old=None))
    stop = os.eventfd(0, os.EFD_NONBLOCK)
    made = RequestChannel(name="agent", endpoint=host.endpoint, identity="seat-1", stop=stop)
    yield made
    made.close()
    os.close(stop)


async def test_what_was_interrupted_in_the_middle_is_not_saved(house, monkeypatch):
    """Of two episodes, the first one is too young to have been written when the second one hangs."""
    monkeypatch.setattr("governor.episodes.learned.SPARING", 10**6)
    await house.pair(agent="walk_world:Spins", agent_params={"at": 13})
    controller = await house.start("simulation")
    await controller.perform(house.command(episode_timeout=0.3))
    assert "hangs" in await asyncio.wait_for(house.failures["agent.walker"], 20)
    await asyncio.wait_for(house.conductors["agent.walker"].host.ended.wait(), 20)
    assert house.state()["learned"] == 5


def rows(line, **more):
    wanted = {"slots": [0], "kinds": [wire.FIRST], "rewards": [0.0], "ends": [0], "train": True}
    return wire.ActManyFrame(number=line.next(), observations=np.array([1]), **{**wanted, **more})


async def test_a_message_that_makes_no_sense_is_a_fault_and_the_next_one_is_answered(line):
    answer = line.ask(rows(line, kinds=[]), deadline=None)
    assert (type(answer), answer.where) == (wire.FaultFrame, "agent")
    answer = line.ask(rows(line), deadline=None)
    assert answer.rows == [0]
    assert answer.actions.tolist() == [1]
    assert answer.faults == []


async def test_a_step_without_an_action_before_it_is_its_rows_fault(line):
    observations = np.array([1, 2])
    wanted = wire.ActManyFrame(
        line.next(), [0, 1], [wire.NEXT, wire.FIRST], observations, [0.0] * 2, [0] * 2, True
    )
    answer = line.ask(wanted, deadline=None)
    assert answer.rows == [1]
    assert [(fault.row, fault.where) for fault in answer.faults] == [(0, "agent.learn")]
    single = line.ask(wire.ActFrame(line.next(), 3, 1.0), deadline=None)
    assert single == wire.FaultFrame(
        line.number, "agent.learn", "ValueError: a step without an action before it"
    )


async def test_who_has_no_seat_is_told(host, line):
    stranger = RequestChannel(name="agent", endpoint=host.endpoint, identity="seat-9", stop=line._stop)
    answer = stranger.ask(wire.BeginFrame(stranger.next(), 1, True), deadline=None)
    stranger.close()
    assert answer == wire.FaultFrame(1, "agent", "nobody sits there")


@pytest.fixture
async def echo(tmp_path, monkeypatch):
    """A host of an agent that gives the same array for each action, as a function that makes a line to a seat of it."""
    monkeypatch.syspath_prepend(os.path.dirname(os.path.dirname(__file__)))  # noqa: PTH120  # as above
    world = import_module("conductor_world")
    stop, lines, hosts = os.eventfd(0, os.EFD_NONBLOCK), [], {}
    space = describe(world.Echo.action_space, role="action_space")

    async def line_to(agent, seat):
        host = hosts.get(agent)
        if host is None:
            host = hosts[agent] = AgentHost(
                entry=f"conductor_world:{agent}",
                params={},
                seed=7,
                state_path=tmp_path / "echo.state",
                name="agent.echo",
                path=tmp_path / "e",
            )
            await host.start()
        await host.do(
            lambda: host.seat(seat.encode(), observation=space, action=space, renew=False, old=None)
        )
        lines.append(RequestChannel(name="agent", endpoint=host.endpoint, identity=seat, stop=stop))
        return lines[-1], getattr(world, agent)

    yield line_to
    for line in lines:
        line.close()
    for host in hosts.values():
        await host.close(seconds=5)
    os.close(stop)


@pytest.mark.parametrize("agent", ["OneBuffer", "ManyOneBuffer"])
async def test_an_agent_may_write_the_action_of_the_next_slot_over_the_last_ones(echo, agent):
    line, kind = await echo(agent, "seat-1")
    seen = np.array([[0.25], [0.5]], np.float32)
    wanted = wire.ActManyFrame(line.next(), [0, 1], [wire.FIRST] * 2, seen, [0.0] * 2, [0] * 2, True)
    assert line.ask(wanted, deadline=None).actions.tolist() == [[0.25], [0.5]]
    first = wire.ActManyFrame(line.next(), [2], [wire.FIRST], seen[1:] * 2, [0.0], [0], True)
    assert line.ask(first, deadline=None).actions.tolist() == [[1.0]]
    last = wire.ActManyFrame(
        line.next(), [0, 1], [wire.LAST] * 2, seen, [0.0] * 2, [wire.TERMINATED] * 2, True
    )
    assert line.ask(last, deadline=None).faults == []
    assert kind.heard == [(0.25, 0.25), (0.5, 0.5)]


async def test_it_may_write_the_action_of_another_seat_over_it_too(echo):
    line, kind = await echo("OneBuffer", "seat-1")
    other, _ = await echo("OneBuffer", "seat-2")
    seen = np.array([[0.25], [0.5]], np.float32)
    for each, observation in zip((line, other), seen, strict=True):
        each.ask(wire.BeginFrame(each.next(), observation, True), deadline=None)
    assert line.ask(
        wire.FinishFrame(line.next(), seen[0], 0.0, True, False), deadline=None
    ) == wire.FinishedFrame(2)
    assert kind.heard == [(0.25, 0.25)]
