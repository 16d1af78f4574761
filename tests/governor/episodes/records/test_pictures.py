"""Pictures on record: small in streams, bytes in the file, numbers for all who read steps."""

import gymnasium.spaces as gym
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from governor.episodes import spaces, trajectories
from governor.episodes.records import merge, pictures
from governor.episodes.records.recording import Columns
from governor.episodes.spaces import describe
from governor.report import samples
from governor.report.tables import Choice, EpisodeLine
from tests.support.recorded_steps import columns, recorder

SCREEN = gym.Box(0, 255, (32, 32, 3), np.uint8)
SIZE = 32 * 32 * 3
ROOM = gym.Dict(image=SCREEN, direction=gym.Discrete(4))
ACTION = gym.Discrete(2)


def screen(number):
    """A dark one with a bright place."""
    picture = np.zeros((32, 32, 3), np.uint8)
    picture[number % 32, :, number % 3] = 1 + number % 255
    return picture


def record(folder, episodes, *, space=SCREEN, value=screen):
    encoded = spaces.observer(describe(space, role="observation_space"))
    made = recorder(folder, made=columns(space, ACTION))
    for episode in episodes:
        made.begin(episode=episode, seed=episode)
        for step in range(4):
            _, kept = encoded(value(10 * episode + step))
            made.steps += (kept, step % 2, 0.5, step == 3, False, 0)
        made.end(outcome="terminated")
    made.close()


def seen(table):
    column = table["observation"]
    return [np.array(row, np.uint8).reshape(32, 32, 3) for row in column.to_pylist()]


def size(folder):
    return sum(path.stat().st_size for path in (folder / "episodes").iterdir())


def test_a_screen_is_small_in_its_stream_and_in_the_file(tmp_path):
    record(tmp_path, range(20))
    assert size(tmp_path) < 80 * SIZE / 8
    expected = [screen(10 * episode + step) for episode in range(20) for step in range(4)]
    assert np.array_equal(seen(trajectories.read(tmp_path, "train")), expected)
    path = trajectories.finalize(tmp_path, "train")
    assert path.stat().st_size < 80 * SIZE / 8
    assert np.array_equal(seen(trajectories.read(tmp_path, "train")), expected)
    column = pq.read_table(path)["observation"]
    assert column.type == pa.binary(SIZE)
    assert [np.frombuffer(row, np.uint8).reshape(32, 32, 3).tolist() for row in column.to_pylist()[:4]] == [
        screen(step).tolist() for step in range(4)
    ]
    assert pq.read_schema(path).field("observation").metadata == {b"shape": b"[32,32,3]"}


def test_the_columns_are_the_same_before_and_after(tmp_path):
    record(tmp_path, range(3), space=ROOM, value=lambda number: {"image": screen(number), "direction": 1})
    before = trajectories.read(tmp_path, "train")
    path = trajectories.finalize(tmp_path, "train")
    after = trajectories.read(tmp_path, "train")
    assert after.schema.equals(before.schema, check_metadata=True)
    assert after.equals(before)
    assert pq.read_schema(path).field("observation").type.field("image").type == pa.binary(SIZE)


def test_a_file_goes_on_with_the_episodes_of_later_streams(tmp_path):
    record(tmp_path, range(5))
    trajectories.finalize(tmp_path, "train")
    record(tmp_path, range(3, 9))
    trajectories.finalize(tmp_path, "train")
    found = trajectories.read(tmp_path, "train")
    assert found["episode"].to_pylist() == [episode for episode in range(9) for _ in range(4)]
    assert np.array_equal(seen(found)[-1], screen(83))


def test_a_file_whose_pictures_are_lists_goes_on_too(tmp_path):
    record(tmp_path, range(5))
    whole = trajectories.read(tmp_path, "train")
    path = trajectories.finalize(tmp_path, "train")
    pq.write_table(whole, path)
    assert np.array_equal(seen(trajectories.read(tmp_path, "train"))[-1], screen(43))
    record(tmp_path, range(5, 7))
    trajectories.finalize(tmp_path, "train")
    assert pq.read_schema(path).field("observation").type == pa.binary(SIZE)
    assert np.array_equal(seen(trajectories.read(tmp_path, "train"))[-1], screen(63))


@pytest.mark.parametrize("ahead", [False, True])
def test_the_file_is_the_same_however_it_was_made(tmp_path, monkeypatch, ahead):
    monkeypatch.setattr(merge, "ROWS", 10)
    record(tmp_path / "whole", range(9))
    expected = trajectories.finalize(tmp_path / "whole", "train").read_bytes()
    conversion = trajectories.Conversion(tmp_path / "parts", "train")
    for episodes in (range(4), range(4, 9)):
        record(tmp_path / "parts", episodes)
        if ahead:
            conversion.advance(episodes.stop)
    assert conversion.finish().read_bytes() == expected


def test_players_without_a_turn_have_no_picture(tmp_path):
    known = (describe(SCREEN, role="observation_space"), describe(ACTION, role="action_space"))
    made = recorder(tmp_path, made=Columns.of_players({"a": known, "b": known}, turns=True))
    made.begin(episode=0, seed=0)
    for step in range(20):
        acts, waits = ("a", "b") if step % 2 else ("b", "a")
        row = (screen(step).tobytes(), 1, 0.5, False, False, 0)
        idle = {waits: (None, None, 0.5, False, False, None)} if step % 3 else {}
        made.step_players({acts: row, **idle})
    made.end(outcome="truncated")
    made.close()
    before = trajectories.read(tmp_path, "train")
    trajectories.finalize(tmp_path, "train")
    after = trajectories.read(tmp_path, "train")
    assert after.equals(before)
    a = after["a"].to_pylist()
    assert [row and row["observation"] is not None for row in a[:6]] == [None, True, False, True, False, True]
    assert a[3]["observation"] == screen(3).ravel().tolist()


PICTURE = pa.list_(pa.field("item", pa.uint8(), nullable=False), 1024)
INNER = pa.struct([pa.field("image", PICTURE), pa.field("number", pa.int64())])


@given(
    rows=st.lists(st.none() | st.tuples(st.none() | st.integers(0, 255), st.integers(0, 9)), max_size=20),
    data=st.data(),
)
@settings(deadline=None)
def test_any_part_of_a_table_is_the_same_again(rows, data):
    values = [
        None
        if row is None
        else {"image": None if row[0] is None else [row[0], *range(255), *[7] * 768], "number": row[1]}
        for row in rows
    ]
    schema = pa.schema([pa.field("observation", INNER)])
    table = pa.table([pa.array(values, INNER)], schema=schema)
    first = data.draw(st.integers(0, len(rows)))
    part = table.slice(first, data.draw(st.integers(0, len(rows) - first)))
    stored = pictures.stored(part)
    stored.validate(full=True)
    assert stored.schema.field("observation").type.field("image").type == pa.binary(1024)
    again = pictures.given(stored)
    again.validate(full=True)
    assert again.schema.equals(schema)
    assert again.to_pylist() == part.to_pylist()


@pytest.mark.parametrize(
    ("space", "kind"),
    [
        (gym.Box(-1, 1, (4,), np.float32), None),
        (gym.Box(0, 255, (7, 7, 3), np.uint8), None),
        (gym.Box(-1, 1, (1024,), np.float32), "lz4"),
        (SCREEN, "zstd"),
        (ROOM, "zstd"),
        (gym.Tuple([ROOM, gym.Text(3)]), "zstd"),
    ],
)
def test_streams_of_wide_rows_alone_are_compressed(space, kind):
    assert pictures.compression(columns(space, ACTION).schema) == kind


def test_a_report_says_how_large_a_picture_is(tmp_path, monkeypatch):
    monkeypatch.setattr(merge, "ROWS", 3)
    record(tmp_path / "plain", range(4))
    record(
        tmp_path / "room",
        range(4),
        space=ROOM,
        value=lambda number: {"image": screen(number), "direction": 1},
    )
    line = EpisodeLine(index=2, outcome="terminated", value=2.0)
    for name, shown in (("plain", "3,072 bytes"), ("room", '{"image":"3,072 bytes","direction":1}')):
        trajectories.finalize(tmp_path / name, "train")
        [found], _ = samples.samples_of(tmp_path / name, "train", [Choice(line, "best")])
        columns_shown = {column.name: column.values for column in found.columns}
        assert columns_shown["observation"] == [shown] * 4
        assert columns_shown["step"] == [0, 1, 2, 3]


def test_large_steps_with_a_text_are_few_in_a_row_group(tmp_path, monkeypatch):
    monkeypatch.setattr(merge, "BYTES", 10 * SIZE)
    talking = gym.Dict(image=SCREEN, mission=gym.Text(9))
    record(tmp_path, range(9), space=talking, value=lambda number: {"image": screen(number), "mission": "go"})
    with pq.ParquetFile(trajectories.finalize(tmp_path, "train")) as file:
        sizes = {file.metadata.row_group(group).num_rows for group in range(file.num_row_groups)}
    assert max(sizes) <= 20
    assert len(trajectories.read(tmp_path, "train")) == 36
