"""What holds for the episodes of a phase however they are played: through conductors or in process, alone or in a vector."""

import asyncio
from importlib import import_module

import pytest

from governor.messages import EpisodeEnded, PartEndedReport, Until
from tests.support.in_process_commands import episodes, outcomes

EACH = pytest.mark.parametrize("transport", ["conductors", "in_process", "vector", "rounds"])
ALONE = pytest.mark.parametrize("transport", ["conductors", "in_process"])


@pytest.fixture
def one_by_one(monkeypatch):
    """Each episode is reported, and in process its acknowledgement heard, before the next one; else they are many ahead."""
    monkeypatch.setattr("governor.episodes.local.stepping.UNACKNOWLEDGED", 0)
    monkeypatch.setattr("governor.episodes.records.reports.LINGER_SECONDS", 0.0)


@EACH
async def test_frozen_lake_from_start_to_end(harness, transport):
    command = await harness.stage(transport, entry="gymnasium:FrozenLake-v1", is_slippery=False)
    records, end = await harness.play(episodes=4, max_steps=10, **command)
    assert (end.end, end.failures) == ("max_episodes", 0)
    assert sorted(record.index for record in records) == [0, 1, 2, 3]
    assert end.metrics["episodes_ended"] == 4
    assert end.metrics["steps_total"] == sum(record.steps for record in records)
    assert [line["index"] for line in harness.lines()] == [record.index for record in records]
    assert harness.lines()[0]["mode"] == "train"


@ALONE
async def test_each_step_is_learned_once_and_the_state_is_kept(harness, transport):
    log = harness.folder / "learned"
    command = await harness.stage(transport, agent_params={"log": str(log)})
    records, end = await harness.play(episodes=2, **command)
    assert [(r.outcome, r.value, r.steps) for r in records] == [("terminated", 5.0, 5)] * 2
    assert harness.state()["learned"] == 10
    lines = log.read_text().splitlines()
    assert [("terminated=True" in line) for line in lines] == [False] * 4 + [True] + [False] * 4 + [True]
    assert end.metrics["return_mean"] == 5.0


@EACH
async def test_max_steps_truncates_also_for_the_agent(harness, transport):
    log = harness.folder / "learned"
    command = await harness.stage(transport, agent_params={"log": str(log)})
    records, _ = await harness.play(episodes=1, max_steps=3, **command)
    assert (records[0].outcome, records[0].steps) == ("truncated", 3)
    assert "terminated=False, truncated=True" in log.read_text().splitlines()[-1]


@EACH
async def test_eval_neither_explores_nor_learns(harness, transport):
    log = harness.folder / "diary"
    command = await harness.stage(transport, agent="rules_world:Diary", agent_params={"log": str(log)})
    records, _ = await harness.play(mode="eval", **command)
    assert outcomes(records) == ["terminated"] * 3
    assert log.read_text() == "." * 15
    assert harness.state() is None


@ALONE
@pytest.mark.parametrize(
    ("fault", "reason"),
    [
        ("reset", "environment.reset: RuntimeError: no floor"),
        ("step", "environment.step: ValueError: leg broken"),
        ("exit", "environment.step: SystemExit: 3"),
        ("next", "environment.step: StopIteration"),
        ("nan", "environment.step: ValueError: the reward is nan"),
        ("shape", "environment.step: ValueError: observation: array([0., 0., 0.]) is no integer"),
        (
            "four",
            "environment.step: ValueError: it did not return (observation, reward, terminated, truncated, info)",
        ),
    ],
)
async def test_a_bad_environment_is_a_failed_episode_with_its_reason(harness, transport, fault, reason):
    flag = "" if fault == "reset" else str(harness.folder / "flag")
    records, end = await harness.play(episodes=2, **await harness.stage(transport, fault=fault, flag=flag))
    told = records[0].reason
    assert (records[0].outcome, told.partition(" (walk_world.py")[0]) == ("failed", reason)
    assert records[0].steps == (0 if fault == "reset" else 2)
    assert records[1].outcome == ("failed" if fault == "reset" else "terminated")
    assert (end.end, end.first_failure) == ("max_episodes", f"episode 0: {told}")


@EACH
async def test_nan_in_an_observation_fails_the_episode(harness, transport):
    records, _ = await harness.play(episodes=1, **await harness.stage(transport, entry="walk_world:NanBox"))
    assert records[0].reason == "environment.reset: ValueError: observation: it holds NaN"


@ALONE
@pytest.mark.parametrize(
    ("fault", "reason"),
    [
        ("act", "agent.act: KeyError: 'observation'"),
        ("learn", "agent.learn: ZeroDivisionError"),
        ("bad_action", "agent.act: ValueError: 7 is not in Discrete(2)"),
    ],
)
async def test_a_bad_agent_is_a_failed_episode_with_its_reason(harness, transport, fault, reason):
    params = {"fault": fault, "flag": str(harness.folder / "flag")}
    records, end = await harness.play(episodes=2, **await harness.stage(transport, agent_params=params))
    told = records[0].reason
    assert (records[0].outcome, told.partition(" (walk_world.py")[0]) == ("failed", reason)
    assert records[1].outcome == ("failed" if fault == "learn" else "terminated")
    assert end.failures == (2 if fault == "learn" else 1)


@ALONE
async def test_until_stops_the_phase_as_soon_as_it_holds(harness, transport):
    until = (Until(metric="return", at_least=5.0, average_over=4),)
    records, end = await harness.play(episodes=5000, until=until, **await harness.stage(transport))
    assert len(records) in (4, 5)
    assert outcomes(records)[:4] == ["terminated"] * 4
    assert end.end == "until"


@ALONE
async def test_a_shutdown_leaves_running_episodes_to_the_next_process(harness, transport):
    command = await harness.stage(transport)
    controller = await harness.start("simulation", flow="SHUTDOWN")
    await controller.perform(harness.command(episodes=10**6, workers=2, **command))
    link = harness.links["simulation"]
    await link.next(EpisodeEnded)
    await asyncio.wait_for(controller._work.task, 10)
    assert set(outcomes(episodes(link))) == {"terminated"}
    assert not [event for event in link.events if isinstance(event, PartEndedReport)]


@EACH
@pytest.mark.usefixtures("one_by_one")
async def test_pause_holds_the_next_episode_until_the_phase_is_started_again(harness, transport):
    command = harness.command(episodes=100, **await harness.stage(transport))
    controller = await harness.start("simulation", flow="PAUSE")
    await controller.perform(command)
    link = harness.links["simulation"]
    await link.next(EpisodeEnded)
    with pytest.raises(TimeoutError):
        await harness.end(seconds=0.3)
    link.flow = "CONTINUE"
    await controller.perform(command)
    records, end = await harness.end()
    assert outcomes(records) == ["terminated"] * 100
    assert end.end == "max_episodes"


@EACH
@pytest.mark.usefixtures("one_by_one")
async def test_reset_builds_the_environments_anew_and_goes_on(harness, monkeypatch, transport):
    agent, built = import_module("walk_world").BuiltAgent, harness.folder / "built"
    monkeypatch.setattr(agent, "times", 0)  # its conductor is in this process
    more = {"entry": "walk_world:Built", "agent": "walk_world:BuiltAgent", "log": str(built)}
    command = await harness.stage(transport, size=2, **more)
    records, end = await harness.play(episodes=40, flow="RESET", **command)
    assert outcomes(records) == ["terminated"] * 40
    assert end.end == "max_episodes"
    assert harness.state()["learned"] == 200
    assert built.stat().st_size > 2
    assert agent.times == 1
    assert "episodes_played_again" not in end.metrics


@ALONE
async def test_several_workers_share_the_episodes_and_the_agent(harness, transport):
    command = await harness.stage(transport, pool=3)
    records, end = await harness.play(episodes=40, workers=3, **command)
    assert sorted(record.index for record in records) == list(range(40))
    assert end.failures == 0
    assert harness.state()["learned"] == 200


@EACH
async def test_what_was_never_reported_is_played_again(harness, transport):
    command = await harness.stage(transport)
    records, _ = await harness.play(episodes=3, **command)
    with (harness.folder / "run/episodes/train.jsonl").open("ab") as file:
        file.write(b'{"index": 3, "tor')
    records.sort(key=lambda record: record.index)
    again, end = await harness.play(episodes=4, done=tuple(records[:2]), incarnation=2, **command)
    assert sorted(record.index for record in again) == [2, 3]
    assert sorted(line["index"] for line in harness.lines()) == [0, 1, 2, 3]
    assert end.metrics["episodes_ended"] == 4
