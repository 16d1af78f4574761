"""Tables of all keys of a section and of those below it, from the pydantic models: what `governor check` accepts.

Examples are taken from the file that the page shows, else from the model.
"""

from __future__ import annotations

import re
import tomllib
from importlib import import_module
from typing import TYPE_CHECKING, Any, get_args

import yaml
from pydantic import BaseModel

from governor.units import durations, sizes

if TYPE_CHECKING:
    from pydantic.fields import FieldInfo

_FILE = re.compile(r"^```(yaml|toml) title=.*?\n(.*?)^```", re.DOTALL | re.MULTILINE)
_UNBOUNDED = 2**63 - 1
_TYPES = {
    "": "[section](#{key})",
    "string": "text",
    "path": "path",
    "integer": "whole number",
    "number": "number",
    "boolean": "`true` or `false`",
    "object": "mapping",
    "array": "list",
    "null": "null",
}
_UNITS = {durations.PATTERN: "duration, seconds", sizes.PATTERN: "size, bytes"}


def part(words: str, page: str, _: object) -> str:
    """`words` is the root's ``module:Class``."""
    module, _, name = words.partition(":")
    root: type[BaseModel] = getattr(import_module(module), name)
    language, text = _FILE.search(page).groups()  # type: ignore[union-attr]  # the page has one
    examples: dict[tuple[type[BaseModel], str], Any] = {}
    _collect(root, yaml.safe_load(text) if language == "yaml" else tomllib.loads(text), examples)
    below = _below(root, "", {root})
    headings = {section: key for key, _, section in below}
    tables = [_table(root, examples, language, headings)]
    for key, place, section in below:
        intro = f"`{place}`. {' '.join((section.__doc__ or '').split()).replace('``', '`')}"
        tables.append(f"## `{key}`\n\n{intro}\n\n{_table(section, examples, language, headings)}")
    return "\n".join(tables)


def sections(annotation: object) -> list[type[BaseModel]]:
    """The sections that an annotation names."""
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        return [annotation]
    return [section for inner in get_args(annotation) for section in sections(inner)]


def _below(
    model: type[BaseModel], place: str, seen: set[type[BaseModel]]
) -> list[tuple[str, str, type[BaseModel]]]:
    found = []
    for key, field in model.model_fields.items():
        for section in sections(field.annotation):
            if section not in seen:
                seen.add(section)
                shape = str(field.annotation)
                inside = f"{place}{key}{'[]' if 'tuple' in shape else '.NAME' if 'dict' in shape else ''}"
                found += [(key, inside, section), *_below(section, f"{inside}.", seen)]
    return found


def _collect(model: type[BaseModel], data: Any, into: dict[tuple[type[BaseModel], str], Any]) -> None:
    for key, field in model.model_fields.items():
        if not isinstance(data, dict) or key not in data:  # a text or number may stand for a section
            continue
        into.setdefault((model, key), data[key])
        for section in sections(field.annotation):
            inner = data[key]
            is_mapping = "dict" in str(field.annotation)
            for item in inner if isinstance(inner, list) else inner.values() if is_mapping else [inner]:
                _collect(section, item or {}, into)


def _table(
    model: type[BaseModel],
    examples: dict[tuple[type[BaseModel], str], Any],
    language: str,
    headings: dict[type[BaseModel], str],
) -> str:
    """`headings`: of each section, the key under which its table stands."""
    schema = model.model_json_schema()
    rows = ["| key | type | default | means | example |", "|---|---|---|---|---|"]
    for key, field in model.model_fields.items():
        kind = _kind(key, field, schema["properties"][key])
        for section in sections(field.annotation):
            kind = kind.replace(f"(#{key})", f"(#{headings.get(section, key)})")
        example = "" if sections(field.annotation) else _example(field, examples.get((model, key)))
        cells = [f"`{key}`", kind, _default(field, kind), field.description or "", example]
        if language == "toml":  # which has no null
            cells = [
                cell.replace(" or null", "").replace("`null`", "none").replace("; null:", "; without it")
                for cell in cells
            ]
        rows.append(f"| {' | '.join(cell.replace('|', '&#124;') for cell in cells)} |")
    return "\n".join(rows) + "\n"


def _example(field: FieldInfo, found: Any) -> str:
    value = found if found is not None else next(iter(field.examples or ()), None)
    return "" if value is None else f"`{_yaml(value)}`"


def _default(field: FieldInfo, kind: str) -> str:
    value = field.default
    if field.is_required():
        return "" if "Default:" in (field.description or "") else "required"
    if isinstance(value, BaseModel):
        return ""
    if value is not None and kind.startswith("duration"):
        return f"`{durations.text(value).replace(' 0s', '').replace('.0s', 's')}`"
    if value is not None and kind.startswith("size"):
        return f"`{sizes.text(value).replace(' ', '').replace('.00', '')}`"
    return f"`{_yaml(list(value) if isinstance(value, tuple) else value)}`"


def _yaml(value: Any) -> str:
    text = yaml.safe_dump(value, default_flow_style=True, width=1000, sort_keys=False)
    return text.strip().removesuffix("...").strip()


def _kind(key: str, field: FieldInfo, schema: dict[str, Any]) -> str:
    parts = get_args(field.annotation)
    rules = [*field.metadata, *(rule for part in parts for rule in getattr(part, "__metadata__", ()))]
    if any(getattr(rule, "func", None) is sizes.in_bytes for rule in rules):
        return "size, bytes or null" if type(None) in parts else "size, bytes"
    return _words(schema, key)


def _words(schema: dict[str, Any], key: str) -> str:  # noqa: PLR0911  # one for each shape
    match schema:
        case {"anyOf": options} | {"oneOf": options}:
            units = [_UNITS[option["pattern"]] for option in options if option.get("pattern") in _UNITS]
            rest = [option for option in options if not units or option == {"type": "null"}]
            return " or ".join([*units, *(_words(option, key) for option in rest)])
        case {"const": value}:
            return f"`{value}`"
        case {"patternProperties": dict() as named} if all("enum" in inner for inner in named.values()):
            return f"mapping of names to {_words(next(iter(named.values())), key)}"
        case {"patternProperties": dict() as named} if not any("$ref" in inner for inner in named.values()):
            return f"mapping of names to {_plural(_words(next(iter(named.values())), key))}"
        case {"enum": values}:
            return " or ".join(f"`{value}`" for value in values)
        case {"items": inner}:
            return f"list of {_plural(_words(inner, key))}"
        case {"patternProperties": _}:
            return f"mapping of names to [sections](#{key})"
        case {"additionalProperties": dict() as inner}:
            return f"mapping of names to {_plural(_words(inner, key))}"
        case {"type": "integer" | "number" as kind}:
            return f"{_TYPES[kind]}{_range(schema)}"
    return _TYPES[schema.get("format", schema.get("type", ""))].format(key=key)


def _plural(words: str) -> str:
    return re.sub(r"(section|text|mapping|number|list)\b", r"\g<0>s", words)


def _range(schema: dict[str, Any]) -> str:
    least, most = schema.get("minimum"), schema.get("maximum", schema.get("exclusiveMaximum", _UNBOUNDED))
    below = " (excluded)" if "exclusiveMaximum" in schema else ""
    if "exclusiveMinimum" in schema:
        return f" above {schema['exclusiveMinimum']:g}"
    if least is None:
        return ""
    return f" from {least:,g} up" if most >= _UNBOUNDED else f" from {least:,.0f} to {most:,.0f}{below}"
