"""A run file with a matrix as the runs that it stands for: cells, each a whole run file of its own. Pure: plain data in, plain data out.

Rules:
1. The file without its matrix is a run file, too; a cell is that file with other values at some places.
2. A fault of a cell that its values have caused is at the place of that value in the matrix; any other one is at its own place, and
   names the first cell that has it. The same fault of many cells is one.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Final

from governor.run_file import check, entry_check
from governor.run_file.dotted import UnknownPath, resolve, with_value
from governor.run_file.matrix import MOST_CELLS, Matrix, combine, identity
from governor.run_file.model import ConductorsSection, Run
from governor.run_file.plain_data import mapping
from governor.units.paths import titled
from governor.units.sections import suggestion, validated

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence

    from governor.run_file.entry_check import UserEntry
    from governor.units.sections import Path

MATRIX: Final = "matrix"
MOST_FAULTS: Final = 50
_ROOTS: Final = tuple(name for name in Run.model_fields if name != MATRIX)
_KINDS: Final = tuple(ConductorsSection.model_fields)


@dataclass(frozen=True, slots=True, kw_only=True)
class Cell:
    """One run of a group: its `number` from 0, the values of the matrix by their paths (`params`), and its whole run file. `run` is valid; None
    where that has faults. `places`: of each value in the run file, its place in the matrix.
    """

    number: int
    params: dict[str, Any]
    data: dict[str, Any]
    places: dict[Path, Path]
    run: Run | None = None

    def place_of(self, path: Path) -> Path | None:
        """The place in the matrix of the value that a fault at `path` comes from; None if from none."""
        for target, place in self.places.items():
            shared = min(len(target), len(path))
            if target[:shared] == path[:shared]:
                return place
        return None


def matrix_of(data: object) -> Matrix | None:
    """None where there is none, or one with faults, which those of the run are."""
    given = mapping(data).get(MATRIX)
    return None if given is None else validated(given, Matrix)[0]


def expand(data: Mapping[str, Any], matrix: Matrix) -> tuple[list[Cell], list[tuple[Path, str]]]:
    """The cells of a run file, or its faults. The runs of the cells are not made yet."""
    base = {key: value for key, value in data.items() if key != MATRIX}
    targets, faults = _targets(base, matrix)
    faults += matrix.unequal_zips()
    number = math.prod(len(axis) for axis in matrix.axes) if matrix.axes else 0
    if number > MOST_CELLS:
        faults.append(((MATRIX,), f"makes {number} runs; a group has {MOST_CELLS} at most"))
    if faults:
        return [], faults
    named = {targets[name]: name for _, name in reversed([*matrix.names])}
    axes = [[{targets[name]: one for name, one in step.items()} for step in axis] for axis in matrix.axes]
    included = [{targets[name]: one for name, one in each.items()} for each in matrix.included]
    excluded = [{targets[name]: value for name, value in each.items()} for each in matrix.exclude]
    axis_targets = {target for axis in axes for step in axis for target in step}
    faults += [
        (place, f"{name!r} is no key of the matrix{suggestion(name, [named[each] for each in axis_targets])}")
        for place, name in matrix.names
        if place[1] == "exclude" and targets[name] not in axis_targets
    ]
    made = combine(axes, included, excluded)
    if not made:
        faults.append(((MATRIX,), "leaves no run: name a key with its values, or exclude less"))
    if len(made) > MOST_CELLS:
        faults.append(((MATRIX,), f"makes {len(made)} runs; a group has {MOST_CELLS} at most"))
    cells = [_cell(base, number, settings, named) for number, settings in enumerate(made)]
    faults += _twice(cells)
    return ([], faults) if faults else (cells, [])


def place_of(data: Mapping[str, Any], name: str) -> Path:
    """The place in a run file that a path with dots leads to. Raises UnknownPath."""
    return resolve(data, name, roots=_ROOTS, kinds=_KINDS)


def _targets(base: Mapping[str, Any], matrix: Matrix) -> tuple[dict[str, Path], list[tuple[Path, str]]]:
    """The place that each path leads to, and the faults of paths."""
    targets: dict[str, Path] = {}
    faults: list[tuple[Path, str]] = []
    axes: dict[Path, str] = {}
    for place, name in matrix.names:
        try:
            targets[name] = target = place_of(base, name)
        except UnknownPath as error:
            near = suggestion(name, Matrix.model_fields) if len(place) == 2 else ""
            faults.append((place, str(error) if not near else f"unknown key {name!r}{near}"))
            continue
        if place[1] in ("include", "exclude"):
            continue
        for other, known in axes.items():
            shared = min(len(other), len(target))
            if other[:shared] == target[:shared]:
                faults.append(
                    (place, f"{name!r} and {known!r} are one place of the run file, or one is in the other")
                )
        axes[target] = name
    return targets, faults


def _cell(base: dict[str, Any], number: int, settings: Mapping[Path, Any], named: Mapping[Path, str]) -> Cell:
    data: Any = base
    for target, setting in settings.items():
        data = with_value(data, target, setting.value)
    return Cell(
        number=number,
        params={named[target]: setting.value for target, setting in settings.items()},
        data=data,
        places={target: setting.place for target, setting in settings.items()},
    )


def _twice(cells: Iterable[Cell]) -> Iterator[tuple[Path, str]]:
    seen: dict[bytes, int] = {}
    for cell in cells:
        if seen.setdefault(identity(cell.params), cell.number) != cell.number:
            yield (MATRIX,), f"makes the run with {titled(cell.params)} twice"


def examined(cells: Iterable[Cell]) -> tuple[list[Cell], list[tuple[Path, str]]]:
    """The cells with their runs, and the faults of all of them."""
    made: list[Cell] = []
    found = Faults()
    for cell in cells:
        run, faults = check.examine(cell.data)
        made.append(replace(cell, run=run))
        for path, message in faults:
            found.add(cell, path, message)
    return made, found.listed


def with_entries(base: Sequence[UserEntry], cells: Iterable[Cell]) -> list[UserEntry]:
    """The user code of the file, and what the cells name beside it, each once: its place begins with the number of a cell that names it."""
    known: set[tuple[Path, object]] = {(entry.place, entry.question) for entry in base}
    found = [*base]
    for cell in cells:
        for entry in entry_check.of_data(cell.data):
            if (this := (entry.place, entry.question)) not in known:
                known.add(this)
                found.append(replace(entry, place=(cell.number, *entry.place)))
    return found


def in_file(cells: Sequence[Cell], found: Iterable[tuple[Path, str]]) -> list[tuple[Path, str]]:
    """Faults, at their places in the run file: those that begin with the number of a cell are of that cell."""
    own: list[tuple[Path, str]] = []
    faults = Faults()
    for path, message in found:
        if path and isinstance(path[0], int):
            faults.add(cells[path[0]], path[1:], message)
        else:
            own.append((path, message))
    return own + faults.listed


class Faults:
    """Rule 2."""

    def __init__(self) -> None:
        self._found: dict[tuple[Path, str], str] = {}

    def add(self, cell: Cell, path: Path, message: str) -> None:
        place = cell.place_of(path)
        if place is not None:
            self._found.setdefault((place, message), "")
        else:
            self._found.setdefault((path, message), f" (in the run with {titled(cell.params)})")

    @property
    def listed(self) -> list[tuple[Path, str]]:
        """The first ones, up to `MOST_FAULTS`."""
        listed = [(place, f"{message}{which}") for (place, message), which in self._found.items()]
        more = len(listed) - MOST_FAULTS
        return [*listed[:MOST_FAULTS], *([((MATRIX,), f"has {more} more faults")] if more > 0 else [])]
