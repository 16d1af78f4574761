"""Sparklines and plots: their shape and their size."""

from __future__ import annotations

import pytest

from governor.cli.rendering.plot import HEIGHT, Point, plot, sparkline


def test_a_sparkline_has_a_cell_for_each_value_while_there_is_room():
    assert sparkline([0, 1, 2, 3, 4, 5, 6, 7], 8) == "▁▂▃▄▅▆▇█"
    assert sparkline([0, 0, 7, 7], 2) == "▁█"
    assert sparkline([3.0, 3.0], 8) == "▅▅"
    assert sparkline([], 8) == ""


@pytest.mark.parametrize("value", [0.1, 1 / 3, -1e300, 5e-324, 0.0])
def test_equal_values_are_drawn_level_whatever_rounding_makes_of_their_means(value):
    assert set(sparkline([value] * 161, 20)) == {"▅"}
    mean = sum([value] * 10) / 10
    points = [Point(n, n + 1, 1, mean if n else value, value, value) for n in range(40)]
    assert len([*plot(points, width=60, axis="step", ends=("0", "39"))]) == 3


@pytest.mark.parametrize("width", [10, 60, 100, 200])
def test_a_sparkline_is_never_too_wide(width):
    for count in range(1, 400, 7):
        assert 1 <= len(sparkline(range(count), width)) <= width


@pytest.mark.parametrize("width", [20, 60, 100, 200])
@pytest.mark.parametrize("count", [1, 2, 50, 160])
def test_a_plot_fits_and_has_its_axes(width, count):
    points = [Point(n * 10, n * 10 + 9, 10, float(n), n - 0.5, n + 0.5) for n in range(count)]
    lines = [*plot(points, width=width, axis="episode", ends=("0", str(count * 10 - 1)))]
    assert len(lines) == HEIGHT + 2
    assert max(map(len, lines)) <= width
    assert lines[0].split()[0] == f"{count - 0.5:.4g}"
    assert lines[-3].split()[0] == "-0.5"
    first, *name, last = lines[-1].split()
    assert (first, last) == ("0", str(count * 10 - 1))
    assert name == ["episode"] or (width == 20 and not name)
    assert all("•" in "".join(column) for column in zip(*[f"{line:<{width}}"[8:] for line in lines[:HEIGHT]], strict=True) if "░" in column)  # fmt: skip


def test_a_mean_that_rises_is_drawn_rising():
    points = [Point(n, n, 1, float(n), float(n), float(n)) for n in range(40)]
    rows = [*plot(points, width=60, axis="step", ends=("0", "39"))][:HEIGHT]
    first = [row.index("•") for row in rows]
    assert first == sorted(first, reverse=True)


def test_one_value_alone_is_one_row():
    lines = [*plot([Point(5, 5, 1, 2.0, 2.0, 2.0)], width=40, axis="episode", ends=("5", "5"))]
    assert len(lines) == 3
    assert lines[0].startswith("2 ┤•")
