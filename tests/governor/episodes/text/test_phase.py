"""A language model plays the phase of a run: real servers, real processes, the simulation's own records."""

import asyncio
import gc
import json

import pandas as pd
import pytest

from governor.cli.rendering import exports
from governor.episodes.text.episode import TextEpisodeRecord
from governor.episodes.text.sessions import DataManager
from governor.episodes.trajectories import Conversion
from governor.messages import (
    Done,
    EpisodeEnded,
    EpisodeRecord,
    PartEndedReport,
    PhaseResult,
    StopPartCommand,
    Until,
)
from tests.support.language_models.text_phases import SECONDS, play, steps_of, talking
from tests.support.language_models.text_servers import ChatServer, EnvironmentServer
from tests.support.language_models.text_world import TextWorld
from tests.support.living import lives
from tests.support.run_results import run_result


@pytest.fixture
async def world():
    async with TextWorld() as made:
        yield made


async def test_environments_of_a_server_from_start_to_end(harness, world):
    records, end = await play(harness, world, episodes=6, workers=3)
    assert (end.end, end.failures) == ("max_episodes", 0)
    assert sorted(record.index for record in records) == list(range(6))
    assert {(r.outcome, r.value, r.steps, r.reason) for r in records} == {("terminated", 3.0, 3, "")}
    assert {record.worker for record in records} <= {0, 1, 2}
    assert end.metrics["return_mean"] == 3.0
    assert [line["index"] for line in harness.lines()] == [record.index for record in records]
    steps = steps_of(harness)
    assert sorted(steps.episode) == sorted([*range(6)] * 3)
    assert (set(steps.env_name), set(steps.llm_model)) == ({"walk"}, {"m"})
    assert set(steps.outcome) == {"terminated"}
    left = sorted(path.name for path in (harness.folder / "run/episodes").iterdir())
    assert left == ["train.jsonl", "train.parquet", "train.usage"]


async def test_its_steps_are_exported_as_those_of_other_phases(harness, world, tmp_path):
    await play(harness, world, episodes=2)
    phase = PhaseResult(name="train", mode="train", end="max_episodes")
    found = run_result(phases=(phase,), folder=str(harness.folder / "run"))
    exports.export(found, "steps", form="csv", phase="train", output=tmp_path / "steps.csv")
    rows = pd.read_csv(tmp_path / "steps.csv")
    assert rows[["episode", "step_id", "response"]].to_numpy().tolist() == [
        [episode, step, "go"] for episode in (0, 1) for step in (1, 2, 3)
    ]


async def test_the_model_is_asked_as_the_run_says(harness, world):
    world.answer_seconds = 0.05
    agent = {"temperature": 0.9, "message_cut": 1, "concurrency": 1}
    await play(harness, world, episodes=3, workers=3, agent=agent)
    assert {body["temperature"] for _, body in world.asked} == {0.9}
    asked = [[message["content"] for message in body["messages"]] for _, body in world.asked]
    assert asked == [["be brief", "turn 9"]] * 9
    assert world.most == 1


async def test_tokens_and_requests_are_in_the_metrics(harness):
    async with ChatServer() as model, EnvironmentServer() as server:
        model.then(500)
        _, end = await harness.play(
            episodes=2, **talking(model.url, entry=server.url, retries=1, max_tokens=5, extra={"top_k": 3})
        )
        assert [model.requests[0][3][name] for name in ("model", "max_tokens", "top_k")] == ["m", 5, 3]
    names = ("tokens_prompt", "tokens_completion", "llm_requests", "llm_retries")
    assert [end.metrics[name] for name in names] == [60, 12, 7, 1]


# environments in Python


async def test_an_environment_with_reset_gets_the_seed_and_is_kept(harness, world):
    made = talking(world.llm, entry="tests.support.user_code.text_walks:Seeded")
    records, end = await harness.play(episodes=5, seconds=SECONDS, **made)
    assert end.failures == 0
    assert [(r.index, r.value) for r in records] == [(r.index, 2.0 * (r.seed % 100)) for r in records]
    steps = steps_of(harness)
    assert len({json.loads(state)["pid"] for state in steps.env_state}) == 1
    first = [json.loads(messages)[-1]["content"] for messages in steps.messages]
    assert first[::2] == [f"{r.seed % 100}, step 0" for r in records]


@pytest.mark.parametrize("kind", ["Reporting", "ReportingAsync"])
async def test_an_environment_gets_a_context_and_reports(harness, world, kind):
    made = talking(world.llm, entry=f"tests.support.user_code.text_walks:{kind}")
    records, end = await harness.play(episodes=3, seconds=SECONDS, **made)
    assert [record.outcome for record in records] == ["terminated", "failed", "terminated"]
    first, failed, third = (record.metrics for record in records)
    assert first == {"built": 1, "loss": 1.5, "other.nonfinite": 2}
    assert failed == {"loss": 2, "other.nonfinite": 1}
    assert third == {"built": 1, "loss": 1.5, "other.nonfinite": 2}, "its process is another one"
    assert end.metrics["loss_mean"] == 1.5
    states = [json.loads(state) for state in steps_of(harness).env_state]
    assert [state.pop("episode") for state in states] == [0, 0, 2, 2]
    folder = str(harness.folder / "run")
    assert all(
        state | {"pid": 0} == {"run": "u1", "folder": folder, "made in": "train", "phase": "train", "pid": 0}
        for state in states
    )


async def test_one_without_is_made_anew_for_each_episode_and_gone_afterwards(harness, world):
    made = talking(world.llm, entry="tests.support.user_code.text_walks:Walk", environment={"steps": 2})
    records, _ = await harness.play(episodes=3, seconds=SECONDS, **made)
    assert [(r.outcome, r.value) for r in records] == [("terminated", 2.0)] * 3
    pids = {json.loads(state)["pid"] for state in steps_of(harness).env_state}
    assert len(pids) == 3
    assert not any(lives(pid) for pid in pids)


async def test_a_condition_of_the_user_gets_an_environment_that_is_kept_made_anew(harness, world):
    made = talking(world.llm, entry="tests.support.user_code.text_walks:Seeded")
    every = {"entry": "conditions_world:Every"}
    until = (
        Until(**every, params={"episodes": 2, "answer": "RESET"}),
        Until(**every, params={"episodes": 7, "answer": "STOP_PHASE"}),
    )
    records, end = await harness.play(episodes=50, until=until, seconds=SECONDS, **made)
    assert [record.outcome for record in records] == ["terminated"] * 7
    assert end.ended_by == "until[1] (conditions_world:Every): STOP_PHASE after episode 6"
    states = {record.index: set[int]() for record in records}
    for step in steps_of(harness).itertuples():
        states[step.episode].add(json.loads(step.env_state)["pid"])
    pids = [pid for index in range(7) for pid in states[index]]
    assert [len(set(pids[first : first + 2])) for first in (0, 2, 4)] == [1, 1, 1]
    assert len(set(pids)) == 4
    assert not any(lives(pid) for pid in pids)


async def test_max_steps_truncates(harness, world):
    records, _ = await play(harness, world, "endless", episodes=1, max_steps=4)
    assert [(r.outcome, r.steps, r.value) for r in records] == [("truncated", 4, 4.0)]


async def test_the_key_comes_from_its_variable(harness, monkeypatch):
    monkeypatch.setenv("A_KEY", "secret")
    async with ChatServer() as model, EnvironmentServer() as server:
        await harness.play(episodes=1, **talking(model.url, entry=server.url, api_key_env="A_KEY"))
        assert {request[2]["Authorization"] for request in model.requests} == {"Bearer secret"}


# where


async def test_episodes_are_spread_over_base_urls(harness):
    async with ChatServer() as one, ChatServer() as two, EnvironmentServer(length=1) as server:
        await harness.play(episodes=6, workers=2, **talking([one.url, two.url], entry=server.url))
        assert (len(one.requests), len(two.requests)) == (3, 3)


async def test_each_session_may_have_an_address_of_its_own(harness, world):
    await play(harness, world, episodes=3, agent={"session_suffix": True})
    paths = {path.split("/")[2] for path, _ in world.asked}
    assert paths == set(steps_of(harness).session)
    assert len(paths) == 3


async def test_an_id_is_played_once_at_a_time(harness, world):
    at_play, most = [], []

    async def gate(body):
        at_play.append(1)
        most.append(len(at_play))
        await asyncio.sleep(0)
        at_play.pop()

    world.gate = gate
    records, _ = await play(
        harness, world, "endless", episodes=6, workers=4, max_steps=2, environment={"ids": ["only"]}
    )
    assert len(records) == 6
    assert max(most) == 1
    assert set(world.steps) == {"endless_only"}
    keys = [step.key.partition(".")[0] for step in world.steps["endless_only"]]
    assert keys == [key for key in dict.fromkeys(keys) for _ in range(2)]  # no episode among another's steps


# rules of a simulation


async def test_until_ends_the_phase_and_cancels_what_is_running(harness, world):
    both = asyncio.Event()

    async def gate(body):  # the second one waits, so that it is running when the first one ends
        if len(world.asked) == 1:
            await both.wait()
        else:
            both.set()
            await world.hold.wait()

    world.length, world.gate = 1, gate
    records, end = await play(
        harness, world, episodes=50, workers=2, until=(Until(metric="return", at_least=1.0),)
    )
    assert end.end == "until"
    assert sorted(record.outcome for record in records) == ["cancelled", "terminated"]


async def test_a_stop_cancels_what_is_running_and_keeps_what_was_recorded(harness, world):
    controller = await harness.start("simulation")
    made = talking(world.llm, entry=world.url, environment={"name": "sticky"})
    assert await controller.perform(harness.command(episodes=50, workers=2, **made)) == Done()
    async with asyncio.timeout(SECONDS):
        while min(len(world.steps[f"sticky_{n}"]) for n in range(2)) < 2:
            world.arrived.clear()
            await world.arrived.wait()
    await controller.perform(StopPartCommand(phase=0, reason="enough"))
    records, end = await harness.end()
    assert (end.end, end.failures) == ("stopped", 0)
    assert sorted((r.index, r.outcome, r.value) for r in records) == [
        (0, "cancelled", 1.0),
        (1, "cancelled", 1.0),
    ]
    assert sorted(steps_of(harness).episode) == [0, 1]


async def test_pause_holds_the_next_episode_until_the_phase_is_started_again(harness, world):
    controller = await harness.start("simulation", flow="PAUSE")
    command = harness.command(
        episodes=6, workers=2, **talking(world.llm, entry=world.url, environment={"name": "walk"})
    )
    await controller.perform(command)
    link = harness.links["simulation"]
    await asyncio.wait_for(link.next(EpisodeEnded), SECONDS)
    with pytest.raises(TimeoutError):
        await harness.end(seconds=0.3)
    link.flow = "CONTINUE"
    await controller.perform(command)
    records, end = await harness.end(seconds=SECONDS)
    assert (len(records), end.end) == (6, "max_episodes")


async def test_no_more_than_the_workers_can_play_is_unacknowledged(harness, world):
    controller = await harness.start("simulation")
    link, hold = harness.links["simulation"], asyncio.Event()
    report_all = link.report_all

    begun, both = [], asyncio.Event()

    async def held(events):
        begun.extend(events)
        if len(begun) >= 2:
            both.set()
        await hold.wait()
        return await report_all(events)

    link.report_all = held
    made = talking(world.llm, entry=world.url, environment={"name": "walk"})
    await controller.perform(harness.command(episodes=20, workers=2, **made))
    await asyncio.wait_for(both.wait(), SECONDS)
    with pytest.raises(TimeoutError):
        await harness.end(seconds=0.5)
    assert len(world.steps) <= 3  # one of each worker, and one that began when the first was not acknowledged
    hold.set()
    records, _ = await harness.end(seconds=SECONDS)
    assert len(records) == 20


async def test_what_was_played_before_is_not_played_again(harness, world):
    records, _ = await play(harness, world, episodes=2)
    again, end = await play(harness, world, episodes=4, done=tuple(records), incarnation=2)
    assert [record.index for record in again] == [2, 3]
    assert end.metrics["episodes_ended"] == 4
    assert sorted(steps_of(harness).episode) == sorted([0, 1, 2, 3] * 3)


GOOD = EpisodeRecord(index=1, worker=0, seed=0, outcome="terminated", value=9.0, steps=1, seconds=0.1)


@pytest.mark.parametrize(
    ("name", "more", "kept"),
    [
        ("walk", {"episodes": 1}, [1, 2, 3]),
        ("gone", {"episodes": 1}, []),
        ("walk", {"episodes": 2, "done": (GOOD,), "until": (Until(metric="return", at_least=9.0),)}, []),
    ],
    ids=["played again", "failed before its first step", "not played again"],
)
async def test_what_an_earlier_life_broke_off_does_not_count(harness, world, name, more, kept):
    controller = await harness.start("simulation")
    made = talking(world.llm, entry=world.url, environment={"name": "sticky"})
    await controller.perform(harness.command(episodes=1, **made))
    async with asyncio.timeout(SECONDS):
        while len(world.steps["sticky_0"]) < 2:
            world.arrived.clear()
            await world.arrived.wait()
    await controller.close()
    link = harness.links["simulation"]
    assert [event for event in link.events if isinstance(event, EpisodeEnded | PartEndedReport)] == []
    assert len(list((harness.folder / "run/episodes").glob("*.arrow"))) == 1
    await play(harness, world, name, incarnation=2, **more)
    assert steps_of(harness).step_id.tolist() == kept


# cost of many episodes


@pytest.fixture
def counted(monkeypatch):
    """The ranges of the sessions that count, as each phase has found them."""
    found = []
    finish = Conversion.finish

    def noted(self, episodes=None):
        found.append(episodes.ranges)
        return finish(self, episodes)

    monkeypatch.setattr(Conversion, "finish", noted)
    return found


async def test_what_is_kept_does_not_grow_with_the_episodes(harness, world, counted):
    kept = []

    async def gate(body):
        gc.collect()
        kept.append(sum(isinstance(one, TextEpisodeRecord) for one in gc.get_objects()))

    world.length, world.gate = 1, gate
    gc.collect()
    gc.freeze()  # what other tests have left is not looked through 80 times
    try:
        records, _ = await play(harness, world, episodes=40, workers=2)
    finally:
        gc.unfreeze()
    assert len(records) == 40
    assert max(kept) <= kept[0] + 4
    assert list(map(len, counted)) == [1]


def session_of(folder, episode, *, steps, ended=True):
    """Of a process of its own, as it leaves it."""
    manager = DataManager(folder, phase="train")
    session = manager.create_session(env_id=str(episode), env_name="walk", episode=episode)
    for step in range(1, steps + 1):
        manager.record_step(
            session=session, step_id=step, messages=[], response="go", step_reward=1.0, env_state=None,
            terminated=ended and step == steps, truncated=False, is_trainable=True,
        )  # fmt: skip
    if ended:
        manager.end_session(session, outcome="terminated")
    manager.close()


async def test_of_several_sessions_of_an_episode_the_last_counts_and_only_the_others_are_listed(
    harness, world, counted
):
    run = harness.folder / "run"
    for steps in (5, 4, 2):  # two ended, were not acknowledged, and were played again
        session_of(run, 1, steps=steps)
    session_of(run, 2, steps=7, ended=False)
    await play(harness, world, episodes=30, done=(GOOD,), incarnation=2)
    steps = steps_of(harness).groupby("episode").size()
    assert steps.to_dict() == {**dict.fromkeys(range(30), 3), 1: 2}
    (ranges,) = counted
    assert len(ranges) == 4
