"""The one file of a phase's steps: the same bytes however it came about, and nothing is lost where it did not."""

import contextlib
import random
import signal

import gymnasium.spaces as gym
import numpy as np
import psutil
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from governor.episodes import trajectories
from governor.episodes.records import merge, pieces
from governor.episodes.records.recording import Columns
from governor.episodes.spaces import describe, observer, sender
from governor.index_ranges import IndexRanges
from tests.support.full_disk import full_beyond
from tests.support.nested_spaces import on_record
from tests.support.recorded_steps import columns, play, recorder, rows, run_code

EPISODES = 60


@pytest.fixture(autouse=True)
def small(monkeypatch):
    """Few steps are many row groups, batches and runs of pieces."""
    monkeypatch.setattr(merge, "ROWS", 16)
    monkeypatch.setattr(merge, "VARYING_ROWS", 4)
    monkeypatch.setattr(merge, "GATHERED", 5)
    for name, value in (("MOST", 8), ("BLOCK", 4), ("LEAST_HEAD", 2)):
        monkeypatch.setattr(pieces, name, value)


def length(episode):
    return 1 + episode * 7 % 5


def record(folder, *, flushes=1, episodes=range(EPISODES), worker=0):
    """One worker plays; it writes every so many episodes."""
    made = recorder(folder, worker=worker)
    for episode in episodes:
        made.begin(episode=episode, seed=episode)
        for step in range(length(episode)):
            made.step(step, step % 2, 0.5, step + 1 == length(episode), False, weight_version=episode)
        made.end(outcome="truncated" if episode % 9 == 5 else "terminated", flush=episode % flushes == 0)
    made.flush()
    made.close()


def whole(folder):
    """The file of all steps, in one piece of work."""
    record(folder)
    return trajectories.finalize(folder, "train").read_bytes()


@pytest.mark.parametrize("flushes", [1, 4, 1000])
def test_the_file_does_not_depend_on_when_steps_were_written(tmp_path, flushes):
    expected = whole(tmp_path / "expected")
    record(tmp_path, flushes=flushes)
    assert trajectories.finalize(tmp_path, "train").read_bytes() == expected


def test_the_file_does_not_depend_on_what_was_converted_ahead(tmp_path):
    expected = whole(tmp_path / "expected")
    conversion = trajectories.Conversion(tmp_path, "train")
    done = []
    for first in range(0, EPISODES, 12):
        record(tmp_path, episodes=range(first, first + 12), worker=0)
        conversion.advance(first + 10)
        done.append(conversion.steps[0])
    assert done == sorted({*done})
    assert done[0] > 0
    assert conversion.finish().read_bytes() == expected
    assert [path.name for path in (tmp_path / "episodes").iterdir()] == ["train.parquet"]


@pytest.mark.parametrize("before", [[*range(40)], [5]], ids=["most", "one"])
def test_episodes_that_were_played_again_by_the_next_process_count_once(tmp_path, before):
    expected = whole(tmp_path / "expected")
    record(tmp_path, episodes=before)
    record(tmp_path, episodes=range(30 if len(before) > 1 else 0, EPISODES))
    path = trajectories.finalize(tmp_path, "train", episodes=IndexRanges.of(range(EPISODES)))
    assert path.read_bytes() == expected


KILLED = """
import os, signal, sys
from pathlib import Path
from governor.episodes import trajectories
from governor.episodes.records import merge
merge.ROWS = 16
calls = 0

def check():
    global calls
    calls += 1
    if calls == int(sys.argv[2]):
        os.kill(os.getpid(), signal.SIGKILL)

trajectories.Conversion(Path(sys.argv[1]), "train", check=check).finish()
"""


@pytest.mark.parametrize("at", [1, 2, 9])
def test_a_conversion_that_was_killed_is_begun_anew(tmp_path, at):
    expected = whole(tmp_path / "expected")
    record(tmp_path)
    assert run_code(KILLED, tmp_path, at) == -signal.SIGKILL
    left = {path.name for path in (tmp_path / "episodes").iterdir()}
    assert left - {".train.parquet.part"} == {"train.0.1.arrow"}
    assert (".train.parquet.part" in left) == (at == 9)
    assert len(rows(tmp_path, "step")) == sum(map(length, range(EPISODES)))
    assert trajectories.finalize(tmp_path, "train").read_bytes() == expected
    assert [path.name for path in (tmp_path / "episodes").iterdir()] == ["train.parquet"]


def test_a_full_disk_on_the_way_loses_nothing(tmp_path):
    expected = whole(tmp_path / "expected")
    record(tmp_path)
    conversion = trajectories.Conversion(tmp_path, "train")
    with full_beyond(3_000), pytest.raises(OSError, match="File too large"):
        conversion.finish()
    conversion.discard()
    assert [path.name for path in (tmp_path / "episodes").iterdir()] == ["train.0.1.arrow"]
    assert conversion.finish().read_bytes() == expected


SPACES = {
    "numbers": gym.Discrete(50),
    "vectors": gym.Box(0, 255, (3,), np.uint8),
    "bits": gym.MultiBinary(5),
    "halves": gym.Box(-1, 1, (2,), np.float16),
    "nothing": gym.Box(0, 1, (0,), np.float32),
    "text": gym.Text(5, min_length=0),
    "parts": gym.Dict(a=gym.Text(5), b=gym.Tuple([gym.Box(0, 1, (2,)), gym.Sequence(gym.Box(0, 1, (2,)))])),
    "choices": gym.OneOf([gym.Box(0, 1, (2,)), gym.Dict(a=gym.Discrete(3), b=gym.Box(0, 1, (1,)))]),
    "graphs": gym.Graph(gym.Box(0, 1, (2,)), gym.Discrete(3)),
}


@pytest.mark.parametrize("space", SPACES.values(), ids=SPACES)
@pytest.mark.parametrize("finalized", [False, True])
def test_rows_of_many_workers_keep_their_values(tmp_path, space, finalized):
    space.seed(1)
    values = [space.sample() for _ in range(200)]
    made = [recorder(tmp_path, worker=worker, made=columns(space, space)) for worker in range(4)]
    order = [*range(40)]
    random.Random(3).shuffle(order)
    for episode in order:
        one = made[episode % 4]
        one.begin(episode=episode, seed=episode)
        for step in range(5):
            value = sent(space, values[episode * 5 + step])
            one.step(value, value, float(episode), step == 4, False)
        one.end(outcome="terminated", flush=episode % 3 == 0)
    for one in made:
        one.flush()
        one.close()
    if finalized:
        trajectories.finalize(tmp_path, "train")
    table = trajectories.read(tmp_path, "train")
    assert table["episode"].to_pylist() == [episode for episode in range(40) for _ in range(5)]
    assert table["step"].to_pylist() == [0, 1, 2, 3, 4] * 40
    for name in ("observation", "action"):
        assert table[name].to_pylist() == [on_record(space, value) for value in values]


def sent(space, value):
    """As a recorder gets it."""
    spec = describe(space, role="x")
    value, encoded = observer(spec)(value)
    return value if sender(spec) is None else encoded


@pytest.mark.parametrize("flushes", [1, 7])
def test_groups_of_steps_that_differ_in_size_do_not_depend_on_when_they_were_written(
    tmp_path, monkeypatch, flushes
):
    monkeypatch.setattr(merge, "BYTES", 2000)
    space = gym.Sequence(gym.Box(0, 1, (10,)))

    def written(folder, flushes):
        space.seed(1)
        one = recorder(folder, made=columns(space, gym.Discrete(2)))
        for episode in range(EPISODES):
            one.begin(episode=episode, seed=episode)
            for _ in range(length(episode)):
                one.step(sent(space, space.sample()), 1, 0.0, True, False)
            one.end(outcome="terminated", flush=episode % flushes == 0)
        one.flush()
        one.close()
        return trajectories.finalize(folder, "train")

    expected, found = written(tmp_path / "expected", EPISODES), written(tmp_path / "found", flushes)
    assert found.read_bytes() == expected.read_bytes()
    with pq.ParquetFile(found) as file:
        groups = [file.metadata.row_group(at).num_rows for at in range(file.num_row_groups)]
    assert len({*groups[:-1]}) > 1
    assert all(rows % 4 == 0 for rows in groups[:-1])
    assert max(groups) <= 16


def test_rows_of_several_players_of_many_workers(tmp_path):
    discrete = describe(gym.Discrete(1000), role="x")
    spaces = Columns.of_players({"red": (discrete, discrete), "blue": (discrete, discrete)})
    made = [recorder(tmp_path, worker=worker, made=spaces) for worker in range(3)]
    for episode in range(30):
        one = made[episode % 3]
        one.begin(episode=episode, seed=0)
        one.step_players({"red": (episode, 1, 1.0, False, False, 0)})
        one.step_players({"blue": (episode, 2, 1.0, True, False, 0)})
        one.end(outcome="terminated", flush=False)
    for one in made:
        one.flush()
        one.close()
    trajectories.finalize(tmp_path, "train")
    found = rows(tmp_path, "episode", "red", "blue")
    assert [(episode, (red or blue)["observation"], red is None) for episode, red, blue in found] == [
        (episode, episode, late) for episode in range(30) for late in (False, True)
    ]


def test_evaluations_and_stragglers_come_in_order(tmp_path):
    """Episodes of an evaluation have the highest numbers, and one that takes long comes last."""
    order = [1, 2, 3, 4, 100, 101, 5, 6, 7, 8, 102, 103, 9, 0]
    conversion = trajectories.Conversion(tmp_path, "train")
    made = recorder(tmp_path)
    recorded = IndexRanges()
    for episode in order:
        play(made, episode, steps=20)
        recorded.add(episode)
        if recorded.bounds[0] == 0:
            conversion.advance(recorded.bounds[1])
    made.close()
    assert conversion.steps == (9 * 20 + 16 - 4, 14 * 20)
    conversion.finish(recorded)
    assert rows(tmp_path, "episode", "step") == [
        (episode, step) for episode in sorted(order) for step in range(20)
    ]


def test_what_a_runner_that_was_given_up_writes_later_does_not_count(tmp_path):
    record(tmp_path)
    conversion = trajectories.Conversion(tmp_path, "train")
    conversion.advance(EPISODES)
    record(tmp_path, episodes=[3], worker=7)
    conversion.finish()
    found = rows(tmp_path, "episode", "worker")
    assert {worker for _, worker in found} == {0}
    assert len(found) == sum(map(length, range(EPISODES)))


def test_memory_holds_a_row_group_and_some_batches(tmp_path, monkeypatch):
    """Of Arrow: the most at one time, as four times as many steps are converted."""
    monkeypatch.undo()
    monkeypatch.setattr(merge, "ROWS", 4_096)
    monkeypatch.setattr(merge, "CACHE", 100_000)
    peaks = []
    for count in (1_000, 4_000):
        folder = tmp_path / str(count)
        made = [recorder(folder, worker=worker) for worker in range(4)]
        for episode in range(count):
            play(made[episode % 4], episode, steps=20)
        for one in made:
            one.close()
        peaks.append(0)
        for table in trajectories.tables(folder, "train")[1]:
            assert len(table) <= 4_096
            peaks[-1] = max(peaks[-1], pa.total_allocated_bytes())
    assert peaks[1] < 1.5 * peaks[0]


def test_batches_that_are_not_used_up_do_not_stay(tmp_path, monkeypatch):
    """Half of each was played again by the next process."""
    monkeypatch.setattr(merge, "CACHE", 2_000)
    record(tmp_path, flushes=2)
    record(tmp_path, episodes=range(0, EPISODES, 2))
    held = 0
    with merge.Merge(tmp_path, "train") as merged:
        merged.scan()
        for _ in merged.tables():
            held = max(held, sum(batch.nbytes for batch, _ in merged._batches.values()))
    assert 0 < held <= 2_000


def test_a_finalized_phase_is_read_a_row_group_at_a_time(tmp_path):
    record(tmp_path)
    path = trajectories.finalize(tmp_path, "train")
    schema, groups = trajectories.tables(tmp_path, "train")
    sizes = [len(table) for table in groups]
    assert sizes == [pq.read_metadata(path).row_group(at).num_rows for at in range(len(sizes))]
    assert schema.names[:2] == ["phase", "worker"]
    assert str(path) not in [each.path for each in psutil.Process().open_files()]


def test_reading_streams_needs_no_leave_to_write_there(tmp_path, monkeypatch):
    record(tmp_path)
    monkeypatch.setattr(merge.os, "access", lambda *_: False)
    (tmp_path / "other").mkdir()
    monkeypatch.setattr(merge.tempfile, "gettempdir", lambda: str(tmp_path / "other"))
    made = []
    monkeypatch.setattr(
        merge, "Pieces", lambda folder, **more: made.append(folder) or pieces.Pieces(folder, **more)
    )
    with contextlib.suppress(StopIteration):
        next(trajectories.tables(tmp_path, "train")[1])
    assert made == [tmp_path / "other"]
