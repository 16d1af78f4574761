"""The file of a phase's episodes: a line for each, whole or not at all."""

import json

import pytest
from full_disk import full_beyond

from governor.episodes.records.episode_file import EpisodeFile, path_of
from governor.messages import EpisodeRecord


def episode(index):
    return EpisodeRecord(index=index, worker=0, seed=1, outcome="terminated", value=1.0, steps=2, seconds=0.5)


def test_a_line_that_does_not_fit_leaves_no_trace(tmp_path):
    path = path_of(tmp_path, "train")
    with EpisodeFile(path=path, phase="train", mode="train", reported=[]) as file:
        file.append(episode(0))
        size = path.stat().st_size
        with full_beyond(size + 50), pytest.raises(OSError, match="File too large"):
            file.append(episode(1))
        assert path.stat().st_size == size
        file.append(episode(2))
    assert [json.loads(line)["index"] for line in path.read_text().splitlines()] == [0, 2]
