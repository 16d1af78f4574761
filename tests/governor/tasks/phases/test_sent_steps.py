"""Streams of runners that do not see the run's folder, written where they belong."""

from __future__ import annotations

import pytest

from governor.episodes.records.episode_file import streams_of
from governor.tasks.phases.sent_steps import SentSteps
from tests.support.full_disk import full_beyond
from tests.support.recorded_steps import play, recorder, rows


def pieces(folder, *lengths):
    """What a runner elsewhere has recorded, episode by episode."""
    made, found, size = recorder(folder), [], 0
    for episode, steps in enumerate(lengths):
        play(made, episode, steps=steps)
        [(_, _, path)] = streams_of(folder, "train")
        found.append(path.read_bytes()[size:])
        size = path.stat().st_size
    made.close()
    return found


@pytest.fixture
def here(tmp_path):
    (tmp_path / "here" / "episodes").mkdir(parents=True)
    return tmp_path / "here"


def counts(folder):
    episodes = [episode for (episode,) in rows(folder, "episode")]
    return {episode: episodes.count(episode) for episode in episodes}


def test_each_stream_becomes_one_file_and_a_later_one_is_newer(tmp_path, here):
    first, second = pieces(tmp_path / "a", 3, 4), pieces(tmp_path / "b", 5)
    sent = SentSteps(here, "train")
    sent.write(first[0], stream="a", worker=0)
    sent.write(second[0], stream="b", worker=0)
    sent.write(first[1], stream="a", worker=0)
    sent.close()
    assert [(incarnation, worker) for incarnation, worker, _ in streams_of(here, "train")] == [(1, 0), (2, 0)]
    assert counts(here) == {0: 5, 1: 4}


def test_what_does_not_fit_on_the_disk_leaves_no_trace_and_the_next_may(tmp_path, here):
    first = pieces(tmp_path / "a", 3, 2000, 4)
    sent = SentSteps(here, "train")
    sent.write(first[0], stream="a", worker=0)
    with full_beyond(len(first[0]) + 100), pytest.raises(OSError, match="File too large"):
        sent.write(first[1], stream="a", worker=0)
    sent.write(first[2], stream="a", worker=0)
    sent.close()
    assert counts(here) == {0: 3, 2: 4}


def test_a_stream_without_its_beginning_is_never_taken_for_written(tmp_path, here):
    first = pieces(tmp_path / "a", 3, 4)
    sent = SentSteps(here, "train")
    with full_beyond(100), pytest.raises(OSError, match="File too large"):
        sent.write(first[0], stream="a", worker=0)
    with pytest.raises(OSError, match="beginning of its stream"):
        sent.write(first[1], stream="a", worker=0)
    sent.close()
