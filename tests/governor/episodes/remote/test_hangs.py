"""A hang is found when its own deadline has passed, and no other episode is blamed for it."""

import asyncio
import os
import socket
from importlib import import_module
from time import monotonic

import numpy as np
import pytest

from governor.episodes.remote import control, wire
from governor.episodes.remote.request_channel import RequestChannel
from governor.episodes.rules.seeds import episode_seed
from governor.episodes.spaces import Discrete
from governor.messages import EpisodeEnded
from tests.support.reasons import without_place

SPACES = {"observation": Discrete(n=1000, start=0), "action": Discrete(n=2, start=0)}


@pytest.fixture
def held(harness):  # it puts the module on the path
    """The class of this name, whose instances are let go at the end."""
    found = []

    def fresh(name):
        kind = getattr(import_module("conductor_world"), name)
        kind.fresh()
        found.append(kind)
        return kind

    yield fresh
    for kind in found:
        kind.let_go()


@pytest.fixture
def channel_to():
    stop, made = os.eventfd(0, os.EFD_NONBLOCK), []

    def connect(endpoint, identity):
        made.append(RequestChannel(name="peer", endpoint=endpoint, identity=identity, stop=stop))
        return made[-1]

    yield connect
    for channel in made:
        channel.close()
    os.close(stop)


class Walks:
    """The processes that come to a place where they are held."""

    def __init__(self, path):
        self._listener, self._held = socket.create_server(str(path), family=socket.AF_UNIX), []
        self._listener.settimeout(20)

    async def there(self):
        """Returns when one more is held."""
        self._held.append((await asyncio.to_thread(self._listener.accept))[0])

    def let_go(self):
        while self._held:
            self._held.pop().close()

    def close(self):
        self.let_go()
        self._listener.close()


@pytest.fixture
def walks(tmp_path):
    made = Walks(tmp_path / "held")
    yield made
    made.close()


@pytest.fixture
async def pool(harness, walks, tmp_path):
    params = {"held": str(tmp_path / "held")}
    conductor = await harness.start(
        "environment.lake", entry="conductor_world:HeldWalk", params=params, vector=2
    )
    yield conductor.pool
    assert not conductor.failed.done()


def start_of(index):
    return int(np.random.default_rng(episode_seed(7, 0, index)).integers(100))


def acquire(**more):
    return control.Acquire(**{"owner": "simulation", "incarnation": 1, "worker": 0, "turn": 0, **more})


def process_of(pool, lease):
    return pool._leases[lease.lease].process


def ask(channel, kind, *args):
    """The answer, to be awaited; the request is on its way when this has been called."""
    return asyncio.create_task(
        asyncio.to_thread(channel.ask, kind(channel.next_number(), *args), deadline=None)
    )


# -- of a vector, the slot whose time is up --------------------------------------------------------------------


async def test_an_environment_that_is_at_another_slot_is_not_given_up(walks, pool, channel_to):
    lease = await pool.acquire(acquire())
    channel = channel_to(lease.endpoint, lease.lease)
    await ask(channel, wire.ResetManyFrame, [0, 1], [3, 4])
    stepped = ask(channel, wire.StepManyFrame, [0, 1], np.array([0, 1]))
    await walks.there()
    pid = process_of(pool, lease).pid
    late = control.Release(lease=lease.lease, hung="late", due=(0,))
    assert await pool.release(late) == control.NotExpired()
    walks.let_go()
    assert (await stepped).rewards == [0.0, 1.0]
    assert process_of(pool, lease).pid == pid


async def test_an_environment_that_is_at_a_slot_that_is_due_is_given_up(walks, pool, channel_to):
    lease = await pool.acquire(acquire())
    channel = channel_to(lease.endpoint, lease.lease)
    await ask(channel, wire.ResetManyFrame, [0, 1], [3, 4])
    stepped = ask(channel, wire.StepManyFrame, [0, 1], np.array([0, 1]))
    await walks.there()
    process = process_of(pool, lease)
    late = control.Release(lease=lease.lease, hung="late", due=(0, 1))
    released = await pool.release(late)
    assert (released.slot, bool(released.place), bool(released.stack)) == (1, True, True)
    other = await asyncio.wait_for(pool.acquire(acquire(turn=1)), 20)
    assert other.endpoint != lease.endpoint
    assert (process.ended.is_set(), process.exit_reason) == (True, "SIGKILL")
    await asyncio.gather(stepped, return_exceptions=True)


@pytest.mark.parametrize(
    ("due", "answer"),
    [((7,), control.NotExpired()), ((7, 8), control.Accepted(slot=8)), ((), control.Accepted(slot=8))],
)
async def test_an_agent_is_given_up_only_when_the_slot_that_it_is_at_is_due(
    harness, held, channel_to, due, answer
):
    agent = held("HeldAgent")
    conductor = await harness.start("agent.walker", entry="conductor_world:HeldAgent", params={})
    await conductor.host.run_in_thread(lambda: conductor.host.open_session(b"session-1", **SPACES, old=()))
    channel = channel_to(conductor.host.endpoint, "session-1")
    rows = [7, 8], [wire.FIRST] * 2, np.array([0, 1]), [0.0] * 2, [0] * 2, True
    acted = ask(channel, wire.ActManyFrame, *rows)
    assert await asyncio.to_thread(agent.there.wait, 20)
    hang = control.ReportHang(session="session-1", number=channel.number, due=due)
    found = conductor._answer_hang(hang)
    assert type(found) is type(answer)
    assert getattr(found, "slot", None) == getattr(answer, "slot", None)
    assert conductor.failed.done() == isinstance(answer, control.Accepted)
    agent.let_go()
    await asyncio.gather(acted, return_exceptions=True)


async def test_a_hang_is_found_when_its_own_time_is_up_not_its_neighbours(harness):
    """The neighbour's episode begins 1.7 s after the one that hangs: both may take 2 s."""
    first = start_of(0)
    world = {"entry": "conductor_world:Dawdles", "start": first, "slow": [(first, 1.7)]}
    await harness.pair(vector=2, fault="sleep", at=2, **world)
    records, _ = await harness.play(episodes=4, vector=2, episode_timeout=2.0, mode="eval")
    (hung,) = [record for record in records if record.outcome != "terminated"]
    assert (hung.index, hung.outcome, hung.steps) == (0, "timed_out", 1)
    assert hung.seconds < 3.5


async def test_a_neighbour_that_takes_its_time_is_waited_for(harness):
    """It is at the first step of its episode when the other one's time is up, 1.2 s, and what is granted beyond it."""
    first, later = start_of(0), start_of(2)
    world = {"entry": "conductor_world:Dawdles", "start": first, "slow": [(first, 1.0), (later, 1.0)]}
    await harness.pair(vector=2, **world)
    records, end = await harness.play(episodes=4, vector=2, episode_timeout=1.2, mode="eval")
    assert {record.reason for record in records if record.index == 0} == {"longer than 1.2 s"}
    assert not [record for record in records if "hangs" in record.reason]
    assert "episodes_played_again" not in end.metrics


# -- an agent's state ------------------------------------------------------------------------------------------


@pytest.mark.parametrize("staleness", [0, 8])
async def test_an_agent_that_hangs_in_its_state_makes_its_conductor_give_up(harness, held, staleness):
    held("HeldState")
    await harness.pair(agent="conductor_world:HeldState", agent_params={"at": 1})
    controller = await harness.start("simulation")
    await controller.perform(harness.command(episodes=1, episode_timeout=0.3, max_staleness=staleness))
    ended = await asyncio.wait_for(harness.links["simulation"].next(EpisodeEnded), 20)
    assert without_place(ended.episode.reason) == "longer than 0.3 s, and agent 'walker' hangs"
    assert harness.failures["agent.walker"].done()


@pytest.mark.parametrize("staleness", [0, 8])
async def test_a_save_that_times_out_is_the_parts_failure(harness, held, monkeypatch, staleness):
    """Its first state is that of an episode's end, the second one is asked for when the phase is over."""
    monkeypatch.setattr("governor.episodes.learned.SPARING", 10**6)
    monkeypatch.setattr("governor.episodes.remote.worker.SAVE_SECONDS", 0.2)
    held("HeldState")
    await harness.pair(agent="conductor_world:HeldState", agent_params={"at": 2})
    records, end = await harness.play(episodes=2, max_staleness=staleness)
    assert [record.outcome for record in records] == ["terminated"] * 2
    assert (end.failures, end.first_failure) == (
        1,
        "agent 'walker' cannot be saved: it takes longer than 0.2 s",
    )
    assert "hangs" in await asyncio.wait_for(harness.failures["agent.walker"], 20)


# -- an environment whose owner is gone ------------------------------------------------------------------------


@pytest.mark.parametrize("later", [{"incarnation": 2}, {"turn": 1}])
async def test_a_later_holder_gets_another_environment_than_the_one_that_still_hangs(
    walks, pool, channel_to, later
):
    lease = await pool.acquire(acquire())
    channel = channel_to(lease.endpoint, lease.lease)
    await ask(channel, wire.ResetFrame, 3)
    stepped = ask(channel, wire.StepFrame, 1)
    await walks.there()
    other = await asyncio.wait_for(pool.acquire(acquire(**later)), 20)
    assert other.endpoint != lease.endpoint
    second = channel_to(other.endpoint, other.lease)
    request = wire.ResetFrame(second.next_number(), 3)
    answer = await asyncio.to_thread(second.ask, request, deadline=monotonic() + 20)
    assert isinstance(answer, wire.ObservedFrame)
    await asyncio.gather(stepped, return_exceptions=True)


async def test_a_later_holder_gets_the_same_environment_if_it_is_idle(pool, channel_to):
    lease = await pool.acquire(acquire())
    await ask(channel_to(lease.endpoint, lease.lease), wire.ResetFrame, 3)
    other = await pool.acquire(acquire(incarnation=2))
    assert other.endpoint == lease.endpoint
