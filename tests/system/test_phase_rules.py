"""The rules of a phase in whole process trees: limits, evaluations and checkpoints across deaths and resumes."""

from __future__ import annotations

import json
import signal
from pathlib import Path

import pytest

from governor.episodes.records import state_file

pytestmark = pytest.mark.system

EVALUATE = {"every": 5, "episodes": 4}
CHECKPOINT = {"every": 5, "best": True, "last": True}


def ruled(walk, *, episodes, **more):
    made = walk(episodes=episodes)
    made["phases"][0] |= {"evaluate": EVALUATE, "checkpoint": CHECKPOINT}
    return {**made, **more}


def episodes_of(events):
    return [event.data["episode"] for event in events if event.kind == "episode.ended"]


def kinds(episodes):
    """The evaluation of each episode, 0 for training, in the order of their ends."""
    return [episode["evaluation"] for episode in episodes]


def in_stages(number):
    return [each for stage in range(1, number + 1) for each in [0] * 5 + [stage] * 4]


async def test_a_limit_of_the_run_stops_its_phase_and_fails_it(instance, walk):
    async with instance.serve() as tree:
        for transport, limit, value in (("conductors", "episodes", 30), ("in_process", "steps", 300)):
            made = {**walk(episodes=1_000_000), "limits": {limit: value}}
            made["phases"][0]["simulate"]["transport"] = transport
            events, result = await tree.end(await tree.executor.submit(made, folder=instance.folder))
            [event_of_limit] = [event for event in events if event.kind == "limit.exceeded"]
            reason = f"limit {limit} of {value} exceeded in phase train: {event_of_limit.data['reached']}"
            assert (result.outcome, result.reason) == ("failed", reason)
            before = episodes_of(event for event in events if event.seq < event_of_limit.seq)
            spent = len(before) if limit == "episodes" else sum(episode["steps"] for episode in before)
            assert spent == event_of_limit.data["reached"] > value
            assert len(episodes_of(events)) < 100_000


@pytest.mark.long
async def test_after_a_kill_the_next_daemon_continues_the_phase_in_the_same_stage(instance, walk):
    async with instance.serve() as tree:
        uid = await tree.executor.submit(ruled(walk, episodes=50), folder=instance.folder)
        await tree.until(uid, "episode.ended")
        tree.daemon.send_signal(signal.SIGKILL)
        await tree.gone()
    async with instance.serve() as tree:
        events, result = await tree.end(uid)
    assert result.outcome == "finished", result.reason
    episodes = episodes_of(events)
    assert sorted(episode["index"] for episode in episodes) == list(range(50 + 40))
    assert kinds(episodes) == in_stages(10)
    [phase] = result.phases
    assert phase.episodes == {"terminated": 50}
    assert phase.metrics["evaluations"] == 10
    folder = Path(result.folder) / "checkpoints/train"
    index = json.loads((folder / "index.json").read_text())
    assert [entry["episodes"] for entry in index["every"]] == list(range(5, 51, 5))
    assert index["best"]["metric"] == phase.metrics["evaluation_return_best"]
    assert index["last"]["episodes"] == 50


async def test_a_resumed_run_plays_missing_evaluations_and_another_run_starts_from_its_checkpoint(
    instance, walk
):
    async with instance.serve() as tree:
        made = ruled(walk, episodes=60, limits={"episodes": 25})
        uid = await tree.executor.submit(made, folder=instance.folder)
        events, old = await tree.end(uid)
        assert old.outcome == "failed"
        before = [episode for episode in episodes_of(events) if episode["outcome"] != "cancelled"]
        second = await tree.executor.resume(uid)
        events, halfway = await tree.end(second)
        assert halfway.outcome == "failed", "what it plays itself is limited"
        before += [episode for episode in episodes_of(events) if episode["outcome"] != "cancelled"]
        assert 50 < len(before) < 108
        assert kinds(before) == in_stages(12)[: len(before)]
        index = json.loads((Path(halfway.folder) / "checkpoints/train/index.json").read_text())
        assert [entry["episodes"] for entry in index["every"]][:5] == [5, 10, 15, 20, 25]

        state = Path(halfway.folder) / "checkpoints/train/walker.25.state"
        learned = state_file.load(state)["steps"]
        other = walk(episodes=1)
        other["conductors"]["agents"]["walker"]["state"] = str(state)
        events, new = await tree.end(await tree.executor.submit(other, folder=instance.folder))
        assert new.outcome == "finished", new.reason
        [episode] = episodes_of(events)
        assert (
            state_file.load(Path(new.folder) / "agents/walker.state")["steps"] == learned + episode["steps"]
        )
        state.unlink()
        _, none = await tree.end(await tree.executor.submit(other, folder=instance.folder))
        assert (none.outcome, none.phases) == ("failed", ())
        assert f"{state} is not there" in none.reason
