"""Loads a run file, from YAML on disk or plain data, as a valid `Run`; or raises one error that lists every fault.

Rules:
1. All faults in one `RunFileError`, those of a file with their lines.
2. A `Run` that `load` or `parse` returned is valid in itself. `governor.run_file.entry_check.faults` checks in another
   process whether its entries can be imported: no user code runs here.
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec

from governor.errors import RunFileError
from governor.messages import Fault
from governor.run_file import check, phase_inheritance, yaml_lines
from governor.run_file.model import Run
from governor.units.fields import without_numpy
from governor.units.sections import spell

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from governor.run_file.yaml_lines import Document
    from governor.units.sections import Path as Place

__all__ = ["Examined", "Run", "digest", "examine", "load", "parse", "schema"]

_MAX_BYTES = 8_000_000


@dataclass(frozen=True, slots=True, kw_only=True)
class Examined:
    """A file with its faults, sorted by line; `folder` is the import folder of its entries. `valid` is its run, where
    shape and references have no fault.
    """

    source: str
    document: Document
    folder: Path
    valid: Run | None = None
    faults: tuple[Fault, ...] = ()

    def with_faults(self, more: Iterable[tuple[Place, str]]) -> Examined:
        """A copy with further faults."""
        added = [
            Fault(path=spell(place), message=message, line=self.document.line(place) or 1)
            for place, message in more
        ]
        return replace(self, faults=tuple(sorted([*self.faults, *added], key=lambda fault: fault.line or 0)))

    def run(self) -> Run:
        """Raises RunFileError with all faults when there are any."""
        if self.valid is None or self.faults:
            raise RunFileError(self.source, self.faults)
        return self.valid


def load(path: str | Path) -> tuple[Run, Path]:
    """The run of a file, and the folder that its entries are imported from.

    Raises:
        RunFileError: with all faults, each with path and line; also for a file that is missing or can't be read.
    """
    examined = examine(path)
    return examined.run(), examined.folder


def examine(path: str | Path) -> Examined:
    """As `load`, for callers that add faults of their own. Raises RunFileError when there is no text to examine."""
    file = Path(path)
    document = yaml_lines.read(_text(file))
    found = Examined(
        source=str(path),
        document=document,
        folder=file.resolve().parent,
        faults=tuple(
            Fault(path=spell(place), message=message, line=line) for place, line, message in document.faults
        ),
    )
    if document.data is None and document.faults:
        return found
    valid, faults = check.examine(document.data)
    return replace(found, valid=valid).with_faults(faults)


def parse(data: object, source: str = "run") -> Run:
    """The run of plain data, as `Run.raw` or a YAML parser gives it. `source` names it in errors.

    Raises:
        RunFileError: with all faults, each with its path.
    """
    run, found = check.examine(without_numpy(data))
    if run is None:
        raise RunFileError(source, [Fault(path=spell(path), message=message) for path, message in found])
    return run


def in_plain(
    run: Run | Examined | Mapping[str, Any] | str | Path, folder: str | Path | None
) -> tuple[dict[str, Any], str, str]:
    """The run as plain data, its import folder, and its name in errors. Raises RunFileError."""
    here = str(Path(folder or ".").resolve())
    if isinstance(run, str | Path):
        run = examine(run)
    if isinstance(run, Examined):
        return run.run().raw(), here if folder else str(run.folder), run.source
    if isinstance(run, Run):
        return run.raw(), here, run.name
    return parse(dict(run)).raw(), here, "run"


def schema() -> dict[str, Any]:
    """The JSON schema of a run file, for editors."""
    made = phase_inheritance.schema(Run.model_json_schema())
    return {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        **made,
        "patternProperties": {"^x-": {}},
    }


def _text(file: Path) -> str:
    try:
        with file.open("rb") as stream:
            content = stream.read(_MAX_BYTES + 1)
        if len(content) > _MAX_BYTES:
            text = f"is larger than {_MAX_BYTES // 10**6} MB: use 'repeat' for tasks that are alike, or hand the run in from Python"
            raise RunFileError(str(file), [Fault(path="", message=text)])
        return content.decode()
    except UnicodeDecodeError as error:
        line = error.object.count(b"\n", 0, error.start) + 1
        raise RunFileError(str(file), [Fault(path="", message="is not UTF-8 text", line=line)]) from None
    except OSError as error:
        reason = error.strerror or str(error)
        raise RunFileError(str(file), [Fault(path="", message=f"can't be read: {reason}")]) from None


def digest(run: Run) -> bytes:
    """A digest of the run file. Keys with their default values do not change it, so that keys can be added."""
    plain = run.model_dump(mode="json", exclude_defaults=True)
    return hashlib.blake2b(msgspec.json.encode(plain, order="deterministic"), digest_size=16).digest()
