"""Lines of episodes where the disk is full for a while, and opened again after a crash."""

import json

import pytest

from governor.episodes.records.episode_file import EpisodeFile
from governor.index_ranges import IndexRanges
from governor.messages import EpisodeRecord
from tests.support.full_disk import full_beyond

REASON = "cannot write its line: OSError: [Errno 27] File too large"


def episode(index, outcome="terminated"):
    return EpisodeRecord(index=index, worker=0, seed=1, outcome=outcome, value=1.0, steps=5, seconds=0.1)


def opened(path, *reported):
    return EpisodeFile(path=path, phase="train", mode="train", reported=IndexRanges.of(reported))


def lines(path):
    return [(line["index"], line["outcome"]) for line in map(json.loads, path.read_text().splitlines())]


def test_lines_that_do_not_fit_fail_their_episodes_and_come_with_the_next(tmp_path):
    path = tmp_path / "train.jsonl"
    with opened(path) as file:
        assert file.append(episode(0)) == [episode(0)]
        with full_beyond(path.stat().st_size + 40):
            for index, outcome in enumerate(("terminated", "cancelled", "truncated"), start=1):
                (kept,) = file.append(episode(index, outcome))
                assert (kept.outcome, kept.reason) == (
                    ("cancelled", "") if outcome == "cancelled" else ("failed", REASON)
                )
            assert lines(path) == [(0, "terminated")]
        assert file.append(episode(7)) == [episode(7)]
    assert lines(path) == [
        (0, "terminated"), (1, "failed"), (2, "cancelled"), (3, "failed"), (7, "terminated"),
    ]  # fmt: skip


def test_what_is_left_is_written_at_the_end(tmp_path):
    path = tmp_path / "train.jsonl"
    with opened(path) as file:
        with full_beyond(40):
            file.append(episode(0), episode(1))
        assert lines(path) == []
    assert lines(path) == [(0, "failed"), (1, "failed")]


@pytest.mark.parametrize("torn", [b"", b'{"index": 4, "outc', b'{"index": 2}', b"\x00" * 5000])
def test_opened_again_it_ends_behind_the_last_reported_line_and_nothing_else_is_read(tmp_path, torn):
    path = tmp_path / "train.jsonl"
    with opened(path) as file:
        file.append(*map(episode, (0, 2, 1, 3, 5)))
    path.write_bytes(path.read_bytes() + torn)
    before = path.stat().st_ino
    opened(path, 0, 1, 2).__exit__()
    assert [index for index, _ in lines(path)] == [0, 2, 1]
    assert path.stat().st_ino == before
    opened(path).__exit__()
    assert path.read_bytes() == b""


def test_a_file_that_another_run_has_too_stays_as_it_is(tmp_path):
    path = tmp_path / "train.jsonl"
    with opened(path) as file:
        file.append(*map(episode, range(5)))
    (tmp_path / "of another run").hardlink_to(path)
    with opened(path, 1, 3) as file:
        file.append(episode(7))
    assert [index for index, _ in lines(path)] == [1, 3, 7]
    assert [index for index, _ in lines(tmp_path / "of another run")] == [0, 1, 2, 3, 4]
