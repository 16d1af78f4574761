"""The file of a phase whose steps have numbers of `info`: the same bytes, whenever a key was seen first and wherever it came from."""

import pyarrow.parquet as pq
import pytest

from governor.episodes import trajectories
from governor.episodes.records import merge
from governor.episodes.records.recording import Columns
from tests.support.recorded_steps import COLUMNS, recorder

ALL = Columns(alone=COLUMNS.alone, info="all")
EPISODES = 40


@pytest.fixture(autouse=True)
def small(monkeypatch):
    """Few steps are many row groups."""
    monkeypatch.setattr(merge, "ROWS", 16)


def told(episode, step):
    """A new key now and then, and steps without any."""
    found = {f"k{episode // 10}": float(step), "a": float(episode)}
    return {} if step == 1 else found


def record(folder, episodes, *, made=ALL, worker=0):
    one = recorder(folder, made=made, worker=worker)
    for episode in episodes:
        one.begin(episode=episode, seed=episode)
        for step in range(3):
            info = told(episode, step)
            row = info if made.info == "all" else [info.get(name) for name in made.info]
            one.step(step, 0, 0.5, step == 2, False, info=row)
        one.end(outcome="terminated")
    one.close()


def whole(folder):
    record(folder, range(EPISODES))
    return trajectories.finalize(folder, "train").read_bytes()


def test_a_key_that_comes_late_is_a_column_of_all_rows(tmp_path):
    whole(tmp_path)
    table = pq.read_table(trajectories.parquet_of(tmp_path, "train"))
    names = [name for name in table.column_names if name.startswith("info.")]
    assert names == ["info.a", "info.k0", "info.k1", "info.k2", "info.k3"]
    for name in names:
        column = dict(zip(zip(table["episode"].to_pylist(), table["step"].to_pylist(), strict=True), table[name].to_pylist(), strict=True))  # fmt: skip
        assert column == {
            (episode, step): told(episode, step).get(name.removeprefix("info."))
            for episode in range(EPISODES)
            for step in range(3)
        }


@pytest.mark.parametrize("every", [3, 10, 11])
def test_it_is_begun_anew_when_a_key_comes_while_it_is_made(tmp_path, every):
    expected = whole(tmp_path / "whole")
    conversion = trajectories.Conversion(tmp_path / "advanced", "train")
    for first in range(0, EPISODES, every):
        record(tmp_path / "advanced", range(first, min(first + every, EPISODES)))
        conversion.advance(first + every)
    assert conversion.finish().read_bytes() == expected


def test_several_workers_and_processes_make_the_same_columns(tmp_path):
    whole(tmp_path / "whole")
    for worker in (1, 0):
        record(tmp_path / "parts", range(worker, EPISODES, 2), worker=worker)
    trajectories.finalize(tmp_path / "parts", "train")
    tables = [pq.read_table(trajectories.parquet_of(tmp_path / name, "train")) for name in ("whole", "parts")]
    first, second = (table.drop_columns(["worker"]) for table in tables)
    assert first.equals(second)


def test_a_file_made_before_is_taken_up_with_streams_that_have_other_keys(tmp_path):
    record(tmp_path, range(10))
    trajectories.finalize(tmp_path, "train")
    record(tmp_path, range(10, EPISODES))
    trajectories.finalize(tmp_path, "train")
    assert trajectories.parquet_of(tmp_path, "train").read_bytes() == whole(tmp_path / "whole")


def test_a_run_file_that_names_other_keys_adds_columns(tmp_path):
    record(tmp_path, range(5), made=named("a"))
    record(tmp_path, range(5, 10), made=named("k0", "a"))
    record(tmp_path, range(10, 12), made=COLUMNS)
    trajectories.finalize(tmp_path, "train")
    table = pq.read_table(trajectories.parquet_of(tmp_path, "train"))
    assert [name for name in table.column_names if name.startswith("info.")] == ["info.a", "info.k0"]
    assert (len(table), table["info.a"].null_count, table["info.k0"].null_count) == (36, 10 + 6, 15 + 5 + 6)


def named(*names):
    return Columns(alone=COLUMNS.alone, info=names)
