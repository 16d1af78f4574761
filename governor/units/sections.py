"""Sections that a person writes, in a run file or in the configuration: their base, and their faults in plain words.

Rules:
1. Unknown keys are faults, and nothing is coerced: ``slots: "4"`` is a fault, not 4.
2. `validated` takes any value and never raises. All faults are found at once.
3. A message tells what was found and what is expected; for a misspelling it suggests the nearest right word.
"""

from __future__ import annotations

import difflib
from typing import TYPE_CHECKING, Any, Final, TypeAlias, TypeVar, get_args

from pydantic import BaseModel, ConfigDict, ValidationError, model_validator

from governor.units.fields import LIST, MAPPING, METRIC, WORD, without_numpy

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from pydantic_core import ErrorDetails

Path: TypeAlias = tuple[str | int, ...]
"""Where a value stands: the keys and indices that lead to it."""
M = TypeVar("M", bound=BaseModel)

_SHAPES: Final = {
    "string_type": "must be a text",
    "int_type": "must be a whole number",
    "float_type": "must be a number",
    "finite_number": "must be a finite number",
    "bool_type": "must be true or false",
    "dict_type": "must be a mapping (key: value)",
    "model_type": "must be a mapping (key: value)",
    "tuple_type": "must be a list",
    "recursion_loop": "contains itself",
}
_PATTERNS: Final = {
    "entry": "must look like 'module:attribute' (or 'gymnasium:ID' for an environment)",
    "call": "must look like 'module:attribute'",
    "http": "must be a path, as /health, or a URL",
    "url": "must be an URL, as https://hooks.example.org/runs, or, for a command, a list of its words",
}
_NAMES: Final = {
    METRIC: "must be of a-z, A-Z, 0-9 and _ . / : - and begin with a letter, a digit or '_'",
}
"""By their pattern."""
_NAME: Final = "must be letters, digits, '-', '_' and begin with a letter or digit"
_LONGEST_MISSPELLING: Final = 64


class Section(BaseModel):
    """The base of all sections. Numbers of numpy are taken as those of Python."""

    model_config = ConfigDict(frozen=True, extra="forbid", strict=True, allow_inf_nan=False)

    @model_validator(mode="before")
    @classmethod
    def _without_numpy(cls, data: Any) -> Any:
        return without_numpy(data, levels=1)


def validated(data: object, model: type[M]) -> tuple[M | None, list[tuple[Path, str]]]:
    """The section of plain `data`, or None and its faults."""
    try:
        return model.model_validate(data), []
    except ValidationError as invalid:
        errors = invalid.errors(include_url=False)
    places = [error["loc"] for error in errors]
    found = []
    for error in errors:
        place = error["loc"]
        # pydantic counts only the valid items of a list: one that it reports as too short may have faulty items.
        inner = any(len(other) > len(place) and other[: len(place)] == place for other in places)
        if not (error["type"] == "too_short" and inner):
            found.append((_place(place), _message(error, model)))
    return None, found


def spell(path: Path) -> str:
    """``("phases", 1, "tasks")`` as ``phases[1].tasks``."""
    text = ""
    for step in path:
        text += f"[{step}]" if isinstance(step, int) else f".{step}" if text else step
    return text


def shown(value: object) -> str:
    """`value` in a message: what it is, in a few words."""
    if isinstance(value, str):
        return f"the text {value!r}" if len(value) <= 40 else f"the text {value[:37]!r}..."
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, int | float):
        return repr(value)[:40]
    names = {type(None): "nothing", list: "a list", tuple: "a list", dict: "a mapping"}
    return names.get(type(value), f"a {type(value).__name__}")


def suggestion(given: object, options: Iterable[object]) -> str:
    """``; did you mean 'agents'?``, or "" when none of the `options` is near."""
    # The search is quadratic, and a long text is no misspelling.
    if not isinstance(given, str) or len(given) > _LONGEST_MISSPELLING:
        return ""
    near = difflib.get_close_matches(given, [option for option in options if isinstance(option, str)], n=1)
    return f"; did you mean {near[0]!r}?" if near else ""


def _place(loc: Path) -> Path:
    place = loc[:-1] if loc and loc[-1] == "[key]" else loc
    return tuple(step for step in place if step not in {LIST, MAPPING, WORD})


def _message(error: ErrorDetails, model: type[BaseModel]) -> str:
    loc, given, context = error["loc"], error["input"], error.get("ctx", {})
    field = str(loc[-1]) if loc else ""
    match error["type"]:
        case "extra_forbidden":
            text = f"unknown key {field!r}{suggestion(field, _fields(loc[:-1], model))}"
        case "missing":
            text = f"{field!r} is missing"
        case "literal_error":
            options = context["expected"].replace("'", "").replace(" or ", ", ").split(", ")
            text = f"must be one of {', '.join(options)}, not {shown(given)}{suggestion(given, options)}"
        case "string_pattern_mismatch":
            rule = _PATTERNS.get(field) or _NAMES.get(context["pattern"], _NAME)
            text = f"{rule}, not {given!r}"
        case "too_short":
            text = f"must have at least {context['min_length']} item"
        case "string_too_short":
            text = f"must have at least {context['min_length']} character"
        case "string_too_long":
            text = f"must be at most {context['max_length']} characters long"
        case "value_error":
            text = str(context["error"])
        case kind if kind in _SHAPES:
            text = f"{_SHAPES[kind]}, not {shown(given)}"
        case _:
            text = f"{error['msg'].replace('Input should', 'must')}, not {shown(given)}"
    return text


def _fields(loc: Path, section: type[BaseModel]) -> list[str]:
    """The keys of the section at `loc`, below `section`."""
    for step in loc:
        if isinstance(step, str) and step in section.model_fields:
            section = next(_models(section.model_fields[step].annotation), section)
    return list(section.model_fields)


def _models(annotation: object) -> Iterator[type[BaseModel]]:
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        yield annotation
    for part in get_args(annotation):
        yield from _models(part)
