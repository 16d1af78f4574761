"""Loads a run file, from YAML on disk or plain data, as a valid `Run`; or raises one error that lists every fault.

Rules:
1. All faults in one `RunFileError`, those of a file with their lines.
2. A `Run` that `load` or `parse` returned is valid in itself. `governor.run_file.entry_check.faults` checks in another
   process whether its entries can be imported: no user code runs here.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec

from governor.errors import RunFileError, UsageError
from governor.messages import Fault
from governor.run_file import cells, check, phase_inheritance, yaml_lines
from governor.run_file.model import Run
from governor.units.fields import without_numpy
from governor.units.sections import spell

if TYPE_CHECKING:
    from collections.abc import Iterable

    from governor.run_file.cells import Cell
    from governor.run_file.options import Options
    from governor.run_file.yaml_lines import Document
    from governor.units.sections import Path as Place

__all__ = ["Examined", "Run", "digest", "examine", "load", "parse", "schema"]

_MAX_BYTES = 8_000_000


@dataclass(frozen=True, slots=True, kw_only=True)
class Examined:
    """A file with its faults, sorted by line; `folder` is the import folder of its entries. `valid` is its run, where
    shape and references have no fault; `cells` are the runs of its matrix. `options` have changed its data.
    """

    source: str
    document: Document
    folder: Path
    valid: Run | None = None
    faults: tuple[Fault, ...] = ()
    cells: tuple[Cell, ...] = ()
    options: Options | None = None

    @property
    def is_single(self) -> bool:
        """Whether options have changed the values of one run, rather than made several."""
        return len(self.cells) == 1 and self.options is not None and self.options.is_single

    def with_faults(self, more: Iterable[tuple[Place, str]]) -> Examined:
        """A copy with further faults."""
        added = [self._fault(place, message) for place, message in more]
        return replace(self, faults=tuple(sorted([*self.faults, *added], key=lambda fault: fault.line or 0)))

    def _fault(self, place: Place, message: str) -> Fault:
        option = self.options.option_of(place) if self.options is not None else ""
        if option:
            return Fault(path=option, message=message)
        return Fault(path=spell(place), message=message, line=self.document.line(place) or 1)

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


def examine(path: str | Path, options: Options | None = None) -> Examined:
    """As `load`, for callers that add faults of their own. `options` change its data. Raises RunFileError when there is no text to
    examine.
    """
    file = Path(path)
    document = yaml_lines.read(_text(file))
    if options is not None:
        document.data = options.applied(document.data)
    found = Examined(
        source=str(path),
        document=document,
        folder=file.resolve().parent,
        options=options,
        faults=tuple(
            Fault(path=spell(place), message=message, line=line) for place, line, message in document.faults
        ),
    )
    if document.data is None and document.faults:
        return found
    valid, made, faults = _with_cells(document.data)
    return replace(found, valid=valid, cells=tuple(made)).with_faults(faults)


def _with_cells(data: Any) -> tuple[Run | None, list[Cell], list[tuple[Place, str]]]:
    """The run, those of its matrix, and the faults of all."""
    valid, faults = check.examine(data)
    matrix = cells.matrix_of(data)
    if matrix is None:
        return valid, [], faults
    made, more = cells.expand(data, matrix)
    if valid is not None:
        made, found = cells.examined(made)
        more += found
    return valid, made, faults + more


def parse_group(data: dict[str, Any], source: str = "run file") -> tuple[Run, list[Cell]]:
    """As `parse`, with the runs of its matrix. Raises RunFileError."""
    run, made, found = _with_cells(without_numpy(data))
    if run is None or found:
        raise RunFileError(source, [Fault(path=spell(path), message=message) for path, message in found])
    return run, made


def parse(data: object, source: str = "run") -> Run:
    """The run of plain data, as `Run.raw` or a YAML parser gives it. `source` names it in errors.

    Raises:
        RunFileError: with all faults, each with its path.
    """
    run, found = check.examine(without_numpy(data))
    if run is None:
        raise RunFileError(source, [Fault(path=spell(path), message=message) for path, message in found])
    return run


def _folder(given: str | Path | None) -> str:
    """Its path. Raises UsageError."""
    folder = Path(given or ".").resolve()
    if not folder.is_dir():
        raise UsageError(f"{folder} is no folder, and can't be the one that the run's code is in")
    return str(folder)


def _mapping(run: object) -> dict[str, Any]:
    if not isinstance(run, Mapping):
        raise UsageError(f"a run is a file, a governor.Run or a mapping, not {type(run).__name__}")
    return dict(run)


def in_plain(
    run: Run | Examined | Mapping[str, Any] | str | Path, folder: str | Path | None
) -> tuple[dict[str, Any], str, str]:
    """The run as plain data, its import folder, and its name in errors. Raises RunFileError, UsageError for a run with a matrix."""
    here = _folder(folder)
    if isinstance(run, str | Path):
        run = examine(run)
    source = run.source if isinstance(run, Examined) else run.name if isinstance(run, Run) else "run"
    if isinstance(run, Examined):
        here = here if folder else str(run.folder)
        run = run.run()
    elif not isinstance(run, Run):
        run = parse(_mapping(run))
    if run.matrix is not None:
        raise UsageError(
            f"{source} has a matrix, it is a group of runs: `governor submit`, or Executor.submit_group, hands it to a daemon"
        )
    return run.raw(), here, source


def group_in_plain(
    run: Run | Examined | Mapping[str, Any] | str | Path, folder: str | Path | None, **changes: Any
) -> tuple[dict[str, Any], str, str]:
    """As `in_plain`, with its matrix: phases that inherit still do, since their values may change. `changes`: keys of the run file that
    replace its own; of a mapping those that it has. Raises RunFileError.
    """
    here = _folder(folder)
    data: dict[str, Any]
    if isinstance(run, str | Path):
        run = examine(run)
    if isinstance(run, Examined):
        run.run()
        data, here, source = run.document.data, here if folder else str(run.folder), run.source
    elif isinstance(run, Run):
        data, source = run.raw(), run.name
    else:
        data, source = without_numpy(_mapping(run)), "run"
    changed = {key: value for key, value in changes.items() if value}
    for key, value in changed.items():
        data = {**data, key: {**(data.get(key) or {}), **value} if isinstance(value, dict) else value}
    if changed or not isinstance(run, Examined):
        parse_group(data, source)
    return data, here, source


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
