import csv
import io
import json
import os
import subprocess
import sys
from pathlib import Path

import msgspec
import pandas as pd
import pytest
from click.testing import CliRunner

from governor.cli import ask, cli
from governor.episodes import spaces, trajectories
from governor.episodes.records import episode_file
from governor.episodes.text.sessions import DataManager
from governor.errors import ExitCode, GovernorError
from governor.messages import EpisodeRecord
from tests.governor.cli.recorded import RESULT
from tests.support.full_disk import full_beyond
from tests.support.language_models.recorded_sessions import record, session
from tests.support.recorded_steps import columns, play, recorder

ROOT = Path(__file__).parents[3]


def episode(index, **more):
    values = {"worker": 0, "seed": 1, "outcome": "terminated", "value": 0.5, "steps": 3, "seconds": 0.25}
    return EpisodeRecord(index=index, **{**values, **more})


@pytest.fixture
def run(tmp_path, monkeypatch):
    """The folder of a run with three episodes of a phase, one of which failed, as its daemon tells of it."""
    folder = tmp_path / "run"
    path = episode_file.path_of(folder, "train")
    with episode_file.EpisodeFile(path=path, phase="train", mode="train", reported=()) as file:
        for index in range(2):
            file.append(episode(index))
        file.append(episode(2, outcome="failed", steps=0, value=float("nan"), reason='no, "floor"\n'))
    made = recorder(folder)
    play(made, 0, steps=3)
    play(made, 1, steps=3)
    made.close()
    trajectories.finalize(folder, "train")
    result = msgspec.structs.replace(RESULT, folder=str(folder))
    monkeypatch.setattr(ask, "ask", lambda broker, question: result)
    return folder


def results(*arguments):
    return CliRunner().invoke(cli, ["results", "u1", *map(str, arguments)], prog_name="governor")


def test_json_without_rows_is_the_result(run):
    assert results("--json").stdout == results("--format", "json").stdout
    assert json.loads(results("--json").stdout)["uid"] == "u1"
    assert "lake u1 failed" in results().stdout
    assert results("--format", "table").stdout == results().stdout


def test_the_report_of_the_run_is_named_when_there_is_one(run):
    page = run / "report.html"
    assert "Report:" not in results().stdout
    page.write_text("<!doctype html>")
    assert results().stdout.splitlines()[-1] == f"Report: {page}"
    for more in (["--json"], ["--of", "episodes"], ["--of", "episodes", "--json"]):
        done = results(*more)
        assert (done.exit_code, str(page) in done.stdout) == (0, False), more


def test_episodes(run):
    done = results("--of", "episodes", "--json")
    found = json.loads(done.stdout)
    assert [one["outcome"] for one in found] == ["terminated", "terminated", "failed"]
    assert found[0] == {
        "phase": "train", "mode": "train", "index": 0, "worker": 0, "seed": 1, "outcome": "terminated", "value": 0.5,
        "steps": 3, "seconds": 0.25, "reason": "", "values": None, "evaluation": 0, "traceback": None,
    }  # fmt: skip
    assert found[2]["value"] is None
    rows = list(csv.DictReader(io.StringIO(results("--format", "csv").stdout)))
    assert [row["index"] for row in rows] == ["0", "1", "2"]
    assert rows[2]["reason"] == 'no, "floor"\n'
    assert "floor" in results("--of", "episodes").stdout


def test_a_damaged_file_of_steps_is_named(run):
    path = episode_file.parquet_of(run, "train")
    whole = path.read_bytes()
    rows, end = whole[4:400], whole[-40:]
    for damaged in (
        whole[:500],
        b"",
        whole[: -len(end)] + end[::-1],
        whole[:4] + bytes(len(rows)) + whole[400:],
    ):
        path.write_bytes(damaged)
        done = results("--of", "steps", "--json")
        assert done.exit_code == ExitCode.INTERNAL
        assert done.stderr.startswith(f"governor: error: {path} is damaged (")
        assert done.stderr.endswith("); put a copy of the file back, or submit its run file again\n")
        assert "bug" not in done.stderr
    path.write_bytes(whole)
    assert results("--of", "steps", "--json").exit_code == 0
    path.write_bytes(whole[:500])
    later = recorder(run)
    play(later, 2, steps=1)
    later.close()
    with pytest.raises(GovernorError, match=f"^{path} is damaged "):
        trajectories.finalize(run, "train")


def test_returns_of_several_players(run, monkeypatch):
    path = episode_file.path_of(run, "train")
    with episode_file.EpisodeFile(path=path, phase="train", mode="train", reported=[0]) as file:
        file.append(episode(1, values={"red": 0.5, "blue": -1.0}))
    assert "values" not in json.loads(path.read_text().splitlines()[0])
    for form, read in (("json", pd.read_json), ("csv", pd.read_csv)):
        frame = read(io.StringIO(results("--of", "episodes", "--format", form).stdout))
        assert [value if isinstance(value, str) else None for value in frame["values"]] == [
            None,
            '{"red":0.5,"blue":-1.0}',
        ]
    found = ask.ask(None, None)
    phase = msgspec.structs.replace(
        found.phases[0], metrics={"return_mean": -0.5, "return_mean.red": 0.5, "return_mean.blue": -1.0}
    )
    monkeypatch.setattr(ask, "ask", lambda *_: msgspec.structs.replace(found, phases=(phase,)))
    assert "-0.5; red 0.5, blue -1" in results().stdout


def test_metrics_of_the_user_are_columns(run, monkeypatch):
    path = episode_file.path_of(run, "train")
    with episode_file.EpisodeFile(path=path, phase="train", mode="train", reported=[0]) as file:
        file.append(
            episode(1, metrics={"success": 1.0, "train/loss": 0.5}), episode(2, metrics={"success": 0.0})
        )
    for form, read in (("json", pd.read_json), ("csv", pd.read_csv)):
        frame = read(io.StringIO(results("--of", "episodes", "--format", form).stdout))
        assert frame["metrics.success"].fillna(-1).tolist() == [-1, 1, 0]
        assert frame["metrics.train/loss"].fillna(-1).tolist() == [-1, 0.5, -1]
    found = ask.ask(None, None)
    metrics = {"return_mean": 0.5, "success_mean": 0.75, "success_min": 0.0, "success_max": 1.0}
    phase = msgspec.structs.replace(found.phases[0], metrics=metrics)
    monkeypatch.setattr(ask, "ask", lambda *_: msgspec.structs.replace(found, phases=(phase,)))
    shown = results().stdout.splitlines()
    at = next(number for number, line in enumerate(shown) if line.startswith("train: metric"))
    assert shown[at].split() == ["train:", "metric", "mean", "min", "max", "not", "finite"]
    assert shown[at + 2].split() == ["success", "0.75", "0", "1", "-"]


def test_tasks_need_no_folder(run):
    (run / "episodes").rename(run.parent / "elsewhere")
    run.rmdir()
    found = json.loads(results("--of", "tasks", "--format", "json").stdout)
    assert [(one["task"], one["run"], one["outcome"]) for one in found] == [
        ("load", 0, "succeeded"), ("fit", 0, "succeeded"), ("fit", 1, "timed_out"), ("show", 0, "upstream_failed"),
    ]  # fmt: skip
    assert json.loads(found[1]["metrics"]) == {"gain": 0.25}
    done = results("--of", "episodes", "--format", "csv")
    assert (done.exit_code, done.stdout) == (2, "")
    assert f"the folder of run u1, {run}, is not on this machine" in done.stderr


@pytest.mark.parametrize("form", ["json", "csv", "parquet"])
def test_steps_in_a_file(run, tmp_path, form):
    path = tmp_path / "steps"
    done = results("--of", "steps", "--format", form, "--output", path)
    assert (done.exit_code, done.output) == (0, "")
    frame = {"json": pd.read_json, "csv": pd.read_csv, "parquet": pd.read_parquet}[form](path)
    assert frame.episode.tolist() == [0] * 3 + [1] * 3
    assert frame.reward.sum() == 3.0
    assert list(frame.columns) == trajectories.read(run).column_names
    assert sorted(entry.name for entry in tmp_path.iterdir()) == ["run", "steps"]


def test_a_table_for_people_shows_the_first_steps(run):
    again = recorder(run)
    play(again, 0, steps=100)
    again.close()
    said = results("--of", "steps").stdout
    assert "63 more: --format csv, json or parquet has all" in said
    assert len(said.splitlines()) < 50


def test_vectors_and_sessions_in_csv_and_json(run, monkeypatch):
    import gymnasium.spaces as gym
    import numpy as np

    for phase, space in (("small", gym.Box(-1, 1, (2,))), ("large", gym.Box(-1, 1, (100,)))):
        made = recorder(run, phase=phase, made=columns(space, gym.Discrete(2)))
        made.begin(episode=0, seed=0)
        made.step(np.full(space.shape, 0.5, space.dtype), 1, 1.0, True, False)
        made.end(outcome="terminated")
        made.close()
    manager = DataManager(run, phase="talk")
    record(manager, session(manager))
    manager.close()
    small, large, talk = (
        next(
            csv.DictReader(io.StringIO(results("--of", "steps", "--format", "csv", "--phase", phase).stdout))
        )
        for phase in ("small", "large", "talk")
    )
    assert (small["observation.0"], small["observation.1"]) == ("0.5", "0.5")
    assert json.loads(large["observation"]) == [0.5] * 100
    assert "[0.5, 0.5, 0.5, ... 100 in all]" in results("--of", "steps", "--phase", "large").stdout
    assert json.loads(talk["messages"])[0]["role"] == "user"
    told = json.loads(results("--of", "steps", "--json", "--phase", "talk").stdout)
    assert (told[0]["response"], told[0]["outcome"]) == ("4", None)
    done = results("--of", "steps", "--format", "csv")
    assert (done.exit_code, done.stdout) == (2, "")
    assert (
        "the phases 'train', 'large', 'small', 'talk' have different columns: choose one (--phase, in Python phase)"
        in done.stderr
    )


@pytest.mark.parametrize("form", ["csv", "json", "parquet"])
def test_values_with_parts(run, tmp_path, form):
    import gymnasium.spaces as gym
    import pyarrow.parquet as pq

    space = gym.Dict(
        [
            ("a.b", gym.Tuple([gym.Box(-1, 1, (2,)), gym.Text(9, charset='x,"')])),
            ("many", gym.Sequence(gym.Discrete(9))),
            ("one", gym.OneOf([gym.Discrete(9), gym.Box(-1, 1, (1,))])),
            ("none", gym.Dict()),
        ]
    )
    value = {"a.b": ([0.5, 0.25], 'x,"'), "many": (1, 2, 3), "one": (1, [0.5]), "none": {}}
    made = recorder(run, phase="parts", made=columns(space, gym.Discrete(2)))
    encoded = spaces.observer(spaces.describe(space, role="x"))(value)[1]
    made.begin(episode=0, seed=0)
    made.step(encoded, 1, 1.0, True, False)
    made.end(outcome="terminated")
    made.close()
    path = tmp_path / "steps"
    done = results("--of", "steps", "--format", form, "--phase", "parts", "--output", path)
    assert (done.exit_code, done.stderr) == (0, "")
    if form == "csv":
        (row,) = csv.DictReader(path.open(newline=""))
        observed = {
            name.removeprefix("observation."): text
            for name, text in row.items()
            if name.startswith("observation")
        }
        assert observed == {
            "a.b.0.0": "0.5", "a.b.0.1": "0.25", "a.b.1": 'x,"', "many": "[1,2,3]",
            "one.choice": "1", "one.0": "", "one.1.0": "0.5", "none": "",
        }  # fmt: skip
        return
    (row,) = json.loads(path.read_text()) if form == "json" else pq.read_table(path).to_pylist()
    assert row["observation"] == {
        "a.b": {"0": [0.5, 0.25], "1": 'x,"'},
        "many": [1, 2, 3],
        "one": {"choice": 1, "0": None, "1": [0.5]},
        "none": None,
    }


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["--format", "xml"], "'xml' is not one of 'table', 'json', 'csv', 'parquet'"),
        (["--of", "runs"], "--of runs and --metric are of a group of runs"),
        (["--json", "--format", "csv"], "--json and --format csv contradict each other"),
        (["--output", "x"], "say of what with --of"),
        (["--of", "episodes", "--phase", "nope"], "no phase 'nope': 'train', 'analyse'"),
        (["--of", "steps", "--phase", "nope"], "no phase 'nope': 'train', 'analyse'"),
        (["--of", "steps", "--phase", "analyse"], "no steps on record of phase 'analyse'"),
        (["--of", "tasks", "--phase", "train"], "no tasks on record of phase 'train'"),
        (["--of", "steps", "--output", "/nowhere/at/all"], "/nowhere/at/all: No such file or directory"),
        (["--of", "steps", "--output", "/"], "/: Is a directory"),
    ],
)
def test_a_usage_error_exits_with_2(run, arguments, said):
    done = results(*arguments)
    assert (done.exit_code, done.stdout) == (2, "")
    assert said in done.stderr


def test_a_file_that_may_not_be_written_is_77(run):
    done = results("--of", "steps", "--output", "/sys/kernel/steps")
    assert (done.exit_code, done.stdout) == (77, "")
    assert "/sys/kernel/steps" in done.stderr


@pytest.mark.parametrize("form", ["table", "json", "csv", "parquet"])
def test_a_full_disk_exits_with_75_and_keeps_the_old_file(run, tmp_path, form):
    path = tmp_path / "steps"
    path.write_text("before")
    with full_beyond(100):
        done = results("--of", "steps", "--format", form, "--output", path)
    assert (done.exit_code, done.stdout) == (75, "")
    assert "File too large" in done.stderr
    assert path.read_text() == "before"
    assert sorted(entry.name for entry in tmp_path.iterdir()) == ["run", "steps"]


def test_a_link_leads_to_the_file_that_is_written_and_no_other_file_is_touched(run, tmp_path):
    link, target, part = tmp_path / "link.csv", tmp_path / "steps.csv", tmp_path / "steps.csv.part"
    link.symlink_to(target)
    part.write_text("precious")
    assert results("--of", "steps", "--format", "csv", "--output", link).exit_code == 0
    assert link.is_symlink()
    assert target.read_text().startswith('"phase"')
    assert part.read_text() == "precious"


def test_the_full_device_is_75(run):
    done = results("--of", "steps", "--format", "csv", "--output", "/dev/full")
    assert (done.exit_code, done.stdout) == (75, "")
    assert "No space left on device" in done.stderr
    assert Path("/dev/full").is_char_device()


def test_parquet_is_nothing_for_a_terminal(run, monkeypatch):
    from governor.cli.rendering import exports

    class Terminal(io.StringIO):
        def isatty(self):
            return True

    monkeypatch.setattr(exports.sys, "stdout", Terminal())
    with pytest.raises(exports.UsageError, match="say --output FILE"):
        exports.export(RESULT, "steps", form="parquet", phase=None, output=None)


def test_arrow_is_imported_for_rows_alone():
    code = "import sys; from governor.cli.results import command; import governor.daemon.daemon; assert 'pyarrow' not in sys.modules"
    subprocess.run(
        [sys.executable, "-c", code], cwd=ROOT, env={**os.environ, "PYTHONPATH": str(ROOT)}, check=True
    )
