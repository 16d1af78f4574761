"""A conductor that has given up is replaced: its clients wait for the next one, and the phase continues."""

import asyncio
from importlib import import_module

import pytest

from governor.episodes.records import state_file
from governor.episodes.remote import control
from governor.episodes.spaces import Discrete
from governor.messages import Checkpoint
from tests.support.in_process_commands import outcomes
from tests.support.reasons import without_place

WALK = 5
SPACES = {"observation_space": Discrete(n=1000, start=0), "action_space": Discrete(n=2, start=0)}


def asked_again(harness, name):
    """An event: this conductor is asked for a lease or a session once it has given up."""
    conductor, asked = harness.conductors[name], asyncio.Event()
    held = conductor.while_alive

    async def while_alive(work):
        if conductor.failed.done():
            asked.set()
        return await held(work)

    conductor.while_alive = while_alive
    return asked


async def replaced(harness, name, *, asked=None, **settings):
    """What the governor does, with time to be `asked` before; why it had to."""
    reason = await asyncio.wait_for(harness.failures[name], 20)
    if asked is not None:
        await asyncio.wait_for(asked.wait(), 20)
    await harness.conductors[name].close()
    await harness.start(name, incarnation=2, **settings)
    return reason


@pytest.mark.parametrize("more", [{}, {"vector": 2}, {"max_staleness": 4}], ids=["single", "vector", "stale"])
async def test_an_agent_that_hangs_once_costs_its_episode_and_a_restart(harness, more):
    params = {"fault": "sleep", "at": 7, "flag": str(harness.folder / "flag")}
    await harness.pair(vector=more.get("vector", 1), agent_params=params)
    asked = asked_again(harness, "agent.walker")
    playing = asyncio.create_task(harness.play(episodes=6, episode_timeout=1.0, seconds=60, **more))
    reason = await replaced(harness, "agent.walker", asked=asked, entry="walk_world:Agent", params=params)
    assert without_place(reason) == "agent 'walker' hangs: no answer by the episode's deadline"
    records, end = await playing
    hung = [record for record in records if record.outcome != "terminated"]
    assert {record.outcome for record in hung} == {"timed_out"}
    assert 1 <= len(hung) <= more.get("vector", 1)
    assert sorted(record.index for record in records) == list(range(6))
    assert (end.end, end.failures) == ("max_episodes", len(hung))


async def test_an_agent_that_hangs_in_a_checkpoint_costs_a_restart_and_no_episode(harness, monkeypatch):
    """Its first state is that of an episode's end, the second one is the checkpoint's: of both episodes, though the first one's
    alone may have been saved.
    """
    monkeypatch.setattr("governor.episodes.learned.SPARING", 10**6)
    monkeypatch.setattr("governor.conductors.agent.COPY_SECONDS", 0.3)
    held = import_module("conductor_world").HeldState
    held.fresh()
    entry = "conductor_world:HeldState"
    await harness.pair(agent=entry, agent_params={"at": 2})
    wanted = harness.play(episodes=4, checkpoint=Checkpoint(every=2), seconds=60)
    playing = asyncio.create_task(wanted)
    await asyncio.wait_for(asyncio.shield(harness.failures["agent.walker"]), 20)
    monkeypatch.undo()  # the next one may take as long as the disk does
    reason = await replaced(harness, "agent.walker", entry=entry, params={"at": 99})
    assert without_place(reason) == "agent 'walker' hangs: no state for a checkpoint within 0.3 s"
    held.let_go()  # its thread ends, as with a process
    records, end = await playing
    assert outcomes(records) == ["terminated"] * 4
    assert (end.end, end.first_failure) == ("max_episodes", "")
    folder = harness.folder / "run/checkpoints/train"
    kept = {path.name: state_file.load(path)["learned"] for path in folder.glob("*.state")}
    assert kept == {"walker.2.state": 2 * WALK, "walker.4.state": 4 * WALK}


# -- a thread of user code that has ended ----------------------------------------------------------------------


def end_thread(host):
    """What no user code can do by an exception: a fault in the thread itself."""

    def fault():
        raise MemoryError("no room")

    host._call_soon(fault)


async def test_an_agent_whose_thread_has_ended_is_replaced(harness):
    await harness.pair()
    conductor = harness.conductors["agent.walker"]
    end_thread(conductor.host)
    playing = asyncio.create_task(harness.play(episodes=2, seconds=60))
    reason = await replaced(harness, "agent.walker", entry="walk_world:Agent")
    assert without_place(reason) == "agent 'walker' has lost its thread: MemoryError: no room"
    records, _ = await playing
    assert outcomes(records) == ["terminated"] * 2


async def test_names_of_sessions_and_leases_are_of_one_incarnation(harness):
    """A message that was on its way when its conductor died comes to the next one."""
    asker = {"owner": "simulation", "incarnation": 1, "worker": 0, "turn": 0}
    given = set()
    for life in (1, 2):
        agent = await harness.start("agent.walker", incarnation=life, entry="walk_world:Agent")
        lake = await harness.start("environment.lake", incarnation=life, entry="walk_world:Walk")
        given.add((await agent._join(control.Join(**asker, **SPACES))).session)
        given.add((await lake.pool.acquire(control.Acquire(**asker))).lease)
        await agent.close()
        await lake.close()
    assert len(given) == 4


async def test_a_request_that_arrives_after_a_later_one_is_refused_and_ends_nothing(harness):
    agent = await harness.start("agent.walker", entry="walk_world:Agent")
    lake = await harness.start("environment.lake", entry="walk_world:Walk", pool=2)
    later = {"owner": "simulation", "incarnation": 2, "worker": 0, "turn": 5}
    joined = await agent._join(control.Join(**later, **SPACES))
    leased = await lake.pool.acquire(control.Acquire(**later))
    for late in ({"incarnation": 1, "worker": 1, "turn": 9}, {"turn": 4}):
        refused = control.Failed(reason="'simulation' has sent a later request already")
        assert await agent._join(control.Join(**later | late, **SPACES)) == refused
        assert await lake.pool.acquire(control.Acquire(**later | late)) == refused
    assert await agent._join(control.Join(**later, **SPACES)) == joined
    assert await lake.pool.acquire(control.Acquire(**later)) == leased
    assert [*agent.host._sessions] == [joined.session.encode()]


async def test_a_later_incarnation_ends_the_sessions_of_all_workers_of_the_one_before(harness):
    agent = await harness.start("agent.walker", entry="walk_world:Agent")
    asker = {"owner": "simulation", "incarnation": 1, "turn": 0}
    for worker in range(3):
        await agent._join(control.Join(**asker, worker=worker, **SPACES))
    last = await agent._join(control.Join(**asker | {"incarnation": 2}, worker=0, **SPACES))
    assert [*agent.host._sessions] == [last.session.encode()]
