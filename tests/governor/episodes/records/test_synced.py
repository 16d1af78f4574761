"""What a loss of power leaves: nothing is replaced or removed before the new file is on the disk, with its name."""

import os
from pathlib import Path

import pytest

from governor.episodes import trajectories
from governor.episodes.records import state_file
from governor.episodes.records.checkpoints import Checkpoints
from governor.episodes.records.episode_file import EpisodeFile
from governor.index_ranges import IndexRanges
from governor.messages import Checkpoint, EpisodeRecord
from governor.runs.record.result import save_result
from tests.support.recorded_steps import play, recorder
from tests.support.run_results import run_result


@pytest.fixture
def calls(monkeypatch):
    """What is synced, named and removed, in order; a file that is being written is ``new``."""
    made = []
    fsync, replace, unlink = os.fsync, Path.replace, Path.unlink

    def name(path):
        path = Path(path)
        return "folder" if path.is_dir() else "new" if path.suffix == ".part" else path.name

    def sync(fd):
        made.append(("sync", name(Path(f"/proc/self/fd/{fd}").readlink())))
        fsync(fd)

    def give(path, target):
        made.append(("name", Path(target).name))
        return replace(path, target)

    def remove(path, *, missing_ok=False):
        if path.exists():
            made.append(("remove", path.name))
        unlink(path, missing_ok=missing_ok)

    monkeypatch.setattr(os, "fsync", sync)
    monkeypatch.setattr(Path, "replace", give)
    monkeypatch.setattr(Path, "unlink", remove)
    return made


def whole(name):
    return [("sync", "new"), ("name", name), ("sync", "folder")]


def test_the_table_of_a_phase(tmp_path, calls):
    made = recorder(tmp_path)
    play(made, 0, steps=3)
    made.close()
    trajectories.finalize(tmp_path, "train")
    assert calls == [*whole("train.parquet"), ("remove", "train.0.1.arrow")]


def test_the_lines_of_episodes_opened_again(tmp_path, calls):
    told = {"path": tmp_path / "train.jsonl", "phase": "train", "mode": "train"}
    record = EpisodeRecord(index=0, worker=0, seed=1, outcome="terminated", value=1.0, steps=5, seconds=0.1)
    with EpisodeFile(reported=IndexRanges(), **told) as file:
        file.append(record)
    EpisodeFile(reported=IndexRanges.of([0]), **told).__exit__()
    assert calls == [], "it is never written anew"
    (tmp_path / "of another run").hardlink_to(tmp_path / "train.jsonl")
    EpisodeFile(reported=IndexRanges.of([0]), **told).__exit__()
    assert calls == whole("train.jsonl")


def test_a_state(tmp_path, calls):
    state_file.save(tmp_path / "a.state", {"x": 1}, sync=False)
    assert calls == [("name", "a.state")]
    state_file.save(tmp_path / "a.state", {"x": 1})
    assert calls[1:] == whole("a.state")


async def test_a_checkpoint(tmp_path, calls):
    async def copy(name, path):
        state_file.save(path, {"x": 1})

    await Checkpoints(Checkpoint(last=True), folder=tmp_path, agents=["a"], copy=copy).last(7)
    assert calls == [
        *whole("a.last.state.7.new"),
        *whole("index.json.new"),
        ("name", "a.last.state"),
        ("name", "index.json"),
        ("sync", "folder"),
    ]


def test_a_result(tmp_path, calls):
    save_result(run_result(folder=str(tmp_path)), tmp_path)
    assert calls == whole("result.json")
