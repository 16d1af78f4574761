"""The types of the fields of a run file (`governor.run_file.model`).

Names end up in file names, socket paths and service names; their alphabet is narrow for that reason.
"""

from __future__ import annotations

import json
import math
import re
import sys
from typing import Annotated, Any, Literal, TypeAlias

from pydantic import (
    AfterValidator,
    BeforeValidator,
    Discriminator,
    Field,
    Tag,
    WithJsonSchema,
)

from governor.units import durations, sizes, variables

MAX_COUNT = 10_000_000
_MAX_DEPTH = 100


def _duration(value: object) -> float:
    length = durations.seconds(value)
    if length == 0:
        raise ValueError("must be longer than 0")
    return length


def without_numpy(value: Any, levels: int = _MAX_DEPTH) -> Any:
    """Plain data with Python's numbers and lists in place of numpy's scalars and arrays, down to so many `levels`; a copy
    where there may be any. Does not import numpy: if nothing has, the data contain none.
    """
    numpy: Any = sys.modules.get("numpy")
    return value if numpy is None else _without((numpy.generic, numpy.ndarray), value, levels)


def _without(kinds: tuple[type, type], value: Any, levels: int) -> Any:
    if isinstance(value, kinds):
        return value.tolist()  # type: ignore[attr-defined]  # they have it
    if levels and isinstance(value, dict):
        return {key: _without(kinds, item, levels - 1) for key, item in value.items()}
    if levels and isinstance(value, list):
        return [_without(kinds, item, levels - 1) for item in value]
    return value


def _plain(values: dict[str, Any]) -> dict[str, Any]:
    """Accepts what both JSON and msgpack carry: text keys, no other objects, integers of 64 bits, finite numbers. Not recursive."""
    pending: list[tuple[str, object, int]] = [("", values, 0)]
    while pending:
        place, item, depth = pending.pop()
        problem = _not_plain(item) if depth <= _MAX_DEPTH else f"is nested deeper than {_MAX_DEPTH} levels"
        if problem:
            raise ValueError(f"{place}: {problem}" if place else problem)
        if isinstance(item, dict):
            for key, value in item.items():
                if not isinstance(key, str):
                    raise ValueError(f"{place or 'here'}: the key {key!r} must be a text")  # noqa: TRY004  # pydantic collects ValueErrors
                pending.append((f"{place}.{key}" if place else key, value, depth + 1))
        elif isinstance(item, list):
            pending += [(f"{place}[{index}]", value, depth + 1) for index, value in enumerate(item)]
    return values


def _not_plain(item: object) -> str:
    if isinstance(item, int) and not -(2**63) <= item < 2**64:
        return "does not fit 64 bits"
    if isinstance(item, float) and not math.isfinite(item):
        return f"{item} is no number that a record in JSON can have: write the text '{item}', and let the code say float('{item}')"
    if isinstance(item, str) and any("\ud800" <= character <= "\udfff" for character in item):
        return "holds a text that is not valid Unicode"
    if item is None or isinstance(item, str | int | float | dict | list):
        return ""
    return f"a {type(item).__name__} can't be sent: use texts, numbers, booleans, lists and mappings"


def _share(value: object) -> object:
    whole = isinstance(value, int) and not isinstance(value, bool) and 0 <= value <= MAX_COUNT
    if whole or (isinstance(value, str) and re.fullmatch(PERCENTAGE, value)):
        return value
    raise ValueError(f"must be a number, as 20, or a percentage from 0% to 100%, as 1%, not {value!r}")


def _word(value: object) -> str:
    if isinstance(value, str | int | float) and not isinstance(value, bool):
        word = str(value)
        if "\0" not in word:
            return word
        raise ValueError("holds a zero byte")
    raise ValueError(f"must be a text or a number: {json.dumps(value, default=str)} needs quotes")


def _free_variable(name: str) -> str:
    if reason := variables.refusal(name):
        raise ValueError(reason)
    return name


def _words(value: object) -> object:
    if not isinstance(value, str):
        return value
    raise ValueError("must be a list of words, as [python, train.py]; a line for a shell is [sh, -c, 'LINE']")


def _with_program(words: tuple[str, ...]) -> tuple[str, ...]:
    if words[0]:
        return words
    raise ValueError("its first word is empty, and must be a program")


def each_once(values: tuple[str, ...]) -> tuple[str, ...]:
    """Raises ValueError."""
    if twice := next((value for value in values if values.count(value) > 1), None):
        raise ValueError(f"{twice!r} stands twice")
    return values


def _or_text(number: dict[str, Any], pattern: str) -> WithJsonSchema:
    return WithJsonSchema({"anyOf": [number, {"type": "string", "pattern": pattern}]})


PERCENTAGE = r"^(100(\.0+)?|[0-9]{1,2}(\.[0-9]+)?)%$"
ENTRY = r"^[^\s:]+:[^\s]+$"
Name: TypeAlias = Annotated[str, Field(pattern=r"^[A-Za-z0-9][A-Za-z0-9._-]*$", max_length=64)]
ShortName: TypeAlias = Annotated[str, Field(pattern=r"^[A-Za-z0-9][A-Za-z0-9_-]*$", max_length=32)]
Entry: TypeAlias = Annotated[str, Field(pattern=ENTRY, max_length=256)]
Duration: TypeAlias = Annotated[
    float,
    BeforeValidator(_duration),
    _or_text({"type": "number", "exclusiveMinimum": 0, "maximum": durations.LONGEST}, durations.PATTERN),
]
AnyDuration: TypeAlias = Annotated[
    float,
    BeforeValidator(durations.seconds),
    _or_text({"type": "number", "minimum": 0, "maximum": durations.LONGEST}, durations.PATTERN),
]
"""A duration that may be 0."""
Size: TypeAlias = Annotated[
    int,
    BeforeValidator(sizes.limit),
    _or_text({"type": "integer", "minimum": sizes.LEAST, "maximum": sizes.MOST}, sizes.PATTERN),
]
"""Bytes, as a limit."""
Count: TypeAlias = Annotated[int, Field(ge=1, le=MAX_COUNT)]
Share: TypeAlias = Annotated[
    int | str,
    BeforeValidator(_share),
    _or_text({"type": "integer", "minimum": 0, "maximum": MAX_COUNT}, PERCENTAGE),
]
"""So many, or a percentage of all."""
Params: TypeAlias = Annotated[dict[str, Any], BeforeValidator(without_numpy), AfterValidator(_plain)]
Word: TypeAlias = Annotated[str, BeforeValidator(_word, json_schema_input_type=str | float)]
"""An argument of a program, or a value in its environment."""
Words: TypeAlias = Annotated[
    tuple[Word, ...],
    Field(strict=False, min_length=1, max_length=10_000),
    BeforeValidator(_words),
    AfterValidator(_with_program),
]
FilePath: TypeAlias = Annotated[str, Field(min_length=1, max_length=4096)]
VariableName: TypeAlias = Annotated[str, Field(pattern=rf"^{variables.NAME}$", max_length=256)]
FreeVariable: TypeAlias = Annotated[VariableName, AfterValidator(_free_variable)]
"""One that a run may set for all of its processes."""
PLAIN_NAME = r"^[A-Za-z0-9][A-Za-z0-9._-]*$"
SecretName: TypeAlias = Annotated[str, Field(pattern=PLAIN_NAME, max_length=255)]
"""Of a file in a folder of secrets."""
Models: TypeAlias = Annotated[
    tuple[Annotated[str, Field(min_length=1)] | Params, ...], Field(strict=False, max_length=10_000)
]

LabelKey: TypeAlias = Annotated[str, Field(pattern=r"^[A-Za-z0-9][A-Za-z0-9._/-]*$", max_length=64)]
Labels: TypeAlias = Annotated[dict[LabelKey, Annotated[str, Field(max_length=256)]], Field(max_length=64)]

METRIC = r"^[A-Za-z0-9_][A-Za-z0-9_./:-]*$"
Metric: TypeAlias = Annotated[str, Field(pattern=METRIC, max_length=64)]
"""A number of the user's code, by its name."""

LIST, MAPPING, WORD = "[list]", "[mapping]", "[word]"
"""The tags that pydantic puts into the location of a fault, for a key that may be either."""
Agents: TypeAlias = Annotated[
    Annotated[tuple[str, ...], Field(strict=False, min_length=1), Tag(LIST)]
    | Annotated[dict[Annotated[str, Field(min_length=1)], str], Field(min_length=1), Tag(MAPPING)],
    Discriminator(lambda given: MAPPING if isinstance(given, dict) else LIST),
]
Info: TypeAlias = Annotated[
    Annotated[tuple[Metric, ...], Field(strict=False), Tag(LIST)]
    | Annotated[dict[Metric, Literal["last", "mean", "sum", "min", "max"]], Tag(MAPPING)]
    | Annotated[Literal["all"], Tag(WORD)],
    Discriminator(
        lambda given: (
            MAPPING if isinstance(given, dict) else LIST if isinstance(given, list | tuple) else WORD
        )
    ),
]
