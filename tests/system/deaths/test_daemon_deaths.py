"""The daemon dies, stops or finds another daemon: no process is left, and the next daemon continues the run."""

from __future__ import annotations

import asyncio
import os
import signal
import sys
import time
from collections import Counter

import pytest

from governor.episodes.records import state_file
from governor.errors import AlreadyEnded, ExitCode
from governor.units import durations

pytestmark = pytest.mark.system


@pytest.mark.parametrize("state", [pytest.param("starting", marks=pytest.mark.long), "running"])
async def test_a_stop_interrupts_the_run_and_the_next_start_finishes_it(instance, walk, state):
    async with instance.serve() as tree:
        uid = await tree.executor.submit(walk(), folder=instance.folder)
        await tree.until(uid, *(("run.transition",) if state == "starting" else ("episode.ended",)))
        assert await tree.stop() == ExitCode.DONE
        assert list(instance.runtime.iterdir()) == [], "sockets were left behind"
    async with instance.serve() as tree:
        events, result = await tree.end(uid)
    kinds = [event.kind for event in events]
    assert result.outcome == "finished", result.reason
    assert set(result.phases[0].episodes) == {"terminated"}, "what the stop cut short is played again"
    assert kinds.count("run.interrupted") == 1
    played = Counter(e.data["episode"]["index"] for e in events if e.kind == "episode.ended")
    assert played == Counter(range(600))


@pytest.mark.parametrize("victim", ["daemon", pytest.param("guard", marks=pytest.mark.long)])
async def test_after_a_kill_no_process_is_left_and_the_next_start_finishes_the_run(instance, walk, victim):
    async with instance.serve() as tree:
        uid = await tree.executor.submit(walk(), folder=instance.folder)
        await tree.until(uid, "episode.ended")
        with tree.deaths() as alive:
            pid = tree.daemon.pid if victim == "daemon" else tree.process.pid
            os.kill(pid, signal.SIGKILL)
            assert await tree.process.wait() == (137 if victim == "daemon" else -9)
            assert await asyncio.to_thread(alive, within=3) == []
    async with instance.serve() as tree:
        events, result = await tree.end(uid)
    assert result.outcome == "finished", result.reason
    played = Counter(e.data["episode"]["index"] for e in events if e.kind == "episode.ended")
    assert played == Counter(range(600))
    [interrupted] = [event for event in events if event.kind == "run.interrupted"]
    assert (interrupted.data["died"], "the daemon died" in interrupted.data["reason"]) == (True, True)


@pytest.mark.long
async def test_neither_a_changed_clock_nor_a_restart_changes_the_recorded_duration_of_a_run(instance, walk):
    clock = instance.folder / "clock"
    instance.environ["RUN_GOVERNOR_CLOCK"] = str(clock)

    def step(hours):
        clock.with_suffix(".new").write_text(f"{hours * 3600}")
        clock.with_suffix(".new").rename(clock)

    step(0)
    began = time.monotonic()
    async with instance.serve() as tree:
        uid = await tree.executor.submit(walk(), folder=instance.folder)
        await tree.until(uid, "episode.ended")
        step(-5)
        [run] = (await tree.executor.list()).runs
        assert 0 < run.seconds < time.monotonic() - began
        await tree.stop()
    worked = time.monotonic() - began
    step(7)
    again = time.monotonic()
    async with instance.serve() as tree:
        _, result = await tree.end(uid)
        assert result.outcome == "finished"
        assert run.seconds < result.seconds < worked + time.monotonic() - again
        assert [each.seconds for each in (await tree.executor.list()).runs] == [result.seconds]
        shown = await asyncio.create_subprocess_exec(
            *(sys.executable, "-m", "governor", "--broker", tree.executor.endpoint, "results", uid),
            stdout=asyncio.subprocess.PIPE,
        )
        output, _ = await shown.communicate()
    assert f"finished in {durations.text(result.seconds)}" in output.decode()


async def test_a_second_daemon_on_the_same_state_directory_is_refused(instance):
    async with instance.serve() as tree:
        second = await asyncio.create_subprocess_exec(
            *instance.arguments(), env=instance.environ, stderr=asyncio.subprocess.PIPE
        )
        _, complaint = await second.communicate()
        assert second.returncode == ExitCode.TRY_AGAIN
        assert f"in use by pid {tree.daemon.pid}" in complaint.decode()
        assert (await tree.executor.status()).state == "serving", "the first one is unharmed"


async def test_a_second_daemon_in_the_same_runtime_directory_is_refused(instance, walk):
    async with instance.serve() as tree:
        arguments = [*instance.arguments(), "--state-dir", str(instance.folder / "other")]
        second = await asyncio.create_subprocess_exec(
            *arguments, env=instance.environ, stderr=asyncio.subprocess.PIPE
        )
        _, complaint = await second.communicate()
        assert second.returncode == ExitCode.TRY_AGAIN
        assert f"the runtime directory {instance.runtime} is in use" in complaint.decode()
        uid = await tree.executor.submit(walk(episodes=5), folder=instance.folder)
        _, result = await tree.end(uid)
        assert result.outcome == "finished", "the first one is unharmed"


async def test_two_slots_play_two_runs_and_a_third_run_waits(instance, walk):
    async with instance.serve("--slots", "2") as tree:
        uids = [await tree.executor.submit(walk(), folder=instance.folder) for _ in range(3)]
        for uid in uids[:2]:
            await tree.until(uid, "episode.ended")
        shown = {run.uid: run for run in (await tree.executor.status()).runs}
        assert [shown[uid].state for uid in uids] == ["running", "running", "queued"]
        assert "a free slot" in shown[uids[2]].waits_for
        for uid in reversed(uids):
            await tree.executor.abort(uid, reason="enough")
        for uid in uids:
            _, result = await tree.end(uid)
            assert (result.outcome, result.reason) == ("aborted", "enough")
        with pytest.raises(AlreadyEnded):
            await tree.executor.abort(uids[0])


async def test_a_run_continues_without_its_watcher_and_a_later_watch_has_all_events(instance, walk):
    async with instance.serve() as tree:
        uid = await tree.executor.submit(walk(episodes=200), folder=instance.folder, key="monday")
        assert await tree.executor.submit(walk(episodes=200), folder=instance.folder, key="monday") == uid
        first = await tree.until(uid, "episode.ended")
        async with asyncio.timeout(40):
            rest = [event async for event in tree.executor.watch(uid, after=first.seq)]
        assert [event.seq for event in rest] == list(range(first.seq + 1, first.seq + 1 + len(rest)))
        assert rest[-1].kind == "run.ended"


@pytest.mark.long
async def test_a_run_that_restarts_from_scratch_keeps_only_the_events_of_its_first_part(instance, walk):
    async with instance.serve() as tree:
        uid = await tree.executor.submit({**walk(episodes=200), "resume": "restart"}, folder=instance.folder)
        await tree.until(uid, "episode.ended")
        tree.daemon.kill()
        await tree.process.wait()
    async with instance.serve() as tree:
        events, result = await tree.end(uid)
    assert (result.outcome, result.phases[0].episodes) == ("finished", {"terminated": 200}), result.reason
    [anew] = [event for event in events if event.kind == "run.restarted"]
    before, after = (
        [e.data["episode"] for e in events if e.kind == "episode.ended" and (e.seq > anew.seq) == late]
        for late in (False, True)
    )
    assert len(before) == anew.data["discarded"]["episodes"] > 0
    assert Counter(episode["index"] for episode in after) == Counter(range(200))
    lines = (instance.folder / "s" / "runs" / uid / "episodes" / "train.jsonl").read_text().splitlines()
    assert len(lines) == 200
    learned = state_file.load(instance.folder / "s" / "runs" / uid / "agents" / "walker.state")
    assert learned["steps"] == sum(episode["steps"] for episode in after)
