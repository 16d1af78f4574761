import contextlib
import tracemalloc

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from governor.episodes.records import pieces
from governor.episodes.records.pieces import PIECE, Cut, Pieces

KEYS = ("episode", "incarnation", "attempt", "step", "rows")
ROW = st.tuples(st.integers(0, 9), st.integers(0, 2), st.integers(1, 2), st.integers(0, 9), st.integers(0, 3))
TURN = st.tuples(st.lists(ROW, max_size=12), st.integers(0, 10))


@contextlib.contextmanager
def small():
    """So that a few pieces are many."""
    with pytest.MonkeyPatch.context() as patch:
        for name, value in (("MOST", 8), ("BLOCK", 4), ("LEAST_HEAD", 2)):
            patch.setattr(pieces, name, value)
        yield


def made(rows):
    """Pieces of (episode, incarnation, attempt, step, rows)."""
    found = np.zeros(len(rows), PIECE)
    for name, values in zip(KEYS, zip(*rows, strict=True), strict=False):
        found[name] = values
    return found


def plain(found):
    return [tuple(int(one[name]) for name in KEYS) for one in found]


@given(st.lists(TURN, max_size=8))
def test_pieces_come_in_order_and_once_however_they_were_added(tmp_path_factory, turns):
    with small():
        queue, left, limit = Pieces(tmp_path_factory.getbasetemp()), [], 0
        for rows, below in [*turns, ([], None)]:
            queue.add(made(rows))
            left += [
                row for row in rows if row[0] >= limit
            ]  # those of a runner that was given up come too late
            limit = max(limit, below) if below is not None else 10
            taken = [piece for block in queue.take(below) for piece in plain(block)]
            assert [row[:4] for row in taken] == sorted(row[:4] for row in left if row[0] < limit)
            assert sorted(taken) == sorted(row for row in left if row[0] < limit)
            left = [row for row in left if row[0] >= limit]
        queue.close()


@given(st.lists(ROW, max_size=40))
def test_a_block_has_whole_episodes_and_their_last_attempt_counts(tmp_path_factory, rows):
    with small():
        queue = Pieces(tmp_path_factory.getbasetemp())
        for row in rows:
            queue.add(made([row]))
        blocks = [*queue.take()]
        queue.close()
    episodes = [{int(one["episode"]) for one in block} for block in blocks]
    assert sum(map(len, episodes)) == len(set().union(*episodes))
    last = {row[0]: max((one[1], one[2]) for one in rows if one[0] == row[0]) for row in rows}
    counted = [piece for block in blocks for piece in plain(queue.last_attempts(block))]
    assert sorted(counted) == sorted(row for row in rows if row[4] and (row[1], row[2]) == last[row[0]])


def peak_of(folder, count):
    """Bytes that so many pieces in descending order took at most."""
    tracemalloc.start()
    queue = Pieces(folder)
    for first in range(count, 0, -4_000):
        batch = np.zeros(4_000, PIECE)
        batch["episode"] = np.arange(first, first + 4_000)
        queue.add(batch)
    before = 0
    for block in queue.take():
        assert len(block) <= pieces.BLOCK
        assert before < int(block["episode"][0])
        before = int(block["episode"][-1])
    assert [*folder.iterdir()] == []  # the file has no name: a killed process leaves none
    queue.close()
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    return peak


def test_memory_is_that_of_some_pieces_however_many_there_are(tmp_path):
    assert peak_of(tmp_path, 1_600_000) < 1.25 * peak_of(tmp_path, 400_000)


@given(st.lists(st.lists(st.integers(1, 9), max_size=6), max_size=6), st.integers(1, 12))
def test_a_cut_has_so_many_rows_each_once_and_in_order(batches, rows):
    cut, parts, step = Cut(rows), [], 0
    for batch in batches:
        starts = [step + sum(batch[:at]) for at in range(len(batch))]
        found = made([(0, 1, 1, start, count) for start, count in zip(starts, batch, strict=True)])
        found["row"] = found["step"]
        parts += cut.add(found)
        step += sum(batch)
    parts += cut.rest()
    assert all(part["rows"].sum() == rows for part in parts[:-1])
    assert sum(int(part["rows"].sum()) for part in parts) == step
    assert all((part["rows"] > 0).all() and (part["row"] == part["step"]).all() for part in parts)
    covered = [int(one["step"]) + at for part in parts for one in part for at in range(one["rows"])]
    assert covered == [*range(step)]
