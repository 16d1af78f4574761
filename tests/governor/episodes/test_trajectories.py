import errno
import shutil

import gymnasium.spaces as gym
import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from governor.episodes import trajectories
from governor.episodes.records import merge, stream
from governor.episodes.records.episode_file import EpisodeFile, path_of
from governor.errors import UsageError
from governor.index_ranges import IndexRanges
from governor.messages import EpisodeRecord, PhaseResult
from governor.rows import rows_of
from tests.support.full_disk import full_beyond
from tests.support.recorded_steps import columns, play, recorder, rows, run_code


def files(folder):
    return sorted(path.name for path in (folder / "episodes").iterdir())


def test_pandas_reads_a_phase_in_one_line(tmp_path):
    made = recorder(tmp_path)
    play(made, 0, steps=2)
    made.close()
    trajectories.finalize(tmp_path, "train")
    frame = pd.read_parquet(f"{tmp_path}/episodes/train.parquet")
    assert frame.groupby("episode").reward.sum().to_dict() == {0: 1.0}
    assert frame.phase.tolist() == ["train", "train"]
    assert frame.outcome.dtype == "category"


def test_workers_are_merged_in_order_of_episode_and_step(tmp_path):
    made = [recorder(tmp_path, worker=worker) for worker in range(3)]
    for episode in (4, 0, 2, 1, 3):
        play(made[episode % 3], episode, steps=episode + 1)
    for one in made:
        one.close()
    before = trajectories.read(tmp_path)
    path = trajectories.finalize(tmp_path, "train")
    assert rows(tmp_path, "episode", "step") == [
        (episode, step) for episode in range(5) for step in range(episode + 1)
    ]
    assert before.equals(trajectories.read(tmp_path))
    assert files(tmp_path) == ["train.parquet"]
    assert path == tmp_path / "episodes/train.parquet"


def test_row_groups_are_bounded(tmp_path, monkeypatch):
    monkeypatch.setattr(merge, "ROWS", 10)
    made = recorder(tmp_path)
    for episode in range(20):
        play(made, episode, steps=4)
    made.close()
    metadata = pq.read_metadata(trajectories.finalize(tmp_path, "train"))
    assert [metadata.row_group(group).num_rows for group in range(metadata.num_row_groups)] == [10] * 8
    again = recorder(tmp_path)
    play(again, 7, steps=1)
    again.close()
    trajectories.finalize(tmp_path, "train")
    expected = [(episode, step) for episode in range(20) for step in range(1 if episode == 7 else 4)]
    assert rows(tmp_path, "episode", "step") == expected


def test_a_finalizing_that_died_is_done_again(tmp_path):
    for worker, steps in ((1, 3), (0, 2)):  # the second life played episode 0 again
        made = recorder(tmp_path, worker=worker)
        play(made, 0, steps=steps)
        play(made, worker + 1, steps=1)
        made.close()
    shutil.copytree(tmp_path / "episodes", tmp_path / "kept")
    trajectories.finalize(tmp_path, "train")
    expected = rows(tmp_path, "episode", "step", "worker")
    assert expected == [(0, 0, 0), (0, 1, 0), (1, 0, 0), (2, 0, 1)]
    for left in (["train.1.1.arrow", "train.0.2.arrow"], ["train.0.2.arrow"]):
        for name in left:
            shutil.copy(tmp_path / "kept" / name, tmp_path / "episodes" / name)
        (tmp_path / "episodes/.train.parquet.part").write_bytes(b"half")
        trajectories.finalize(tmp_path, "train")
        assert rows(tmp_path, "episode", "step", "worker") == expected
        assert files(tmp_path) == ["train.parquet"]


def test_only_episodes_on_record_are_kept(tmp_path):
    made = recorder(tmp_path)
    for episode in range(4):
        play(made, episode, steps=1)
    made.close()
    trajectories.finalize(tmp_path, "train", episodes=IndexRanges.of([1, 3, 9]))
    assert rows(tmp_path, "episode") == [(1,), (3,)]


def test_streams_that_a_stop_has_left_give_the_rows_that_their_file_would_have(tmp_path):
    one = recorder(tmp_path)
    play(one, 0, steps=2)
    play(one, 1, steps=3)
    one.close()
    ended = EpisodeRecord(index=1, worker=0, seed=1, outcome="terminated", value=1.0, steps=3, seconds=0.1)
    lines = path_of(tmp_path, "train")
    with EpisodeFile(path=lines, phase="train", mode="train", reported=IndexRanges()) as file:
        file.append(ended)
    phase = PhaseResult(name="train", mode="train", end="aborted")
    _, groups = rows_of("r1", tmp_path, [phase], "steps", phase=None)
    left = pa.concat_tables(groups)
    trajectories.finalize(tmp_path, "train", episodes=IndexRanges.of([1]))
    assert left.to_pylist() == trajectories.read(tmp_path, "train").to_pylist()
    assert set(left["episode"].to_pylist()) == {1}


def test_a_full_disk_leaves_what_was_recorded(tmp_path):
    made = recorder(tmp_path)
    play(made, 0, steps=5)
    made.close()
    before = files(tmp_path)
    with full_beyond(200), pytest.raises(OSError, match="File too large"):
        trajectories.finalize(tmp_path, "train")
    assert files(tmp_path) == before
    assert len(rows(tmp_path, "step")) == 5


@pytest.mark.parametrize("calls", [0, 3])
def test_a_disk_that_cannot_be_read_is_no_end_of_a_stream(tmp_path, monkeypatch, calls):
    one = recorder(tmp_path)
    for episode in range(4):
        play(one, episode, steps=3)
    one.close()
    read, left = stream._Behind.read, [calls]

    def fail(behind, size=-1):
        if not left[0]:
            raise OSError(errno.EIO, "Input/output error")
        left[0] -= 1
        return read(behind, size)

    monkeypatch.setattr(stream._Behind, "read", fail)
    with pytest.raises(OSError, match="Input/output error"):
        trajectories.finalize(tmp_path, "train")
    monkeypatch.undo()
    assert trajectories.finalize(tmp_path, "train").exists()
    assert len(trajectories.read(tmp_path, "train")) == 12


def test_nothing_recorded(tmp_path):
    assert trajectories.finalize(tmp_path, "train") is None
    assert trajectories.phases_of(tmp_path) == []
    with pytest.raises(UsageError, match="no steps are on record"):
        trajectories.read(tmp_path)


@pytest.mark.parametrize("phase", ["a/b", "a.0.1", "..", "ä %", "train.parquet"])
@pytest.mark.parametrize("finalized", [False, True])
def test_a_phase_may_be_called_anything(tmp_path, phase, finalized):
    made = recorder(tmp_path, phase=phase)
    play(made, 0, steps=1)
    made.close()
    if finalized:
        trajectories.finalize(tmp_path, phase)
    assert trajectories.phases_of(tmp_path) == [phase]
    assert rows(tmp_path, "phase", phase=None) == [(phase,)]


def test_phases_are_told_apart_and_read_together(tmp_path):
    for phase in ("a", "a.0"):
        made = recorder(tmp_path, phase=phase)
        play(made, 0, steps=1)
        made.close()
    trajectories.finalize(tmp_path, "a")
    assert rows(tmp_path, "phase", phase=None) == [("a",), ("a.0",)]
    assert files(tmp_path) == ["a.0.0.1.arrow", "a.parquet"]


def test_phases_with_other_spaces_are_read_one_by_one(tmp_path):
    other = columns(gym.Box(-1, 1, (2,)), gym.Discrete(2))
    for phase, seen, spaces in (
        ("a", 1, columns(gym.Discrete(3), gym.Discrete(2))),
        ("b", np.ones(2, np.float32), other),
    ):
        made = recorder(tmp_path, phase=phase, made=spaces)
        made.begin(episode=0, seed=0)
        made.step(seen, 1, 0.0, True, False)
        made.end(outcome="terminated")
        made.close()
    with pytest.raises(UsageError, match="the phases 'a', 'b' have different columns"):
        trajectories.read(tmp_path)
    assert len(trajectories.read(tmp_path, "b")) == 1


def test_streams_with_other_spaces_are_no_one_table(tmp_path):
    for seen, space in ((1, gym.Discrete(3)), (np.ones(2, np.float32), gym.Box(-1, 1, (2,)))):
        made = recorder(tmp_path, made=columns(space, gym.Discrete(2)))
        made.begin(episode=0, seed=0)
        made.step(seen, 1, 0.0, True, False)
        made.end(outcome="terminated")
        made.close()
    before = files(tmp_path)
    with pytest.raises(UsageError, match="with other spaces before"):
        trajectories.finalize(tmp_path, "train")
    assert files(tmp_path) == before


WITHOUT_PANDAS = """
import sys
from datetime import UTC, datetime
from pathlib import Path

class Without:
    @staticmethod
    def find_spec(name, path=None, target=None):
        if name.partition(".")[0] == "pandas":
            raise ImportError(name)

sys.meta_path.insert(0, Without)
from governor.episodes import trajectories
from governor.episodes.text.sessions import DataManager
from tests.support.language_models.recorded_sessions import record, session
from tests.support.recorded_steps import play, recorder
folder = Path(sys.argv[1])
steps = recorder(folder)
play(steps, 0, steps=3)
steps.close()
for finalized in (False, True, True):
    manager = DataManager(folder)
    for number in range(20):  # some begin at no whole number of a coarser unit
        record(manager, session(manager))
    manager.close()
    if finalized:
        trajectories.finalize(folder, "interactor")
        trajectories.finalize(folder, "train")
    assert [step["step"] for step in trajectories.read(folder, "train").to_pylist()] == [0, 1, 2]
    began = [one["started"] for one in trajectories.read(folder, "interactor").to_pylist()]
    assert len(set(began)) == len(began)
    assert all((datetime.now(UTC) - one).total_seconds() < 600 for one in began)
assert len(began) == 60
assert "pandas" not in sys.modules
"""


def test_what_is_read_needs_no_pandas(tmp_path):
    assert run_code(WITHOUT_PANDAS, tmp_path) == 0
