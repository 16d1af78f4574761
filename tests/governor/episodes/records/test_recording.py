import json
import os
import signal

import gymnasium.spaces as gym
import numpy as np
import pyarrow as pa
import pytest

from governor.episodes import spaces, trajectories
from governor.episodes.records import recording
from governor.episodes.records.recording import ROWS, Columns
from governor.errors import ConductorError
from tests.support.full_disk import full_beyond
from tests.support.recorded_steps import columns, play, recorder, rows, run_code

KILLED = """
import os, signal, sys
from pathlib import Path
from tests.support.recorded_steps import play, recorder
recorder = recorder(Path(sys.argv[1]))
play(recorder, 0, steps=3)
play(recorder, 1, steps=5)
recorder.begin(episode=2, seed=2)
recorder.step(0, 0, 0.0, False, False)
os.kill(os.getpid(), signal.SIGKILL)
"""


def test_a_step_is_read_as_it_was_recorded(tmp_path):
    made = recorder(tmp_path, worker=3)
    play(made, 7, steps=2, first=40)
    made.close()
    assert trajectories.read(tmp_path, "train").to_pylist() == [
        {
            "phase": "train", "worker": 3, "episode": 7, "attempt": 1, "seed": 107, "step": step,
            "observation": 40 + step, "action": step, "reward": 0.5, "terminated": step == 1, "truncated": False,
            "weight_version": 7, "outcome": "terminated",
        }
        for step in (0, 1)
    ]  # fmt: skip


@pytest.mark.parametrize(
    "space",
    [
        gym.Discrete(5, start=-2),
        gym.Box(-1, 1, (4,), np.float32),
        gym.Box(0, 255, (2, 3, 4), np.uint8),
        gym.Box(-1, 1, (), np.float64),
        gym.Box(-1, 1, (2,), np.float16),
        gym.Box(0, 1, (2,), np.bool_),
        gym.Box(0, 1, (0,), np.float32),
        gym.MultiDiscrete([3, 4]),
        gym.MultiBinary(5),
        gym.MultiBinary([2, 2]),
    ],
    ids=str,
)
@pytest.mark.parametrize("finalized", [False, True])
def test_values_of_every_space_keep_dtype_and_shape(tmp_path, space, finalized):
    space.seed(1)
    conform = spaces.conformer(spaces.describe(space, role="action_space"))
    values = [conform(space.sample()) for _ in range(3)]
    made = recorder(tmp_path, made=columns(space, space))
    made.begin(episode=0, seed=0)
    for value in values:
        made.step(value, value, 0.0, False, False)
    made.end(outcome="truncated")
    made.close()
    if finalized:
        trajectories.finalize(tmp_path, "train")
    table = trajectories.read(tmp_path, "train")
    for name in ("observation", "action"):
        field = table.schema.field(name)
        if isinstance(space, gym.Discrete):
            assert table[name].to_pylist() == values
            continue
        assert field.type.value_type == pa.from_numpy_dtype(space.dtype)
        shape = tuple(json.loads(field.metadata[b"shape"]))
        read = [np.asarray(row, dtype=space.dtype).reshape(shape) for row in table[name].to_pylist()]
        assert np.array_equal(read, values)


@pytest.mark.parametrize("finalized", [False, True])
def test_several_agents_have_a_struct_each_and_null_when_they_did_not_act(tmp_path, finalized):
    discrete, box = (spaces.describe(one, role="x") for one in (gym.Discrete(9), gym.Box(-1, 1, (2,))))
    made = recorder(tmp_path, made=Columns.of_players({"red": (discrete, discrete), "blue": (box, discrete)}))
    made.begin(episode=0, seed=0)
    seen = np.array([0.5, 0.25], np.float32).tobytes()
    made.step_players({"red": (1, 2, 1.0, False, False, 4), "blue": (seen, 3, -1.0, True, False, 7)})
    made.step_players({"red": (5, 6, 2.0, True, False, 5)})
    made.end(outcome="terminated")
    made.close()
    if finalized:
        trajectories.finalize(tmp_path, "train")
    red = {"action": 2, "reward": 1.0, "terminated": False, "truncated": False, "weight_version": 4}
    blue = {"action": 3, "reward": -1.0, "terminated": True, "weight_version": 7}
    later = {"observation": 5, "action": 6, "reward": 2.0, "terminated": True, "weight_version": 5}
    assert rows(tmp_path, "red", "blue", "step") == [
        ({"observation": 1, **red}, {"observation": [0.5, 0.25], **red, **blue}, 0),
        ({**red, **later}, None, 1),
    ]


def test_an_agent_called_like_a_column_is_refused():
    one = spaces.describe(gym.Discrete(2), role="x")
    with pytest.raises(ConductorError, match="cannot be called 'step'"):
        Columns.of_players({"step": (one, one)})


def test_a_long_episode_goes_to_disk_in_pieces(tmp_path):
    made = recorder(tmp_path)
    made.begin(episode=0, seed=0)
    for step in range(2 * ROWS + 10):
        made.step(step % 1000, 1, 0.0, False, False)
    assert len(trajectories.read(tmp_path, "train")) == 2 * ROWS
    made.end(outcome="truncated")
    made.close()
    found = rows(tmp_path, "step", "outcome", "observation")
    assert found == [(step, "truncated", step % 1000) for step in range(2 * ROWS + 10)]


def test_large_observations_make_shorter_pieces():
    assert columns(gym.Box(0, 255, (210, 160, 3), np.uint8), gym.Discrete(2)).rows < 100


def test_episodes_that_ended_outlive_a_kill(tmp_path):
    assert run_code(KILLED, tmp_path) == -signal.SIGKILL
    assert rows(tmp_path, "episode", "step") == [
        *((0, step) for step in range(3)),
        *((1, step) for step in range(5)),
    ]


def test_a_torn_tail_is_read_up_to_the_tear(tmp_path):
    made = recorder(tmp_path)
    (tmp_path / "episodes").mkdir()
    path = tmp_path / "episodes" / "train.0.1.arrow"
    whole = []
    for episode in range(3):
        play(made, episode, steps=2)
        whole.append(path.stat().st_size)
    made.close()
    data = path.read_bytes()
    for size in sorted({*whole, *(end - 1 for end in whole), *range(whole[0], len(data), 61)}, reverse=True):
        os.truncate(path, size)
        expected = sum(end <= size for end in whole)
        if expected:
            assert {row[0] for row in rows(tmp_path, "episode")} == set(range(expected))
    for size in (whole[0] - 1, 300, 9, 0):
        os.truncate(path, size)
        assert trajectories.tables(tmp_path, "train") is None or rows(tmp_path, "episode") == []


def test_an_episode_played_again_counts_once(tmp_path):
    made = recorder(tmp_path)
    play(made, 0, steps=4, outcome="crashed")
    play(made, 0, steps=2)
    play(made, 1, steps=3, outcome="crashed")
    play(made, 1, steps=0, outcome="failed")
    play(made, 2, steps=1)
    assert rows(tmp_path, "episode", "attempt", "step", "outcome") == [
        (0, 2, 0, "terminated"),
        (0, 2, 1, "terminated"),
        (2, 1, 0, "terminated"),
    ]
    made.close()


def test_what_a_later_life_played_counts(tmp_path):
    before = recorder(tmp_path, worker=1)
    play(before, 0, steps=3)
    play(before, 1, steps=3)
    before.close()
    after = recorder(tmp_path, worker=0)
    play(after, 1, steps=1)
    after.close()
    assert rows(tmp_path, "episode", "worker") == [(0, 1)] * 3 + [(1, 0)]


def test_an_episode_that_never_ended_has_no_outcome(tmp_path):
    made = recorder(tmp_path)
    made.begin(episode=0, seed=0)
    made.step(1, 1, 0.0, False, False)
    made.flush()
    made.close()
    assert rows(tmp_path, "episode", "outcome") == [(0, None)]


def test_several_episodes_may_share_a_write(tmp_path):
    made = recorder(tmp_path)
    for episode in range(3):
        made.begin(episode=episode, seed=0)
        made.step(1, 1, 0.0, True, False)
        made.end(outcome="terminated", flush=False)
    assert not (tmp_path / "episodes").exists()
    made.flush()
    assert rows(tmp_path, "episode") == [(0,), (1,), (2,)]
    made.close()


def test_a_full_disk_costs_the_steps_of_one_episode(tmp_path):
    made = recorder(tmp_path)
    play(made, 0, steps=3)
    size = (tmp_path / "episodes/train.0.1.arrow").stat().st_size
    with full_beyond(size + 500), pytest.raises(OSError, match="File too large"):
        play(made, 1, steps=3)
    assert (tmp_path / "episodes/train.0.1.arrow").stat().st_size == size
    play(made, 2, steps=3)
    assert rows(tmp_path, "episode") == [(0,)] * 3 + [(2,)] * 3
    made.close()


def test_a_disk_that_is_full_from_the_start_may_be_emptied(tmp_path):
    made = recorder(tmp_path)
    with full_beyond(100):
        for episode in range(2):
            with pytest.raises(OSError, match="File too large"):
                play(made, episode, steps=3)
    play(made, 2, steps=1)
    assert rows(tmp_path, "episode") == [(2,)]
    made.close()


def test_a_piece_that_could_not_be_written_leaves_the_rest_of_its_episode(tmp_path):
    made = recorder(tmp_path)
    made.begin(episode=0, seed=0)
    for step in range(ROWS - 1):
        made.step(step % 1000, 1, 0.0, False, False)
    with full_beyond(100), pytest.raises(OSError, match="File too large"):
        made.step(1, 1, 0.0, False, False)
    made.step(1, 1, 0.0, True, False)
    made.end(outcome="failed")
    assert rows(tmp_path, "episode", "step", "outcome") == [(0, ROWS, "failed")]
    made.close()


def test_episodes_come_one_after_the_other(tmp_path):
    made = recorder(tmp_path)
    made.begin(episode=0, seed=0)
    with pytest.raises(RuntimeError, match="episode 0 has not ended"):
        made.begin(episode=1, seed=0)


def test_an_array_that_is_none_of_its_space_is_not_taken_for_one(tmp_path):
    made = recorder(tmp_path, made=columns(gym.Box(-1, 1, (2,), np.float32), gym.Discrete(2)))
    made.begin(episode=0, seed=0)
    made.step(np.zeros(2, np.float64), 0, 0.0, True, False)
    with pytest.raises(ValueError, match="no arrays of float32"):
        made.end(outcome="terminated")


def test_a_call_after_the_end_adds_nothing(tmp_path):
    """A thread that hung: the watch has told of its episode's end."""
    made = recorder(tmp_path)
    made.begin(episode=0, seed=0)
    made.step(1, 0, 0.5, False, False)
    made.end(outcome="timed_out")
    made.step(2, 0, 0.5, True, False)
    made.end(outcome="terminated")
    assert rows(tmp_path, "observation", "outcome") == [(1, "timed_out")]


def test_a_step_that_is_added_during_a_flush_waits_for_the_next(tmp_path):
    class Steps(list):
        def __len__(self):
            counted = super().__len__()
            if counted == 2 * made.columns.width:
                self.extend((7, 0, 0.5, True, False, 0))
            return counted

    made = recorder(tmp_path)
    made.begin(episode=0, seed=0)
    made.step(5, 0, 0.5, False, False)
    made.step(6, 0, 0.5, False, False)
    made.steps = Steps(made.steps)
    made.flush()
    made.end(outcome="terminated")
    assert rows(tmp_path, "step", "observation") == [(0, 5), (1, 6), (2, 7)]


def test_a_batch_of_steps_that_differ_in_size_has_rows_by_the_size_of_the_last_one(tmp_path, monkeypatch):
    monkeypatch.setattr(recording, "BYTES", 100_000)
    made = recorder(tmp_path, made=columns(gym.Text(2000, min_length=0), gym.Discrete(2)))
    assert made.most == recording.FIRST_ROWS
    made.begin(episode=0, seed=0)
    for _ in range(recording.FIRST_ROWS):
        made.step("x" * 1000, 1, 0.0, False, False)
    assert made.steps == []
    assert 80 < made.most < 100
    for _ in range(made.most):
        made.step("", 1, 0.0, False, False)
    assert made.most > 1000
    made.close()
