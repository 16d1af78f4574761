"""What options of the command line change in a run file: `--set`, `--zip`, `--name`, `--label`. Pure.

Rule: the values of an option are read as YAML reads them in the file, so ``0.1`` is a number and ``'0.1'`` a text.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from governor.errors import UsageError
from governor.run_file import yaml_lines
from governor.run_file.matrix import RANGE, values_of_range
from governor.run_file.plain_data import mapping

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from governor.units.sections import Path


@dataclass(frozen=True, slots=True, kw_only=True)
class Options:
    """`sets` are axes of the matrix that multiply, those of `zips` advance together; each as ``--set`` has it, by its path."""

    sets: Mapping[str, list[Any]]
    zips: Mapping[str, list[Any]]
    labels: Mapping[str, str]
    name: str | None = None

    @classmethod
    def of(
        cls,
        *,
        sets: Sequence[str] = (),
        zips: Sequence[str] = (),
        labels: Sequence[str] = (),
        name: str | None = None,
    ) -> Options:
        """Of the texts of the command line. Raises UsageError."""
        return cls(
            sets=dict(_axis("--set", text) for text in _once("--set", sets)),
            zips=dict(_axis("--zip", text) for text in _once("--zip", zips)),
            labels=dict(parted("--label", text) for text in labels),
            name=name,
        )

    def applied(self, data: Any) -> Any:
        """The run file with these values: an option replaces the same key of the file's matrix."""
        if not isinstance(data, dict):
            return data
        changed = dict(data)
        if self.name is not None:
            changed["name"] = self.name
        if self.labels:
            changed["labels"] = {**mapping(data.get("labels")), **self.labels}
        if self.sets or self.zips:
            given = data.get("matrix")
            if given is not None and not isinstance(given, dict):
                return changed  # its fault is reported
            kept = {key: values for key, values in mapping(given).items() if key not in self.zips}
            changed["matrix"] = {**kept, **self.sets}
            if self.zips:
                changed["matrix"]["zip"] = [*_as_list(mapping(given).get("zip")), dict(self.zips)]
        return changed

    @property
    def is_single(self) -> bool:
        """Whether no option has several values."""
        return all(len(values) == 1 for values in (*self.sets.values(), *self.zips.values()))

    def option_of(self, place: Path) -> str:
        """The option that has put a value at this place of the run file, else ""."""
        match place:
            case ("name",) if self.name is not None:
                return "--name"
            case ("labels", *rest) if self.labels and (not rest or rest[0] in self.labels):
                return "--label"
            case ("matrix", str() as name, *_) if name in self.sets:
                return f"--set {name}"
            case ("matrix", "zip", _, str() as name, *_) if name in self.zips:
                return f"--zip {name}"
            case ("matrix",) if self.sets or self.zips:
                return "--set" if self.sets else "--zip"
        return ""


def parted(option: str, text: str) -> tuple[str, str]:
    """``key=value``. Raises UsageError."""
    key, equals, value = text.partition("=")
    if not equals or not key.strip():
        raise UsageError(f"{option} {text!r} is not KEY=VALUE")
    return key.strip(), value.strip()


def values_of(texts: Sequence[str]) -> dict[str, Any]:
    """The values of ``KEY=VALUE``, one for each key. Raises UsageError."""
    found = {}
    for text in _once("set", texts):
        path, values = _axis("set", text)
        if len(values) > 1:
            raise UsageError(f"set {path}: one value, not {len(values)}; a list is written as [1, 2]")
        found[path] = values[0]
    return found


def _once(option: str, texts: Sequence[str]) -> Sequence[str]:
    keys = [text.partition("=")[0].strip() for text in texts]
    if twice := next((key for key in keys if keys.count(key) > 1), None):
        raise UsageError(f"{option} {twice} is given twice: write its values in one, as {twice}=1,2")
    return texts


def _axis(option: str, text: str) -> tuple[str, list[Any]]:
    path, values = parted(option, text)
    document = yaml_lines.read(f"[{re.sub(RANGE, _numbers, values)}]")
    if document.faults or not isinstance(document.data, list):
        why = document.faults[0][2] if document.faults else "they are no list"
        raise UsageError(f"{option} {path}: the values {values!r} can't be read: {why}")
    if not document.data:
        raise UsageError(f"{option} {path}: there is no value behind the '='")
    return path, document.data


def _numbers(found: re.Match[str]) -> str:
    try:
        return ", ".join(map(str, values_of_range(found[0]) or ()))
    except ValueError as error:
        raise UsageError(str(error)) from None


def _as_list(zipped: object) -> list[Any]:
    return list(zipped) if isinstance(zipped, list | tuple) else [] if zipped is None else [zipped]
