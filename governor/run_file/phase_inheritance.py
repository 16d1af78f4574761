"""Phase inheritance: with ``inherits: NAME`` a phase takes its missing keys from an earlier phase.

Rules:
1. It is resolved in the plain data, before validation: no other module knows of it, and a run in a message has none.
2. Mappings are merged key by key; lists and single values are replaced. Null removes a key, as if it were not there.
3. A phase inherits from an earlier one, which may have inherited itself. The name is never inherited.
4. A fault of an inherited value is reported once, at its origin in the file.
"""

from __future__ import annotations

import copy
from typing import TYPE_CHECKING, Any, Final

from pydantic import BaseModel

from governor.units.sections import suggestion

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from governor.units.sections import Path

KEY: Final = "inherits"
_NULL_IS_A_VALUE: Final = frozenset({"max_repeat_per_runner"})
"""Null is a value of these keys (all of them), and does not remove them."""

_SHORT: Final = {"failures": "on_failure", "on_failure": "failures"}
"""Who says one of them does not inherit the other."""


class PhaseInheritance:
    """Resolves the phases of a run: `data` is the result, `faults` those of the key `inherits` itself."""

    def __init__(self, data: Any) -> None:
        self.data = data
        self.faults: list[tuple[Path, str]] = []
        self._origins: dict[int, int] = {}
        self._own: list[Any] = []
        phases = data.get("phases") if isinstance(data, dict) else None
        if not isinstance(phases, list | tuple):
            return
        self._own = [_as_data(phase) for phase in phases]
        if any(isinstance(phase, dict) and phase.get(KEY) is not None for phase in self._own):
            self.data = {**data, "phases": self._resolve(list(phases))}

    def without_inherited(self, found: Sequence[tuple[Path, str]]) -> list[tuple[Path, str]]:
        """Without the faults of inherited values."""
        known = set(found)
        return [(path, said) for path, said in found if (self._of_origin(path), said) not in known]

    def _of_origin(self, path: Path) -> Path | None:
        if len(path) < 3 or path[0] != "phases" or path[1] not in self._origins:
            return None
        index = int(path[1])
        own = self._own[index]
        for step in path[2:]:
            if not isinstance(own, dict) or step not in own:
                return ("phases", self._origins[index], *path[2:])
            own = own[step]
        return None

    def _resolve(self, phases: list[Any]) -> list[Any]:
        for index, own in enumerate(self._own):
            if not isinstance(own, dict) or own.get(KEY) is None:
                continue
            base = self._base(index, own[KEY], phases)
            said = {key: value for key, value in own.items() if key != KEY}
            phases[index] = said
            if base is not None:
                self._origins[index] = base
                left_out = {"name", *(_SHORT[key] for key in _SHORT if said.get(key) is not None)}
                inherited = {
                    key: value for key, value in _as_data(phases[base]).items() if key not in left_out
                }
                phases[index] = _merged(said, inherited)
        return phases

    def _base(self, index: int, name: object, phases: list[Any]) -> int | None:
        """The index of the phase with this name; for an unknown name the previous phase, so that one slip is one fault."""
        names = [phase.get("name") if isinstance(phase, dict) else None for phase in self._own]
        if isinstance(name, str) and name in names[:index]:
            return names.index(name)
        self.faults.append((("phases", index, KEY), _what_is_wrong(name, names, index)))
        return index - 1 if index and isinstance(_as_data(phases[index - 1]), dict) else None


def schema(document: dict[str, Any]) -> dict[str, Any]:
    """The JSON schema of a run, with derived phases: those need no other key, and may have null."""
    definitions = document["$defs"]
    phase = definitions["Phase"]
    derived = copy.deepcopy(phase)
    derived["required"] = ["name", KEY]
    derived["properties"][KEY] = {"type": "string", "description": "The name of an earlier phase."}
    for name in ("Simulate", "Evaluate"):
        part = definitions[f"{name}OfDerived"] = copy.deepcopy(definitions[name])
        part.pop("required", None)
        part["properties"] = {key: _or_null(value) for key, value in part["properties"].items()}
    own = {"name", KEY}
    derived["properties"] = {
        key: value if key in own else _or_null(_renamed(value))
        for key, value in derived["properties"].items()
    }
    definitions["DerivedPhase"] = derived
    phase["properties"].pop(KEY)
    document["properties"]["phases"]["items"] = {
        "anyOf": [{"$ref": "#/$defs/Phase"}, {"$ref": "#/$defs/DerivedPhase"}]
    }
    return document


def _renamed(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _renamed(item) for key, item in value.items()}
    if isinstance(value, list):
        return [_renamed(item) for item in value]
    return f"{value}OfDerived" if value in {"#/$defs/Simulate", "#/$defs/Evaluate"} else value


def _or_null(value: dict[str, Any]) -> dict[str, Any]:
    return {"anyOf": [value, {"type": "null"}]}


def _merged(own: Mapping[str, Any], base: Mapping[str, Any]) -> dict[str, Any]:
    made = dict(base)
    for key, said in own.items():
        value, inherited = _as_data(said), _as_data(base.get(key))
        if value is None and key not in _NULL_IS_A_VALUE:
            made.pop(key, None)
        elif isinstance(value, dict) and isinstance(inherited, dict):
            made[key] = _merged(value, inherited)
        else:
            made[key] = value
    return made


def _as_data(value: Any) -> Any:
    """A section that was built in Python as plain data, without defaults."""
    return value.model_dump(exclude_unset=True) if isinstance(value, BaseModel) else value


def _what_is_wrong(name: object, names: list[Any], index: int) -> str:
    earlier = [known for known in names[:index] if isinstance(known, str)]
    if not isinstance(name, str):
        return "must be the name of an earlier phase"
    if name in names:
        return f"phase {name!r} does not come before this one: a phase inherits from an earlier one"
    listed = ", ".join(map(repr, earlier))
    there = f"before this one there is {listed}" if listed else "no phase is before this one"
    return f"unknown phase {name!r}{suggestion(name, earlier) or f'; {there}'}"
