"""Numbers of info and of user code on record: columns of steps, figures of episodes, metrics of phases, rules."""

import json
import shutil

import pyarrow.parquet as pq
import pytest
from structlog.testing import capture_logs

from governor.episodes import trajectories
from governor.messages import Checkpoint, Evaluate, Until
from tests.support.in_process_commands import inside, parallel

NAMED = {"success": "last", "speed": "mean", "left": "min", "level": "last", "episode.r": "last"}
TOLD = "metrics_world:Told"
TRANSPORTS = ["in_process", "conductors", "vector", "rounds"]


def steps_of(harness, phase="train"):
    return pq.read_table(harness.folder / "run/episodes" / f"{phase}.parquet")


@pytest.mark.parametrize("transport", TRANSPORTS)
async def test_named_keys_are_columns_figures_and_metrics(harness, transport):
    more = await harness.stage(transport, entry=TOLD)
    records, end = await harness.play(episodes=6, info=NAMED, **more)
    levels = {record.index: record.seed % 5 for record in records}
    assert {record.index: record.metrics for record in records} == {
        index: {"success": 1.0, "speed": 0.75, "left": 0.0, "level": float(level), "episode.r": 2.5}
        for index, level in levels.items()
    }
    assert harness.lines()[0]["metrics"] == records[0].metrics
    table = steps_of(harness)
    assert [name for name in table.column_names if name.startswith("info.")] == [
        "info.episode.r", "info.left", "info.level", "info.speed", "info.success",
    ]  # fmt: skip
    first = table.slice(0, 5)
    assert first["info.success"].to_pylist() == [0.0, 0.0, 0.0, 0.0, 1.0]
    assert first["info.episode.r"].to_pylist() == [None, None, None, None, 2.5]
    assert first["info.speed"].to_pylist() == [0.25, 0.5, 0.75, 1.0, 1.25]
    assert first["info.level"].null_count == 5
    found = {name: end.metrics[f"success_{name}"] for name in ("mean", "min", "max")}
    assert found == {"mean": 1.0, "min": 1.0, "max": 1.0}
    assert end.metrics["level_max"] == max(levels.values())


@pytest.mark.parametrize("transport", TRANSPORTS)
async def test_all_takes_what_is_a_number(harness, transport):
    more = await harness.stage(transport, entry=TOLD, odd="text", later="late")
    records, _ = await harness.play(episodes=20, info="all", **more)
    assert {*records[0].metrics} - {"late"} == {"success", "speed", "left", "level", "episode.r", "episode.l"}
    table = steps_of(harness)
    assert [name for name in table.column_names if name.startswith("info.")] == [
        "info.episode.l", "info.episode.r", "info.late", "info.left", "info.speed", "info.success",
    ]  # fmt: skip
    late = dict(zip(table["episode"].to_pylist(), table["info.late"].to_pylist(), strict=True))
    assert late == {record.index: record.metrics.get("late") for record in records}
    assert {None, 1.0} == set(late.values())


@pytest.mark.parametrize("transport", TRANSPORTS)
async def test_an_episode_whose_reset_fails_has_no_figures(harness, transport):
    more = await harness.stage(transport, entry="metrics_world:Unready")
    records, _ = await harness.play(episodes=8, info=NAMED, **more)
    failed = [record for record in records if record.outcome == "failed"]
    assert failed
    assert [record.metrics for record in failed] == [{}] * len(failed)


async def test_without_info_nothing_is_added(harness):
    records, end = await harness.play(**inside(entry=TOLD))
    assert records[0].metrics == {}
    assert "metrics" not in harness.lines()[0]
    assert not [name for name in steps_of(harness).column_names if name.startswith("info")]
    assert not [name for name in end.metrics if name.startswith("success")]


@pytest.mark.parametrize("transport", TRANSPORTS)
@pytest.mark.parametrize("odd", ["text", "array", "dict"])
async def test_a_named_key_that_is_no_number_fails_its_episode(harness, transport, odd):
    more = await harness.stage(transport, entry=TOLD, odd=odd)
    records, _ = await harness.play(episodes=2, info={"odd": "last", "left": "last"}, **more)
    assert {record.outcome for record in records} == {"failed"}
    assert all(record.reason.startswith("environment.step: ValueError: info: 'odd' is") for record in records)


async def test_nan_stays_in_the_steps_and_is_counted_in_figures(harness):
    records, end = await harness.play(episodes=1, info={"odd": "last"}, **inside(entry=TOLD, odd="nan"))
    assert records[0].metrics == {"odd.nonfinite": 1.0}
    assert str(steps_of(harness)["info.odd"].to_pylist()[:3]) == "[None, nan, None]"
    assert end.metrics["odd_nonfinite"] == 1.0


@pytest.mark.parametrize("transport", TRANSPORTS)
async def test_reports_are_figures_of_the_episode_that_they_were_made_in(harness, transport):
    more = await harness.stage(transport, entry="metrics_world:Reporting", agent="metrics_world:Critic")
    records, end = await harness.play(episodes=4, **more)
    for record in records:
        figures = record.metrics
        assert (figures["number"], figures["number_of_act"]) == (record.index, record.index)
        assert (figures["resets"], figures["height"], figures["phase"]) == (1.0, 2.0, 5.0)
        assert figures["flag"] == 1.0
    assert (
        sum(record.metrics.get("loss.nonfinite", 0) for record in records)
        == end.metrics["loss_nonfinite"]
        == 5
    )
    if transport in {"in_process", "conductors"}:
        assert [record.metrics["loss"] for record in records] == [
            (1 + 2 + 3 + 5) / 4,
            8.0,
            (11 + 13 + 14 + 15) / 4,
            18.0,
        ]
        assert [record.metrics["train/learned"] for record in records] == [5, 10, 15, 20]


@pytest.mark.parametrize("transport", ["vector", "rounds"])
async def test_a_report_of_act_many_counts_for_each_of_its_episodes(harness, transport):
    more = await harness.stage(transport, entry=TOLD, agent="metrics_world:ManyCritic")
    records, _ = await harness.play(episodes=8, **more)
    assert {record.metrics["at_once"] for record in records} == {1.0}


@pytest.mark.parametrize("transport", TRANSPORTS)
async def test_reports_of_other_threads_are_on_record(harness, transport):
    more = await harness.stage(transport, entry=TOLD, agent="metrics_world:Beside")
    records, _ = await harness.play(episodes=2, **more)
    assert any(record.metrics.get("loss") == 4.0 for record in records)


async def test_a_learner_beside_its_actor_reports_for_the_episode_of_its_transition(harness):
    await harness.pair(entry=TOLD, agent="metrics_world:Critic")
    records, _ = await harness.play(episodes=3, max_staleness=4)
    assert [record.metrics["train/learned"] for record in records] == [5, 10, 15]
    assert records[0].metrics["loss"] == (1 + 2 + 3 + 5) / 4


@pytest.mark.parametrize("transport", ["in_process", "conductors"])
async def test_metrics_that_are_none_fail_the_episode(harness, transport):
    more = await harness.stage(transport, agent="metrics_world:Wordy")
    records, _ = await harness.play(episodes=1, **more)
    assert records[0].outcome == "failed"
    assert records[0].reason == "agent.metrics: TypeError: metrics(): 'loss' is of type str, not a number"


async def test_infos_of_players(harness):
    more = parallel(env="metrics_world:PairTold", agent="Always")
    records, end = await harness.play(episodes=2, info={"steps_left": "last", "tag": "sum"}, **more)
    assert records[0].metrics == {"red.steps_left": 0.0, "red.tag": 6.0, "blue.steps_left": 0.0}
    assert end.metrics["red.tag_mean"] == 6.0
    table = steps_of(harness).slice(0, 5)
    assert table["info.red.tag"].to_pylist() == [1.0, 2.0, 3.0, None, None]
    assert table["info.blue.steps_left"].to_pylist() == [4.0, 3.0, 2.0, 1.0, 0.0]
    assert table["info.blue.tag"].null_count == 5


@pytest.mark.parametrize("transport", ["in_process", "conductors", "rounds"])
async def test_rules_stand_on_what_was_reported_and_told(harness, transport):
    more = await harness.stage(transport, entry=TOLD, agent="metrics_world:Critic")
    until = (Until(metric="train/learned", at_least=12),)
    records, end = await harness.play(
        episodes=30, until=until, reports=("train/learned",), info=NAMED, **more
    )
    assert end.end == "until"
    ended = [record.metrics["train/learned"] for record in records if record.outcome == "terminated"]
    assert ended[-1] >= 12
    assert len(ended) < 12


async def test_evaluations_and_checkpoints_stand_on_keys_of_info(harness):
    evaluate = Evaluate(every=2, episodes=2, metric="speed", at_least=0.7)
    _, end = await harness.play(episodes=9, info=NAMED, evaluate=evaluate, **inside(entry=TOLD))
    assert end.end == "until"
    assert end.metrics["evaluation_speed_mean"] == 0.75


async def test_the_best_checkpoint_by_a_reported_loss(harness):
    best = Checkpoint(every=1, best=True, metric="train/learned", direction="min")
    more = inside(entry=TOLD, agent="metrics_world:Critic")
    await harness.play(episodes=4, reports=("train/learned",), checkpoint=best, **more)
    kept = json.loads((harness.folder / "run/checkpoints/train/index.json").read_text())["best"]
    assert (kept["episodes"], kept["metric"]) == (1, 5.0)


@pytest.mark.parametrize("info", [NAMED, "all"])
async def test_a_resumed_run_has_the_same_steps(harness, info):
    more = inside(entry=TOLD, later="late")
    records, _ = await harness.play(episodes=12, info=info, **more)
    path = harness.folder / "run/episodes/train.parquet"
    whole = path.read_bytes()
    for name in ("episodes", "agents"):
        shutil.rmtree(harness.folder / "run" / name)
    first, _ = await harness.play(episodes=5, info=info, incarnation=2, **more)
    rest, _ = await harness.play(episodes=12, info=info, done=first, incarnation=3, **more)
    assert [record.metrics for record in [*first, *rest]] == [record.metrics for record in records]
    assert path.read_bytes() == whole


async def test_phases_may_differ_in_their_keys(harness):
    more = inside(entry=TOLD)
    await harness.play(episodes=1, name="one", info={"left": "last"}, **more)
    await harness.play(episodes=1, name="two", phase=1, info="all", incarnation=2, **more)
    await harness.play(episodes=1, name="three", phase=2, incarnation=3, **more)
    table = trajectories.read(harness.folder / "run")
    assert len(table) == 15
    assert table["info.left"].null_count == 5
    assert table["info.success"].null_count == 10


async def test_a_key_that_no_episode_had_is_named_at_the_end(harness):
    with capture_logs() as logs:
        await harness.play(info={"sucess": "last", "left": "last"}, **inside(entry=TOLD))
        await harness.play(
            name="two", phase=1, incarnation=2, info={"tag": "last"}, **parallel(env="metrics_world:PairTold")
        )
    told = [line for line in logs if line["event"] == "info.keys_missing"]
    assert [(line["phase"], line["keys"], line["log_level"]) for line in told] == [
        ("train", ["sucess"], "warning")
    ]
