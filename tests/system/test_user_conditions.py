"""Conditions of a user's own in whole process trees: what they ask for, and what outlives the death of their process."""

from __future__ import annotations

import os
import signal

import pytest

from tests.support.language_models.text_world import TextWorld

pytestmark = pytest.mark.system


def asking(walk, answer, *, at, transport="conductors", workers=1, episodes=400, again=False, **more):
    made = walk(episodes=episodes)
    made["phases"][0]["simulate"] |= {"transport": transport, "workers": workers}
    params = {"episodes": at, "answer": answer, "again": again}
    made["phases"][0]["until"] = [{"entry": "user_code:Counter", "params": params}]
    return {**made, **more}


def data_of(events, kind):
    return [event.data for event in events if event.kind == kind]


@pytest.mark.parametrize("transport", ["conductors", "in_process"])
async def test_restart_gives_the_phase_new_processes_for_one_restart_each(instance, walk, transport):
    async with instance.serve() as tree:
        made = asking(walk, "RESTART", at=100, again=True, transport=transport, restart={"conductors": 2})
        events, result = await tree.end(await tree.executor.submit(made, folder=instance.folder))
        assert (result.outcome, result.phases[0].end) == ("failed", "failed")
        reason = "until[0] (user_code:Counter): RESTART after episode 299"
        assert result.reason == f"{reason} (the budget of 2 conductor restarts is used up)"
        assert [asked["flow"] for asked in data_of(events, "flow.requested")] == ["RESTART"] * 3
        number = 6 if transport == "conductors" else 2
        assert [each["expected"] for each in data_of(events, "conductor.exited")][:number] == [True] * number
        made = asking(walk, "RESTART", at=100, again=True, transport=transport, restart={"conductors": 3})
        events, result = await tree.end(await tree.executor.submit(made, folder=instance.folder))
        assert (result.outcome, result.phases[0].end) == ("finished", "max_episodes"), result.reason
        before = [each["episode"] for each in data_of(events, "episode.ended")]
        made = asking(walk, "CONTINUE", at=1, transport=transport)
        events, _ = await tree.end(await tree.executor.submit(made, folder=instance.folder))
        plain = [each["episode"] for each in data_of(events, "episode.ended")]
        assert [(each["index"], each["seed"]) for each in before] == [(e["index"], e["seed"]) for e in plain]


@pytest.mark.parametrize("transport", ["conductors", "in_process"])
async def test_its_count_outlives_a_kill_of_the_simulation(instance, walk, transport):
    async with instance.serve() as tree:
        made = asking(walk, "STOP_PHASE", at=300, transport=transport, episodes=100_000)
        uid = await tree.executor.submit(made, folder=instance.folder)
        await tree.until(uid, "episode.ended")
        os.kill(await tree.pid_of(uid, "simulation"), signal.SIGKILL)
        events, result = await tree.end(uid)
        assert result.outcome == "finished", result.reason
        assert len(data_of(events, "conductor.exited")) > 1
        [phase] = result.phases
        assert phase.episodes == {"terminated": 300}
        assert (phase.end, phase.ended_by) == (
            "until", "until[0] (user_code:Counter): STOP_PHASE after episode 299",
        )  # fmt: skip


async def test_shutdown_ends_the_run_and_stop_phase_the_tasks_of_the_phase(instance, walk):
    made = asking(walk, "SHUTDOWN", at=7)
    made["phases"] += [{**made["phases"][0], "name": "never"}]
    async with instance.serve() as tree:
        _, result = await tree.end(await tree.executor.submit(made, folder=instance.folder))
        reason = "until[0] (user_code:Counter): SHUTDOWN after episode 6"
        assert (result.outcome, result.reason) == ("finished", reason)
        assert [(phase.name, phase.episodes) for phase in result.phases] == [("train", {"terminated": 7})]


async def test_a_pause_is_what_the_run_waits_for_and_the_next_daemon_goes_on(instance, walk):
    async with instance.serve() as tree:
        uid = await tree.executor.submit(asking(walk, "PAUSE", at=9, episodes=20), folder=instance.folder)
        await tree.until(uid, "flow.requested", flow="PAUSE")
        [run] = (await tree.executor.status(uid)).runs
        waits = "phase train: the end of a pause (until[0] (user_code:Counter): PAUSE after episode 8)"
        assert (run.waits_for, run.episodes_ended) == (waits, 9)
        assert await tree.stop() == 0
    async with instance.serve() as tree:
        _, result = await tree.end(uid)
        assert (result.outcome, result.phases[0].episodes) == ("finished", {"terminated": 20})


async def test_restart_gives_a_language_model_new_processes_too(instance):
    """The last of its episodes has to wait for what the condition answers about the eighth."""
    simulate = {
        "environment": "walk",
        "agents": ["model"],
        "episodes": 10,
        "workers": 2,
        "transport": "in_process",
    }
    condition = {"entry": "user_code:Counter", "params": {"episodes": 4, "answer": "RESTART", "again": True}}
    async with TextWorld() as world, instance.serve() as tree:
        made = {
            "name": "talk",
            "restart": {"conductors": 2},
            "conductors": {
                "environments": {"walk": {"entry": "tests.support.user_code.text_walks:Seeded"}},
                "agents": {"model": {"entry": "openai:m", "params": {"base_url": world.llm}}},
            },
            "phases": [{"name": "train", "mode": "eval", "simulate": simulate, "until": [condition]}],
        }
        events, result = await tree.end(await tree.executor.submit(made, folder=instance.folder))
    assert (result.outcome, result.phases[0].end) == ("finished", "max_episodes"), result.reason
    assert [asked["flow"] for asked in data_of(events, "flow.requested")] == ["RESTART"] * 2
    assert [each["expected"] for each in data_of(events, "conductor.exited")][:2] == [True] * 2
    assert sorted(each["episode"]["index"] for each in data_of(events, "episode.ended")) == [*range(10)]
    assert result.phases[0].episodes == {"terminated": 10}
