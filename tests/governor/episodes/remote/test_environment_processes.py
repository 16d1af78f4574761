"""Each environment of a pool has a process of its own: what happens to it costs itself and its episode."""

import asyncio
import errno
import os
import signal
from pathlib import Path

import pytest

from governor.errors import ConductorError
from governor.messages import EpisodeAttemptEnded
from tests.support.in_process_commands import outcomes
from tests.support.living import lives
from tests.support.reasons import without_place


def lost(harness):
    """Episode, number, outcome and reason of each attempt that was lost with its process."""
    events = harness.links["simulation"].events
    attempts = [event for event in events if isinstance(event, EpisodeAttemptEnded) and event.lost]
    return [(each.index, each.attempt, each.outcome, each.reason) for each in attempts]


def pool_of(harness):
    return harness.conductors["environment.lake"].pool


async def leased(harness, number):
    """The processes of so many workers' environments."""
    notify, pool = asyncio.Event(), pool_of(harness)
    acquire = pool.acquire

    async def acquire_and_notify(wanted):
        answer = await acquire(wanted)
        if len(pool._leases) == number:
            notify.set()
        return answer

    pool.acquire = acquire_and_notify
    await asyncio.wait_for(notify.wait(), 20)
    return [lease.process for lease in pool._leases.values()]


@pytest.fixture
async def playing(harness):
    """Starts the workers of a phase; the processes of their environments, and the phase's records and end, to be awaited."""

    async def start(*, workers, **more):
        task = asyncio.create_task(harness.play(workers=workers, **more))
        return await leased(harness, workers), task

    return start


async def test_each_environment_has_a_process_and_none_is_left(harness):
    await harness.pair(pool=3)
    processes = pool_of(harness)._idle
    pids = {process.pid for process in processes}
    assert len(pids | {os.getpid()}) == 4
    await harness.conductors["environment.lake"].close()
    assert not [pid for pid in pids if lives(pid)]
    assert [process.exit_reason for process in processes] == ["exit code 0"] * 3


@pytest.mark.parametrize(("number", "name"), [(signal.SIGKILL, "SIGKILL"), (40, "signal 40")])
async def test_the_death_of_one_costs_its_episode_another_try_and_the_others_nothing(
    harness, playing, number, name
):
    await harness.pair(pool=3, fault="slow", length=5)
    processes, phase = await playing(workers=3, episodes=9)
    os.kill(processes[1].pid, number)
    records, end = await phase
    assert outcomes(records) == ["terminated"] * 9
    assert (end.failures, end.metrics["episodes_played_again"]) == (0, 1)
    [attempt] = lost(harness)
    assert attempt[1:] == (1, "crashed", f"the process of environment 'lake' exited: {name}")
    assert [process.ended.is_set() for process in processes] == [False, True, False]
    assert not harness.failures["environment.lake"].done()


async def test_the_spaces_of_large_pictures_arrive(harness):
    await asyncio.wait_for(harness.start("environment.lake", entry="conductor_world:Pictures"), 40)
    [process] = pool_of(harness)._idle
    assert process.built.observation_space.shape == (600, 600, 3)


async def test_one_that_dies_idle_is_replaced_when_it_is_needed(harness):
    await harness.pair()
    [process] = pool_of(harness)._idle
    os.kill(process.pid, signal.SIGKILL)
    await asyncio.wait_for(process.ended.wait(), 20)
    records, end = await harness.play(episodes=2)
    assert outcomes(records) == ["terminated"] * 2
    assert "episodes_played_again" not in end.metrics


@pytest.mark.parametrize(("vector", "crashed"), [(1, 1), (2, 2)])
async def test_an_episode_that_ends_its_process_each_time_is_crashed_and_says_why(harness, vector, crashed):
    """The others of its vector are played again with it."""
    await harness.pair(fault="die", vector=vector)
    records, end = await harness.play(episodes=crashed, vector=vector)
    assert outcomes(records) == ["crashed"] * crashed
    end_of_it = "exit code 9: os._exit(9) in environment.step of episode "
    for record in records:
        reason = without_place(record.reason).rstrip("01")
        assert reason == f"the process of environment 'lake' exited: {end_of_it}"
        assert record.traceback
    assert end.metrics["episodes_played_again"] == 2 * crashed
    before = sorted((index, attempt) for index, attempt, *_ in lost(harness))
    assert before == [(index, attempt) for index in range(crashed) for attempt in (1, 2)]
    assert not harness.failures["environment.lake"].done()


async def test_what_it_has_started_is_killed_with_it(harness, playing):
    await harness.pair(entry="conductor_world:HasChild", log=str(harness.folder / "pid"), fault="slow")
    [process], phase = await playing(workers=1, episodes=3)
    os.kill(process.pid, signal.SIGKILL)
    await phase
    first, second = map(int, (harness.folder / "pid").read_text().split())
    assert (lives(first), lives(second)) == (False, True)
    await harness.conductors["environment.lake"].close()
    assert not lives(second)


async def test_one_that_is_stopped_is_killed_and_its_episode_played_again(harness, playing, monkeypatch):
    monkeypatch.setattr("governor.conductors.environment.LIVENESS_SECONDS", 0.5)
    await harness.pair(pool=2, fault="slow")
    processes, phase = await playing(workers=2, episodes=4)
    read, refused = Path.read_text, []

    def without_a_free_descriptor(path, *options, **more):
        if path == Path(f"/proc/{processes[0].pid}/stat") and not refused:
            refused.append(path)
            raise OSError(errno.EMFILE, "Too many open files")
        return read(path, *options, **more)

    monkeypatch.setattr(Path, "read_text", without_a_free_descriptor)
    os.kill(processes[0].pid, signal.SIGSTOP)
    records, end = await phase
    assert (outcomes(records), end.metrics["episodes_played_again"]) == (["terminated"] * 4, 1)
    assert processes[0].exit_reason == "SIGKILL: it was stopped for 0.5 s"
    assert refused


async def test_one_that_has_closed_its_sockets_is_replaced(harness):
    await harness.pair(fault="close", flag=str(harness.folder / "flag"))
    [process] = pool_of(harness)._idle
    records, _ = await harness.play(episodes=2)
    assert (outcomes(records), process.exit_reason) == (["terminated"] * 2, "exit code 70")


async def test_a_process_that_dies_while_it_builds_its_environment_is_started_again(harness):
    await harness.start(
        "environment.lake", entry="conductor_world:DiesBuilt", params={"flag": str(harness.folder / "flag")}
    )
    assert len(pool_of(harness)._idle) == 1


async def test_an_environment_whose_process_dies_whenever_it_is_built_cannot_start(harness):
    with pytest.raises(ConductorError) as raised:
        await harness.start("environment.lake", entry="conductor_world:DiesBuilt", params={})
    assert raised.value.reason == "the process of the environment exited: SIGKILL"


async def test_a_replacement_that_cannot_be_built_ends_the_conductor_with_the_reason(harness, playing):
    await harness.pair(entry="walk_world:Once", flag=str(harness.folder / "flag"), log=os.devnull)
    [process] = pool_of(harness)._idle
    os.kill(process.pid, signal.SIGKILL)
    await process.ended.wait()
    controller = await harness.start("simulation")
    await controller.perform(harness.command())
    reason = await asyncio.wait_for(harness.failures["environment.lake"], 20)
    assert without_place(reason) == (
        "no new environment for one that is gone: environment 'walk_world:Once' does not start: RuntimeError: no second one"
    )


async def test_a_vector_that_is_a_section_has_so_many(harness):
    await harness.pair(vector={"num_envs": 3, "mode": "sync"})
    records, end = await harness.play(episodes=9, vector=3)
    assert (len(records), end.end, {record.worker for record in records}) == (9, "max_episodes", {0, 1, 2})
