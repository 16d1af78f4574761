"""What was recorded of episodes, read back as values of the spaces."""

import gymnasium.spaces as gym
import numpy as np
import pytest

from governor.episodes import spaces
from governor.episodes.records.read_back import EpisodeReader
from governor.episodes.records.recording import Columns, StepRecorder
from governor.errors import ConductorError
from governor.index_ranges import IndexRanges

NESTED = gym.Dict(
    {
        "image": gym.Box(0, 255, (2, 3), np.uint8),
        "text": gym.Text(5),
        "pair": gym.Tuple((gym.Discrete(4), gym.MultiBinary(3), gym.Box(-1, 1, (), np.float64))),
    }
)


def described(space):
    return spaces.describe(space, role="observation_space")


def recorded(folder, space, values, *, index=0):
    """Records an episode of these observations; the last one is what its last step has led to."""
    spec, action = described(space), described(gym.Discrete(2))
    observe = spaces.observer(spec)
    recorder = StepRecorder(folder, phase="train", worker=0, columns=Columns.of(spec, action))
    recorder.keeps_last = True
    recorder.begin(episode=index, seed=5)
    for step, value in enumerate(values[:-1]):
        recorder.steps += (observe(value)[1], step % 2, 0.5, False, step + 2 == len(values), 0)
    recorder.last = observe(values[-1])[1]
    recorder.end(outcome="truncated")
    recorder.close()
    return spec, action


def read(folder, known, *indices):
    with EpisodeReader(folder, "train", spaces=known) as reader:
        return [
            (episode, [*steps], reader.last_of(episode.last))
            for episode, steps in reader.episodes(IndexRanges.of(indices))
        ]


@pytest.mark.parametrize(
    "space",
    [
        gym.Discrete(9, start=-4),
        gym.Box(-1, 1, (3,), np.float32),
        gym.Box(-1, 1, (), np.float64),
        gym.Box(0, 255, (4, 2), np.uint8),
        gym.Box(-1, 1, (0, 2), np.float32),
        gym.MultiDiscrete([3, 4]),
        gym.MultiBinary(5),
        gym.Text(5),
        NESTED,
    ],
    ids=lambda space: type(space).__name__,
)
def test_values_come_back_as_they_were_given(tmp_path, space):
    space.seed(3)
    values = [space.sample() for _ in range(6)]
    known = recorded(tmp_path, space, values)
    [(episode, steps, last)] = read(tmp_path, known, 0)
    assert (episode.seed, episode.outcome, episode.rows) == (5, "truncated", 5)
    encode = spaces.observer(known[0])
    assert [encode(step.observation)[1] for step in steps] == [encode(value)[1] for value in values[:-1]]
    assert encode(last)[1] == encode(values[-1])[1]
    assert [step[1:] for step in steps] == [(n % 2, 0.5, False, n == 4) for n in range(5)]
    first = steps[0].observation
    if isinstance(first, np.ndarray):
        first.flags.writeable = True
        assert (first.dtype, first.shape) == (values[0].dtype, values[0].shape)


def test_a_value_that_is_not_read_back_is_named(tmp_path):
    space = gym.Sequence(gym.Discrete(3))
    known = recorded(tmp_path, space, [(1, 2), (0,)])
    with pytest.raises(ConductorError, match="values of a Sequence are not read back"):
        read(tmp_path, known, 0)


def test_a_long_episode_is_read_a_batch_at_a_time(tmp_path, monkeypatch):
    monkeypatch.setattr("governor.episodes.records.recording.ROWS", 4)
    values = [*range(11)]
    known = described(gym.Discrete(100)), described(gym.Discrete(2))
    recorder = StepRecorder(tmp_path, phase="train", worker=0, columns=Columns.of(*known))
    recorder.keeps_last = True
    for index in (0, 1):
        recorder.begin(episode=index, seed=5)
        for value in values[:-1]:
            recorder.step(value + 20 * index, 0, 0.0, value == 9, False)
        recorder.note_last(10 + 20 * index)
        recorder.end(outcome="terminated")
    found = read(tmp_path, known, 0, 1)
    assert [(episode.index, len(episode.parts) > 1, last) for episode, _, last in found] == [
        (0, True, 10),
        (1, True, 30),
    ]
    assert [[step.observation for step in steps] for _, steps, _ in found] == [[*range(10)], [*range(20, 30)]]


def test_the_newest_stream_with_an_end_counts(tmp_path):
    space = gym.Discrete(100)
    for values, index in (([1, 2], 0), ([3, 4], 1), ([13, 14], 1), ([5, 6], 2)):
        known = recorded(tmp_path, space, values, index=index)
    found = read(tmp_path, known, 0, 1)
    assert [(episode.index, steps[0].observation, last) for episode, steps, last in found] == [
        (0, 1, 2),
        (1, 13, 14),
    ]


def test_an_attempt_that_another_one_follows_does_not_count(tmp_path):
    known = described(gym.Discrete(100)), described(gym.Discrete(2))
    recorder = StepRecorder(tmp_path, phase="train", worker=0, columns=Columns.of(*known))
    for value, outcome in ((1, "crashed"), (2, "terminated")):
        recorder.begin(episode=0, seed=5)
        recorder.step(value, 0, 0.0, True, False)
        recorder.end(outcome=outcome)
    with EpisodeReader(tmp_path, "train", spaces=known) as reader:
        [(episode, steps)] = reader.episodes(IndexRanges.of([0]))
        assert (episode.outcome, [step.observation for step in steps]) == ("terminated", [2])
