"""What goes wrong in a phase that a language model plays has a named outcome, in one episode alone."""

import asyncio

import pytest
from structlog.testing import capture_logs

from governor.messages import EpisodeAttemptEnded, EpisodeEnded, Failures
from tests.support.full_disk import full_beyond
from tests.support.in_process_commands import noted_before
from tests.support.language_models.text_phases import SECONDS, play, steps_of, talking
from tests.support.language_models.text_servers import ChatServer, EnvironmentServer
from tests.support.language_models.text_world import TextWorld


@pytest.fixture
async def world():
    async with TextWorld() as made:
        yield made


@pytest.mark.parametrize(
    ("fault", "outcome", "says"),
    [
        ("hang", "timed_out", "1 s"),
        ("exit", "crashed", "environment.step: its process ended with exit code 3"),
        ("raise", "failed", "environment.step: ValueError: no way"),
    ],
)
async def test_an_environment_that_breaks_ends_its_episode_alone(harness, world, fault, outcome, says):
    made = talking(world.llm, entry="tests.support.user_code.text_walks:Walk", environment={"fault": fault})
    limit = {"episode_timeout": 1.0} if fault == "hang" else {}
    with capture_logs() as caught:
        records, end = await harness.play(episodes=2, seconds=SECONDS, **limit, **made)
    assert [record.outcome for record in records] == [outcome] * 2
    assert all(says in record.reason for record in records)
    assert end.failures == 2
    logged = [line["reason"] for line in caught if line["event"] == "environment.quarantined"]
    assert len(logged) == 2
    assert all(logged)


async def test_when_no_environment_starts_the_part_says_why(harness, world):
    records, end = await harness.play(
        episodes=2, seconds=SECONDS, **talking(world.llm, entry="tests.support.user_code.text_walks:Stubborn")
    )
    assert (records, end.end) == ([], "stopped")
    assert "OSError: no display" in end.first_failure


@pytest.mark.parametrize(
    ("order", "says"),
    [
        (500, "HTTP 500"), (429, "HTTP 429"), (404, "HTTP 404"), ("malformed", "malformed answer"), ("nothing", "transport"),
        ("half", "transport"), ("late", "no answer within 1 s"),
    ],
)  # fmt: skip
async def test_a_bad_answer_of_the_model_fails_that_episode_alone(harness, order, says):
    async with ChatServer() as model, EnvironmentServer() as server:
        model.then(order)
        made = talking(model.url, entry=server.url, timeout=1.0)
        records, end = await harness.play(episodes=2, seconds=SECONDS, **made)
    assert [record.outcome for record in records] == ["failed", "terminated"]
    assert records[0].reason.startswith("model: ")
    assert says in records[0].reason
    assert (end.failures, end.first_failure) == (1, f"episode 0: {records[0].reason}")


@pytest.mark.parametrize("step", [False, True])
@pytest.mark.parametrize(
    ("order", "outcome", "says"),
    [
        (500, "failed", "HTTP 500"), (429, "failed", "HTTP 429"), (404, "failed", "HTTP 404"),
        ("malformed", "failed", "malformed JSON"), ("nothing", "failed", "Server"), ("half", "failed", "not completed"),
        ("late", "timed_out", "no answer within 1 s"),
    ],
)  # fmt: skip
async def test_a_bad_answer_of_an_environment_fails_that_episode_alone(harness, order, outcome, says, step):
    async with ChatServer() as model, EnvironmentServer() as server:
        # A GET that found no answer at all is sent again by aiohttp itself.
        before = [None] if step else ["nothing"] if order == "nothing" else []
        server.then(*before, order)
        made = talking(model.url, entry=server.url, environment={"timeout": 1.0, "retries": 0})
        records, _ = await harness.play(episodes=2, seconds=SECONDS, **made)
        assert len(server.steps) == 3 + step  # the one that went wrong is not sent again
    assert [record.outcome for record in records] == [outcome, "terminated"]
    where = f"environment.{'step' if step else 'get_task_prompt'}" if order == "malformed" else "environment"
    assert records[0].reason.startswith(f"{where}: ")
    assert says in records[0].reason


@pytest.mark.parametrize(
    ("answer", "lacks"),
    [
        ({"reward": 1.0, "terminate": True, "truncated": False}, "terminated"),
        ({"reward": None, "terminated": True}, "reward, truncated"),
    ],
)
async def test_an_answer_that_lacks_a_name_fails_its_episode_which_would_go_on_otherwise(
    harness, answer, lacks
):
    async with ChatServer() as model, EnvironmentServer() as server:
        server.then(None, answer)
        records, _ = await harness.play(episodes=2, seconds=SECONDS, **talking(model.url, entry=server.url))
    assert [(record.outcome, record.steps) for record in records] == [("failed", 0), ("terminated", 3)]
    assert records[0].reason == f"environment.step: the answer has no {lacks}"


async def test_a_model_that_is_cut_off_truncates_its_episode(harness, world):
    world.answer = lambda _: {"finish": "length"}
    records, end = await play(harness, world, episodes=1)
    assert [(r.outcome, r.reason, r.steps) for r in records] == [("truncated", "the answer was cut off", 0)]
    assert end.failures == 0
    assert steps_of(harness).truncated.tolist() == [True]


async def test_an_address_without_a_server_is_an_outcome_too(harness, world):
    made = talking("http://127.0.0.1:9/v1", entry=world.url, environment={"name": "walk"})
    records, _ = await harness.play(episodes=2, seconds=SECONDS, **made)
    assert {record.outcome for record in records} == {"failed"}


async def test_an_episode_has_a_deadline(harness):
    async with ChatServer() as model, EnvironmentServer() as server:
        model.then("late")
        made = talking(model.url, entry=server.url)
        records, end = await harness.play(episodes=2, episode_timeout=1.0, seconds=SECONDS, **made)
    assert [record.outcome for record in records] == ["timed_out", "terminated"]
    assert records[0].reason == "not done within 1 s, at work: the model"
    assert end.failures == 1


async def test_a_key_that_is_not_there_ends_the_part_with_the_name_of_its_variable(
    harness, world, monkeypatch
):
    monkeypatch.delenv("NO_KEY", raising=False)
    records, end = await play(harness, world, episodes=2, agent={"api_key_env": "NO_KEY"})
    assert (records, end.end, end.failures) == ([], "stopped", 1)
    assert "NO_KEY" in end.first_failure


async def test_a_disk_that_fills_up_fails_the_episodes_that_do_not_fit(harness, world):
    controller = await harness.start("simulation")
    link, well = harness.links["simulation"], 0
    made = talking(world.llm, entry=world.url, environment={"name": "walk"})
    async with asyncio.timeout(SECONDS):
        with full_beyond(15_000):  # holds some of them
            await controller.perform(harness.command(episodes=20, **made))
            while (first := (await link.next(EpisodeEnded, after=well)).episode).outcome == "terminated":
                well += 1
        records, end = await harness.end()
    assert 0 < well < 20
    assert (first.outcome, first.reason) == ("failed", "data manager: OSError: [Errno 27] File too large")
    assert len(records) == len(harness.lines()) == 20
    assert (end.end, end.first_failure) == ("max_episodes", f"episode {well}: {first.reason}")
    steps = steps_of(harness)
    whole = [record.index for record in records if record.outcome == "terminated"]
    assert steps[steps.episode.isin(whole)].step_id.tolist() == [1, 2, 3] * len(whole)


async def test_an_episode_that_cannot_be_recorded_is_failed_and_the_part_continues(harness, world):
    noted, arrived, go = noted_before(harness), asyncio.Event(), asyncio.Event()

    async def gate(body):
        arrived.set()
        await go.wait()

    world.gate = gate
    controller = await harness.start("simulation")
    made = talking(world.llm, entry=world.url, environment={"name": "walk"})
    await controller.perform(harness.command(episodes=200, done=noted, **made))
    await asyncio.wait_for(arrived.wait(), SECONDS)
    with full_beyond(15_000):
        go.set()
        records, end = await harness.end(seconds=SECONDS)
    assert [record.outcome for record in records] == ["failed"] * 100
    assert all("File too large" in record.reason for record in records)
    assert end.end == "max_episodes"


async def test_a_call_of_an_environment_in_python_has_its_time_where_the_phase_sets_none(
    harness, world, monkeypatch
):
    monkeypatch.setattr("governor.episodes.text.phase.CALL_SECONDS", 0.5)
    made = talking(world.llm, entry="tests.support.user_code.text_walks:Walk", environment={"fault": "hang"})
    records, _ = await harness.play(episodes=1, seconds=SECONDS, **made)
    assert [(r.outcome, r.reason) for r in records] == [
        ("timed_out", "environment.step: no answer within 0.5 s; its process is killed")
    ]


async def test_an_episode_that_failed_of_its_model_is_played_again_if_that_is_to_be_tried_again(harness):
    async with ChatServer() as model, EnvironmentServer() as server:
        model.then(500)
        made = talking(model.url, entry=server.url, timeout=1.0)
        failures = Failures(at_most=0, retry={"model": 1})
        records, end = await harness.play(episodes=3, failures=failures, seconds=SECONDS, **made)
    assert sorted(record.index for record in records) == [0, 1, 2]
    assert ({record.outcome for record in records}, end.failures) == ({"terminated"}, 0)
    [attempt] = [e for e in harness.links["simulation"].events if isinstance(e, EpisodeAttemptEnded)]
    assert (attempt.attempt, attempt.reason.partition(":")[0]) == (1, "model")
    table = steps_of(harness)
    assert table.groupby("episode")["session"].nunique().to_list() == [1, 1, 1], "the last session alone"


async def test_a_phase_with_text_ends_when_more_fail_than_it_bears(harness, world):
    made = talking(world.llm, entry="tests.support.user_code.text_walks:Walk", environment={"fault": "raise"})
    records, end = await harness.play(
        episodes=200, workers=3, failures=Failures(at_most="1%"), seconds=SECONDS, **made
    )
    failed = [record.outcome for record in records].count("failed")
    assert (end.end, 3 <= failed <= 5) == ("failures", True)
    assert end.exceeded == "failures.at_most of 2 (1% of 200 episodes)"
