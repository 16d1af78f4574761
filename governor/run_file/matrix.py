"""The matrix of a run file: which values some of its keys get, run by run. As `strategy.matrix` of GitHub Actions.

Rules:
1. Keys multiply, the first one varies slowest; those of one mapping of `zip` advance together.
2. `exclude` removes the combinations that have all of its values. Then each mapping of `include` is added to every
   combination of which it changes no value; where there is none it is a combination of its own.
3. Pure: `cells` makes run files of the combinations.
"""

from __future__ import annotations

import re
from itertools import product
from typing import TYPE_CHECKING, Annotated, Any, Final, NamedTuple, TypeAlias, TypeVar

import msgspec
from pydantic import BeforeValidator, ConfigDict, Field, WithJsonSchema

from governor.units.fields import without_numpy
from governor.units.sections import Section, shown

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from governor.units.sections import Path

K = TypeVar("K")

MOST_CELLS: Final = 10_000
"""Runs of one group."""
RANGE: Final = r"range\(\s*(-?\d+)\s*(?:,\s*(-?\d+)\s*)?(?:,\s*(-?\d+)\s*)?\)"


def values_of_range(text: str) -> list[int] | None:
    """The numbers of ``range(5)``, as Python has them; None for any other text. Raises ValueError for too many or none."""
    found = re.fullmatch(RANGE, text.strip())
    if found is None:
        return None
    try:
        numbers = range(*(int(number) for number in found.groups() if number is not None))
    except ValueError as error:
        raise ValueError(f"{text}: {error}") from None
    if not 0 < len(numbers) <= MOST_CELLS:
        raise ValueError(f"{text} has {len(numbers)} values: 1 to {MOST_CELLS} are possible")
    return list(numbers)


def identity(value: object) -> bytes:
    """Equal for values that a run file can't tell apart; 1, 1.0 and true are different ones. Raises TypeError."""
    return msgspec.json.encode(value, order="deterministic")


def _values(given: object) -> tuple[Any, ...]:
    given = without_numpy(given)
    if isinstance(given, str):
        given = values_of_range(given) or given
    if not isinstance(given, list | tuple):
        raise ValueError(f"must be a list of values, or a text as 'range(5)', not {shown(given)}")  # noqa: TRY004  # pydantic collects ValueErrors
    if not given:
        raise ValueError("has no value: the list is empty")
    if len(given) > MOST_CELLS:
        raise ValueError(f"has {len(given)} values: {MOST_CELLS} at most are possible")
    seen = set[bytes]()
    for value in given:
        try:
            known = identity(value)
        except (TypeError, ValueError, OverflowError, RecursionError, msgspec.MsgspecError):
            raise ValueError(
                f"has {shown(value)}: use texts, numbers, booleans, lists and mappings"
            ) from None
        if known in seen:
            raise ValueError(f"has the value {value!r} twice")
        seen.add(known)
    return tuple(given)


Values: TypeAlias = Annotated[
    tuple[Any, ...],
    BeforeValidator(_values),
    WithJsonSchema(
        {"anyOf": [{"type": "array", "minItems": 1}, {"type": "string", "pattern": f"^{RANGE}$"}]}
    ),
]
Paths: TypeAlias = dict[str, Any]


def _listed(given: object) -> object:
    return [given] if isinstance(given, dict) else given


class Matrix(Section):
    """One file, many runs: `governor submit` makes a group of them. Every other key of this section is the path of a key of the run
    file, as `agents.walker.params.alpha`, with the list of its values; a text as `range(5)` is a list of numbers.
    """

    model_config = ConfigDict(extra="allow")
    __pydantic_extra__: dict[str, Values]

    zip: Annotated[
        tuple[dict[str, Values], ...],
        BeforeValidator(_listed),
        Field(
            strict=False,
            description="Keys whose lists advance together, as one axis: a mapping, or several in a list.",
            examples=[{"agents.walker.params.alpha": [0.1, 0.5], "agents.walker.params.gamma": [0.9, 0.99]}],
        ),
    ] = ()
    include: Annotated[
        tuple[Paths, ...],
        Field(
            strict=False,
            max_length=MOST_CELLS,
            description="Mappings of keys to one value: each is added to the runs of which it changes no value, else it is a run "
            "of its own.",
            examples=[[{"agents.walker.params.alpha": 0.9, "seed": 0}]],
        ),
    ] = ()
    exclude: Annotated[
        tuple[Paths, ...],
        Field(
            strict=False,
            max_length=MOST_CELLS,
            description="Mappings of keys to one value: runs with all of these are left out.",
            examples=[[{"agents.walker.params.alpha": 0.5, "seed": 1}]],
        ),
    ] = ()
    max_parallel: Annotated[
        Annotated[int, Field(ge=1)] | None,
        Field(description="Runs of the group at work at the same time; null: as many as there are slots."),
    ] = None
    fail_fast: Annotated[
        bool, Field(description="When a run of the group fails, those that have not begun are aborted.")
    ] = False

    @property
    def axes(self) -> list[Axis]:
        """Without `include`: those of one key first, in the order of the file."""
        single = [
            [{name: Setting(value, ("matrix", name, at))} for at, value in enumerate(values)]
            for name, values in self.__pydantic_extra__.items()
        ]
        return [*single, *(_zipped(number, axis) for number, axis in enumerate(self.zip))]

    @property
    def included(self) -> Axis:
        return [
            {name: Setting(value, ("matrix", "include", number, name)) for name, value in each.items()}
            for number, each in enumerate(self.include)
        ]

    @property
    def names(self) -> Iterator[tuple[Path, str]]:
        """Each path that is named, with its place in the run file."""
        for name in self.__pydantic_extra__:
            yield ("matrix", name), name
        for key, mappings in (("zip", self.zip), ("include", self.include), ("exclude", self.exclude)):
            for number, each in enumerate(mappings):
                for name in each:
                    yield ("matrix", key, number, name), name

    def unequal_zips(self) -> Iterator[tuple[Path, str]]:
        """The faults of lists that should advance together."""
        for number, axis in enumerate(self.zip):
            lengths = {name: len(values) for name, values in axis.items()}
            if len(set(lengths.values())) > 1:
                told = ", ".join(f"{name} has {length}" for name, length in lengths.items())
                yield ("matrix", "zip", number), f"needs lists of one length: {told}"


class Setting(NamedTuple):
    """A value, and its place in the run file."""

    value: Any
    place: Path


Axis: TypeAlias = "list[dict[str, Setting]]"


def _zipped(number: int, axis: Mapping[str, Sequence[Any]]) -> Axis:
    length = min(map(len, axis.values()), default=0)
    return [
        {name: Setting(values[at], ("matrix", "zip", number, name, at)) for name, values in axis.items()}
        for at in range(length)
    ]


def combine(
    axes: Sequence[Sequence[Mapping[K, Setting]]],
    include: Sequence[Mapping[K, Setting]],
    exclude: Sequence[Mapping[K, Any]],
) -> list[dict[K, Setting]]:
    """Rules 1 and 2, for keys of any kind."""
    original = {key for axis in axes for step in axis for key in step}
    made = [
        {key: setting for step in steps for key, setting in step.items()} for steps in product(*axes) if steps
    ]
    kept = [cell for cell in made if not any(_has(cell, each) for each in exclude)]
    alone: list[dict[K, Setting]] = []
    for extra in include:
        fixed = {key: setting.value for key, setting in extra.items() if key in original}
        fitting = [cell for cell in kept if _has(cell, fixed)]
        for cell in fitting:
            cell.update({key: setting for key, setting in extra.items() if key not in original})
        if not fitting:
            alone.append(dict(extra))
    return kept + alone


def _has(cell: Mapping[K, Setting], wanted: Mapping[K, Any]) -> bool:
    return all(key in cell and identity(cell[key].value) == identity(value) for key, value in wanted.items())
