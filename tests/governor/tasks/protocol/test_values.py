"""What becomes of a returned value: in the record, in a file, or a clear reason."""

from __future__ import annotations

import dataclasses
import threading
from pathlib import Path

import numpy as np
import pytest

from governor.tasks import TaskResult
from governor.tasks.protocol.values import (
    DEEPEST,
    INLINE_BYTES,
    Unserialisable,
    load,
    read,
    store,
)
from tests.support.full_disk import full_beyond


@pytest.mark.parametrize(
    ("value", "inline"),
    [
        (None, None),
        ((1, "a", 2.5, True), [1, "a", 2.5, True]),
        ({"a": {"b": [None]}}, {"a": {"b": [None]}}),
        (np.float64(0.5), 0.5),
        (np.int64(7), 7),
    ],
)
def test_small_json_like_values_travel_in_the_record(tmp_path, value, inline):
    stored = store(value, folder=tmp_path, stem="results/t-0")
    assert stored.value == inline
    assert type(stored.value) is type(inline)
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize(
    "value",
    [b"x" * 1000, {"a": "x" * INLINE_BYTES}, TaskResult(1, payload=b"x" * 1000)],
    ids=["pickled", "json", "payload"],
)
def test_a_value_that_does_not_fit_on_the_disk_is_named_with_its_file(tmp_path, value):
    told = f"its result cannot be written: OSError: .* File too large: '{tmp_path}/results/t-0\\."
    with full_beyond(100), pytest.raises(Unserialisable, match=told):
        store(value, folder=tmp_path, stem="results/t-0")
    assert not list((tmp_path / "results").iterdir())


@pytest.mark.parametrize("value", [(1, 2), {"a": [1, (2.0, None)]}, ()])
def test_tuples_come_back_as_tuples_where_they_are_kept(tmp_path, value):
    stored = store(value, folder=tmp_path, stem="t-0", keeps_tuples=True)
    assert (stored.value, load(tmp_path / stored.value_file)) == (None, value)
    assert store([1, {"a": 2}], folder=tmp_path, stem="t-1", keeps_tuples=True).value == [1, {"a": 2}]


@pytest.mark.parametrize(
    ("value", "suffix"),
    [
        ("x" * INLINE_BYTES, ".json"),
        ({1: 2}, ".pkl"),
        (b"raw", ".pkl"),
        ({1, 2}, ".pkl"),
        (2**70, ".pkl"),
        ("\udc80", ".pkl"),
        (Path("/a"), ".pkl"),
    ],
)
def test_other_values_go_to_a_file_and_come_back_equal(tmp_path, value, suffix):
    stored = store(value, folder=tmp_path, stem="results/t-0")
    assert stored.value_file == f"results/t-0{suffix}"
    assert load(tmp_path / stored.value_file) == value
    assert [path.name for path in (tmp_path / "results").iterdir()] == [f"t-0{suffix}"]


def test_arrays_keep_their_type(tmp_path):
    array = np.arange(6, dtype=np.int16).reshape(2, 3)
    stored = store(array, folder=tmp_path, stem="t-0")
    assert stored.value_file == "t-0.npy"
    assert load(tmp_path / "t-0.npy").dtype == np.int16
    assert store(np.array([{}]), folder=tmp_path, stem="o-0").value_file == "o-0.pkl"


def test_what_cannot_be_kept_is_told_and_leaves_no_file(tmp_path):
    with pytest.raises(Unserialisable, match="the returned lock cannot be serialised: TypeError"):
        store(threading.Lock(), folder=tmp_path, stem="t-0")
    deep: list = []
    for _ in range(100_000):
        deep = [deep]
    with pytest.raises(Unserialisable, match="the returned list cannot be serialised: RecursionError"):
        store(deep, folder=tmp_path, stem="t-0")
    assert not list(tmp_path.iterdir())


def test_what_is_nested_deeply_or_contains_itself_does_not_travel(tmp_path):
    """Its reader would run out of stack."""
    endless: list = [1]
    endless.append(endless)
    stored = store(endless, folder=tmp_path, stem="t-0")
    again = load(tmp_path / stored.value_file)
    assert again[0] == 1
    assert again[1] is again
    deep: list = []
    for _ in range(DEEPEST):
        deep = [deep]
    assert store(deep, folder=tmp_path, stem="t-1").value_file == "t-1.pkl"
    assert store(deep[0], folder=tmp_path, stem="t-2").value == deep[0]


def test_metrics_are_bounded(tmp_path):
    """They travel in the record; a large dict of numbers is a value, as all others are."""
    many = {str(number): float(number) for number in range(INLINE_BYTES // 10)}
    stored = store(many, folder=tmp_path, stem="t-0")
    assert stored.metrics == {}
    assert load(tmp_path / stored.value_file) == many
    few = dict(list(many.items())[: INLINE_BYTES // 20])
    assert store(few, folder=tmp_path, stem="t-1").metrics == few
    with pytest.raises(Unserialisable, match="6553 metrics take more than 65536 bytes"):
        store(TaskResult(1, many), folder=tmp_path, stem="t-2")


def test_metrics_are_numbers_with_names(tmp_path):
    assert store({"a": 1, "b": np.float32(0.5)}, folder=tmp_path, stem="t").metrics == {"a": 1.0, "b": 0.5}
    assert store({"a": 1, "b": "no"}, folder=tmp_path, stem="t").metrics == {}
    assert store({"a": True}, folder=tmp_path, stem="t").metrics == {}
    with pytest.raises(Unserialisable, match="metric 'loss' is 'low'"):
        store(TaskResult(None, {"loss": "low"}), folder=tmp_path, stem="t")


def test_a_value_of_the_users_own_type(tmp_path):
    @dataclasses.dataclass
    class Local:
        n: int

    stored = store([Local(1)], folder=tmp_path, stem="t")
    assert load(tmp_path / stored.value_file) == [Local(1)]


def test_numbers_that_json_does_not_know_stay_what_they_are(tmp_path):
    value = {"rewards": [float("nan"), float("-inf"), 0.1] * 10_000}
    stored = store(value, folder=tmp_path, stem="t")
    nan, infinite, number, *_ = load(tmp_path / stored.value_file)["rewards"]
    assert nan != nan  # noqa: PLR0124  # so is NaN
    assert (infinite, number) == (float("-inf"), 0.1)


def test_a_payload_is_bytes_and_names_of_metrics_have_utf8(tmp_path):
    with pytest.raises(Unserialisable, match="the payload is a str, not bytes"):
        store(TaskResult(None, {}, "text"), folder=tmp_path, stem="t")
    with pytest.raises(Unserialisable, match="has no UTF-8 form"):
        store(TaskResult(None, {"\udc80": 1.0}), folder=tmp_path, stem="t")
    assert store({"\udc80": 1}, folder=tmp_path, stem="t").metrics == {}
    assert (
        store(TaskResult(0, {}, bytearray(b"ab")), folder=tmp_path, stem="t", payload_inline=True).payload
        == b"ab"
    )
    assert not list(tmp_path.glob("*.payload"))


def test_where_the_folder_is_not_to_be_had_files_travel(tmp_path):
    value = TaskResult(np.arange(3), {}, b"raw")
    stored = store(value, folder=tmp_path / "none", stem="r/t-0", writes=False)
    assert [name for name, _ in stored.files] == ["r/t-0.payload", "r/t-0.npy"]
    assert read(stored.files[1][1], suffix=".npy").tolist() == [0, 1, 2]
    assert stored.value_file == "r/t-0.npy"
    assert not (tmp_path / "none").exists()
