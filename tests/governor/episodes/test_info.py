"""Rows and figures of `info`: what a number is, what is missing, reductions, bounds."""

import math

import numpy as np
import pytest
from structlog.testing import capture_logs

from governor.episodes import info, metrics
from governor.episodes.info import InfoFigures, columns_of, packing, reader_of

NUMBERS = (True, 3, 0.5, np.bool_(True), np.int8(3), np.float16(0.5), np.uint64(7), np.array(2.0))


@pytest.mark.parametrize("value", NUMBERS)
@pytest.mark.parametrize("keys", [["a"], ["a", "b"]])
def test_bools_and_scalars_of_numpy_are_numbers(value, keys):
    row = reader_of(dict.fromkeys(keys, "last"))({"a": value, "b": 1, "c": "text"})
    assert [*packing(len(keys)).unpack(row)] == [float(value), 1.0][: len(keys)]


def test_a_row_does_not_change_with_the_array_that_it_was_read_from():
    value = np.array(2.0)
    row = reader_of({"a": "last", "b": "last"})({"a": value, "b": 1})
    value[...] = 9
    assert packing(2).unpack(row) == (2.0, 1.0)


def test_what_is_missing_or_none_is_null():
    read = reader_of({"a": "last", "b.c": "last", "d.e": "last"})
    assert read({"a": None, "b": {"c": 4}}) == [None, 4, None]
    assert read({"d": 3, "b.c": 5}) == [None, 5, None], "a key with a dot counts before a path"


@pytest.mark.parametrize(
    ("value", "said"),
    [
        ("left", "info: 'a' is of type str, not a number"),
        (np.zeros(3), "info: 'a' is an array of shape (3,), not a number"),
        ({"r": 1, "l": 2}, "info: 'a' is of type dict, not a number; its keys are a.r, a.l"),
        (1j, "info: 'a' is of type complex, not a number"),
    ],
)
def test_a_named_key_that_is_no_number_is_named(value, said):
    with pytest.raises(ValueError, match="^" + said.replace("(", r"\(").replace(")", r"\)") + "$"):
        reader_of({"a": "last", "b": "last"})({"a": value, "b": 1})


def test_an_info_that_is_no_dict_is_a_fault():
    with pytest.raises(ValueError, match="info is of type list, not a dict"):
        reader_of({"a": "last", "b": "last"})([1, 2])


def test_all_takes_numbers_one_level_deep_and_says_once_what_it_leaves_out(monkeypatch):
    monkeypatch.setattr(info, "_left_out", set())
    given = {
        "a": 1,
        "text": "x",
        "none": None,
        "episode": {"r": 2.0, "deep": {"x": 1}},
        "return": 3,
        "a b": 4,
        5: 6,
    }
    with capture_logs() as logs:
        for _ in range(3):
            for read in (reader_of("all"), reader_of("all")):
                assert read(given) == {"a": 1, "episode.r": 2.0, "5": 6}
    assert sorted(line["key"] for line in logs) == ["a b", "episode.deep", "return", "text"]


def test_all_has_a_bound(monkeypatch):
    monkeypatch.setattr(metrics, "_told", set())
    read = reader_of("all")
    with capture_logs() as logs:
        found = [read({f"k{number}": 1}) for number in range(3 * metrics.MOST)]
    assert sum(map(bool, found)) == metrics.MOST
    assert [line["event"] for line in logs] == ["metrics.too_many_names"]


def fold(wanted, infos, *, reset=None):
    read, figures = reader_of(wanted), InfoFigures(wanted, columns_of(wanted))
    before = dict.fromkeys([*infos[0], *(reset or {}), *(wanted if wanted != "all" else ())], 999)
    for first, steps in (
        (before, [before]),
        (reset or {}, infos),
    ):  # an episode knows nothing of the one before
        figures.begin(read(first))
        for one in steps:
            figures.add(read(one))
    return figures.figures()


@pytest.mark.parametrize("wanted", [{"a": "last", "b": "last", "c": "last"}, "all"])
def test_an_episode_has_the_last_value_of_a_key(wanted):
    infos = [{"a": 1, "b": 5}, {"a": 2, "b": 6, "c": 7}, {"a": 3}]
    assert fold(wanted, infos, reset={"c": 1, "b": 0}) == {"a": 3.0, "b": 6.0, "c": 7.0}


def test_a_key_of_reset_alone_is_a_figure():
    assert fold({"level": "last", "mean": "mean"}, [{"x": 1}], reset={"level": 4, "mean": 2}) == {
        "level": 4.0,
        "mean": 2.0,
    }


def test_reductions_are_over_the_steps():
    wanted = {"a": "mean", "b": "sum", "c": "min", "d": "max", "e": "last"}
    infos = [dict.fromkeys(wanted, value) for value in (2, 6, 4)]
    assert fold(wanted, infos, reset=dict.fromkeys(wanted, 100)) == {
        "a": 4.0,
        "b": 12.0,
        "c": 2.0,
        "d": 6.0,
        "e": 4.0,
    }


def test_what_is_not_finite_is_counted():
    infos = [{"a": math.nan, "b": 1}, {"a": 3.0, "b": 2}, {"a": math.inf, "b": math.nan}]
    assert fold({"a": "mean", "b": "last"}, infos) == {"a": 3.0, "a.nonfinite": 2.0, "b.nonfinite": 1.0}


def test_a_huge_number_is_infinite():
    assert fold({"a": "last", "b": "last"}, [{"a": 10**400, "b": 1}]) == {"a.nonfinite": 1.0, "b": 1.0}


def test_infos_of_players_are_by_player():
    wanted = {"a": "last", "b": "sum"}
    names = columns_of(wanted, ["red", "blue"])
    assert names == ("red.a", "red.b", "blue.a", "blue.b")
    read, figures = reader_of(wanted, ["red", "blue"]), InfoFigures(wanted, names)
    figures.begin(read({"red": {}, "blue": {}}))
    for one in ({"red": {"a": 1, "b": 2}, "blue": {"b": 5}}, {"blue": {"a": 4, "b": 5}}):
        figures.add(read(one))
    assert figures.figures() == {"red.a": 1.0, "red.b": 2.0, "blue.a": 4.0, "blue.b": 10.0}
    assert reader_of("all", ["red", "blue"])({"red": {"x": 1}, "green": {"x": 2}}) == {"red.x": 1}


@pytest.mark.parametrize("wanted", [{"a": "last", "b": "last"}, {"a": "last", "b": "sum"}, "all"])
def test_an_episode_knows_nothing_of_the_one_before(wanted):
    read, figures = reader_of(wanted), InfoFigures(wanted, columns_of(wanted))
    for infos in ([{"a": 1, "b": 2}, {"a": 1}], [{"a": 3}]):
        figures.begin(read({}))
        for one in infos:
            figures.add(read(one))
    assert figures.figures() == {"a": 3.0}
