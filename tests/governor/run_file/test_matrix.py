"""The combinations of a matrix: those that users of GitHub Actions know, from the example of its documentation."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from governor.run_file.matrix import Matrix, Setting, combine, values_of_range
from governor.units.sections import validated


def combined(axes, include=(), exclude=()):
    cells = combine(
        [[{key: Setting(value, ()) for key, value in step.items()} for step in axis] for axis in axes],
        [{key: Setting(value, ()) for key, value in each.items()} for each in include],
        exclude,
    )
    return [{key: setting.value for key, setting in cell.items()} for cell in cells]


def axis(name, *values):
    return [{name: value} for value in values]


def test_what_is_included_follows_the_rules_of_github_actions():
    """https://docs.github.com/en/actions/reference/workflows-and-actions/workflow-syntax#jobsjob_idstrategymatrixinclude"""
    axes = [axis("fruit", "apple", "pear"), axis("animal", "cat", "dog")]
    include = [
        {"color": "green"},
        {"color": "pink", "animal": "cat"},
        {"fruit": "apple", "shape": "circle"},
        {"fruit": "banana"},
        {"fruit": "banana", "animal": "cat"},
    ]
    assert combined(axes, include) == [
        {"fruit": "apple", "animal": "cat", "color": "pink", "shape": "circle"},
        {"fruit": "apple", "animal": "dog", "color": "green", "shape": "circle"},
        {"fruit": "pear", "animal": "cat", "color": "pink"},
        {"fruit": "pear", "animal": "dog", "color": "green"},
        {"fruit": "banana"},
        {"fruit": "banana", "animal": "cat"},
    ]


def test_what_is_excluded_need_not_name_every_key_and_is_no_other_kind_of_value():
    axes = [axis("os", "a", "b"), axis("version", 1, 2)]
    assert combined(axes, exclude=[{"os": "a"}, {"os": "b", "version": 2}]) == [{"os": "b", "version": 1}]
    assert len(combined(axes, exclude=[{"version": 1.0}, {"version": True}])) == 4
    back = combined(axes, include=[{"os": "a", "version": 1, "extra": 0}], exclude=[{"os": "a"}])
    assert {"os": "a", "version": 1, "extra": 0} in back, "include comes after exclude"


def test_without_keys_each_included_one_is_a_run():
    assert combined([], [{"a": 1}, {"a": 2}]) == [{"a": 1}, {"a": 2}]
    assert combined([]) == []


def test_keys_of_a_zip_advance_together():
    zipped = [{"a": 1, "b": 10}, {"a": 2, "b": 20}]
    assert combined([axis("c", 5, 6), zipped]) == [
        {"c": 5, "a": 1, "b": 10},
        {"c": 5, "a": 2, "b": 20},
        {"c": 6, "a": 1, "b": 10},
        {"c": 6, "a": 2, "b": 20},
    ]


@given(st.lists(st.integers(1, 4), max_size=4))
def test_keys_multiply_and_no_combination_is_there_twice(sizes):
    found = combined([axis(str(place), *range(size)) for place, size in enumerate(sizes)])
    number = 1
    for size in sizes:
        number *= size
    assert len(found) == (number if sizes else 0)
    assert len({tuple(sorted(cell.items())) for cell in found}) == len(found)


def test_a_range_is_that_of_python():
    assert values_of_range("range(5)") == [0, 1, 2, 3, 4]
    assert values_of_range(" range(2, -4, -3) ") == [2, -1]
    assert values_of_range("arrange(5)") is None
    for text in ("range(0)", "range(1, 1)", "range(10001)", "range(1, 2, 0)"):
        with pytest.raises(ValueError, match="range"):
            values_of_range(text)


def faults(**given):
    return dict(validated(given, Matrix)[1])


def test_values_that_make_no_runs_are_faults():
    assert faults(seed=3) == {("seed",): "must be a list of values, or a text as 'range(5)', not 3"}
    assert faults(seed=[]) == {("seed",): "has no value: the list is empty"}
    assert faults(seed=[1, 2, 1]) == {("seed",): "has the value 1 twice"}
    assert faults(seed=[1, 1.0, True]) == {}, "these are different ones"
    assert faults(seed="range(0)") == {("seed",): "range(0) has 0 values: 1 to 10000 are possible"}
    assert faults(max_parallel=0).keys() == {("max_parallel",)}
    assert faults(zip={"a": [1], "b": 2}).keys() == {("zip", 0, "b")}
    assert faults(include={"a": 1}).keys() == {("include",)}
