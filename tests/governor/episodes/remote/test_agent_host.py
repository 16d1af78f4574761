"""The data plane of an agent: what makes no sense is answered, and the thread goes on."""

import asyncio
import os

import numpy as np
import pytest

from governor.episodes.remote import wire
from governor.episodes.remote.agent_host import AgentHost
from governor.episodes.remote.line import Line
from governor.episodes.spaces import Discrete

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
    made = Line(name="agent", endpoint=host.endpoint, identity="seat-1", stop=stop)
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
    return wire.ActMany(number=line.next(), observations=np.array([1]), **{**wanted, **more})


async def test_a_message_that_makes_no_sense_is_a_fault_and_the_next_one_is_answered(line):
    answer = line.ask(rows(line, kinds=[]), deadline=None)
    assert (type(answer), answer.where) == (wire.Fault, "agent")
    answer = line.ask(rows(line), deadline=None)
    assert answer.rows == [0]
    assert answer.actions.tolist() == [1]
    assert answer.faults == []


async def test_a_step_without_an_action_before_it_is_its_rows_fault(line):
    observations = np.array([1, 2])
    wanted = wire.ActMany(
        line.next(), [0, 1], [wire.NEXT, wire.FIRST], observations, [0.0] * 2, [0] * 2, True
    )
    answer = line.ask(wanted, deadline=None)
    assert answer.rows == [1]
    assert [(fault.row, fault.where) for fault in answer.faults] == [(0, "agent.learn")]
    single = line.ask(wire.Act(line.next(), 3, 1.0), deadline=None)
    assert single == wire.Fault(line.number, "agent.learn", "ValueError: a step without an action before it")


async def test_who_has_no_seat_is_told(host, line):
    stranger = Line(name="agent", endpoint=host.endpoint, identity="seat-9", stop=line._stop)
    answer = stranger.ask(wire.Begin(stranger.next(), 1, True), deadline=None)
    stranger.close()
    assert answer == wire.Fault(1, "agent", "nobody sits there")
